"""Robust aggregation as additions to any method: the median, the trimmed mean, Krum, and clipped updates.

``fedskew.aggregation.rules`` describes each rule and the limits of its protection.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedskew.aggregation.mean import Aggregator
from fedskew.aggregation.rules import (
    ClippedUpdates,
    CoordinateMedian,
    CoordinateTrimmedMean,
    NearestUpdates,
)
from fedskew.algorithms.contract import Algorithm, algorithms
from fedskew.core.registry import AtLeastOne, Bounds, NonNegative, Positive


@algorithms.register("median")
@dataclass(frozen=True)
class Median(Algorithm):
    """The median of every coordinate in place of the mean (Yin et al. 2018, Algorithm 1, option I).

    All clients have the same weight. Of an even number it is the mean of the two in the middle.
    Running statistics of BatchNorm are treated as moments, and the resulting variance is never below the least one
    that was sent.

    >>> Median().aggregator.name
    'median'
    """

    addition: ClassVar[bool] = True

    @property
    def aggregator(self) -> Aggregator:
        """Return the coordinate-wise median."""
        return CoordinateMedian(super().aggregator)


@algorithms.register("trimmed-mean")
@dataclass(frozen=True)
class TrimmedMean(Algorithm):
    """The mean of every coordinate without its largest and smallest values (Yin et al. 2018, Algorithm 1, option II).

    All clients have the same weight. Of n clients ``trim * n`` are removed at each end, rounded
    down; ``trim = 0`` is the mean with equal weights.

    Args:
        trim: share of the clients that is removed at each end

    >>> TrimmedMean(trim=0.2).aggregator.trim
    0.2
    """

    addition: ClassVar[bool] = True

    trim: Annotated[float, Bounds(0, 0.5, below=True)] = 0.1

    @property
    def aggregator(self) -> Aggregator:
        """Return the coordinate-wise trimmed mean."""
        return CoordinateTrimmedMean(super().aggregator, self.trim)


@algorithms.register("krum")
@dataclass(frozen=True)
class Krum(Algorithm):
    """The update that is nearest to its neighbours (Blanchard et al. 2017); with ``keep`` above 1 their Multi-Krum.

    Of n clients and f attackers, a client's score is the sum of the squared distances to its n - f - 2 nearest, over
    the whole ``delta``. The client with the lowest score is taken as it is, with everything it sent; Multi-Krum takes
    the plain mean of the ``keep`` lowest, and ``keep = n`` is the mean with equal weights. Ties go to
    the lower client number. It needs n >= 2 f + 3 valid updates a round.

    Args:
        attackers: how many clients of a round may be hostile
        keep: how many clients are taken

    >>> Krum(attackers=1).aggregator.least_updates
    5
    """

    addition: ClassVar[bool] = True

    attackers: Annotated[int, NonNegative] = 1
    keep: Annotated[int, AtLeastOne] = 1

    @property
    def aggregator(self) -> Aggregator:
        """Return the rule that keeps the updates with the lowest scores."""
        return NearestUpdates(super().aggregator, self.attackers, self.keep)


@algorithms.register("clip")
@dataclass(frozen=True)
class Clip(Algorithm):
    """A bound on the norm of each client's update (Sun et al. 2019): ``delta <- delta / max(1, ||delta|| / norm)``.

    The norm is that of the whole ``delta`` as it is sent, over all parameters; other parts are unchanged.

    Args:
        norm: largest L2 norm of a client's update

    >>> Clip(norm=3).aggregator.norm
    3.0
    """

    addition: ClassVar[bool] = True
    read_by_part: ClassVar[frozenset[str]] = frozenset({"norm"})

    norm: Annotated[float, Positive] = 10.0

    @property
    def aggregator(self) -> Aggregator:
        """Return the rule that clips updates."""
        return ClippedUpdates(super().aggregator, self.own(Clip).norm)
