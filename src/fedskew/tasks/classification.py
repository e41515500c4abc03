"""The task of classification with cross-entropy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.registry import PartialShare, Positive
from fedskew.core.streams import Floats, Ints
from fedskew.data.targets import Targets
from fedskew.tasks.losses import class_losses, class_slopes
from fedskew.tasks.scores import CLASS_METRICS, CLASS_RANGES, class_measures, confusion
from fedskew.tasks.task import (
    BALANCED,
    BuiltIn,
    ClassWeights,
    Reduction,
    balanced_weights,
    constants,
    numbers,
    reduced,
    tasks,
)


@tasks.register("classification")
@dataclass(frozen=True)
class Classification(BuiltIn):
    """Predict one class of several, with cross-entropy as the loss and one output per class.

    The mean over a batch is the plain mean of the row losses, also with class weights. torch divides by the sum of the
    weights of the batch instead: a row would then count more or less depending on the other labels in its batch, losses
    of clients with different labels could not be compared, and the losses of clients, weighted by their rows, would no
    longer add up to the loss over all rows.

    Metrics: accuracy; balanced_accuracy (mean over the classes that occur); macro_f1 (mean over the classes that occur
    or are predicted); auc and average_precision (one class against the rest, by its probability; mean over the classes
    that occur; of two classes, that of class 1); ece (expected calibration error, 15 bins).

    Args:
        label_smoothing: part of the target that is spread evenly over all classes
        class_weights: what the loss of each class is multiplied with, one number per class (1+2+0.5); balanced for
            rows / (classes * rows of the class), counted over the training rows of all clients; none for no weights

    >>> import torch
    >>> Classification().losses(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]), "none")
    tensor([0.1269, 0.6931])
    >>> Classification(class_weights=(1.0, 3.0)).losses(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor(1.3863)
    """

    label_smoothing: Annotated[float, PartialShare] = 0.0
    class_weights: Annotated[ClassWeights | None, Positive] = None

    target = "class"
    row_metric = "accuracy"
    names = CLASS_METRICS
    ranges = CLASS_RANGES
    low_is_good = frozenset({"ece"})

    def width(self, classes: int) -> int:
        """Return one output for each class."""
        self._check_weights(self.class_weights, classes)
        return super().width(classes)

    def fitted(self, counts: Ints) -> "Classification":
        """Return the task with its class weights as numbers."""
        if self.class_weights == BALANCED:
            return replace(self, class_weights=balanced_weights(counts))
        return self

    def row_scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether each row's class has the largest output."""
        if outputs.dim() == 2:
            predicted = outputs.argmax(-1)
        else:
            predicted = outputs.mT.max(-2).indices
        return predicted == targets

    def losses(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the losses of all rows; see ``Task``."""
        if outputs.dim() < 3 or reduction != "none" or self.class_weights is not None:
            return super().losses(outputs, targets, reduction)
        rows = outputs.mT.flatten(0, -3)  # the layout in which a stack of clients is fast on a CPU
        found = class_losses(rows, targets.reshape(len(rows), -1), "none", self.label_smoothing)
        return found.view(targets.shape)

    def slopes(self, outputs: Tensor, targets: Tensor, share: float | Tensor = 1.0) -> Tensor:
        """Return the gradient of every row's loss with respect to its outputs, times the row's share."""
        plain = self.class_weights is None and not self.label_smoothing
        if plain:
            return class_slopes(outputs, targets, share)
        return super().slopes(outputs, targets, share)

    def confusion(self, outputs: NDArray[Any], targets: Targets, classes: int) -> Ints:
        """Return how many rows of each class (down) were predicted as each class (across)."""
        return confusion(targets, outputs.argmax(1), classes)

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
        if self.class_weights is None:
            return class_losses(outputs, targets, reduction, self.label_smoothing)
        weights = constants(numbers(self.class_weights), outputs)
        each = class_losses(outputs, targets, "none", self.label_smoothing, weights)
        return reduced(each, reduction)

    def _measures(self, outputs: Floats, targets: Targets) -> Mapping[str, Callable[[], float]]:
        return class_measures(outputs, targets)
