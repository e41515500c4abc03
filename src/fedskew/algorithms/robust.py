"""Additions that keep a few clients from ruining the mean: the median, the trimmed mean, Krum, and bounded changes.

They change ``combine`` alone. Each hands what it makes of the clients' payloads to whatever comes after it, in the end to the
weighted mean; a rule that leaves one payload hands on a stack of one. Each also says what share every client has in the result:
who has none is left out of everything that the server keeps.

What a method keeps as a mean over all clients (SCAFFOLD's controls, FedDyn's h) stays the plain mean of those that were not
left out, or training falls apart. So with these two methods the median, the trimmed mean and clipping protect the weights from
broken clients, but a hostile one can still work through that mean; Krum, which leaves whole clients out, protects both.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedskew.algorithms.contract import Algorithm, algorithms
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Bounds, NonNegative, Positive
from fedskew.core.trees import Tensors, Tree


@algorithms.register("median")
@dataclass(frozen=True)
class Median(Algorithm):
    """The median of every coordinate in place of the mean (Yin et al. 2018, Algorithm 1, option I).

    Clients count alike, whatever they hold. Of an even number it is the mean of the two in the middle. Running statistics of
    BatchNorm are treated as moments, and the variance that comes out is never below the least one that was sent.

    >>> changes = {"delta": {"w": torch.tensor([[1.0, 2.0], [3.0, 1e9], [2.0, 4.0]])}}
    >>> Median().combine(changes, torch.tensor([0.2, 0.6, 0.2]))  # both are the third client's
    ({'delta': {'w': tensor([2., 4.])}}, tensor([0., 0., 1.]))
    """

    addition: ClassVar[bool] = True
    weighs_by: ClassVar[str] = "median"

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        """What is left when all but the middle is cut off."""
        middle, shares = _without_ends(payloads, (len(weights) - 1) // 2, weights)
        return super().combine(middle, weights.new_ones(1))[0], shares


@algorithms.register("trimmed-mean")
@dataclass(frozen=True)
class TrimmedMean(Algorithm):
    """The mean of every coordinate without its largest and smallest values (Yin et al. 2018, Algorithm 1, option II).

    Clients count alike, whatever they hold. Of n clients ``trim * n`` are cut off at each end, rounded down; ``trim = 0`` is
    the mean with equal weights.

    Args:
        trim: share of the clients that is cut off at each end

    >>> changes = {"delta": {"w": torch.tensor([[1.0], [3.0], [5.0], [-1e9]])}}
    >>> TrimmedMean(trim=0.25).combine(changes, torch.full((4,), 0.25))
    ({'delta': {'w': tensor([2.])}}, tensor([0.5000, 0.5000, 0.0000, 0.0000]))
    """

    addition: ClassVar[bool] = True
    weighs_by: ClassVar[str] = "trimmed mean"

    trim: Annotated[float, Bounds(0, 0.5, below=True)] = 0.1

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        """Cut, then the mean."""
        cut = int(Fraction(str(self.trim)) * len(weights))  # 0.29 of 100 is 29; in floating point it would be 28
        middle, shares = _without_ends(payloads, cut, weights)
        return super().combine(middle, weights.new_ones(1))[0], shares


@algorithms.register("krum")
@dataclass(frozen=True)
class Krum(Algorithm):
    """The update that is nearest to its neighbours (Blanchard et al. 2017); with ``keep`` above 1 their Multi-Krum.

    Of n clients and f attackers, a client's score is the sum of the squared distances to its n - f - 2 nearest, over the whole
    ``delta``. The client with the lowest score is taken as it is, with everything it sent; Multi-Krum takes the plain mean of
    the ``keep`` lowest, and ``keep = n`` is the mean with equal weights. Of equal scores that of the lower client number is
    taken. It needs n >= 2 f + 3 sound updates a round.

    Args:
        attackers: how many clients of a round may be hostile
        keep: how many clients are taken

    >>> changes = {"delta": {"w": torch.tensor([[1.0], [1.5], [2.5], [4.5], [1e9]])}}
    >>> Krum(attackers=1).combine(changes, torch.full((5,), 0.2))  # 1.5: 0.25 + 1
    ({'delta': {'w': tensor([1.5000])}}, tensor([0., 1., 0., 0., 0.]))
    >>> Krum(attackers=1, keep=2).combine(changes, torch.full((5,), 0.2))
    ({'delta': {'w': tensor([1.2500])}}, tensor([0.5000, 0.5000, 0.0000, 0.0000, 0.0000]))
    """

    addition: ClassVar[bool] = True
    weighs_by: ClassVar[str] = "krum"

    attackers: Annotated[int, NonNegative] = 1
    keep: Annotated[int, AtLeastOne] = 1

    def check(self, *, optimizer: str, per_round: int | None, secure: bool) -> None:
        """As many clients a round as the rule needs."""
        super().check(optimizer=optimizer, per_round=per_round, secure=secure)
        if per_round is not None:
            self._refuse_too_few(per_round)

    def quorum(self) -> int:
        """``n >= 2 f + 3``, or the rule promises nothing."""
        return max(2 * self.attackers + 3, self.keep)

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        """Only the clients with the lowest scores, all with the same weight."""
        self._refuse_too_few(len(weights))
        distances = torch.zeros(len(weights), len(weights), dtype=torch.float64, device=weights.device)
        for value in _changes(payloads, "krum").values():
            flat = _flat(value).to(torch.float64)
            # Differences and not products of norms: exact zeros for equal clients, and the same from a to b as from b to a.
            distances += torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
        neighbours = distances.sort(1).values[:, 1 : len(weights) - self.attackers - 1]  # the first is the client itself
        lowest = neighbours.sum(1).argsort(stable=True)[: self.keep].sort().values
        taken = {part: {name: value[lowest] for name, value in tensors.items()} for part, tensors in payloads.items()}
        result, shares = super().combine(taken, weights.new_full((self.keep,), 1 / self.keep))
        return result, torch.zeros_like(weights).index_copy(0, lowest, shares)

    def _refuse_too_few(self, count: int) -> None:
        least = 2 * self.attackers + 3
        if count < least:
            raise FedskewError(
                f"krum with attackers={self.attackers} needs {least} updates a round, got {count}: "
                "take more clients a round (per_round) or lower attackers"
            )
        if count < self.keep:
            raise FedskewError(f"krum with keep={self.keep} needs {self.keep} updates a round, got {count}: lower keep")


@algorithms.register("clip")
@dataclass(frozen=True)
class Clip(Algorithm):
    """No client's change is longer than a bound (Sun et al. 2019): ``delta <- delta / max(1, ||delta|| / norm)``.

    The length is that of the whole ``delta`` as it is sent, over all parameters; what else is sent stays as it is.

    Args:
        norm: largest L2 norm of a client's change

    >>> changes = {"delta": {"w": torch.tensor([[30.0, 40.0], [0.0, 2.0]])}}
    >>> Clip(norm=10).combine(changes, torch.tensor([0.5, 0.5]))  # (6, 8) and (0, 2)
    ({'delta': {'w': tensor([3., 5.])}}, tensor([0.5000, 0.5000]))
    """

    addition: ClassVar[bool] = True

    norm: Annotated[float, Positive] = 10.0

    def combine(self, payloads: Tree, weights: Tensor) -> tuple[Tree, Tensor]:
        """Shorten what is too long, then as ever."""
        squared = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
        delta = _changes(payloads, "clip")
        for value in delta.values():
            squared += torch.linalg.vector_norm(_flat(value), dim=1, dtype=torch.float64).square()
        factor = self.norm / squared.sqrt().clamp_min(self.norm)
        short = {name: (_flat(value) * factor.to(value)[:, None]).view_as(value) for name, value in delta.items()}
        return super().combine({**payloads, "delta": short}, weights)


def _changes(payloads: Tree, rule: str) -> Tensors:
    if "delta" not in payloads:
        raise FedskewError(
            f"{rule} looks at the clients' changes (delta), and the method sends {', '.join(payloads)}: leave {rule} out"
        )
    return payloads["delta"]


def _flat(value: Tensor) -> Tensor:
    """One row a client, also where a client has a single number."""
    return value.unsqueeze(1).flatten(1)


def _without_ends(payloads: Tree, cut: int, like: Tensor) -> tuple[Tree, Tensor]:
    """The mean of every coordinate without its ``cut`` largest and ``cut`` smallest values, as a stack of one; and shares.

    A client's share is the part of the coordinates of ``delta`` (of everything, where there is none) that come from it; those
    that several clients have alike are shared out among them.
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
