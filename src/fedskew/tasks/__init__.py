"""Tasks: what a model learns. A task is the loss, the kind of target, the outputs, the prediction and the metrics."""
