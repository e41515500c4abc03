"""Whether methods differ beyond noise: paired differences over blocks, corrected for many methods, and mean ranks.

A block is what methods are compared under: a seed, or a seed and a skew. Everything here is paired over blocks.
"""

import math
import sys
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from operator import add
from statistics import fmean
from typing import TypeVar

import numpy as np

from fedskew.core.streams import Floats, Ints
from fedskew.runs.summary import mean_and_std

FEWEST_BLOCKS = 3  # for an interval or a test
LEVEL = 0.05
# No event has a probability of 0, but its number may be too small for a float
LEAST_P = sys.float_info.min
# Share of the larger score below which a difference is none: float32 is no more exact
_ROUNDING = 1e-6
# Of the difference of two scores that are rounded to steps, in steps
_STEP_DEVIATION = math.sqrt(1 / 6)
_MOST_ARRANGEMENTS = 300_000  # that are counted for an exact p-value: less than a second
Key = TypeVar("Key", bound=Hashable)
Scores = Mapping[str, Mapping[Hashable, float]]  # of every method, by block


def paired_interval(
    differences: "Sequence[float] | Floats", share: float = 1 - LEVEL, by_chance: bool = False
) -> tuple[float, float]:
    """Return the interval of the mean difference that holds ``share`` of Student's t.

    Of differences that are all the same it is a point, if they are those of numbers without chance, such as properties
    of a partition; of scores, which have come out so ``by_chance``, see ``paired_p``.

    >>> [round(end, 3) for end in paired_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    from scipy.stats import t

    mean, std = mean_and_std(np.asarray(differences).tolist())
    if by_chance:
        std = _hidden_deviation(mean, std)
    else:
        std = std or 0.0
    half = float(t.ppf(0.5 + share / 2, len(differences) - 1)) * std / math.sqrt(len(differences))
    return mean - half, mean + half


def paired_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's paired t-test; differences that are all 0 have 1.

    Differences that are all the same do not mean that there is no spread: a score moves in steps (of a test row, for
    accuracy), and spread within a step does not show. Rounding two scores to steps hides a variance of 1/12 of a
    squared step each, so that the deviation is taken as sqrt(1/6) of a step. How large a step is, is not known here; a
    difference is at least one, so that it is taken as one, and the p-value is rather too large than too small.

    >>> round(paired_p([1.0, 2.0, 3.0]), 4), round(paired_p([1 / 360, 1 / 360, 1 / 360]), 4)
    (0.0742, 0.0513)
    """
    from scipy.stats import t

    mean, std = mean_and_std(differences)
    deviation = _hidden_deviation(mean, std)
    if deviation == 0:
        return 1.0
    p = float(2 * t.sf(abs(mean) / (deviation / math.sqrt(len(differences))), len(differences) - 1))
    return max(p, LEAST_P)


def _hidden_deviation(mean: float, std: float | None) -> float:
    """Return the standard deviation of differences of scores, or what steps hide of it if there seems to be none."""
    if not std or std <= _ROUNDING * abs(mean):
        return _STEP_DEVIATION * abs(mean)
    return std


