"""FedProx with a strength for every layer, which follows how far the layer moves."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.algorithms.contract import Crowd, View, algorithms, difference, pull_to
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative, Share
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedprox-layers")
@dataclass(frozen=True)
class FedProxLayers(FedAvg):
    """FedProx with one adaptive mu a layer: a client minimises ``F_k(w) + sum_l mu_l/2 ||w_l - w_t,l||^2``.

    After aggregation ``mu_l <- (1 - a) mu_l + a (d_l / max_j d_j) mu_0`` with the drift ``d_l = ||w_t,l - w_{t-1},l||`` of the
    global weights; where nothing moved, every ``mu_l`` stays. ``mu_l`` starts at ``mu_0`` and never exceeds it. A layer is one
    parameter tensor, in the paper's own words; group=module takes the tensors of a module together. What a client keeps for
    itself has no ``mu_l``. The table of rounds shows all of them, and all drifts. ``a = 0`` is FedProx.

    Args:
        mu: strength of the pull at the start, and of the layer that moves most (mu_0)
        adapt: how much of the old strength is replaced every round (a)
        group: what a layer is, each parameter tensor or each module

    >>> import numpy as np
    >>> method, weights = FedProxLayers(mu=1), {"a": torch.zeros(2), "b": torch.zeros(1)}
    >>> mean = {"delta": {"a": torch.tensor([3.0, 4.0]), "b": torch.ones(1)}}
    >>> _, server = method.step(weights, method.init(weights), mean, Crowd(np.ones(2), total=4.0))
    >>> {name: round(value, 3) for name, value in method.notes(server).items()}  # b: 0.5 * 1 + 0.5 * (1 / 5) * 1
    {'mu_a': 1.0, 'mu_b': 0.6, 'drift_a': 5.0, 'drift_b': 1.0}
    """

    mu: Annotated[float, NonNegative] = 0.01
    adapt: Annotated[float, Share] = 0.5
    group: Literal["tensor", "module"] = "tensor"

    def init(self, weights: Tensors) -> Tree:
        """Every layer begins with the same strength."""
        return {
            "mu": {name: weight.new_full((), self.mu) for name, weight in weights.items()},
            "drift": {name: weight.new_zeros(()) for name, weight in weights.items()},
        }

    def broadcast(self, server: Tree) -> Tree:
        """Clients get the strengths."""
        return {"mu": server["mu"]}

    def pull(self, view: View) -> Tree:
        """The gradient of every layer's proximal term."""
        return pull_to(view.start, view.server["mu"])

    def step(self, weights: Tensors, server: Tree, mean: Tree, crowd: Crowd) -> tuple[Tensors, Tree]:
        """FedAvg, then the strengths follow the drifts."""
        moved, _ = super().step(weights, server, mean, crowd)
        drift = self._drift(difference(moved, weights))
        largest = torch.stack([*drift.values()]).max()
        mu = {}
        for name, old in server["mu"].items():
            new = (1 - self.adapt) * old + self.adapt * (drift[name] / largest) * self.mu
            mu[name] = torch.where(largest > 0, new, old)
        return moved, {"mu": mu, "drift": drift}

    def notes(self, server: Tree) -> dict[str, float]:
        """Strength and drift of every layer."""
        return {f"{part}_{self._layer(name)}": float(value) for part in ("mu", "drift") for name, value in server[part].items()}

    def _layer(self, name: str) -> str:
        return name.rpartition(".")[0] or name if self.group == "module" else name

    def _drift(self, change: Tensors) -> Tensors:
        """For every tensor the drift of its layer."""
        norms: dict[str, list[Tensor]] = {}
        for name, value in change.items():
            norms.setdefault(self._layer(name), []).append(vector_norm(value))
        return {name: vector_norm(torch.stack(norms[self._layer(name)])) for name in change}
