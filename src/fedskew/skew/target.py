"""Partitions with a target heterogeneity: the search for the value of a skew's parameter."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import Choice, parts_of
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.heterogeneity.distances import DISTANCES
from fedskew.heterogeneity.heterogeneity import levels
from fedskew.skew.partitioning import Partitioned, SkewSpec, partition_rows
from fedskew.skew.skews import skews, treatments

TOLERANCE = 0.01
VIEW_NAMES = ("labels", "features", "features-given-label", "labels-given-features")
_GRID = 15  # positions of the parameter that are tried first
_BETWEEN = 25  # trials between positions of the grid: 40 in all
_HALVINGS = 8  # of the interval between two of them
_LOOKS = 8  # trials to either side of a jump of the level
_MORE = 60  # further trials, where the level is not monotonic
_DIGITS = 4  # of a parameter's value, so that it can be typed


@dataclass(frozen=True)
class SkewParameter:
    """The parameter that changes a skew from ``mild`` to ``harsh``: linearly, logarithmically, or by whole numbers.

    The mild end may depend on the rows and the number of clients.
    """

    option: str
    mild: "float | Callable[[Rows, int], float]"
    harsh: float
    scale: Literal["linear", "log", "whole"] = "linear"

    def value(self, rows: Rows, clients: int, position: float) -> float | int:
        """Return the parameter's value at a position between 0 (mild) and 1 (harsh), rounded to a few digits."""
        mild = self.mild
        if callable(mild):
            mild = mild(rows, clients)
        if self.scale == "linear":
            return round(mild + position * (self.harsh - mild), _DIGITS)
        value = math.exp(math.log(mild) + position * math.log(self.harsh / mild))
        if self.scale == "whole":
            return round(value)
        return float(f"{value:.{_DIGITS}g}")


def _labels(rows: Rows, clients: int) -> float:
    return int(np.count_nonzero(np.bincount(rows.labels)))


def _groups(rows: Rows, clients: int) -> float:
    if rows.group is None:
        return 1
    return int(np.count_nonzero(np.bincount(rows.group)))