def holm(found: Mapping[Key, float]) -> dict[Key, float]:
    """Return p-values corrected for how many there are (Holm 1979): an error anywhere is as rare as in one test alone.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    result = dict[Key, float]()
    least = 0.0
    for place, (key, p) in enumerate(sorted(found.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(found) - place) * p))
        result[key] = least
    return result


def said_p(p: float) -> str:
    """Return a p-value with two digits, or with as many as show on which side of the level it is.

    >>> said_p(0.0123), said_p(0.0497), said_p(0.04996)
    ('0.012', '0.0497', '0.04996')
    """
    texts = (f"{p:.{digits}g}" for digits in range(2, 17))
    return next((text for text in texts if (float(text) < LEVEL) == (p < LEVEL)), repr(p))


@dataclass(frozen=True)
class Verdict:
    """Which method has the best mean, its difference to every other with the corrected p-value, and what follows.

    ``winner`` is None unless the best one is better than every other beyond noise. ``says`` has that in words.
    """

    best: str | None
    winner: str | None
    differences: Mapping[str, float]
    p_values: Mapping[str, float]
    says: str


def verdict(scores: Scores, failed: Mapping[str, int]) -> Verdict:
    """Compare all pairs of methods over the blocks that they share; scores are better the higher they are.

    The p-values are corrected for all pairs, and not only for those with the best method, as the data choose that one.
    A method of which runs ``failed`` is never the winner.
    """
    means = {}
    for name, blocks in scores.items():
        if blocks:
            means[name] = fmean(blocks.values())
    if len(means) < 2:
        return Verdict(
            next(iter(means), None),
            None,
            {},
            {},
            "There is nothing to compare: fewer than two methods have a score.",
        )
    best = max(means, key=means.__getitem__)
    shared = {pair: _differences(scores, *pair) for pair in combinations(means, 2)}
    tested = holm(
        {pair: paired_p(some) for pair, some in shared.items() if len(some) >= FEWEST_BLOCKS}
    )
    others = [name for name in means if name != best]
    pairs = {}
    for other in others:
        if (best, other) in shared:
            pairs[other] = (best, other)
        else:
            pairs[other] = (other, best)
    signs = {}
    for other, pair in pairs.items():
        if pair[0] == best:
            signs[other] = 1
        else:
            signs[other] = -1
    differences = {}
    for other, pair in pairs.items():
        if shared[pair]:
            differences[other] = signs[other] * fmean(shared[pair])
    p_values = {}
    for other, pair in pairs.items():
        if pair in tested:
            p_values[other] = tested[pair]
    untested = [other for other in others if other not in p_values]
    if untested:
        fewest = min(len(shared[pairs[other]]) for other in untested)
        says = (
            f"Nothing can be said about who is ahead: {fewest} {'block has' if fewest == 1 else 'blocks have'} a score "
            f"of both {best} and {untested[0]}, and a test needs {FEWEST_BLOCKS} (blocks are seeds, times skews)."
        )
        return Verdict(best, None, differences, p_values, says)
    level = []
    for other in others:
        if p_values[other] >= LEVEL or differences[other] <= 0:
            level.append(other)
    if len(shared) > 1:
        pairs_said = f"{len(shared)} pairs"
    else:
        pairs_said = "one pair"
    over = f"paired t-tests over {min(map(len, shared.values()))} blocks, Holm's correction for {pairs_said}"
    if level:
        if len(level) > 3:
            more = f" and {len(level) - 3} more"
        else:
            more = ""
        equal = []
        for other in others:
            if means[best] - means[other] <= _ROUNDING * abs(means[best]):
                equal.append(other)
        if equal:
            which = f"{' and '.join([best, *equal])} share the best mean"
        else:
            which = f"{best} has the best mean"
        near = ", ".join(level[:3]) + more
        says = f"No method is ahead: {which}, without a difference beyond noise to {near} ({over})."
    elif failed.get(best):
        says = f"No method is ahead: {best} is better than all others, but {failed[best]} of its runs failed ({over})."
    else:
        worst = max(p_values.values())
        return Verdict(
            best,
            best,
            differences,
            p_values,
            f"{best} is ahead of all others (p ≤ {said_p(worst)}; {over}).",
        )
    return Verdict(best, None, differences, p_values, says)


def _differences(scores: Scores, one: str, other: str) -> list[float]:
    """Return the differences of two methods in the blocks that both have; what rounding explains is 0."""
    pairs = []
    for block in scores[one]:
        if block in scores[other]:
            pairs.append((scores[one][block], scores[other][block]))
    result: list[float] = []
    for a, b in pairs:
        result.append(a - b if abs(a - b) > _ROUNDING * max(abs(a), abs(b)) else 0.0)
    return result


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods over blocks, 1 is best, and how far apart two must be to differ (Demšar 2006).

    ``p`` is that of Friedman's test (``friedman_p``), ``distance`` the critical difference of Nemenyi's test, and
    ``groups`` are the methods, best first, among which no two differ by more.
    """

    means: Mapping[str, float]
    blocks: int
    p: float
    distance: float
    groups: Sequence[Sequence[str]]


