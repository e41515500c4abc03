"""The task of binary classification with a single output."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.registry import PartialShare, Positive
from fedskew.core.streams import Floats, Ints
from fedskew.data.targets import Targets
from fedskew.tasks.losses import label_losses
from fedskew.tasks.scores import CLASS_METRICS, CLASS_RANGES, class_measures, confusion
from fedskew.tasks.task import (
    BALANCED,
    BuiltIn,
    ClassWeights,
    Reduction,
    balanced_weights,
    numbers,
    reduced,
    tasks,
)


@tasks.register("binary")
@dataclass(frozen=True)
class Binary(BuiltIn):
    """Predict class 0 or 1 from a single output, the logit of class 1, with binary cross-entropy as the loss.

    It equals classification with the outputs (0, logit), and has the same options and the same metrics. The mean over a
    batch is the plain mean of the row losses.

    Args:
        label_smoothing: part of the target that is spread evenly over both classes
        class_weights: what the losses of class 0 and of class 1 are multiplied with (1+5); balanced as in
            classification; none for no weights

    >>> import torch
    >>> Binary().losses(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1]), "none")
    tensor([0.6931, 0.1269])
    >>> Binary().width(3)
    Traceback (most recent call last):
        ...
    fedskew.core.errors.FedskewError: task binary learns 2 classes, and these data have 3: use task=classification
    """

    label_smoothing: Annotated[float, PartialShare] = 0.0
    class_weights: Annotated[ClassWeights | None, Positive] = None

    target = "class"
    outputs = 1
    row_metric = "accuracy"
    names = CLASS_METRICS
    ranges = CLASS_RANGES
    low_is_good = frozenset({"ece"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_weights(self.class_weights, 2)

    def width(self, classes: int) -> int:
        """Return 1, the number of outputs for data with two classes."""
        if classes not in (0, 2):
            raise FedskewError(
                f"task binary learns 2 classes, and these data have {classes}: use task=classification"
            )
        return super().width(classes)

    def fitted(self, counts: Ints) -> "Binary":
        """Return the task with its class weights as numbers."""
        if self.class_weights == BALANCED:
            return replace(self, class_weights=balanced_weights(counts))
        return self

    def row_scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether each row's logit has the sign of its class; a logit of 0 predicts class 0."""
        return (self._fitted(outputs, targets) > 0) == (targets > 0)

    def confusion(self, outputs: NDArray[Any], targets: Targets, classes: int = 2) -> Ints:
        """Return how many rows of each class (down) were predicted as each class (across)."""
        return confusion(targets, (outputs.reshape(len(outputs)) > 0).astype(np.int64), classes)

    def _check_targets(self, outputs: Tensor, targets: Tensor, where: str) -> None:
        super()._check_targets(outputs, targets, where)
        other = targets[(targets != 0) & (targets != 1)]
        if len(other):
            raise FedskewError(
                f"{where} takes the classes 0 and 1 as targets, got {int(other[0])}: use task=classification"
            )

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
        logits = self._fitted(outputs, targets)
        share = targets.to(logits.dtype)
        if self.label_smoothing:
            share = share * (1 - self.label_smoothing) + self.label_smoothing / 2
        if self.class_weights is None:
            return label_losses(logits, share, reduction)
        zero, one = numbers(self.class_weights)
        return reduced(
            -(one * share * F.logsigmoid(logits) + zero * (1 - share) * F.logsigmoid(-logits)),
            reduction,
        )

    def _measures(self, outputs: Floats, targets: Targets) -> Mapping[str, Callable[[], float]]:
        logits = outputs.reshape(len(outputs))
        return class_measures(np.stack([np.zeros_like(logits), logits], 1), targets)
