"""Partition one data set into heterogeneous clients, one family of partitions a file."""
