"""What everything else stands on: errors, random streams, registries with options, trees of tensors, files."""
