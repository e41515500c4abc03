"""FedExP: the server extrapolates, the further the less the updates of clients agree."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedskew.algorithms.contract import Cohort, View, Weighting, algorithms, difference
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import NonNegative
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedexp")
@dataclass(frozen=True)
class FedExP(FedAvg):
    """An adaptive step of the server (Jhunjhunwala, Wang and Joshi 2023, Algorithm 1).

    With ``d_k = w_k - w`` and their mean ``d = sum_k p_k d_k``, the server moves to ``w + eta d`` with ``eta = max(1,
    sum_k p_k ||d_k||^2 / (2 (||d||^2 + epsilon)))``: updates that point in different directions shorten their mean,
    and the step makes up for it. Each client sends one number beside its update. ``rounds.csv`` has ``server_step``.

    Readings: the paper has equal clients, ``p_k = 1/M``; here ``p_k`` is FedAvg's. Both norms are over the parameters
    that clients send. The model is the last iterate; the paper's experiments average the last two. One client alone
    is FedAvg, and so is a large ``epsilon``. Krum judges updates, and not the number beside them: a hostile client can
    lengthen the step there.

    Args:
        epsilon: number that keeps the step bounded where the mean update is small

    >>> step = FedExP(epsilon=0).server_step
    >>> step(torch.tensor(8.0), {"w": torch.tensor([1.0, 1.0])})  # 8 / (2 * 2)
    tensor(2.)
    >>> step(torch.tensor(2.0), {"w": torch.tensor([1.0, 1.0])})
    tensor(1.)
    """

    epsilon: Annotated[float, NonNegative] = 1e-3

    @property
    def weighting(self) -> Weighting:
        """Return FedAvg's weighting; the paper weighs clients uniformly."""
        return replace(super().weighting, paper="uniform")

    def init_server_state(self, weights: Tensors) -> Tree:
        """Return a step of 1, which the table of rounds has until the first update."""
        return {"step": {"eta": torch.ones((), dtype=torch.float64)}}

    def payload(self, view: View) -> Tree:
        """Return the client's update and its squared norm."""
        delta = difference(view.params, view.start)
        sent = [value for name, value in delta.items() if name in view.sent]
        return {"delta": delta, "norm": {"square": squared_norm(sent)}}

    def server_step(self, mean_square: Tensor, mean: Tensors) -> Tensor:
        """Return the factor of the mean update, from the mean squared norm of the updates."""
        longest = squared_norm(list(mean.values())) + self.epsilon
        tiny = torch.finfo(longest.dtype).tiny  # where no client has moved
        return (mean_square / (2 * longest.clamp_min(tiny))).clamp_min(1.0)

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the weights after the extrapolated step."""
        eta = torch.ones(())
        if "norm" in mean:  # a round without updates has none
            eta = self.server_step(mean["norm"]["square"], mean["delta"])
        moved = {}
        for name, weight in weights.items():
            moved[name] = weight + eta.to(weight) * mean["delta"][name]
        return moved, {"step": {"eta": eta.detach().cpu().double()}}

    def metrics(self, server_state: Tree) -> dict[str, float]:
        """Return the step of the round."""
        return {"server_step": float(server_state["step"]["eta"])}


def squared_norm(tensors: list[Tensor]) -> Tensor:
    """Return the sum of the squares of all numbers; 0 without tensors."""
    if not tensors:
        return torch.zeros(())
    return torch.stack([value.square().sum() for value in tensors]).sum()
