"""Training of the smaller model to answer as the dense one does: no labels, a few minutes."""
