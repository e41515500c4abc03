"""Tasks: what a model learns. A task defines the loss, the kind of target, the outputs, predictions and metrics."""
