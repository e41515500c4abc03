"""FedProx with a coefficient for every layer, which follows the drift of that layer."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.algorithms.contract import Cohort, View, algorithms, difference, proximal
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative, Share
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedprox-layers")
@dataclass(frozen=True)
class FedProxLayers(FedAvg):
    """FedProx with one adaptive mu per layer: a client minimises ``F_k(w) + sum_l mu_l/2 ||w_l - w_t,l||^2``.

    After aggregation ``mu_l <- (1 - a) mu_l + a (d_l / max_j d_j) mu_0`` with the drift ``d_l = ||w_t,l -
    w_{t-1},l||`` of the global weights; where nothing moved, every ``mu_l`` stays. ``mu_l`` starts at ``mu_0`` and
    never exceeds it. A layer is one parameter tensor, as the paper says; group=module takes the tensors of a
    module together. Parameters that stay with a client have no ``mu_l``. The table of rounds shows all of them, and all
    drifts. ``a = 0`` is FedProx.

    Args:
        mu: coefficient at the start, and of the layer that moves most (mu_0)
        adapt: how much of the old coefficient is replaced every round (a)
        group: what a layer is, each parameter tensor or each module

    >>> import numpy as np
    >>> method, weights = FedProxLayers(mu=1), {"a": torch.zeros(2), "b": torch.zeros(1)}
    >>> mean = {"delta": {"a": torch.tensor([3.0, 4.0]), "b": torch.ones(1)}}
    >>> cohort = Cohort(np.ones(2), total=4.0)
    >>> _, server = method.server_update(weights, method.init_server_state(weights), mean, cohort)
    >>> {name: round(value, 3) for name, value in method.metrics(server).items()}  # b: 0.5 * 1 + 0.5 * (1 / 5) * 1
    {'mu_a': 1.0, 'mu_b': 0.6, 'drift_a': 5.0, 'drift_b': 1.0}
    """

    mu: Annotated[float, NonNegative] = 0.01
    adapt: Annotated[float, Share] = 0.5
    group: Literal["tensor", "module"] = "tensor"

    def init_server_state(self, weights: Tensors) -> Tree:
        """Return the same coefficient for every layer, and drifts of zero."""
        return {
            "mu": {name: weight.new_full((), self.mu) for name, weight in weights.items()},
            "drift": {name: weight.new_zeros(()) for name, weight in weights.items()},
        }

    def broadcast(self, server_state: Tree) -> Tree:
        """Return the coefficients."""
        return {"mu": server_state["mu"]}

    def linear_correction(self, view: View) -> Tree:
        """Return the gradient of every layer's proximal term."""
        return proximal(view.start, view.server["mu"])

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return FedAvg's weights, and coefficients that follow the drifts."""
        moved, _ = super().server_update(weights, server_state, mean, cohort)
        drift = self._drift(difference(moved, weights))
        largest = torch.stack([*drift.values()]).max()
        mu = {}
        for name, old in server_state["mu"].items():
            new = (1 - self.adapt) * old + self.adapt * (drift[name] / largest) * self.mu
            mu[name] = torch.where(largest > 0, new, old)
        return moved, {"mu": mu, "drift": drift}

    def metrics(self, server_state: Tree) -> dict[str, float]:
        """Return coefficient and drift of every layer."""
        result: dict[str, float] = {}
        for part in ("mu", "drift"):
            for name, value in server_state[part].items():
                result[f"{part}_{self._layer(name)}"] = float(value)
        return result

    def _layer(self, name: str) -> str:
        if self.group == "module":
            return name.rpartition(".")[0] or name
        return name

    def _drift(self, change: Tensors) -> Tensors:
        """Return for every tensor the drift of its layer."""
        norms: dict[str, list[Tensor]] = {}
        for name, value in change.items():
            norms.setdefault(self._layer(name), []).append(vector_norm(value))
        result: Tensors = {}
        for name in change:
            result[name] = vector_norm(torch.stack(norms[self._layer(name)]))
        return result
