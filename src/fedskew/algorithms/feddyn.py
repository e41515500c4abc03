"""FedDyn: a regulariser that every client carries on, so that its own minimum becomes everybody's."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from fedskew.algorithms.contract import Crowd, View, Weights, algorithms, difference, pull_to
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative
from fedskew.core.trees import Tensors, Tree


@algorithms.register("feddyn")
@dataclass(frozen=True)
class FedDyn(FedAvg):
    """Dynamic regularisation (Acar et al. 2021, Algorithm 1).

    A client minimises ``F_k(w) - <g_k, w> + alpha/2 ||w - w_t||^2`` and then carries on ``g_k <- g_k - alpha (w_k - w_t)``, its
    gradient at ``w_k`` if it has found the minimum. The server carries on ``h <- h - alpha |S|/N mean(w_k - w_t)``, the mean of
    all ``g_k``, whoever was absent (by size, ``|S|/N`` is the share of the rows), and moves to ``mean(w_k) - h / alpha``. Under
    a robust rule ``h`` stays that plain mean, and clients that are left out carry nothing on. All start at 0, and what a
    client keeps for itself is not regularised. ``alpha = 0`` is FedAvg: nothing is carried on, and ``h / alpha`` is taken as
    0. The paper weighs clients uniformly.

    Over hundreds of rounds FedDyn as printed can drift away: nothing pulls ``g_k`` and ``h`` back once local training no longer
    finds the minimum. The authors' experiments use weight decay (1e-3); set ``weight_decay`` too, and watch the loss.

    Args:
        weights: what a client counts by, its rows (size) or 1 (uniform); none for the setting of the run
        alpha: strength of the regulariser; 0.01 is the paper's usual choice, larger values hold clients closer to the server

    >>> import numpy as np
    >>> mean = {"delta": {"w": torch.tensor([1.0])}}
    >>> crowd = Crowd(np.ones(2), total=4.0, mean=mean)
    >>> FedDyn(alpha=0.5).step({"w": torch.tensor([3.0])}, {"h": {"w": torch.tensor([-0.75])}}, mean, crowd)  # h: -0.75 - 0.5/2
    ({'w': tensor([6.])}, {'h': {'w': tensor([-1.])}})
    """

    mirrored: ClassVar[frozenset[str]] = frozenset({"gradient"})
    paper_weights: ClassVar[Weights] = "uniform"

    alpha: Annotated[float, NonNegative] = 0.01

    def init(self, weights: Tensors) -> Tree:
        """Nothing has been carried yet."""
        return {"h": _zeros(weights)}

    def remember(self, weights: Tensors) -> Tree:
        """Nor by a client."""
        return {"gradient": _zeros(weights)}

    def pull(self, view: View) -> Tree:
        """The gradient of the linear and of the proximal term."""
        carried = view.memo["gradient"]
        pull = pull_to(view.start, dict.fromkeys(carried, self.alpha))
        return {**pull, "offset": difference(pull["offset"], carried)}

    def memo(self, view: View) -> Tree:
        """The client's gradient at its new weights, by its own optimality condition."""
        carried = view.memo["gradient"].items()
        return {"gradient": {name: old - self.alpha * (view.params[name] - view.start[name]) for name, old in carried}}

    def step(self, weights: Tensors, server: Tree, mean: Tree, crowd: Crowd) -> tuple[Tensors, Tree]:
        """The mean of the clients' weights, less what has been carried; the absent have not moved."""
        if self.alpha == 0:
            return super().step(weights, server, mean, crowd)
        delta, moved = mean["delta"], crowd.mean["delta"]
        h = {name: old - self.alpha * crowd.share * moved[name] for name, old in server["h"].items()}
        return {name: weight + delta[name] - h[name] / self.alpha for name, weight in weights.items()}, {"h": h}


def _zeros(weights: Tensors) -> Tensors:
    return {name: torch.zeros_like(weight) for name, weight in weights.items()}
