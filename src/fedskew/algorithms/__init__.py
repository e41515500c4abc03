"""The contract of a method, and the methods, one paper a file."""
