"""What a pruning did: figures, as a table, as JSON, and as one HTML page."""
