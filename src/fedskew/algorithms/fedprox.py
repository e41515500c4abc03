"""FedProx: a client is pulled back to the weights it was given."""

from dataclasses import dataclass
from typing import Annotated

from fedskew.algorithms.base import Tensors, View, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.registry import NonNegative


@algorithms.register("fedprox")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term (Li et al. 2020, eq. 2; paper 000, eqs. 12-13).

    A client minimises ``F_k(w) + mu/2 ||w - w_t||^2``; the term enters as its gradient ``mu (w - w_t)``, so the recorded loss
    is the plain one. ``mu = 0`` is FedAvg.

    Args:
        mu: strength of the pull back to the global weights

    >>> import torch
    >>> view = View({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])}, {}, {}, {}, 0.0)
    >>> FedProx(mu=0.5).correct({"w": torch.tensor([0.25])}, view)
    {'w': tensor([1.2500])}
    """

    mu: Annotated[float, NonNegative] = 0.01

    def correct(self, grads: Tensors, view: View) -> Tensors:
        """Add the gradient of the proximal term."""
        return {name: grad + self.mu * (view.params[name] - view.start[name]) for name, grad in grads.items()}
