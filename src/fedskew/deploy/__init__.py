"""The same methods on real machines: what a node does with its own rows, and a server that has none."""
