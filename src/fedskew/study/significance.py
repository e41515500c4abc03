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
# A p-value is never 0, but it may be too small for a float
LEAST_P = sys.float_info.min
# A difference of at most this share of the larger score counts as none: float32 is no more exact
_ROUNDING = 1e-6
# Standard deviation, in steps, that rounding two scores to steps hides in their difference
_STEP_DEVIATION = math.sqrt(1 / 6)
_MOST_ARRANGEMENTS = 300_000  # that are counted for an exact p-value: less than a second
Key = TypeVar("Key", bound=Hashable)
Scores = Mapping[str, Mapping[Hashable, float]]  # of every method, by block


def paired_interval(
    differences: "Sequence[float] | Floats", share: float = 1 - LEVEL, by_chance: bool = False
) -> tuple[float, float]:
    """Return the interval of the mean difference that holds ``share`` of Student's t.

    If all differences are the same, the interval is a point. That is right for numbers without chance, such as
    properties of a partition. Scores are equal only ``by_chance``: then a spread is assumed as in ``paired_p``.

    >>> [round(end, 3) for end in paired_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    from scipy.stats import t

    mean, std = mean_and_std(np.asarray(differences).tolist())
    deviation = std or 0.0
    if by_chance:
        deviation = _hidden_deviation(mean, std)
    count = len(differences)
    half = float(t.ppf(0.5 + share / 2, count - 1)) * deviation / math.sqrt(count)
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
    count = len(differences)
    p = float(2 * t.sf(abs(mean) / (deviation / math.sqrt(count)), count - 1))
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
    corrected = dict[Key, float]()
    least = 0.0
    for place, (key, p) in enumerate(sorted(found.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(found) - place) * p))
        corrected[key] = least
    return corrected


def said_p(p: float) -> str:
    """Return a p-value with two digits, or with as many as show on which side of the level it is.

    >>> said_p(0.0123), said_p(0.0497), said_p(0.04996)
    ('0.012', '0.0497', '0.04996')
    """
    for digits in range(2, 17):
        text = f"{p:.{digits}g}"
        if (float(text) < LEVEL) == (p < LEVEL):
            return text
    return repr(p)


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
        says = "There is nothing to compare: fewer than two methods have a score."
        return Verdict(next(iter(means), None), None, {}, {}, says)
    best = max(means, key=means.__getitem__)
    pairs = _pairs(scores, list(means))
    differences, p_values = _against_best(best, pairs)
    untested = []
    for name in means:
        if name != best and name not in p_values:
            untested.append(name)
    if untested:
        return Verdict(best, None, differences, p_values, _untested(best, untested, pairs))
    tests = _tests(pairs)
    level = _not_beaten(differences, p_values)
    winner = None
    if level:
        near = _first_few(level)
        says = f"No method is ahead: {_who_leads(best, means)}, without a difference beyond noise to {near} ({tests})."
    elif failed.get(best):
        says = f"No method is ahead: {best} is better than all others, but {failed[best]} of its runs failed ({tests})."
    else:
        winner = best
        worst = max(p_values.values())
        says = f"{best} is ahead of all others (p ≤ {said_p(worst)}; {tests})."
    return Verdict(best, winner, differences, p_values, says)


# The differences of two methods, the first minus the second
Pairs = Mapping[tuple[str, str], Sequence[float]]


def _pairs(scores: Scores, names: Sequence[str]) -> dict[tuple[str, str], list[float]]:
    """Return the differences of all pairs of methods in the blocks that both have."""
    pairs = {}
    for one, other in combinations(names, 2):
        pairs[one, other] = _differences(scores, one, other)
    return pairs


def _differences(scores: Scores, one: str, other: str) -> list[float]:
    """Return the differences of two methods in the blocks that both have; what rounding explains is 0."""
    differences = []
    for block, score in scores[one].items():
        if block not in scores[other]:
            continue
        difference = score - scores[other][block]
        if abs(difference) <= _ROUNDING * max(abs(score), abs(scores[other][block])):
            difference = 0.0
        differences.append(difference)
    return differences


def _against_best(best: str, pairs: Pairs) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean difference of the best method to every other and its corrected p-value, where there is one."""
    tested = {}
    for pair, differences in pairs.items():
        if len(differences) >= FEWEST_BLOCKS:
            tested[pair] = paired_p(differences)
    corrected = holm(tested)
    means = {}
    p_values = {}
    for (one, other), differences in pairs.items():
        if best not in (one, other):
            continue
        if one == best:
            name, sign = other, 1
        else:
            name, sign = one, -1
        if differences:
            means[name] = sign * fmean(differences)
        if (one, other) in corrected:
            p_values[name] = corrected[one, other]
    return means, p_values


