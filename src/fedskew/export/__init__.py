"""Files for real nodes: each client's rows, and the figure of a partition."""
