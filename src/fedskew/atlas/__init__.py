"""The atlas: which method helps under which heterogeneity, as a protocol, its runs, and the map that follows."""
