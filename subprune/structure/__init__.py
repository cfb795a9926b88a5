"""Finding what can be pruned: see `labels` for the idea, `analysis` for the result."""
