"""How heterogeneous clients are, how fair a result is, and the search for a level of heterogeneity."""
