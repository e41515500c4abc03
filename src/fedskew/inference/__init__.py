"""Models in use: predictions for new rows, and models exported to files."""
