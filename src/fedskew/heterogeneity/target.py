"""Ask for a level, get a cut that has it: search of a skew's own knob for a wanted distance between clients."""

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
_GRID = 15
_BETWEEN = 25  # cuts that may be tried between points of the grid: 40 in all
_HALVINGS = 8
_LOOKS = 8  # to either side of a jump
_MORE = 60  # cuts that may be tried after that, where the level goes to and fro
_DIGITS = 4  # of a knob's value: what is found can be typed again


@dataclass(frozen=True)
class Knob:
    """The option that turns a skew from ``mild`` to ``harsh``: evenly, evenly in the logarithm, or so by whole numbers.

    The mild end may depend on the rows and the number of clients.
    """

    option: str
    mild: "float | Callable[[Rows, int], float]"
    harsh: float
    scale: Literal["linear", "log", "whole"] = "linear"

    def value(self, rows: Rows, clients: int, turn: float) -> float | int:
        """The option's value at a turn between 0 (mild) and 1 (harsh), in a few digits."""
        mild = self.mild(rows, clients) if callable(self.mild) else self.mild
        if self.scale == "linear":
            return round(mild + turn * (self.harsh - mild), _DIGITS)
        value = math.exp(math.log(mild) + turn * math.log(self.harsh / mild))
        return round(value) if self.scale == "whole" else float(f"{value:.{_DIGITS}g}")


def _labels(rows: Rows, clients: int) -> float:
    return int(np.count_nonzero(np.bincount(rows.labels)))


def _groups(rows: Rows, clients: int) -> float:
    return 1 if rows.group is None else int(np.count_nonzero(np.bincount(rows.group)))


