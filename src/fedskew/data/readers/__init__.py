"""Readers of file formats and of arrays."""
