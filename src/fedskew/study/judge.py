"""The judge: what follows from the scores of methods over blocks. Numbers in, verdicts out; nothing is read or trained.

A block is a seed within one skew. A contrast is a method minus its control in the blocks that both have. The contrasts
of a skew are one family: its m intervals hold together with 95 %. docs/compare.md has the same definitions for readers.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from statistics import fmean
from typing import Literal, NamedTuple, TypeAlias

from fedskew.core.errors import FedskewError
from fedskew.core.units import AS_IT_IS, ScoreUnit

Verdict: TypeAlias = Literal["equal", "better", "worse", "undecided"]
VERDICTS: tuple[Verdict, ...] = ("better", "equal", "worse", "undecided")
FEWEST_BLOCKS = 3  # for an interval
LEVEL = 0.05  # of a family that is better or worse, and of each one-sided test of a contrast that is equal
HALF_A_POINT = 0.005  # the least zone of a metric that is a share
ROWS_OF_THE_ZONE = 2  # test rows that the zone covers at least
MOST_OF_A_ZONE = 0.05  # if these are more, rows are too few for a zone that nobody has given
# Standard deviation, in test rows, that rounding two scores to whole rows hides in their difference
ROUNDED_ROWS = math.sqrt(1 / 6)
# A difference of at most this share of the larger score counts as none: float32 is no more exact
_ROUNDING = 1e-6
_MOST_BLOCKS = 1_000_000  # that are ever said to be needed
_NAMED = 6  # methods in a list of the sentence
Scores: TypeAlias = Mapping[str, Mapping[Hashable, float]]  # of every method, by block


class Interval(NamedTuple):
    """Where a mean difference lies."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Return half of its width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Rules:
    """What a study has settled before its first run, and judging goes by.

    Args:
        zone: differences up to this are of no interest, in the metric's own unit; None if nothing may be called equal
        row: how much one test row changes a score; 0 if the metric is no share of rows
        sign: -1 where low scores are good
        control: the method that all others are compared with; None for all pairs
    """

    zone: float | None
    row: float = 0.0
    sign: int = 1
    control: str | None = None


def paired_interval(
    differences: Sequence[float], share: float = 1 - LEVEL, least_deviation: float = 0.0
) -> Interval:
    """Return the interval of the mean difference that holds ``share`` of Student's t.

    The standard deviation is taken as at least ``least_deviation``. With 0, differences that are all the same have an
    interval of width 0. That is right for numbers without chance, such as properties of a partition.

    >>> [round(end, 3) for end in paired_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    >>> [round(end, 3) for end in paired_interval([1.0, 1.0, 1.0], least_deviation=0.5)]
    [-0.242, 2.242]
    """
    count = len(differences)
    mean = fmean(differences)
    half = _half_width(max(_deviation(differences), least_deviation), count, share)
    return Interval(mean - half, mean + half)


def _half_width(deviation: float, count: int, share: float) -> float:
    """Return half of the width of an interval over so many blocks."""
    return _quantile(count - 1, 0.5 + share / 2) * deviation / math.sqrt(count)


