"""The base of the package: errors, random streams, registries with options, trees of tensors, files."""
