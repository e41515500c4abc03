"""The forward pass without training: losses and predictions of rows, in evaluation mode."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors
from fedskew.engine.cost import largest_output, measure_cost
from fedskew.tasks.task import Task

# Numbers that one forward pass makes in its largest layer: 16 MB in float32. Above 32 MB, the C library maps and
# clears new memory for every layer of every batch, which takes as long as the convolutions themselves.
_VALUES_PER_BATCH = 4 << 20


def rows_at_once(model: nn.Module, x: Tensor) -> int:
    """Return how many rows are processed together in evaluation mode."""
    return max(1, min(8192, _VALUES_PER_BATCH // largest_output(model, x)))


@torch.no_grad()
def outputs_of(
    model: nn.Module, tensors: Tensors, x: Tensor, rows: Tensor | None = None
) -> Iterator[tuple[Tensor, "slice | Tensor"]]:
    """Yield the model's outputs in evaluation mode for all rows, or those at ``rows``, in chunks, with their rows."""
    total = len(x) if rows is None else len(rows)
    size = rows_at_once(model, x)
    channels_last = x.device.type == "cpu" and x.dim() == 4 and measure_cost(model, x, 1).channels_last()
    training = model.training
    model.eval()
    try:
        for first in range(0, total, size):
            chosen = slice(first, first + size) if rows is None else rows[first : first + size]
            inputs = x[chosen]
            if rows is None:  # a slice is a view: a model may write to its input, and must not write to the data
                inputs = inputs.clone()
            if channels_last:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            yield functional_call(model, tensors, (inputs,)), chosen
    finally:
        model.train(training)


@torch.no_grad()
def row_losses(
    model: nn.Module, tensors: Tensors, x: Tensor, y: Tensor, task: Task, rows: Tensor | None = None
) -> Floats:
    """Return the loss of every row, or of those at ``rows``, in evaluation mode."""
    found = [task.losses(outputs, y[chosen], "none") for outputs, chosen in outputs_of(model, tensors, x, rows)]
    return torch.cat(found).double().cpu().numpy()
