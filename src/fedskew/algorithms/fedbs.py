"""FedBS: all clients measure the variance of their gradients; those with the least train and weigh more."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np

from fedskew.algorithms.contract import Algorithm, Report, Weighting, algorithms
from fedskew.algorithms.selection import ClientPool, Probe, Selection, TrainConfig
from fedskew.core.registry import NonNegative
from fedskew.core.streams import Floats, Ints, Stream

Importance: TypeAlias = Literal["equal", "size"]

SOFT = "softmax of -tau x variance"  # description of these weights in tables
# E^-60 changes no sum of doubles, but keeps a weight above 0 if all clients of lower variance drop out
FAINT = 60.0


def soft_weights(variance: Floats, tau: float | None) -> Floats:
    """Return ``softmax(-tau variance)``, by default with tau = 1 / mean variance; a client without a variance gets 0.

    >>> soft_weights(np.array([0.0, np.log(3.0), np.nan]), tau=1.0).round(6).tolist()
    [0.75, 0.25, 0.0]
    """
    known = np.isfinite(variance)
    weights = np.zeros(len(variance))
    if known.any():
        if tau is None:
            tau = 1.0 / max(float(variance[known].mean()), np.finfo(np.float64).tiny)
        # So that the largest term is e^0, whatever the scale
        excess = tau * (variance[known] - variance[known].min())
        weights[known] = np.exp(-np.minimum(excess, FAINT))
        weights /= weights.sum()
    return weights


def sur(variance: Floats, sizes: Ints, importance: Importance) -> Floats:
    """Return the score ``alpha_q Var_q`` of eq. 9; with ``size``, ``alpha_q`` is the client's rows over the mean rows.

    >>> sur(np.array([2.0, 2.0]), np.array([30, 10]), "size").tolist()
    [3.0, 1.0]
    """
    return variance * sizes / sizes.mean() if importance == "size" and len(sizes) else variance


def least(score: Floats, count: int) -> Ints:
    """Return the positions of the ``count`` lowest scores (eq. 10), the first ones among equals; NaN comes last.

    >>> least(np.array([2.0, np.nan, 1.0, 2.0]), count=2).tolist()
    [0, 2]
    """
    return np.sort(np.argsort(score, kind="stable")[:count])


@algorithms.register("fedbs")
@dataclass(frozen=True)
class FedBS(Algorithm):
    """Balanced scaling (FedPBS, Algorithm 3, eqs. 8-11): clients whose gradients vary least train, and weigh most.

    In every round, every available client gets the weights and measures the variance of its gradients, ``Var_q =
    mean_i ||g_i - mean g||^2`` (eq. 8), on one batch (Algorithm 3, lines 6-7) or on all its rows (as eq. 8 is
    printed); that traffic and work are counted. The ``B`` clients of least score ``alpha_q Var_q`` train (eqs. 9-10),
    ties go to the lower client number; ``B`` is the setting ``per_round``. They are averaged with ``beta_q =
    softmax(-tau Var_q)`` (eq. 11).

    Readings: the importance ``alpha_q`` is an input of Algorithm 3 that is never defined: 1, or a client's rows over
    the mean. It multiplies a score of which the lowest are selected, so, against what its name suggests, it counts
    *against* a client: one with twice the rows trains only where its gradients vary half as much. Eq. 11's numerator
    has the minus sign that is missing in print; ``tau`` is never given, and a fixed one would depend on the scale of
    the gradients: by default it is 1 over the mean variance of those that train. ``tau = 0`` with all clients in
    every round is FedAvg with ``weights=uniform``. What the paper says about subtasks and a changing number of
    clients has no formula, and is left out.

    Args:
        tau: how fast weights fall with the variance of the gradients: 0 for equal weights, none for 1 / mean variance
        importance: alpha_q is 1 for all (equal), or a client's rows over the mean (size): large clients then train
            less often
        rows: the variance is taken on one batch (batch) or on all rows of the client (all), which costs a pass over
            them

    >>> pool, varies = ClientPool(0, sizes=np.array([9, 9, 9])), {"gradient_variance": np.array([2.0, 5.0, 2.0])}
    >>> config = FedBS().client_selection.configure_training(pool, np.arange(3), varies, count=2)
    >>> config.clients.tolist(), config.numbers["beta"].tolist()
    ([0, 2], [0.5, 0.5])
    """

    tau: Annotated[float | None, NonNegative] = None
    importance: Importance = "equal"
    rows: Literal["batch", "all"] = "batch"

    weighting = Weighting(name=SOFT)

    @property
    def client_selection(self) -> "LeastVariance":
        """Return the selection of the clients whose gradients vary least."""
        return LeastVariance(self)

    def weight(self, report: Report) -> Floats:
        """Return ``beta_q`` (eq. 11)."""
        return report.numbers["beta"]


@dataclass(frozen=True)
class LeastVariance(Selection):
    """Selects the clients whose gradients vary least, after all clients have measured; ``method`` holds the options."""

    method: FedBS

    probe: ClassVar[tuple[Probe, ...]] = ("gradient_variance",)

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        """Return all clients, because all measure before it is decided which of them train."""
        return np.arange(len(pool.sizes))

    def probe_rows(self, pool: ClientPool, chosen: Ints) -> Ints:
        """Return the batch size, or the number of all rows of the client."""
        if self.method.rows == "all":
            return pool.sizes[chosen]
        return super().probe_rows(pool, chosen)

    def configure_training(
        self, pool: ClientPool, chosen: Ints, probed: Mapping[str, Floats], count: int
    ) -> TrainConfig:
        """Return the ``count`` clients with the lowest scores, and their weights."""
        variance = probed["gradient_variance"]
        trains = least(sur(variance, pool.sizes[chosen], self.method.importance), count)
        variance = variance[trains]
        numbers = {"variance": variance, "beta": soft_weights(variance, self.method.tau)}
        return replace(super().configure_training(pool, chosen[trains], {}, count), numbers=numbers)
