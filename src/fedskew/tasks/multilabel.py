"""The task of predicting which of several labels a row has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedskew.core.registry import Positive
from fedskew.core.streams import Floats
from fedskew.data.targets import Targets
from fedskew.tasks.losses import label_losses
from fedskew.tasks.scores import LABEL_METRICS, LABEL_RANGES, label_measures
from fedskew.tasks.task import BuiltIn, Reduction, constants, reduced, tasks


@tasks.register("multilabel")
@dataclass(frozen=True)
class Multilabel(BuiltIn):
    """Predict which of several labels a row has. The loss is the mean over labels of binary cross-entropy.

    Each label has an output of its own, and is predicted where that is above 0.

    Metrics: accuracy (share of the labels that are right); exact_match (share of the rows with all labels right);
    macro_f1 (mean over all labels; one that neither occurs nor is predicted counts 0, as in scikit-learn); micro_f1
    (over all labels of all rows at once; 0 where no label occurs or is predicted); auc (mean over the labels that some
    rows have and others do not); average_precision (mean over the labels that some rows have).

    Args:
        class_weights: what the loss of each label is multiplied with, one number per label (1+2+0.5); none: no weights

    >>> import torch
    >>> Multilabel().losses(torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 1.0]]), "none")
    tensor([0.4100])
    """

    class_weights: Annotated[tuple[float, ...] | None, Positive] = None

    target = "labels"
    row_metric = "accuracy"
    names = LABEL_METRICS
    ranges = LABEL_RANGES

    def width(self, classes: int) -> int:
        """Return one output for each label."""
        self._check_weights(self.class_weights, classes)
        return super().width(classes)

    def row_scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of each row's labels that are right."""
        return ((outputs > 0) == (targets > 0)).to(outputs.dtype).mean(-1)

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
        each = label_losses(outputs, targets.to(outputs.dtype), "none")
        if self.class_weights is not None:
            each = each * constants(self.class_weights, outputs)
        return reduced(each.mean(-1), reduction)

    def _measures(self, outputs: Floats, targets: Targets) -> Mapping[str, Callable[[], float]]:
        return label_measures(outputs, targets > 0)
