"""FedAsync and FedBuff: the server does not wait for the slow, and counts what comes late for less."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedskew.algorithms.contract import Algorithm, Crowd, Report, View, algorithms
from fedskew.algorithms.fedprox import FedProx
from fedskew.core.registry import AtLeastOne, Bounds, NonNegative, Positive
from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedasync")
@dataclass(frozen=True)
class FedAsync(Algorithm):
    """Asynchronous federated optimisation (Xie et al. 2019, Algorithm 1): ``w <- (1 - a_t) w + a_t w_k`` for each answer.

    ``a_t = alpha s(t - tau)`` falls with the staleness of the answer, the server steps since its client was sent (section 5.2).
    ``per_round`` clients are at work at any time; a round is one step of the server. A client minimises its loss with the
    proximal term of strength ``mu`` (the paper's rho).

    Args:
        mu: strength of the pull back to the weights that the client was given
        alpha: share of the client's model in the new global one, before staleness
        staleness: how it falls with staleness d: (d + 1)^-power (polynomial), from 1 at d = wait as 1 / (power (d - wait) + 1)
            (hinge), or not at all (constant)
        power: how fast it falls
        wait: staleness up to which the hinge takes nothing off

    >>> FedAsync(power=0.5).fade(np.array([0.0, 3.0])).tolist()
    [1.0, 0.5]
    """

    weighs_by: ClassVar[str] = "staleness"

    mu: Annotated[float, NonNegative] = 0.005
    alpha: Annotated[float, Bounds(0, 1, above=True)] = 0.6
    staleness: Literal["polynomial", "hinge", "constant"] = "polynomial"
    power: Annotated[float, NonNegative] = 0.5
    wait: Annotated[int, Bounds(0)] = 4

    def awaits(self) -> int:
        """One answer, one step."""
        return 1

    def fade(self, age: Floats) -> Floats:
        """What staleness leaves of an answer, 1 for a fresh one."""
        if self.staleness == "polynomial":
            return (age + 1.0) ** -self.power
        if self.staleness == "hinge":
            return 1.0 / (self.power * np.maximum(age - self.wait, 0.0) + 1.0)
        return np.ones_like(age)

    def pull(self, view: View) -> Tree:
        """FedProx's."""
        return FedProx(mu=self.mu).pull(view)

    def payload(self, view: View) -> Tree:
        """The model itself: it is mixed with one that its client has never seen."""
        return {"model": view.params}

    def weigh(self, report: Report) -> Floats:
        """By staleness."""
        return self.fade(report.numbers["staleness"])

    def step(self, weights: Tensors, server: Tree, mean: Tree, crowd: Crowd) -> tuple[Tensors, Tree]:
        """Mix."""
        share = self.alpha * float(crowd.weights.mean())
        return {name: (1 - share) * weight + share * mean["model"][name] for name, weight in weights.items()}, server


@algorithms.register("fedbuff")
@dataclass(frozen=True)
class FedBuff(Algorithm):
    """Buffered asynchronous aggregation (Nguyen et al. 2022, Algorithm 1): a step for every ``buffer`` answers.

    ``w <- w + server_lr / K sum_k s(d_k) (w_k - w_{t_k})`` with ``s(d) = 1 / sqrt(1 + d)`` for an answer that is d steps old.
    ``per_round`` clients are at work at any time, and the buffer is never larger than that; a round is one step of the server.

    Args:
        buffer: answers that make a step
        server_lr: learning rate of the server

    >>> mean, crowd = {"delta": {"w": np.array([4.0])}}, Crowd(np.array([1.0, 0.5]), total=9.0)
    >>> FedBuff().step({"w": np.array([1.0])}, {}, mean, crowd)[0]["w"].tolist()  # 1 + 4 (1 + 0.5) / 2
    [4.0]
    """

    weighs_by: ClassVar[str] = "staleness"

    buffer: Annotated[int, AtLeastOne] = 10
    server_lr: Annotated[float, Positive] = 1.0

    def awaits(self) -> int:
        """A full buffer."""
        return self.buffer

    def weigh(self, report: Report) -> Floats:
        """By staleness."""
        return 1.0 / np.sqrt(1.0 + report.numbers["staleness"])

    def step(self, weights: Tensors, server: Tree, mean: Tree, crowd: Crowd) -> tuple[Tensors, Tree]:
        """The mean is over the weights; the method divides by the number of answers."""
        scale = self.server_lr * float(crowd.weights.mean())
        return {name: weight + scale * mean["delta"][name] for name, weight in weights.items()}, server
