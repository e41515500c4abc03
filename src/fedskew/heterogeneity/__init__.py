"""Heterogeneity of clients, fairness of results, and the search for a level of heterogeneity."""
