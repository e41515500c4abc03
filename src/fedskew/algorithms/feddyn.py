"""FedDyn: a dynamic regulariser that aligns every client's minimum with that of the federation."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from fedskew.algorithms.contract import Cohort, View, Weighting, algorithms, difference, proximal
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative
from fedskew.core.trees import Tensors, Tree


@algorithms.register("feddyn")
@dataclass(frozen=True)
class FedDyn(FedAvg):
    """Dynamic regularisation (Acar et al. 2021, Algorithm 1).

    A client minimises ``F_k(w) - <g_k, w> + alpha/2 ||w - w_t||^2`` and then updates ``g_k <- g_k - alpha (w_k -
    w_t)``, its gradient at ``w_k`` if it has found the minimum. The server updates ``h <- h - alpha |S|/N mean(w_k -
    w_t)``, the mean of all ``g_k``, those of absent clients included (by size, ``|S|/N`` is the share of the rows),
    and moves to ``mean(w_k) - h / alpha``. Under a robust rule ``h`` stays that plain mean, and excluded clients keep
    their ``g_k``. All start at 0, and parameters that stay with a client are not regularised. ``alpha = 0`` is
    FedAvg: there are no updates, and ``h / alpha`` is taken as 0. The paper weighs clients uniformly.

    Over hundreds of rounds FedDyn as printed can diverge: nothing bounds ``g_k`` and ``h`` once local training no
    longer finds the minimum. The authors' experiments use weight decay (1e-3); set ``weight_decay`` too, and monitor
    the loss.

    Args:
        weights: what a client counts by, its rows (size) or 1 (uniform); none for the setting of the run
        alpha: strength of the regulariser; 0.01 is the paper's usual choice, larger values hold clients closer to the
            server

    >>> import numpy as np
    >>> mean = {"delta": {"w": torch.tensor([1.0])}}
    >>> cohort, weights = Cohort(np.ones(2), total=4.0, mean=mean), {"w": torch.tensor([3.0])}
    >>> FedDyn(alpha=0.5).server_update(weights, {"h": {"w": torch.tensor([-0.75])}}, mean, cohort)  # h: -0.75 - 0.5/2
    ({'w': tensor([6.])}, {'h': {'w': tensor([-1.])}})
    """

    alpha: Annotated[float, NonNegative] = 0.01

    @property
    def weighting(self) -> Weighting:
        """Return FedAvg's weighting; the paper weighs clients uniformly."""
        return replace(super().weighting, paper="uniform")

    def init_server_state(self, weights: Tensors) -> Tree:
        """Return ``h`` of zero."""
        return {"h": {name: torch.zeros_like(weight) for name, weight in weights.items()}}

    def init_client_state(self, weights: Tensors) -> Tree:
        """Return a client's ``g_k`` of zero, under the name of their mean on the server."""
        return FedDyn.init_server_state(self, weights)  # without what additions keep on the server

    def linear_correction(self, view: View) -> Tree:
        """Return the gradient of the linear and of the proximal term."""
        carried = view.client_state["h"]
        term = proximal(view.start, dict.fromkeys(carried, self.alpha))
        return {**term, "offset": difference(term["offset"], carried)}

    def client_state(self, view: View) -> Tree:
        """Return the client's gradient at its new weights, by its own optimality condition."""
        carried = view.client_state["h"].items()
        return {
            "h": {
                name: old - self.alpha * (view.params[name] - view.start[name])
                for name, old in carried
            }
        }

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the mean of the clients' weights less ``h / alpha``; clients that did not take part have not moved."""
        if self.alpha == 0:
            return super().server_update(weights, server_state, mean, cohort)
        delta = mean["delta"]
        moved = cohort.mean["delta"]
        h = {}
        for name, old in server_state["h"].items():
            h[name] = old - self.alpha * cohort.share * moved[name]
        return {
            name: weight + delta[name] - h[name] / self.alpha for name, weight in weights.items()
        }, {"h": h}
