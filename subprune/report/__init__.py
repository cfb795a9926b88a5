"""What a pruning did: figures, as a table, as JSON, and as one HTML page."""

from subprune.report.figures import GuaranteeLine, LayerWidth, Report

__all__ = ["GuaranteeLine", "LayerWidth", "Report"]
