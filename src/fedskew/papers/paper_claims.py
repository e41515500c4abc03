"""What a table shows of its runs, and what is claimed of it: values, claims of the paper, and questions of ours."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fedskew.core.errors import unknown
from fedskew.study.curve_measures import CURVE_MEASURES
from fedskew.study.judge import usual_zone

A_POINT = 0.01  # half-width of an interval of a share that is narrow enough
Kind: TypeAlias = Literal[
    "better", "no worse", "equal", "gap", "trend", "near", "above", "steady", "chosen", "untestable"
]
WITH_OTHERS = (
    "better",
    "no worse",
    "equal",
    "gap",
)  # kinds of claims that need somebody to compare with
OF_JUDGE = (
    "better",
    "no worse",
    "equal",
    "gap",
    "trend",
)  # kinds that the judge answers in its own words
WITH_TOLERANCE = ("near", "steady")
_SHARE = re.compile(
    r"((own|trained|calibrated)_)?(client|validation|test|train)_(balanced_)?accuracy"
    r"(_(last|best|mean|worst_10_percent|at_[a-z_]+))?"
)


@dataclass(frozen=True)
class Value:
    """A number that a table shows of every run, and what the paper prints for it: by method, then by case.

    Args:
        name: what it is
        measure: the column of a run's numbers; with a ``curve``, what the whole curve comes to (``curve_measures``)
        factor: by which it is multiplied to be shown, 100 for per cent
        digits: with which it is printed
        better: the direction that is good; empty if none is
        paper: what the paper prints
        instead: another measure for some methods, such as the accuracy of a calibrated model
        zone: differences up to this are of no interest, as shown; by default half a point of a share
        width: the interval that is narrow enough, as shown: ± this; by default a point of a share
        curve: the column of the rounds that ``measure`` is taken of
    """

    name: str
    measure: str
    factor: float = 1.0
    digits: int = 1
    better: Literal["higher", "lower", ""] = "higher"
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    zone: float | None = None
    width: float | None = None
    curve: str = ""

    def measure_of(self, method: str) -> str:
        """Return the measure that is shown for a method."""
        return self.instead.get(method, self.measure)

    def __post_init__(self) -> None:
        if self.curve and self.measure not in CURVE_MEASURES:
            raise unknown("measure of a curve", self.measure, CURVE_MEASURES)

    @property
    def is_share(self) -> bool:
        """Return whether it is a share of rows, for which studies have a usual zone."""
        return _SHARE.fullmatch(self.measure) is not None

    @property
    def zone_in_use(self) -> float | None:
        """Return the zone, as the value is shown: as given, or the usual one of a study."""
        usual = usual_zone(0.0)
        if self.zone is not None or usual is None or not self.is_share:
            return self.zone
        return usual * self.factor

    @property
    def width_in_use(self) -> float | None:
        """Return the half-width of an interval that is narrow enough; None if any is."""
        if self.width is not None or not self.is_share:
            return self.width
        return A_POINT * self.factor


@dataclass(frozen=True)
class Claim:
    """What a paper says of a table, or a question of ours.

    kind:
        better: ``method`` is better than each of ``others``, over the pairs of case and seed; by at least ``margin`` or
            by this ``share`` of the other's number, if they are given
        no worse: ``method`` is better than each of ``others``, or equal to it
        equal: ``method`` and each of ``others`` differ by less than the zone
        gap: ``method`` is further ahead of each of ``others`` in ``cases`` than ``elsewhere``, by default all others
        trend: the numbers of ``method``, or its gap to each of ``others``, grow along ``cases``, which stand at the
            numbers of ``at``; with ``falls`` they fall
        near: ``method`` is within ``tolerance`` of the paper's number in every case
        above: ``method`` is beyond ``bound``, in the good direction, in every case
        steady: no two cases of ``method`` differ by more than ``tolerance``
        chosen: ``method`` has the best mean over the cases; how a table settles what its paper leaves open
        untestable: it cannot be tested here, and ``because`` says why

    ``place`` is where the paper says it; ``ours`` marks a question that no paper answers. A claim that names a
    ``tolerance`` has it as its zone; others have the zone of their value.
    """

    text: str
    kind: Kind
    value: str = ""
    method: str = ""
    others: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    at: tuple[float, ...] = ()
    falls: bool = False
    margin: float = 0.0
    share: float = 0.0
    tolerance: float = 0.0
    bound: float = 0.0
    because: str = ""
    place: str = ""
    ours: bool = False


def what_is_wrong(claim: Claim, value: Value | None) -> str:
    """Say what a claim lacks that its kind needs; empty if it is whole. ``value`` is the one that it is about."""
    whose = _whose_it_is(claim)
    if whose:
        return whose
    if claim.kind == "untestable" and not claim.because:
        return "say because of what it cannot be tested"
    return _what_its_kind_needs(claim, value)


def _whose_it_is(claim: Claim) -> str:
    """Say what is wrong about whose claim it is: one of the paper has a place there, one of ours has none."""
    asked = claim.ours or claim.kind == "chosen"
    if asked and claim.place:
        return "a question of ours has no place in the paper"
    if not asked and not claim.place:
        return "say the place in the paper, such as 'Table 3', or that the question is ours"
    if claim.ours and claim.kind not in (*OF_JUDGE, "untestable"):
        return f"a question of ours is one of {', '.join(OF_JUDGE)}"
    return ""


def _what_its_kind_needs(claim: Claim, value: Value | None) -> str:
    """Say what a claim of this kind needs beside its value and its method."""
    if claim.kind in WITH_OTHERS and not (claim.others and value and value.better):
        return f"{claim.kind!r} needs others, and a value that is better higher or lower"
    if claim.kind in WITH_TOLERANCE and not claim.tolerance:
        return f"{claim.kind!r} needs a tolerance"
    if claim.kind == "gap" and not claim.cases:
        return "'gap' needs the cases in which it is larger"
    if claim.kind == "trend" and not 2 <= len(claim.at) == len(claim.cases):
        return "'trend' needs cases, and as many numbers that they stand at"
    return ""
