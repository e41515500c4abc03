"""The contrasts that claims are about, as the judge has them: against a rival, a number, other cases, along a trend."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log2
from statistics import fmean

from fedskew.study.judge import Contrast, Rules, judge_cell, pool

BySeed = Mapping[Hashable, float]
_NUMBER = "number"  # the name of a number among the scores


@dataclass(frozen=True)
class CasePair:
    """What a method and its rival have in one case.

    ``mine`` and ``theirs`` are numbers by seed, of which higher ones are good. ``measured`` is whether both have runs,
    and ``rival_failed`` whether a run of the rival has no number.
    """

    case: str
    mine: BySeed
    theirs: BySeed
    measured: bool = True
    rival_failed: bool = False

    def differences(self) -> dict[Hashable, float]:
        """Return mine minus theirs in the seeds that both have."""
        return {
            seed: self.mine[seed] - self.theirs[seed] for seed in self.mine.keys() & self.theirs
        }


@dataclass(frozen=True)
class AgainstRival:
    """A method against a rival: the mean over cases of their differences, and in how many cases it is better.

    Args:
        contrast: of the means over the cases, in the seeds that all of them have
        wins: cases in which the method is better
        cases: that were compared
        unmeasured: cases without runs of both
        left_out: cases in which the rival diverged
    """

    contrast: Contrast
    wins: int
    cases: int
    unmeasured: Sequence[str] = ()
    left_out: Sequence[str] = ()

    def beside(self) -> str:
        """Return what is said of the cases."""
        noun = "cases"
        if self.cases == 1:
            noun = "case"
        text = f"better in {self.wins} of {self.cases} {noun}"
        if self.left_out:
            text += f"; left out: {', '.join(self.left_out)}"
        return text


def against_rival(method: str, rival: str, pairs: Sequence[CasePair], rules: Rules) -> AgainstRival:
    """Compare in the seeds in which all cases have a number of both.

    Cases in which a run of the rival has none (it diverged) are left out, if there are others and unless the rival is
    the better one in the seeds that remain.
    """
    unmeasured = []
    fine, broken, broken_with_numbers = [], [], []
    for pair in pairs:
        if not pair.measured:
            unmeasured.append(pair.case)
        if _rival_diverged(pair):
            broken.append(pair.case)
            if pair.differences():
                broken_with_numbers.append(pair)
        elif pair.differences():
            fine.append(pair)
    if not fine:
        fine = broken_with_numbers
        for pair in fine:
            broken.remove(pair.case)
    contrast = _mean_over(method, rival, fine, replace(rules, control=rival))
    wins = 0
    for pair in fine:
        if _is_ahead(pair, contrast):
            wins += 1
    return AgainstRival(contrast, wins, len(fine), unmeasured, broken)


def _rival_diverged(pair: CasePair) -> bool:
    """Return whether the rival has runs without a number and is not the better one in those that have one."""
    if not pair.rival_failed:
        return False
    differences = pair.differences()
    return not differences or fmean(differences.values()) > 0


def _mean_over(method: str, rival: str, pairs: Sequence[CasePair], rules: Rules) -> Contrast:
    """Return the contrast of the means over the cases; without a difference if there is no case."""
    contrasts: list[Contrast] = []
    for pair in pairs:
        contrasts += judge_cell({method: pair.mine, rival: pair.theirs}, rules, pair.case)
    if not contrasts:
        return judge_cell({method: {}, rival: {}}, rules)[0]
    return pool(contrasts, len(contrasts))[0].contrast


def _is_ahead(pair: CasePair, over_cases: Contrast) -> bool:
    """Return whether the method is better in a case, on average over the seeds that count."""
    differences = pair.differences()
    total = 0.0
    for seed in over_cases.differences:
        total += differences[seed]
    return total > 0


def as_family(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Return contrasts as one family: their intervals hold together."""
    return [replace(contrast, family=len(contrasts)) for contrast in contrasts]


def against_number(case: str, numbers: BySeed, number: float, rules: Rules) -> Contrast:
    """Return a method against a number that is the same for every seed."""
    scores = {case: numbers, _NUMBER: dict.fromkeys(numbers, number)}
    return judge_cell(scores, replace(rules, control=_NUMBER), case)[0]


def between_cases(by_case: Mapping[str, BySeed], rules: Rules) -> list[Contrast]:
    """Return every pair of cases of one method."""
    contrasts = []
    for one, other in combinations(by_case, 2):
        pair = {one: by_case[one], other: by_case[other]}
        contrasts += judge_cell(pair, replace(rules, control=other))
    return as_family(contrasts)


def difference_of_gaps(
    rival: str, here: Sequence[CasePair], elsewhere: Sequence[CasePair], rules: Rules
) -> Contrast:
    """Return how much larger the gap to a rival is in some cases than in others, seed by seed.

    The gap of some cases is the mean of the differences, in the seeds that all of them have.
    """
    gaps = {"here": _gap(here), "elsewhere": _gap(elsewhere)}
    [contrast] = judge_cell(gaps, replace(rules, control="elsewhere"), rival)
    return contrast


def _gap(pairs: Sequence[CasePair]) -> dict[Hashable, float]:
    """Return the mean difference over cases, in the seeds that all cases have."""
    return _means([pair.differences() for pair in pairs])


def _means(by_case: Sequence[BySeed]) -> dict[Hashable, float]:
    means: dict[Hashable, float] = {}
    for seed in _shared_seeds(by_case):
        means[seed] = fmean(numbers[seed] for numbers in by_case)
    return means


def _shared_seeds(by_case: Sequence[BySeed]) -> list[Hashable]:
    """Return the seeds that all cases have, in the order of the first one."""
    if not by_case:
        return []
    shared = []
    for seed in by_case[0]:
        if all(seed in numbers for numbers in by_case):
            shared.append(seed)
    return shared


def trend(name: str, at: Sequence[float], by_case: Sequence[BySeed], rules: Rules) -> Contrast:
    """Return by how much numbers grow when what they go with is doubled, seed by seed, against no growth.

    ``at`` has a number for each case, such as its classes or its clients; the slope is that of least squares.
    """
    slopes: dict[Hashable, float] = {}
    doublings = [log2(number) for number in at]
    for seed in _shared_seeds(by_case):
        slopes[seed] = slope(doublings, [numbers[seed] for numbers in by_case])
    return against_number(name, slopes, 0.0, rules)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the least squares line.

    >>> slope([0.0, 1.0, 2.0], [1.0, 3.0, 8.0])
    3.5
    """
    x_mean = fmean(x)
    y_mean = fmean(y)
    above = 0.0
    below = 0.0
    for a, b in zip(x, y, strict=True):
        above += (a - x_mean) * (b - y_mean)
        below += (a - x_mean) ** 2
    return above / below
