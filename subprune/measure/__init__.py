"""Figures of models: what outputs answer, how far two models agree, sizes, times."""
