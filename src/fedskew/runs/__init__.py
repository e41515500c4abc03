"""One run on disk: its execution, its folder, its checkpoints, its summary."""
