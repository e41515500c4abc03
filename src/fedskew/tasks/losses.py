"""The two cross-entropies: the only file that names them."""

import torch.nn.functional as F
from torch import Tensor

from fedskew.tasks.task import Reduction


def class_losses(
    outputs: Tensor, targets: Tensor, reduction: Reduction, smoothing: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Return the cross-entropy of one class of several, with one output a class: ``[rows, classes]``.

    With axes in front of these, classes come before rows, as ``torch.nn`` has it: ``[clients, classes, rows]``.
    """
    return F.cross_entropy(outputs, targets, weights, reduction=reduction, label_smoothing=smoothing)


def class_slopes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of every row's cross-entropy: probabilities less 1 at the target.

    >>> import torch
    >>> class_slopes(torch.zeros(1, 4), torch.tensor([2]))
    tensor([[ 0.2500,  0.2500, -0.7500,  0.2500]])
    """
    slopes = outputs.mT.softmax(-2).mT  # on a CPU many times faster than over a short last axis
    return slopes.scatter_add_(-1, targets.unsqueeze(-1), slopes.new_full((), -1.0).expand(*targets.shape, 1))


def label_losses(outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
    """Return the binary cross-entropy of labels, with one logit for each label."""
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction=reduction)
