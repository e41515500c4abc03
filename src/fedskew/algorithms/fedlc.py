"""FedLC: logits are calibrated by how many rows of each class a client has."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedskew.algorithms.contract import View, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative

ABSENT = 1e-8  # what a class counts as of which the client has no rows


@algorithms.register("fedlc")
@dataclass(frozen=True)
class FedLC(FedAvg):
    """Logits calibration against label skew (Zhang et al. 2022, eq. 7).

    A client minimises the loss of ``f_c(x) - tau n_c^(-1/4)`` in place of its logits ``f_c(x)``, where ``n_c`` is its
    number of rows of class c: rare classes need a larger margin. The recorded loss is the plain one. ``tau = 0`` is
    FedAvg. Reading: a class that the client does not have counts as 1e-8 rows, a margin of 100 tau.

    Args:
        tau: size of the margin

    >>> import torch
    >>> FedLC(tau=2).calibrated(torch.zeros(1, 2), torch.tensor([16.0, 1.0]))
    tensor([[-1., -2.]])
    """

    requires = frozenset({"class_counts"})

    tau: Annotated[float, NonNegative] = 1.0

    def calibrated(self, logits: Tensor, counts: Tensor) -> Tensor:
        """Return the logits minus the margin of each class."""
        return logits - self.tau * counts.clamp_min(ABSENT) ** -0.25

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return the loss of the calibrated logits."""
        assert view.batch is not None
        assert view.class_counts is not None
        return view.batch.loss(self.calibrated(view.batch.logits, view.class_counts))
