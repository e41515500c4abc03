"""The forward pass without training: losses and predictions of rows, in evaluation mode."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors
from fedskew.engine.cost import largest_output, measure_cost

# Numbers that one forward pass makes in its largest layer: 16 MB in float32. Above 32 MB, the C library maps and clears fresh
# memory for every layer of every batch, which takes as long as the convolutions themselves.
_VALUES_PER_BATCH = 4 << 20


def rows_at_once(model: nn.Module, x: Tensor) -> int:
    """How many rows go through the model together where nothing is trained."""
    return max(1, min(8192, _VALUES_PER_BATCH // largest_output(model, x)))


@torch.no_grad()
def row_scores(model: nn.Module, tensors: Tensors, x: Tensor, y: Tensor, rows: Tensor | None = None) -> tuple[Floats, Floats]:
    """Loss and 1.0 for right, 0.0 for wrong, of every row (all of them, or those at ``rows``), in evaluation mode."""
    total = len(y) if rows is None else len(rows)
    size = rows_at_once(model, x)
    channels_last = x.device.type == "cpu" and x.dim() == 4 and measure_cost(model, x, 1).channels_last()
    losses, right = [], []
    training = model.training
    model.eval()
    try:
        for first in range(0, total, size):
            chosen = slice(first, first + size) if rows is None else rows[first : first + size]
            inputs, labels = x[chosen], y[chosen]
            if rows is None:  # a slice is a view: a model may write to its input, and must not write to the data
                inputs = inputs.clone()
            if channels_last:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            logits = functional_call(model, tensors, (inputs,))
            losses.append(F.cross_entropy(logits, labels, reduction="none"))
            right.append(logits.argmax(1) == labels)
    finally:
        model.train(training)
    return torch.cat(losses).double().cpu().numpy(), torch.cat(right).double().cpu().numpy()
