"""The two cross-entropies: the only file that names them."""

import torch.nn.functional as F
from torch import Tensor

from fedskew.tasks.task import Reduction


def class_losses(
    outputs: Tensor, targets: Tensor, reduction: Reduction, smoothing: float = 0.0, weights: Tensor | None = None
) -> Tensor:
    """Return the cross-entropy of one class of several, with one output a class."""
    return F.cross_entropy(outputs, targets, weights, reduction=reduction, label_smoothing=smoothing)


def label_losses(outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
    """Return the binary cross-entropy of labels, with one logit for each label."""
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction=reduction)
