"""Partitions of one data set into heterogeneous clients, one family per file."""
