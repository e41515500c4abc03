"""How fair, how good."""