def no_ranks(scores: Scores) -> str:
    """Return why there is no critical-difference diagram; empty if there is one."""
    if len(scores) < 3:
        return (
            f"A critical-difference diagram needs at least 3 methods, and there are {len(scores)}."
        )
    if (count := len(_complete(scores))) < FEWEST_BLOCKS:
        return (
            f"A critical-difference diagram needs at least {FEWEST_BLOCKS} blocks (seeds, times skews) in which every "
            f"method has a score, and there are {count}."
        )
    return ""


def _complete(scores: Scores) -> list[Hashable]:
    """Return the blocks in which every method has a score."""
    first, *others = scores.values()
    result: list[Hashable] = []
    for block in first:
        if all(block in other for other in others):
            result.append(block)
    return result


def ranks(scores: Scores) -> Ranks:
    """Rank the methods in every block in which all have a score, higher scores first; equal ones share their ranks."""
    from scipy.stats import rankdata, studentized_range

    names = list(scores)
    blocks = _complete(scores)
    table = np.array([[scores[name][block] for name in names] for block in blocks])
    count, k = table.shape
    ranked = rankdata(-table, axis=1)
    mean = ranked.mean(0)
    p = friedman_p(ranked)
    distance = (
        float(studentized_range.ppf(1 - LEVEL, k, np.inf))
        / math.sqrt(2)
        * math.sqrt(k * (k + 1) / (6 * count))
    )
    means = dict(sorted(zip(names, mean.tolist(), strict=True), key=lambda item: item[1]))
    return Ranks(means, count, p, distance, _groups(means, distance))


def friedman_p(ranked: Floats) -> float:
    """Return the p-value of Friedman's test on the ranks of methods (across) in blocks (down).

    Where methods and blocks are few it is exact: of all ways to arrange the ranks within blocks, the share of those
    whose rank sums are as far apart or farther. Otherwise it is that of Iman and Davenport, corrected for ties; where
    all blocks agree, their statistic is infinite, but the share is known: one arrangement of every block but the first.

    >>> friedman_p(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])) == 1 / 6
    True
    """
    from scipy.stats import f, friedmanchisquare

    doubled = np.rint(2 * ranked).astype(np.int64)  # whole numbers, also where ranks are shared
    exact = _exact_p(doubled)
    if exact is not None:
        return max(exact, LEAST_P)
    count, k = ranked.shape
    shared = math.prod(math.factorial(times) for times in Counter(doubled[0].tolist()).values())
    least = max(math.pow(shared / math.factorial(k), count - 1), LEAST_P)  # where all blocks agree
    if (doubled == doubled[0]).all():
        return least
    chi2 = float(friedmanchisquare(*ranked.T).statistic)  # corrected for ties
    left = count * (k - 1) - chi2
    return max(float(f.sf((count - 1) * chi2 / left, k - 1, (k - 1) * (count - 1))), least)


def _exact_p(ranked: Ints) -> float | None:
    """Return the share of the arrangements whose rank sums have at least this spread; None if there are too many.

    Arrangements are counted by their rank sums, in any order of the methods, one block after the other.
    """
    sums = {tuple(sorted(ranked[0].tolist())): 1}
    left, total = _MOST_ARRANGEMENTS, 1
    for block in ranked[1:].tolist():
        if math.factorial(len(block)) > left:
            return None
        ways = set(permutations(block))
        left -= len(sums) * len(ways)
        if left < 0:
            return None
        counts: Counter[tuple[int, ...]] = Counter()
        for before, times in sums.items():
            for way in ways:
                counts[tuple(sorted(map(add, before, way)))] += times
        sums = dict(counts)
        total = total * len(ways)
    observed = _spread(ranked.sum(0).tolist())
    return sum(times for found, times in sums.items() if _spread(found) >= observed) / total


def _spread(sums: Sequence[int]) -> int:
    """Return how far apart rank sums are: they always have the same mean."""
    return sum(one * one for one in sums)


def _groups(means: Mapping[str, float], distance: float) -> list[list[str]]:
    """Return the largest groups of neighbours whose first and last differ by at most the distance."""
    names = list(means)
    result = list[list[str]]()
    for at, first in enumerate(names):
        group = []
        for name in names[at:]:
            if means[name] - means[first] <= distance:
                group.append(name)
        if len(group) > 1 and not (result and set(group) <= set(result[-1])):
            result.append(group)
    return result
