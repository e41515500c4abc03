"""Aggregation rules that are robust to a few bad clients: the median, the trimmed mean, Krum, and clipped updates.

Each rule passes its result on to the aggregator ``then``, at the end of the chain the weighted mean; a rule that leaves
one payload passes on a stack of one. Each also returns every client's share in the result: a client with share 0 is
excluded from everything that the server keeps.

What a method keeps as a mean over all clients (SCAFFOLD's controls, FedDyn's h) stays the plain mean of those that
were not excluded, because training diverges otherwise. So with these two methods the median, the trimmed mean and
clipping protect the weights from broken clients, but a hostile one can still act through that mean; Krum, which
excludes whole clients, protects both.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from fedskew.aggregation.mean import Aggregator
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors, Tree


@dataclass(frozen=True)
class Rule(Aggregator):
    """A rule that is applied before the aggregator ``then``."""

    needs_all: ClassVar[bool] = True

    then: Aggregator

    @property
    def least_updates(self) -> int:
        """Return how many valid updates the aggregator after this rule needs."""
        return self.then.least_updates

    def check(self, updates: int) -> None:
        """Raise an error if the aggregator after this rule is not defined for ``updates`` updates."""
        self.then.check(updates)


@dataclass(frozen=True)
class CoordinateMedian(Rule):
    """The median of every coordinate.

    >>> changes = {"delta": {"w": torch.tensor([[1.0, 2.0], [3.0, 1e9], [2.0, 4.0]])}}
    >>> CoordinateMedian(Aggregator()).combine(changes, torch.tensor([0.2, 0.6, 0.2]))  # both are the third client's
    ({'delta': {'w': tensor([2., 4.])}}, tensor([0., 0., 1.]))
    """

    name: ClassVar[str] = "median"

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        """Return the middle value of every coordinate, and the clients' shares in it."""
        middle, shares = _without_extremes(payloads, (len(weights) - 1) // 2, weights)
        return self.then.combine(middle, weights.new_ones(1))[0], shares


@dataclass(frozen=True)
class CoordinateTrimmedMean(Rule):
    """The mean of every coordinate without its largest and smallest values; ``trim`` is the share removed at each end.

    >>> changes = {"delta": {"w": torch.tensor([[1.0], [3.0], [5.0], [-1e9]])}}
    >>> CoordinateTrimmedMean(Aggregator(), trim=0.25).combine(changes, torch.full((4,), 0.25))
    ({'delta': {'w': tensor([2.])}}, tensor([0.5000, 0.5000, 0.0000, 0.0000]))
    """

    name: ClassVar[str] = "trimmed mean"

    trim: float

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        """Return the mean of what is left when both ends are removed, and the clients' shares in it."""
        # 0.29 of 100 is 29; in floating point it would be 28
        cut = int(Fraction(str(self.trim)) * len(weights))
        middle, shares = _without_extremes(payloads, cut, weights)
        return self.then.combine(middle, weights.new_ones(1))[0], shares


@dataclass(frozen=True)
class NearestUpdates(Rule):
    """Krum: the ``keep`` updates that are nearest to their neighbours, all with the same weight.

    >>> changes = {"delta": {"w": torch.tensor([[1.0], [1.5], [2.5], [4.5], [1e9]])}}
    >>> NearestUpdates(Aggregator(), attackers=1).combine(changes, torch.full((5,), 0.2))  # 1.5: 0.25 + 1
    ({'delta': {'w': tensor([1.5000])}}, tensor([0., 1., 0., 0., 0.]))
    >>> NearestUpdates(Aggregator(), attackers=1, keep=2).combine(changes, torch.full((5,), 0.2))
    ({'delta': {'w': tensor([1.2500])}}, tensor([0.5000, 0.5000, 0.0000, 0.0000, 0.0000]))
    """

    name: ClassVar[str] = "krum"

    attackers: int
    keep: int = 1

    @property
    def least_updates(self) -> int:
        """Return ``2 f + 3``, below which the rule guarantees nothing, or ``keep`` if that is larger."""
        return max(2 * self.attackers + 3, self.keep)

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        """Return the combination of the clients with the lowest scores."""
        self.check(len(weights))
        distances = torch.zeros(
            len(weights), len(weights), dtype=torch.float64, device=weights.device
        )
        for value in _changes(payloads, "krum").values():
            flat = _flat(value).to(torch.float64)
            # Differences and not products of norms: exact zeros for equal clients, and the same from a to b as from b
            # to a.
            distances += torch.cdist(
                flat, flat, compute_mode="donot_use_mm_for_euclid_dist"
            ).square()
        neighbours = distances.sort(1).values[
            :, 1 : len(weights) - self.attackers - 1
        ]  # the first is the client itself
        lowest = neighbours.sum(1).argsort(stable=True)[: self.keep].sort().values
        taken = {}
        for part, tensors in payloads.items():
            taken[part] = {name: value[lowest] for name, value in tensors.items()}
        result, shares = self.then.combine(taken, weights.new_full((self.keep,), 1 / self.keep))
        return result, torch.zeros_like(weights).index_copy(0, lowest, shares)

    def check(self, updates: int) -> None:
        """Raise an error if there are fewer updates than the rule needs."""
        least = 2 * self.attackers + 3
        if updates < least:
            raise FedskewError(
                f"krum with attackers={self.attackers} needs {least} updates per round, got {updates}: "
                "take more clients per round (per_round) or lower attackers"
            )
        if updates < self.keep:
            raise FedskewError(
                f"krum with keep={self.keep} needs {self.keep} updates per round, got {updates}: lower keep"
            )


@dataclass(frozen=True)
class ClippedUpdates(Rule):
    """Updates whose L2 norm, over the whole ``delta``, is at most ``norm``.

    >>> changes = {"delta": {"w": torch.tensor([[30.0, 40.0], [0.0, 2.0]])}}
    >>> ClippedUpdates(Aggregator(), norm=10).combine(changes, torch.tensor([0.5, 0.5]))  # (6, 8) and (0, 2)
    ({'delta': {'w': tensor([3., 5.])}}, tensor([0.5000, 0.5000]))
    """

    norm: float

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return the name of the aggregator after this rule: clipping leaves the clients' weights as they are."""
        return self.then.name

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        """Return the combination of the updates after those that are too long were scaled down."""
        squared = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
        delta = _changes(payloads, "clip")
        for value in delta.values():
            squared += torch.linalg.vector_norm(_flat(value), dim=1, dtype=torch.float64).square()
        factor = self.norm / squared.sqrt().clamp_min(self.norm)
        short = {}
        for name, value in delta.items():
            short[name] = (_flat(value) * factor.to(value)[:, None]).view_as(value)
        return self.then.combine({**payloads, "delta": short}, weights)


@dataclass(frozen=True)
class SampledUpdates(ClippedUpdates):
    """Clipped updates of a random sample of clients, which may be empty: the server then goes on with zeros."""

    @property
    def least_updates(self) -> int:
        """Return that a round needs no update."""
        return 0


def _changes(payloads: Tree, rule: str) -> Tensors:
    if "delta" not in payloads:
        raise FedskewError(
            f"{rule} needs the clients' updates (delta), and the method sends {', '.join(payloads)}: leave {rule} out"
        )
    return payloads["delta"]


def _flat(value: Tensor) -> Tensor:
    """Return one row for each client, also where a client has a single number."""
    return value.unsqueeze(1).flatten(1)


def _without_extremes(payloads: Tree, cut: int, like: Tensor) -> tuple[Tree, Tensor]:
    """Return the mean of every coordinate without its ``cut`` largest and smallest values, and the clients' shares.

    The mean is a stack of one.

    A client's share is the part of the coordinates of ``delta`` (of everything, where there is none) that come from
    it; those that several clients have in common are divided among them.
    """
    counts = torch.zeros(len(like), dtype=torch.float64, device=like.device)
    result: Tree = {}
    for part, tensors in payloads.items():
        result[part] = {}
        for name, value in tensors.items():
            middle = value.sort(0).values[cut : len(value) - cut]
            result[part][name] = middle.mean(0, keepdim=True)
            if part == "delta" or "delta" not in payloads:
                inside = (value >= middle[0]) & (value <= middle[-1])
                counts += _flat(inside / inside.sum(0)).sum(1, dtype=torch.float64)
    return result, (counts / counts.sum()).to(like)
