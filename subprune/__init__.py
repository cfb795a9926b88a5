"""One-shot structured pruning by submodular optimisation."""
