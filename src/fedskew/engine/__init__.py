"""The only place that loops."""
