"""q-FedAvg: clients with a larger loss weigh more, so that the global model serves clients more evenly."""

from dataclasses import dataclass
from typing import Annotated

import torch

from fedskew.algorithms.contract import Cohort, View, algorithms, difference
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative
from fedskew.core.trees import Tensors, Tree


@algorithms.register("q-fedavg")
@dataclass(frozen=True)
class QFedAvg(FedAvg):
    """Fair federated learning (q-FFL, Li, Sanjabi, Beirami and Smith 2020, Algorithm 2).

    With ``F_k`` the loss of the global model on all rows of client k and ``d_k = (w_k - w) / lr``, the server moves
    to ``w + sum_k F_k^q d_k / sum_k h_k`` with ``h_k = q F_k^(q-1) ||d_k||^2 + F_k^q / lr``. ``q = 0`` is FedAvg, and
    a larger q gives more equal losses. Readings: the paper's Lipschitz constant L is 1 / lr, as in its
    experiments, and the sums are weighted as FedAvg's. As in the authors' code ``F_k`` has 1e-10 added.

    Args:
        q: how much the loss of a client raises its weight

    >>> numbers = {"lr": torch.tensor(0.5), "loss_before": torch.tensor(2.0)}
    >>> view = View({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])}, {}, {}, numbers, 0.0)
    >>> QFedAvg(q=1).payload(view)  # 2 * (3 - 1) / 0.5, and 4^2 + 2 / 0.5
    {'delta': {'w': tensor([8.])}, 'normaliser': {'h': tensor(20.)}}
    """

    requires = frozenset({"loss_before"})

    q: Annotated[float, NonNegative] = 1.0

    def payload(self, view: View) -> Tree:
        """Return the scaled change of the weights and the client's part of the normaliser."""
        lr = view.numbers["lr"]
        loss = view.numbers["loss_before"] + 1e-10
        change = {}
        for name, value in difference(view.params, view.start).items():
            change[name] = value / lr
        squared = torch.stack([value.square().sum() for value in change.values()]).sum()
        h = self.q * loss ** (self.q - 1) * squared + loss**self.q / lr
        return {
            "delta": {name: loss**self.q * value for name, value in change.items()},
            "normaliser": {"h": h},
        }

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the weights moved by the ratio of the two means."""
        h = mean["normaliser"]["h"]
        return {
            name: weight + mean["delta"][name] / h for name, weight in weights.items()
        }, server_state