def _untested(best: str, untested: Sequence[str], pairs: Pairs) -> str:
    """Say that some methods share too few blocks with the best one."""
    shared = []
    for other in untested:
        pair = (best, other)
        if pair not in pairs:
            pair = (other, best)
        shared.append(len(pairs[pair]))
    fewest = min(shared)
    if fewest == 1:
        blocks = "1 block has"
    else:
        blocks = f"{fewest} blocks have"
    return (
        f"Nothing can be said about who is ahead: {blocks} a score of both {best} and {untested[0]}, "
        f"and a test needs {FEWEST_BLOCKS} (blocks are seeds, times skews)."
    )


def _not_beaten(differences: Mapping[str, float], p_values: Mapping[str, float]) -> list[str]:
    """Return the methods that the best one is not better than beyond noise."""
    names = []
    for name, p in p_values.items():
        if p >= LEVEL or differences[name] <= 0:
            names.append(name)
    return names


def _tests(pairs: Pairs) -> str:
    """Say how methods were compared."""
    corrected_for = "one pair"
    if len(pairs) > 1:
        corrected_for = f"{len(pairs)} pairs"
    blocks = min(map(len, pairs.values()))
    return f"paired t-tests over {blocks} blocks, Holm's correction for {corrected_for}"


def _who_leads(best: str, means: Mapping[str, float]) -> str:
    """Return who has the best mean, or who share it."""
    leaders = [best]
    for name, mean in means.items():
        if name != best and means[best] - mean <= _ROUNDING * abs(means[best]):
            leaders.append(name)
    if len(leaders) > 1:
        return f"{' and '.join(leaders)} share the best mean"
    return f"{best} has the best mean"


def _first_few(names: Sequence[str]) -> str:
    """Return three of the names and how many more there are."""
    few = ", ".join(names[:3])
    if len(names) > 3:
        return f"{few} and {len(names) - 3} more"
    return few


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
    blocks = set(first)
    for other in others:
        blocks &= other.keys()
    return [block for block in first if block in blocks]


def ranks(scores: Scores) -> Ranks:
    """Rank the methods in every block in which all have a score, higher scores first; equal ones share their ranks."""
    from scipy.stats import rankdata, studentized_range

    names = list(scores)
    blocks = _complete(scores)
    table = []
    for block in blocks:
        table.append([scores[name][block] for name in names])
    ranked = rankdata(-np.array(table), axis=1)
    count, k = ranked.shape
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
    shared = 1  # arrangements of a block that are the same, as ranks are shared
    for times in Counter(doubled[0].tolist()).values():
        shared *= math.factorial(times)
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
    as_far = 0
    for arranged, times in sums.items():
        if _spread(arranged) >= observed:
            as_far += times
    return as_far / total


def _spread(sums: Sequence[int]) -> int:
    """Return how far apart rank sums are: as their mean is always the same, their squares tell it."""
    return sum(rank_sum * rank_sum for rank_sum in sums)


def _groups(means: Mapping[str, float], distance: float) -> list[list[str]]:
    """Return the largest groups of neighbours whose first and last differ by at most the distance."""
    names = list(means)
    groups = list[list[str]]()
    for at, first in enumerate(names):
        group = []
        for name in names[at:]:
            if means[name] - means[first] <= distance:
                group.append(name)
        in_last = bool(groups) and set(group) <= set(groups[-1])
        if len(group) > 1 and not in_last:
            groups.append(group)
    return groups
