"""The two cross-entropies: the only file that names them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.kernels import available
from fedskew.tasks.task import Reduction


def class_losses(
    outputs: Tensor,
    targets: Tensor,
    reduction: Reduction,
    smoothing: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the cross-entropy of one class of several, with one output per class: ``[rows, classes]``.

    With axes in front of these, classes come before rows, as ``torch.nn`` has it: ``[clients, classes, rows]``.
    """
    return F.cross_entropy(
        outputs, targets, weights, reduction=reduction, label_smoothing=smoothing
    )


def class_slopes(outputs: Tensor, targets: Tensor, share: float | Tensor = 1.0) -> Tensor:
    """Return the gradient of every row's cross-entropy, probabilities less 1 at the target, times the row's share.

    >>> class_slopes(torch.zeros(1, 4), torch.tensor([2]))
    tensor([[ 0.2500,  0.2500, -0.7500,  0.2500]])
    """
    if outputs.is_cuda and outputs.dim() == 3 and outputs.dtype == torch.float32 and available():
        from fedskew.kernels import loss_kernels

        if outputs.shape[-1] <= loss_kernels.MOST_CLASSES:
            return loss_kernels.class_slopes(outputs, targets, share)
    slopes = outputs.mT.softmax(-2).mT  # on a CPU many times faster than over a short last axis
    slopes.scatter_add_(
        -1, targets.unsqueeze(-1), slopes.new_full((), -1.0).expand(*targets.shape, 1)
    )
    return slopes.mul_(share.unsqueeze(-1) if isinstance(share, Tensor) else share)


def label_losses(outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
    """Return the binary cross-entropy of labels, with one logit for each label."""
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction=reduction)


def token_losses(outputs: Tensor, targets: Tensor, padding: int) -> Tensor:
    """Return the cross-entropy of the token at each place, 0 at places with the padding: ``[..., tokens]``."""
    each = F.cross_entropy(
        outputs.flatten(0, -2), targets.flatten(), ignore_index=padding, reduction="none"
    )
    return each.view(targets.shape)
