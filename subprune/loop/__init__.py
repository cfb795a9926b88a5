"""The way through the network, group after group."""
