"""A run on disk: tables, checkpoint, picture."""
