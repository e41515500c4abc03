"""FedAvgM, FedAdam, FedYogi and FedAdagrad: the server uses the mean update as the gradient of its own optimiser."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedskew.algorithms.contract import Cohort, algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.registry import PartialShare, Positive
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedavgm")
@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with momentum on the server (Hsu et al. 2019): ``m <- beta m + delta; w <- w + server_lr m``.

    ``beta = 0, server_lr = 1`` is FedAvg.

    Args:
        server_lr: learning rate of the server
        beta: momentum of the server

    >>> import numpy as np
    >>> mean, cohort = {"delta": {"w": torch.tensor([1.0])}}, Cohort(np.ones(2), total=4.0)
    >>> weights, state = {"w": torch.tensor([0.0])}, {"momentum": {"w": torch.tensor([4.0])}}
    >>> FedAvgM(beta=0.5).server_update(weights, state, mean, cohort)
    ({'w': tensor([3.])}, {'momentum': {'w': tensor([3.])}})
    """

    server_lr: Annotated[float, Positive] = 1.0
    beta: Annotated[float, PartialShare] = 0.9

    def init_server_state(self, weights: Tensors) -> Tree:
        """Return a momentum of zero."""
        return {"momentum": {name: torch.zeros_like(weight) for name, weight in weights.items()}}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the weights after a step with heavy-ball momentum."""
        momentum = {}
        for name, delta in mean["delta"].items():
            momentum[name] = self.beta * server_state["momentum"][name] + delta
        moved = {}
        for name, weight in weights.items():
            moved[name] = weight + self.server_lr * momentum[name]
        return moved, {"momentum": momentum}


@dataclass(frozen=True)
class _Adaptive(FedAvg):
    """Reddi et al. 2021, Algorithm 2: ``m <- beta1 m + (1 - beta1) delta; w <- w + server_lr m / (sqrt(v) + tau)``."""

    server_lr: Annotated[float, Positive] = 0.01
    beta1: Annotated[float, PartialShare] = 0.9
    tau: Annotated[float, Positive] = 1e-3

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the new ``v`` from the old one and the squared change."""
        raise NotImplementedError

    def init_server_state(self, weights: Tensors) -> Tree:
        """Return ``m`` of 0 and ``v`` of tau^2, the least value the paper allows."""
        return {
            "mean": {name: torch.zeros_like(weight) for name, weight in weights.items()},
            "square": {
                name: torch.full_like(weight, self.tau**2) for name, weight in weights.items()
            },
        }

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the weights after an adaptive step, without bias correction, as printed."""
        delta = mean["delta"]
        m = {}
        for name, change in delta.items():
            m[name] = self.beta1 * server_state["mean"][name] + (1 - self.beta1) * change
        v = {}
        for name, change in delta.items():
            v[name] = self.second_moment(server_state["square"][name], change.square())
        moved = {}
        for name, weight in weights.items():
            moved[name] = weight + self.server_lr * m[name] / (v[name].sqrt() + self.tau)
        return moved, {"mean": m, "square": v}


@algorithms.register("fedadam")
@dataclass(frozen=True)
class FedAdam(_Adaptive):
    """Adam on the server (Reddi et al. 2021, Algorithm 2): ``v <- beta2 v + (1 - beta2) delta^2``.

    Args:
        server_lr: learning rate of the server
        beta1: decay of the mean change
        tau: degree of adaptivity, added to the square root
        beta2: decay of the mean squared change

    >>> FedAdam(beta2=0.5).second_moment(torch.tensor(4.0), torch.tensor(1.0))
    tensor(2.5000)
    """

    beta2: Annotated[float, PartialShare] = 0.99

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the exponential mean of the squares."""
        return self.beta2 * v + (1 - self.beta2) * squared


@algorithms.register("fedyogi")
@dataclass(frozen=True)
class FedYogi(_Adaptive):
    """Yogi on the server (Reddi et al. 2021, Algorithm 2): ``v <- v - (1 - beta2) delta^2 sign(v - delta^2)``.

    Args:
        server_lr: learning rate of the server
        beta1: decay of the mean change
        tau: degree of adaptivity, added to the square root
        beta2: how slowly the mean squared change follows

    >>> FedYogi(beta2=0.5).second_moment(torch.tensor(4.0), torch.tensor(1.0))
    tensor(3.5000)
    """

    beta2: Annotated[float, PartialShare] = 0.99

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return ``v`` after an additive step towards the squares."""
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)


@algorithms.register("fedadagrad")
@dataclass(frozen=True)
class FedAdagrad(_Adaptive):
    """Adagrad on the server (Reddi et al. 2021, Algorithm 2): ``v <- v + delta^2``; by default ``beta1 = 0`` as there.

    Args:
        server_lr: learning rate of the server
        beta1: decay of the mean change
        tau: degree of adaptivity, added to the square root

    >>> FedAdagrad().second_moment(torch.tensor(4.0), torch.tensor(1.0))
    tensor(5.)
    """

    beta1: Annotated[float, PartialShare] = 0.0

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the sum of the squares."""
        return v + squared