@cache
def _quantile(freedom: int, share: float) -> float:
    """Return the quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def _deviation(differences: Sequence[float]) -> float:
    """Return the standard deviation (n - 1)."""
    mean = fmean(differences)
    squares = math.fsum((value - mean) ** 2 for value in differences)
    return math.sqrt(squares / (len(differences) - 1))


def usual_zone(row: float) -> float | None:
    """Return the zone of a share that was given none: half a point, or two test rows if that is more.

    None if two test rows are more than five points: nothing can be called equal on so few.

    >>> usual_zone(1 / 10_000), usual_zone(1 / 100), usual_zone(1 / 10)
    (0.005, 0.02, None)
    """
    zone = max(HALF_A_POINT, ROWS_OF_THE_ZONE * row)
    if zone > MOST_OF_A_ZONE:
        return None
    return zone


@dataclass(frozen=True)
class Contrast:
    """A method minus its control, over the blocks that both have.

    Args:
        cell: the skew, or whatever else differs between the cells of a study; empty where there is one cell
        method: the method
        control: what it is compared with
        differences: by block, in the metric's own unit
        family: how many contrasts the cell has
        rules: what judging goes by
        least_deviation: the standard deviation that is assumed at least
    """

    cell: str
    method: str
    control: str
    differences: Mapping[Hashable, float]
    family: int
    rules: Rules
    least_deviation: float

    @property
    def blocks(self) -> int:
        """Return over how many blocks it is judged."""
        return len(self.differences)

    @property
    def mean(self) -> float | None:
        """Return the mean difference; None without a block."""
        if not self.differences:
            return None
        return fmean(self.differences.values())

    @cached_property
    def deviation(self) -> float:
        """Return the standard deviation that the intervals are made of."""
        return max(_deviation(list(self.differences.values())), self.least_deviation)

    @cached_property
    def interval(self) -> Interval | None:
        """Return the interval that holds together with the others of its family; None with too few blocks."""
        return self._interval_of(1 - LEVEL / self.family)

    @cached_property
    def inner_interval(self) -> Interval | None:
        """Return the plain 90 % interval, by which a contrast is called equal."""
        return self._interval_of(1 - 2 * LEVEL)

    def _interval_of(self, share: float) -> Interval | None:
        if self.blocks < FEWEST_BLOCKS:
            return None
        return paired_interval(list(self.differences.values()), share, self.least_deviation)

    @cached_property
    def verdict(self) -> Verdict:
        """Return the verdict: equal first, then better or worse, otherwise undecided."""
        if self.interval is None or self.inner_interval is None:
            return "undecided"
        zone = self.rules.zone
        if zone is not None and -zone < self.inner_interval.low and self.inner_interval.high < zone:
            return "equal"
        if self.interval.low > 0 or self.interval.high < 0:
            if self.rules.sign * self.interval.low > 0:
                return "better"
            return "worse"
        return "undecided"

    @cached_property
    def blocks_needed(self) -> int | None:
        """Return the number of blocks at which the half-width shrinks to the zone; None if that cannot be said."""
        if self.verdict != "undecided" or self.interval is None or not self.rules.zone:
            return None
        share = 1 - LEVEL / self.family
        low, high = FEWEST_BLOCKS - 1, _MOST_BLOCKS
        if _half_width(self.deviation, high, share) > self.rules.zone:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if _half_width(self.deviation, middle, share) <= self.rules.zone:
                high = middle
            else:
                low = middle
        return max(high, self.blocks + 1)


def judge_cell(scores: Scores, rules: Rules, cell: str = "") -> list[Contrast]:
    """Return the contrasts of one cell, which are one family."""
    pairs = _pairs(scores, rules.control)
    contrasts = []
    for method, control in pairs:
        differences = differences_by_block(scores[method], scores[control])
        least = _least_deviation(scores[method], scores[control], rules.row)
        contrasts.append(Contrast(cell, method, control, differences, len(pairs), rules, least))
    return contrasts


def _pairs(scores: Scores, control: str | None) -> list[tuple[str, str]]:
    """Return every method with the control, or all pairs without one."""
    if control is None:
        return list(combinations(scores, 2))
    if control not in scores:
        return []
    return [(method, control) for method in scores if method != control]


def differences_by_block(
    mine: Mapping[Hashable, float], theirs: Mapping[Hashable, float]
) -> dict[Hashable, float]:
    """Return the differences in the blocks that both have; what rounding explains is 0.

    >>> differences_by_block({0: 3.0, 1: 5.0}, {1: 4.0, 2: 1.0})
    {1: 1.0}
    """
    differences = {}
    for block, score in mine.items():
        if block not in theirs:
            continue
        difference = score - theirs[block]
        if abs(difference) <= _ROUNDING * max(abs(score), abs(theirs[block])):
            difference = 0.0
        differences[block] = difference
    return differences


def _least_deviation(
    mine: Mapping[Hashable, float], theirs: Mapping[Hashable, float], row: float
) -> float:
    """Return the least standard deviation of differences: what whole test rows hide or, without rows, float32 does."""
    if row:
        return ROUNDED_ROWS * row
    largest = 0.0
    for score in (*mine.values(), *theirs.values()):
        largest = max(largest, abs(score))
    return _ROUNDING * largest


@dataclass(frozen=True)
class Pooled:
    """The mean of a contrast over several cells, and whether these disagree about its sign."""

    contrast: Contrast
    cells: int
    disagree: bool


def pool(contrasts: Sequence[Contrast], cells: int) -> list[Pooled]:
    """Return every contrast as its mean over the cells, which are taken as they are: not a sample of others.

    Blocks are paired by seed: a block of the mean is a seed that all ``cells`` have. A contrast that one of them lacks
    has no mean.
    """
    by_pair: dict[tuple[str, str], list[Contrast]] = {}
    for contrast in contrasts:
        by_pair.setdefault((contrast.method, contrast.control), []).append(contrast)
    pooled = []
    for (method, control), of_cells in by_pair.items():
        if len(of_cells) < cells:
            continue
        means = []
        for contrast in of_cells:
            if contrast.mean is not None:
                means.append(contrast.mean)
        least = of_cells[0].least_deviation / math.sqrt(len(of_cells))
        mean = Contrast(
            "",
            method,
            control,
            _means_over_cells(of_cells),
            len(by_pair),
            of_cells[0].rules,
            least,
        )
        disagree = min(means, default=0.0) < 0 < max(means, default=0.0)
        pooled.append(Pooled(mean, len(of_cells), disagree))
    return pooled


def _means_over_cells(contrasts: Sequence[Contrast]) -> dict[Hashable, float]:
    """Return the mean difference of every block that all cells have."""
    first, *others = contrasts
    means: dict[Hashable, float] = {}
    for block in first.differences:
        if all(block in other.differences for other in others):
            means[block] = fmean(contrast.differences[block] for contrast in contrasts)
    return means


# -- in words ----------------------------------------------------------------------------------------------------------


def said(
    contrasts: Sequence[Contrast],
    failures: Mapping[str, str] | None = None,
    unit: ScoreUnit = AS_IT_IS,
) -> str:
    """Return the verdicts of one family in a sentence or two; ``failures`` says of methods how often they failed."""
    if not contrasts:
        return "There is nothing to compare: fewer than two methods have a score."
    failures = failures or {}
    if max(contrast.blocks for contrast in contrasts) < FEWEST_BLOCKS:
        most = max(contrast.blocks for contrast in contrasts)
        return (
            f"Everything is undecided: {_counted(most, 'block')}, and an interval needs "
            f"{FEWEST_BLOCKS}: give three seeds (0-2) or more."
        )
    by_verdict: dict[Verdict, list[str]] = {}
    for contrast in contrasts:
        name = _named(contrast, contrasts, failures, unit)
        by_verdict.setdefault(contrast.verdict, []).append(name)
    sentences = []
    for verdict in VERDICTS:
        if verdict in by_verdict:
            sentences.append(f"{verdict.capitalize()}: {_listed(by_verdict[verdict])}.")
    control = _common_control(contrasts)
    if control:
        return f"Compared with {_marked(control, failures)}. {' '.join(sentences)}"
    return " ".join(sentences)


def _common_control(contrasts: Sequence[Contrast]) -> str:
    """Return the control that all contrasts have, or nothing."""
    controls = {contrast.control for contrast in contrasts}
    if len(controls) == 1:
        return controls.pop()
    return ""


def _named(
    contrast: Contrast,
    family: Sequence[Contrast],
    failures: Mapping[str, str],
    unit: ScoreUnit,
) -> str:
    """Return a contrast by its method and, if the controls differ, by its control; with what else is to be said."""
    name = _marked(contrast.method, failures)
    if not _common_control(family):
        name = f"{name} against {_marked(contrast.control, failures)}"
    if contrast.verdict != "undecided" or contrast.interval is None:
        return name
    needed = ""
    if contrast.blocks_needed and contrast.rules.zone:
        zone = unit.factor * contrast.rules.zone
        needed = f", {contrast.blocks_needed:,} blocks for ±{zone:.2g}"
    half = unit.factor * contrast.interval.half_width
    return f"{name} (±{half:.2g}{unit.of_differences}{needed})"


def _marked(method: str, failures: Mapping[str, str]) -> str:
    """Return a method with how often it failed."""
    if failures.get(method):
        return f"{method} ({failures[method]})"
    return method


def _listed(names: Sequence[str]) -> str:
    """Return names in one line, the first ones if there are many."""
    between = ", "
    if any(", " in name for name in names):
        between = "; "
    listed = between.join(names[:_NAMED])
    if len(names) > _NAMED:
        listed += f" and {len(names) - _NAMED} more"
    return listed


def _counted(count: int, noun: str) -> str:
    if count == 1:
        return f"there is 1 {noun}"
    return f"there are {count} {noun}s"


def checked_zone(given: object) -> float | None:
    """Return the zone that was given; one that is not a number of at least 0 is an error."""
    if given is None:
        return None
    try:
        zone = float(str(given))
    except ValueError:
        zone = math.nan
    if not 0 <= zone < math.inf:
        raise FedskewError(
            f"equal={given!r} is not a difference in the metric's own unit, such as 0.005 for half a point of accuracy"
        )
    return zone
