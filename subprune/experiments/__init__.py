"""The paper's experiments: data sets, networks and training. Nothing in the library itself needs them."""