def _shards(rows: Rows, clients: int) -> float:
    return max(len(rows) // clients, 1)


_ALPHA, _STRENGTH = Knob("alpha", 1e4, 1e-3, "log"), Knob("strength", 0.0, 1.0)
KNOBS: Mapping[str, Knob] = {
    "dirichlet": _ALPHA,
    "feature-dirichlet": _ALPHA,
    "two-class-dirichlet": _ALPHA,
    "quantity": _ALPHA,
    "classes": Knob("k", _labels, 1, "whole"),
    "domains": Knob("k", _groups, 1, "whole"),
    "shards": Knob("per_client", _shards, 1, "whole"),
    "vop": _STRENGTH,
    "wgc": _STRENGTH,
    "lds": _STRENGTH,
    "sfdl": _STRENGTH,
    "sldf": _STRENGTH,
    "noise": Knob("sigma", 1e-3, 1e3, "log"),
    "relabel": Knob("fraction", 0.0, 1.0),
}


@dataclass(frozen=True)
class Target:
    """A wanted mean distance between clients: ``hellinger=0.6``, ``features.wasserstein=0.1``."""

    of: str
    distance: str
    level: float

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Read ``distance=level`` or ``features.distance=level``; without a word before it, of labels.

        >>> Target.parse("features.jensen-shannon=0.3")
        Target(of='features', distance='jensen-shannon', level=0.3)
        """
        name, equals, number = str(text).strip().partition("=")
        of, dot, distance = name.strip().replace("_", "-").rpartition(".")
        of = of if dot else "labels"
        if not equals or not distance:
            raise FedskewError(f"target {text!r}: write distance=level, such as hellinger=0.6 or features.wasserstein=0.1")
        if of not in ("labels", "features"):
            raise unknown("part of a target", of, ("labels", "features"))
        if distance not in DISTANCES:
            raise unknown("distance of a target", distance, DISTANCES)
        try:
            level = float(number)
        except ValueError:
            raise FedskewError(f"target {text!r}: {number.strip()!r} is not a number") from None
        if not 0 <= level <= 1:
            raise FedskewError(f"target {text!r}: {number.strip()} is out of range, it must be >= 0 and <= 1")
        return cls(of, distance, level)

    def __str__(self) -> str:
        return f"{self.of}.{self.distance}={self.level:g}"


@dataclass(frozen=True)
class Found:
    """A cut that has the wanted level: ``spec`` makes it again with the same seed, ``level`` is what it measures."""

    spec: str
    result: Partitioned
    target: Target
    level: float
    cuts: int  # that were tried

    @property
    def partition(self) -> Partition:
        """Who holds which rows."""
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
    """The mildest setting of the skew's knob, as far as one can see, whose cut has the wanted level within the tolerance.

    Every try is cut with the same seed, so that the level follows the knob, but for small steps, as rows are whole. From the
    mild end on, the first two neighbours of a grid that enclose the level are halved between; where the level jumps over what
    is wanted, neighbours of the jump are tried. That takes at most 40 cuts. A client of a few rows makes the level go to and
    fro: then up to 60 more are made, always between the neighbours that came nearest.

    Args:
        spec: a skew without its knob: ``"dirichlet"``, ``"classes"``, ``"dirichlet:alpha=0.3 + noise"``
        rows: to be cut
        clients: how many
        seed: of the cut
        target: ``hellinger=0.6``, ``features.wasserstein=0.1``: the mean over pairs that ``measure`` gives
        classes: how many classes there are; the greatest label + 1 when left out
        tolerance: how far off the level may be

    >>> import numpy as np
    >>> rows = Rows(np.zeros((600, 1), np.float32), np.arange(600) % 6)
    >>> found = find("classes", rows, 6, 0, "total-variation=1")
    >>> found.spec, found.level
    ('classes:k=1', 1.0)
    """
    wanted = target if isinstance(target, Target) else Target.parse(target)
    search = _Search(_Dial.of(spec), rows, clients, seed, wanted, classes)
    best = search.run(tolerance)
    if abs(best.level - wanted.level) > tolerance:
        raise search.unreachable(best, tolerance)
    return best


@dataclass(frozen=True)
class _Dial:
    """A skew with one knob left open."""

    before: tuple[Choice, ...]
    open: Choice
    after: tuple[Choice, ...]
    knob: Knob

    @classmethod
    def of(cls, spec: SkewSpec) -> "_Dial":
        if callable(spec):
            raise FedskewError("a target needs a skew by name: a function has no knob that could be searched")
        parts: list[Choice] = [_as_choice(part) for part in parts_of(spec, "skew")]
        for part in parts:
            if part.name not in treatments:
                skews.get(part.name)  # refuses an unknown name, and names the nearest
        turnable = [place for place, part in enumerate(parts) if part.name in KNOBS]
        free = [place for place in turnable if KNOBS[parts[place].name].option not in parts[place].options]
        shown = " + ".join(map(str, parts))
        if not turnable:
            raise FedskewError(f"skew {shown} has no knob that a target could set: use one of {', '.join(sorted(KNOBS))}")
        if not free:
            options = " and ".join(KNOBS[parts[place].name].option for place in turnable)
            raise FedskewError(f"skew {shown}: a target is reached by {options}: leave it out, or leave the target out")
        if len(free) > 1:
            options = " and ".join(f"{KNOBS[parts[place].name].option} of {parts[place].name}" for place in free)
            raise FedskewError(f"skew {shown}: {options} are both open, and a target can only set one: give the others")
        place = free[0]
        return cls(tuple(parts[:place]), parts[place], tuple(parts[place + 1 :]), KNOBS[parts[place].name])

    def at(self, value: float | int) -> str:
        """The skew with its knob at this value, as text."""
        turned = Choice(self.open.name, {self.knob.option: value, **self.open.options})
        return " + ".join(map(str, (*self.before, turned, *self.after)))


def _as_choice(part: Any) -> Choice:
    if isinstance(part, Choice):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("name"), str):
        return Choice(part["name"], {key.replace("-", "_"): value for key, value in part.items() if key != "name"})
    raise FedskewError(f"skew {part}: write it as text, name:key=value, or as a table with a name")


@dataclass
class _Search:
    """The cuts tried so far, and the best of them."""

    dial: _Dial
    rows: Rows
    clients: int | None
    seed: int
    target: Target
    classes: int | None
    tried: dict[float, float | None] = field(default_factory=dict)  # the knob's value -> level; None where the skew refuses
    turns: dict[float, float] = field(default_factory=dict)  # turn of the knob -> how far above the level
    best: Found | None = None
    refusal: FedskewError | None = None

    def run(self, tolerance: float) -> Found:
        """Walk the grid from the mild end; halve between neighbours that enclose the level; stop when close."""
        before, between = None, 0
        for step in range(_GRID):
            turn = step / (_GRID - 1)
            off = self._off(turn)
            if off is None:
                continue
            if before is not None and before[1] * off < 0 and between + _HALVINGS <= _BETWEEN:
                known = len(self.tried)
                jump = self._halve(*before, turn, tolerance / 10)
                self._look_around(jump, tolerance, _BETWEEN - between - _HALVINGS)
                between += len(self.tried) - known
            if self._miss() <= (tolerance if between else tolerance / 10):
                break
            before = (turn, off)
        self._refine(tolerance)
        if self.best is None:
            raise self.refusal or FedskewError(f"skew {self.dial.open.name}: nothing could be cut")
        return replace(self.best, cuts=len(self.tried))

    def _halve(self, low: float, off_low: float, high: float, close: float) -> float:
        """Halve the turns between two that enclose the level until it is close; where that ends."""
        for _ in range(_HALVINGS):
            off = None if self._miss() <= close else self._off((low + high) / 2)
            if off is None:
                break
            middle = (low + high) / 2
            low, off_low, high = (middle, off, high) if off_low * off > 0 else (low, off_low, middle)
        return (low + high) / 2

    def _look_around(self, turn: float, tolerance: float, most: int) -> None:
        """Where the level jumps over what is wanted, try neighbours: where it jumps once it mostly jumps again nearby."""
        known, step = len(self.tried), 0.5 / (_GRID - 1) / _LOOKS
        for look in range(2 * _LOOKS):
            place = turn + step * (look // 2 + 1) * (-1) ** look
            if self._miss() <= tolerance or len(self.tried) - known >= most:
                return
            if 0 <= place <= 1:
                self._off(place)

    def _refine(self, tolerance: float) -> None:
        """Halve between the neighbours that came nearest, if the level is within what was reached."""
        for _ in range(_MORE):
            if self._miss() <= tolerance or not self.turns or min(self.turns.values()) * max(self.turns.values()) > 0:
                return
            pairs = pairwise(sorted(self.turns.items()))
            gaps = [
                (min(abs(off), abs(next_off)), turn, after) for (turn, off), (after, next_off) in pairs if after - turn > 1e-4
            ]
            if not gaps:
                return
            _, low, high = min(gaps)
            if self._off((low + high) / 2) is None:
                return

    def _miss(self) -> float:
        return math.inf if self.best is None else abs(self.best.level - self.target.level)

    def _off(self, turn: float) -> float | None:
        """How far above the wanted level the cut at this turn of the knob is; None where the skew refuses."""
        value = self.dial.knob.value(self.rows, self.clients or 1, turn)
        if value not in self.tried:
            self.tried[value] = self._try(value)
        level = self.tried[value]
        if level is None:
            return None
        self.turns[turn] = level - self.target.level
        return self.turns[turn]

    def _try(self, value: float) -> float | None:
        spec = self.dial.at(value)
        try:
            made = partition_rows(spec, self.rows, self.clients, self.seed)
        except FedskewError as problem:
            self.refusal = self.refusal or problem
            return None
        level = levels(made.rows, made.partition, self.target.of, classes=self.classes)[self.target.distance]
        if abs(level - self.target.level) < self._miss():
            self.best = Found(spec, made, self.target, level, 0)
        return level

    def unreachable(self, nearest: Found, tolerance: float) -> FedskewError:
        """What can be had instead."""
        found = [level for level in self.tried.values() if level is not None]
        values = [value for value, level in self.tried.items() if level is not None]
        knob = f"{self.dial.knob.option} {min(values):g} … {max(values):g}"
        clients, reached = nearest.partition.clients, f"{min(found):.3f} … {max(found):.3f}"
        return FedskewError(
            f"no {self.dial.open.name} cut of {clients} clients with seed {self.seed} has {self.target} within {tolerance:g}: "
            f"{knob} reaches {reached}, nearest {nearest.level:.3f} with {nearest.spec}: "
            "ask for a level that is reached, or take another skew or seed"
        )
