"""FedNTD: clients keep what the global model knows of the classes that a row does not have."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedskew.algorithms import NonNegative, Positive, View, algorithms
from fedskew.algorithms.fedavg import FedAvg


@algorithms.register("fedntd")
@dataclass(frozen=True)
class FedNTD(FedAvg):
    """Not-true distillation from the global model (Lee et al. 2022, eqs. 3-5).

    A client minimises its loss plus ``beta`` times the mean over its rows of ``KL(q_global || q_local)``, where
    ``q(c) = e^(z_c/tau) / sum_{c' != y} e^(z_c'/tau)`` is the softmax of the logits ``z`` over the classes c other than
    the row's label y: under the weights that the round began with, without gradient, and under those in training. The
    label itself is learned from the loss alone. The recorded loss is the plain one. ``beta = 0`` is FedAvg.

    Readings: the term is not multiplied by ``tau^2``, as some code bases do, so a higher ``tau`` also makes it weaker.
    BatchNorm uses the batch's own statistics under both weights. With two classes there is one other, and nothing to
    distil. Tasks without one class per row and one output per class are refused.

    Args:
        beta: strength of the distillation
        tau: temperature of the distillation

    >>> here, there = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])
    >>> FedNTD(tau=2).divergence(here, there, torch.tensor([0]))  # log 2 - the entropy of (e, 1) / (e + 1)
    tensor([0.1109])
    """

    cost_per_row: ClassVar[float] = 4 / 3
    requires = frozenset({"classes"})

    beta: Annotated[float, NonNegative] = 1.0
    tau: Annotated[float, Positive] = 1.0

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return the loss plus the distillation."""
        assert view.batch is not None
        batch = view.batch
        apart = self.divergence(batch.logits, batch.logits_at(view.start), batch.labels)
        return torch.add(loss, batch.mean(apart), alpha=self.beta)

    def divergence(self, logits: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        """Return how far each row's not-true classes are from the teacher's, KL(teacher || logits)."""
        true = torch.arange(logits.shape[-1], device=logits.device) == labels[..., None]
        student, teacher = (self._not_true(z / self.tau, true) for z in (logits, teacher))
        return (teacher.exp() * (teacher - student)).sum(-1)

    @staticmethod
    def _not_true(logits: Tensor, true: Tensor) -> Tensor:
        """Return the log-softmax over the classes that are not true; 0 for the true one, where -inf would give NaN."""
        lowest = torch.finfo(logits.dtype).min
        return logits.masked_fill(true, lowest).log_softmax(-1).masked_fill(true, 0.0)
