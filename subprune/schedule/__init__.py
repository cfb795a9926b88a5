"""Pruning in rounds, with training between them."""
