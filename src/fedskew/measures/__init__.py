"""How unlike clients are; how fair and how good the result is."""
