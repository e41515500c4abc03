"""FedProx: a proximal term keeps local training near the global weights."""

from dataclasses import dataclass
from typing import Annotated

from fedskew.algorithms.contract import View, algorithms, proximal
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative
from fedskew.core.trees import Tree


@algorithms.register("fedprox")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term (Li et al. 2020, eq. 2; eqs. 12-13 of FedPBS).

    A client minimises ``F_k(w) + mu/2 ||w - w_t||^2``; the term enters as its gradient ``mu (w - w_t)``, so the
    recorded loss is the plain one. ``mu = 0`` is FedAvg.

    Args:
        mu: strength of the proximal term

    >>> import torch
    >>> view = View({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])}, {}, {}, {}, 0.0)
    >>> FedProx(mu=0.5).linear_correction(view)  # 0.5 w - 0.5 * 1
    {'scale': {'w': tensor(0.5000)}, 'offset': {'w': tensor([-0.5000])}}
    """

    mu: Annotated[float, NonNegative] = 0.01

    def linear_correction(self, view: View) -> Tree:
        """Return the gradient of the proximal term."""
        return proximal(view.start, dict.fromkeys(view.start, self.mu))
