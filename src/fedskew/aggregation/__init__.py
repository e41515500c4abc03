"""Aggregation of the updates of a round: the weighted mean, and rules that are robust to a few bad clients."""
