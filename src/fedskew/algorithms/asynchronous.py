"""FedAsync and FedBuff: the server does not wait for slow clients, and gives stale updates less weight."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedskew.algorithms.contract import Algorithm, Cohort, Report, View, Weighting, algorithms
from fedskew.algorithms.fedprox import FedProx
from fedskew.algorithms.topologies import Buffered
from fedskew.core.registry import AtLeastOne, Bounds, NonNegative, Positive
from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors, Tree


@algorithms.register("fedasync")
@dataclass(frozen=True)
class FedAsync(Algorithm):
    """Asynchronous federated optimisation (Xie et al. 2019, Algorithm 1): ``w <- (1 - a_t) w + a_t w_k`` per update.

    ``a_t = alpha s(t - tau)`` decreases with the staleness of the update, the server steps since its client received
    the weights (section 5.2). ``per_round`` clients train at any time; a round is one step of the server. A client
    minimises its loss with the proximal term of strength ``mu`` (the paper's rho).

    Args:
        mu: strength of the proximal term towards the weights that the client received
        alpha: share of the client's model in the new global one, before staleness
        staleness: how the share decreases with staleness d: (d + 1)^-power (polynomial), from 1 at d = wait as 1 /
            (power (d - wait) + 1) (hinge), or not at all (constant)
        power: how fast it decreases
        wait: staleness up to which the hinge leaves the share unchanged

    >>> FedAsync(power=0.5).staleness_factor(np.array([0.0, 3.0])).tolist()
    [1.0, 0.5]
    """

    mu: Annotated[float, NonNegative] = 0.005
    alpha: Annotated[float, Bounds(0, 1, above=True)] = 0.6
    staleness: Literal["polynomial", "hinge", "constant"] = "polynomial"
    power: Annotated[float, NonNegative] = 0.5
    wait: Annotated[int, Bounds(0)] = 4

    weighting = Weighting(name="staleness")

    def topology(self, round: int) -> Buffered:
        """Return a buffer of one update: the server takes a step for every update."""
        return Buffered(1)

    def staleness_factor(self, age: Floats) -> Floats:
        """Return the factor on the weight of an update by its staleness in server steps; 1 for a fresh update."""
        if self.staleness == "polynomial":
            return (age + 1.0) ** -self.power
        if self.staleness == "hinge":
            return 1.0 / (self.power * np.maximum(age - self.wait, 0.0) + 1.0)
        return np.ones_like(age)

    def linear_correction(self, view: View) -> Tree:
        """Return the gradient of FedProx's proximal term."""
        return FedProx(mu=self.mu).linear_correction(view)

    def payload(self, view: View) -> Tree:
        """Return the weights themselves, because the server mixes them with weights that the client has not seen."""
        return {"model": view.params}

    def weight(self, report: Report) -> Floats:
        """Return a weight that falls with staleness."""
        return self.staleness_factor(report.numbers["staleness"])

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the mixture of the global weights and those of the client."""
        share = self.alpha * float(cohort.weights.mean())
        return {
            name: (1 - share) * weight + share * mean["model"][name]
            for name, weight in weights.items()
        }, server_state


@algorithms.register("fedbuff")
@dataclass(frozen=True)
class FedBuff(Algorithm):
    """Buffered asynchronous aggregation (Nguyen et al. 2022, Algorithm 1): a server step for each ``buffer`` updates.

    ``w <- w + server_lr / K sum_k s(d_k) (w_k - w_{t_k})`` with ``s(d) = 1 / sqrt(1 + d)`` for an update that is d
    steps old. ``per_round`` clients train at any time, and the buffer is never larger than that; a round is one step
    of the server.

    Args:
        buffer: number of updates in a server step
        server_lr: learning rate of the server

    >>> mean, cohort = {"delta": {"w": np.array([4.0])}}, Cohort(np.array([1.0, 0.5]), total=9.0)
    >>> FedBuff().server_update({"w": np.array([1.0])}, {}, mean, cohort)[0]["w"].tolist()  # 1 + 4 (1 + 0.5) / 2
    [4.0]
    """

    buffer: Annotated[int, AtLeastOne] = 10
    server_lr: Annotated[float, Positive] = 1.0

    weighting = Weighting(name="staleness")

    def topology(self, round: int) -> Buffered:
        """Return a buffer of ``buffer`` updates."""
        return Buffered(self.buffer)

    def weight(self, report: Report) -> Floats:
        """Return a weight that falls with staleness."""
        return 1.0 / np.sqrt(1.0 + report.numbers["staleness"])

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the weights after a step; the mean is rescaled, as the method divides by the number of updates."""
        scale = self.server_lr * float(cohort.weights.mean())
        return {
            name: weight + scale * mean["delta"][name] for name, weight in weights.items()
        }, server_state
