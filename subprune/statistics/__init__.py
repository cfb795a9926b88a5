"""Rows of activations as G, C and t, and the runs that they are gathered from."""
