"""Rounds of other simulators on the same workloads, each in its own environment; see ``__main__``."""
