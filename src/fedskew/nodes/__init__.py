"""Split folders for real nodes: each client's rows as files."""