def _shards(rows: Rows, clients: int) -> float:
    return max(len(rows) // clients, 1)


_ALPHA, _STRENGTH = SkewParameter("alpha", 1e4, 1e-3, "log"), SkewParameter("strength", 0.0, 1.0)
PARAMETERS: Mapping[str, SkewParameter] = {
    "dirichlet": _ALPHA,
    "feature-dirichlet": _ALPHA,
    "two-class-dirichlet": _ALPHA,
    "quantity": _ALPHA,
    "classes": SkewParameter("k", _labels, 1, "whole"),
    "domains": SkewParameter("k", _groups, 1, "whole"),
    "shards": SkewParameter("per_client", _shards, 1, "whole"),
    "vop": _STRENGTH,
    "wgc": _STRENGTH,
    "lds": _STRENGTH,
    "sfdl": _STRENGTH,
    "sldf": _STRENGTH,
    "noise": SkewParameter("sigma", 1e-3, 1e3, "log"),
    "relabel": SkewParameter("fraction", 0.0, 1.0),
}


@dataclass(frozen=True)
class Target:
    """A target mean distance between clients: ``hellinger=0.6``, ``features-given-label.wasserstein=0.1``."""

    of: str
    distance: str
    level: float

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Parse ``distance=level`` or ``features.distance=level``; without a view before it, it is about labels.

        >>> Target.parse("features.jensen-shannon=0.3")
        Target(of='features', distance='jensen-shannon', level=0.3)
        """
        name, equals, number = str(text).strip().partition("=")
        before, dot, distance = name.strip().replace("_", "-").rpartition(".")
        of = before.replace("-", " ")
        if not dot:
            of = "labels"
        if not equals or not distance:
            raise FedskewError(
                f"target {text!r}: write distance=level, such as hellinger=0.6 or features.wasserstein=0.1"
            )
        if dot and before not in VIEW_NAMES:
            raise unknown("view of a target", before, VIEW_NAMES)
        if distance not in DISTANCES:
            raise unknown("distance of a target", distance, DISTANCES)
        try:
            level = float(number)
        except ValueError:
            raise FedskewError(f"target {text!r}: {number.strip()!r} is not a number") from None
        if not 0 <= level <= 1:
            raise FedskewError(
                f"target {text!r}: {number.strip()} is out of range, it must be >= 0 and <= 1"
            )
        return cls(of, distance, level)

    def __str__(self) -> str:
        return f"{self.of.replace(' ', '-')}.{self.distance}={self.level:g}"


@dataclass(frozen=True)
class Found:
    """A partition with the target level: ``spec`` reproduces it with the same seed, ``level`` is what it measures."""

    spec: str
    result: Partitioned
    target: Target
    level: float
    trials: int

    @property
    def partition(self) -> Partition:
        """Return the rows of each client."""
        return self.result.partition


def find(
    spec: SkewSpec,
    rows: Rows,
    clients: int | None,
    seed: int,
    target: "str | Target",
    *,
    classes: int | None = None,
    tolerance: float = TOLERANCE,
) -> Found:
    """Search the mildest value of the skew's parameter whose partition has the target level within the tolerance.

    All trials use the same seed, so that the level follows the parameter, except for small steps, as rows are whole.
    From the mild end on, the search bisects between the first two neighbours of a grid that enclose the level; where
    the level jumps over the target, neighbours of the jump are tried. That takes at most 40 trials. With clients of a
    few rows the level is not monotonic: then up to 60 more are made, always between the neighbours that came nearest.

    Args:
        spec: a skew without its parameter: ``"dirichlet"``, ``"classes"``, ``"dirichlet:alpha=0.3 + noise"``
        rows: the rows to partition
        clients: number of clients
        seed: seed of the partition
        target: ``hellinger=0.6``, ``features.wasserstein=0.1``, ``labels-given-features.hellinger=0.3``: the mean over
            pairs, as in ``measure``
        classes: number of classes; by default the largest label + 1
        tolerance: largest difference from the level

    >>> import numpy as np
    >>> rows = Rows(np.zeros((600, 1), np.float32), np.arange(600) % 6)
    >>> found = find("classes", rows, 6, 0, "total-variation=1")
    >>> found.spec, found.level
    ('classes:k=1', 1.0)
    """
    if not isinstance(target, Target):
        target = Target.parse(target)
    search = _Search(_OpenSkew.of(spec), rows, clients, seed, target, classes)
    best = search.run(tolerance)
    if abs(best.level - target.level) > tolerance:
        raise search.unreachable(best, tolerance)
    return best


@dataclass(frozen=True)
class _OpenSkew:
    """A skew with one parameter left open."""

    before: tuple[Choice, ...]
    open: Choice
    after: tuple[Choice, ...]
    parameter: SkewParameter

    @classmethod
    def of(cls, spec: SkewSpec) -> "_OpenSkew":
        if callable(spec):
            raise FedskewError(
                "a target needs a skew by name: a function has no parameter to search"
            )
        parts: list[Choice] = [_as_choice(part) for part in parts_of(spec, "skew")]
        for part in parts:
            if part.name not in treatments:
                skews.get(part.name)  # refuses an unknown name, and names the nearest
        place = _open_place(parts)
        return cls(
            before=tuple(parts[:place]),
            open=parts[place],
            after=tuple(parts[place + 1 :]),
            parameter=PARAMETERS[parts[place].name],
        )

    def at(self, value: float | int) -> str:
        """Return the skew with its parameter at this value, as text."""
        closed = Choice(self.open.name, {self.parameter.option: value, **self.open.options})
        return " + ".join(map(str, (*self.before, closed, *self.after)))


def _open_place(parts: list[Choice]) -> int:
    """Return which part has its parameter open; raise an error if none has, or several have."""
    shown = " + ".join(map(str, parts))
    set_by = []
    free = []
    open_options = []
    for place, part in enumerate(parts):
        if part.name not in PARAMETERS:
            continue
        option = PARAMETERS[part.name].option
        set_by.append(option)
        if option not in part.options:
            free.append(place)
            open_options.append(f"{option} of {part.name}")
    if not set_by:
        raise FedskewError(
            f"skew {shown} has no parameter that a target could set: use one of {', '.join(sorted(PARAMETERS))}"
        )
    if not free:
        raise FedskewError(
            f"skew {shown}: a target is reached by {' and '.join(set_by)}: leave it out, or leave the target out"
        )
    if len(free) > 1:
        raise FedskewError(
            f"skew {shown}: {' and '.join(open_options)} are both open, and a target can only set one: give the others"
        )
    return free[0]


def _as_choice(part: Any) -> Choice:
    if isinstance(part, Choice):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("name"), str):
        return Choice(
            part["name"],
            {key.replace("-", "_"): value for key, value in part.items() if key != "name"},
        )
    raise FedskewError(f"skew {part}: write it as text, name:key=value, or as a table with a name")


@dataclass
class _Search:
    """The partitions tried so far, and the best of them."""

    skew: _OpenSkew
    rows: Rows
    clients: int | None
    seed: int
    target: Target
    classes: int | None
    # The level by value of the parameter; None where the skew refuses the value
    tried: dict[float, float | None] = field(default_factory=dict)
    # How far the level is above the target, by position of the parameter
    offsets: dict[float, float] = field(default_factory=dict)
    best: Found | None = None
    refusal: FedskewError | None = None

    def run(self, tolerance: float) -> Found:
        """Search the grid from the mild end; bisect between neighbours that enclose the level; stop when close."""
        last = None  # the position before, and its offset
        between = 0
        close = tolerance / 10
        for step in range(_GRID):
            position = step / (_GRID - 1)
            offset = self._offset(position)
            if offset is None:
                continue
            if last is not None and last[1] * offset < 0 and between + _HALVINGS <= _BETWEEN:
                trials = len(self.tried)
                jump = self._halve(*last, position, tolerance / 10)
                self._look_around(jump, tolerance, _BETWEEN - between - _HALVINGS)
                between += len(self.tried) - trials
            if between:
                close = tolerance
            if self._miss() <= close:
                break
            last = (position, offset)
        self._refine(tolerance)
        if self.best is None:
            raise self.refusal or FedskewError(
                f"skew {self.skew.open.name}: no value gives a partition"
            )
        return replace(self.best, trials=len(self.tried))

    def _halve(self, low: float, low_offset: float, high: float, close: float) -> float:
        """Bisect between two positions that enclose the level until it is close; return where that ends."""
        for _ in range(_HALVINGS):
            if self._miss() <= close:
                break
            middle = (low + high) / 2
            offset = self._offset(middle)
            if offset is None:
                break
            if low_offset * offset > 0:
                low = middle
                low_offset = offset
            else:
                high = middle
        return (low + high) / 2

    def _look_around(self, position: float, tolerance: float, most: int) -> None:
        """Where the level jumps over the target, try neighbours: nearby values often have another jump."""
        known = len(self.tried)
        step = 0.5 / (_GRID - 1) / _LOOKS
        for look in range(2 * _LOOKS):
            place = position + step * (look // 2 + 1) * (-1) ** look
            if self._miss() <= tolerance or len(self.tried) - known >= most:
                return
            if 0 <= place <= 1:
                self._offset(place)

    def _refine(self, tolerance: float) -> None:
        """Bisect between the neighbours that came nearest, if the level is within the reached range."""
        for _ in range(_MORE):
            offsets = self.offsets.values()
            if self._miss() <= tolerance or not offsets or min(offsets) * max(offsets) > 0:
                return
            pairs = pairwise(sorted(self.offsets.items()))
            gaps = []
            for (position, offset), (after, next_offset) in pairs:
                if after - position > 1e-4:
                    gaps.append((min(abs(offset), abs(next_offset)), position, after))
            if not gaps:
                return
            _, low, high = min(gaps)
            if self._offset((low + high) / 2) is None:
                return

    def _miss(self) -> float:
        """Return by how much the best partition so far misses the level."""
        if self.best is None:
            return math.inf
        return abs(self.best.level - self.target.level)

    def _offset(self, position: float) -> float | None:
        """Return how far above the target the partition at this position is; None where the skew refuses."""
        value = self.skew.parameter.value(self.rows, self.clients or 1, position)
        if value not in self.tried:
            self.tried[value] = self._try(value)
        level = self.tried[value]
        if level is None:
            return None
        self.offsets[position] = level - self.target.level
        return self.offsets[position]

    def _try(self, value: float) -> float | None:
        spec = self.skew.at(value)
        try:
            made = partition_rows(spec, self.rows, self.clients, self.seed)
            found = levels(made.rows, made.partition, self.target.of, classes=self.classes)
        except FedskewError as problem:
            self.refusal = self.refusal or problem
            return None
        level = found[self.target.distance]
        if abs(level - self.target.level) < self._miss():
            self.best = Found(spec, made, self.target, level, 0)
        return level

    def unreachable(self, nearest: Found, tolerance: float) -> FedskewError:
        """Return the error that says what can be reached instead."""
        made = {value: level for value, level in self.tried.items() if level is not None}
        range_of_values = f"{self.skew.parameter.option} {min(made):g} … {max(made):g}"
        clients = nearest.partition.clients
        reached = f"{min(made.values()):.3f} … {max(made.values()):.3f}"
        return FedskewError(
            f"no {self.skew.open.name} partition of {clients} clients with seed {self.seed} has {self.target} within "
            f"{tolerance:g}: {range_of_values} reaches {reached}, nearest {nearest.level:.3f} with {nearest.spec}: "
            "ask for a level that is reached, or take another skew or seed"
        )
