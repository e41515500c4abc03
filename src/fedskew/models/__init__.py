"""Small neural networks by name."""
