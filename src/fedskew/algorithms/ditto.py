"""Ditto: every client also trains a model of its own, which is kept near the global one."""

from dataclasses import dataclass
from typing import Annotated

from fedskew.algorithms.contract import Algorithm, View, algorithms, proximal
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative
from fedskew.core.trees import Tree


@dataclass(frozen=True)
class ProximalToGlobal(Algorithm):
    """How a client trains its own model ``v`` (Ditto, Algorithm 1): ``v <- v - lr (grad F_k(v) + lam (v - w_t))``.

    Args:
        lam: strength of the proximal term towards the global weights
    """

    requires = frozenset({"optimizer_state"})

    lam: Annotated[float, NonNegative] = 1.0

    def linear_correction(self, view: View) -> Tree:
        """Return the gradient of the proximal term; tensors that stay with their client are excluded."""
        anchor = view.server["weights"]
        return proximal(anchor, dict.fromkeys(anchor, self.lam))


@algorithms.register("ditto")
@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, with an additional personal model for each client (Li, Hu, Beirami and Smith 2021, eq. 1, Algorithm 1).

    A selected client trains the global model as in FedAvg and, on the same batches, its own ``v`` to minimise
    ``F_k(v) + lam/2 ||v - w_t||^2`` with ``w_t`` the weights at the start of the round; ``v`` never leaves the
    client. Its optimiser state is kept between rounds, so ``lam = 0`` is ``local``; the larger ``lam``, the nearer to
    FedAvg. The work of a client is twice FedAvg's, on the simulated clock too; the traffic is the same.

    Args:
        lam: strength of the proximal term between a client's own model and the global one

    >>> import torch
    >>> view = View({"w": torch.tensor([3.0])}, {}, {"weights": {"w": torch.tensor([1.0])}}, {}, {}, 0.0)
    >>> Ditto(lam=0.5).personal_method.linear_correction(view)  # 0.5 v - 0.5 * 1
    {'scale': {'w': tensor(0.5000)}, 'offset': {'w': tensor([-0.5000])}}
    """

    lam: Annotated[float, NonNegative] = 1.0

    @property
    def personal_method(self) -> Algorithm:
        """Return how a client trains its own model."""
        return ProximalToGlobal(self.lam)
