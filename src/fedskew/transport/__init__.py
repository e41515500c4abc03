"""Messages between processes and nodes: one codec and its limits."""
