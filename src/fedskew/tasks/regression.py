"""The task of predicting a number."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Positive
from fedskew.core.streams import Floats
from fedskew.data.targets import Targets
from fedskew.tasks.scores import NUMBER_RANGES, r2
from fedskew.tasks.task import BuiltIn, Reduction, tasks


@tasks.register("regression")
@dataclass(frozen=True)
class Regression(BuiltIn):
    """Predict a number, from a single output.

    Metrics: mae (mean absolute error); rmse (root of the mean squared error); r2 (part of the variance explained).

    Args:
        loss: mse for the squared error, mae for the absolute one, huber for half the square up to an error of delta and
            a straight line beyond
        delta: error from which on huber is a straight line

    >>> import torch
    >>> Regression().losses(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 5.0]), "none")
    tensor([0., 9.])
    """

    loss: Literal["mse", "mae", "huber"] = "mse"
    delta: Annotated[float, Positive] = 1.0

    target = "number"
    row_metric = "mae"
    higher_is_better = False
    low_is_good = frozenset({"mae", "rmse"})
    names = ("mae", "rmse", "r2")
    ranges = NUMBER_RANGES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss != "huber" and self.delta != 1.0:
            raise FedskewError(
                f"task regression: delta={self.delta:g} is an option of loss=huber, not of loss={self.loss}: remove it"
            )

    def row_scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the absolute error of each row."""
        return (self._fitted(outputs, targets) - targets).abs()

    def _losses(self, outputs: Tensor, targets: Tensor, reduction: Reduction) -> Tensor:
        numbers = self._fitted(outputs, targets)
        targets = targets.to(numbers.dtype)
        if self.loss == "mse":
            return F.mse_loss(numbers, targets, reduction=reduction)
        if self.loss == "mae":
            return F.l1_loss(numbers, targets, reduction=reduction)
        return F.huber_loss(numbers, targets, reduction=reduction, delta=self.delta)

    def _measures(self, outputs: Floats, targets: Targets) -> Mapping[str, Callable[[], float]]:
        numbers = outputs.reshape(len(outputs))
        targets = targets.astype(np.float64)
        return {
            "mae": lambda: float(np.abs(numbers - targets).mean()),
            "rmse": lambda: float(np.sqrt(np.square(numbers - targets).mean())),
            "r2": lambda: r2(numbers, targets),
        }
