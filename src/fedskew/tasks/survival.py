"""The task of survival analysis: who has an event before whom."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats
from fedskew.data.targets import Targets
from fedskew.tasks.ranks import concordance
from fedskew.tasks.scores import SURVIVAL_RANGES
from fedskew.tasks.task import BuiltIn, Reduction, reduced, tasks

_COLUMNS = 2  # the time, and whether the event occurred then
_NEVER = -1.0  # the time of a row that pads a stack: before all others, so that it is in none of their risk sets


@tasks.register("survival")
@dataclass(frozen=True)
class Survival(BuiltIn):
    """Predict the risk of an event from times some of which are censored, by Cox's partial likelihood.

    Targets are two numbers: a time from 0, and 1 if the event occurred then or 0 if the row was last seen then. The
    single output is the log risk. The loss of a row with an event is the logarithm of the sum of the risks of all rows
    of its batch with a time as late or later (its risk set), less its own log risk. Events at one time share one risk
    set, which is Breslow's treatment of ties. The loss of a row without an event is 0. The mean over a batch is the
    plain mean over all of its rows.

    So the loss of a row depends on the rows beside it: a client's batches are its own, and evaluation takes all rows of
    a part, or of a client, together. Methods that add up losses row by row are refused.

    Metrics: concordance (Harrell's index: how often, of two rows of which it is known which has its event first, that
    row has the larger risk; equal risks count one half; NaN without such rows).

    >>> task = Survival()
    >>> task.losses(torch.zeros(3, 1), torch.tensor([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]]), "none")
    tensor([1.0986, 0.0000, 0.0000])
    """

    target = "numbers"
    outputs = 1
    rows_alone = False
    names = ("concordance",)
    ranges = SURVIVAL_RANGES

    def width(self, classes: int) -> int:
        """Return 1, the number of outputs for a time and an event."""
        if classes != _COLUMNS:
            raise FedskewError(
                f"task survival takes two numbers a row as targets, the time and whether the event occurred (1) or not "
                f"(0), and these data have {classes}: use task=sequence-regression for others"
            )
        return super().width(classes)

    def losses(self, outputs: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Return the losses of all rows; each entry of axes before that of the rows has risk sets of its own."""
        risks = self._fitted(outputs, targets)
        targets = targets.to(risks.dtype)
        return reduced(targets[..., 1] * (_at_risk(risks, targets[..., 0]) - risks), reduction)

    def padded(self, targets: Tensor, real: Tensor | None) -> Tensor:
        """Return targets in which rows that pad a stack are in no risk set, and have no event."""
        if real is None:
            return targets
        nobody = targets.new_tensor([_NEVER, 0.0])
        return torch.where(real.unsqueeze(-1), targets, nobody)

    def check_values(self, where: str, targets: Targets) -> None:
        """Raise an error for a negative time, and for an event other than 0 and 1."""
        if targets.shape[1] != _COLUMNS:
            self.width(targets.shape[1])
        early = targets[:, 0] < 0
        if early.any():
            row = int(np.argmax(early))
            raise FedskewError(
                f"{where}: row {row} has the time {targets[row, 0]:g}: times begin at 0, in the first column"
            )
        other = ~np.isin(targets[:, 1], (0, 1))
        if other.any():
            row = int(np.argmax(other))
            raise FedskewError(
                f"{where}: row {row} has the event {targets[row, 1]:g}: the second column is 1 where the event "
                "occurred, and 0 where the row was last seen without it"
            )

    def _measures(self, outputs: Floats, targets: Targets) -> Mapping[str, Callable[[], float]]:
        risks = outputs.reshape(len(outputs))
        return {"concordance": lambda: concordance(risks, targets[:, 0], targets[:, 1] > 0)}


def _at_risk(risks: Tensor, times: Tensor) -> Tensor:
    """Return for every row the logarithm of the sum of the risks of the rows with a time as late or later."""
    order = times.argsort(dim=-1, descending=True)
    sums = torch.logcumsumexp(risks.gather(-1, order), -1)
    backwards = -times.gather(-1, order)
    last = torch.searchsorted(backwards.contiguous(), (-times).contiguous(), right=True) - 1
    return sums.gather(-1, last)
