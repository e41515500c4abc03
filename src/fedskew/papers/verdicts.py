"""Whether what a paper claims of a table held here, with the numbers behind it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from fedskew.core.errors import FedskewError
from fedskew.papers.comparison import Measured, measured
from fedskew.papers.paper_tables import Claim, PaperTable, Value
from fedskew.papers.results import Result, Results
from fedskew.runs.summary import mean_and_std

FEWEST_SEEDS = 3  # for an interval
_ROUNDING = 1e-9
Outcome = Literal[
    "held", "not held", "points that way", "points another way", "cannot be tested here", "no results yet"
]


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it held, why, and the numbers: one line each."""

    claim: Claim
    outcome: Outcome
    reason: str = ""
    numbers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome


@dataclass(frozen=True)
class _Rival:
    """The differences to a rival, positive where the paper's method is better: means over cases, one for each seed."""

    name: str
    seeds: Sequence[float]
    wins: int
    cases: int
    unmeasured: Sequence[str]  # cases without runs of both
    left_out: Sequence[str]  # cases in which the rival diverged

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the mean difference (Student's t over seeds)."""
        from scipy.stats import t

        mean, std = mean_and_std(self.seeds)
        half = float(t.ppf(0.975, len(self.seeds) - 1)) * (std or 0.0) / math.sqrt(len(self.seeds))
        return mean - half, mean + half

    def text(self, digits: int) -> str:
        """Return the numbers in words."""
        parts = (("not measured yet", self.unmeasured), ("left out", self.left_out))
        without = "".join(f"; {what}: {', '.join(cases)}" for what, cases in parts if cases)
        if not self.seeds:
            return f"against {self.name}: no seed with a number of both{without}"
        over = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        if len(self.seeds) >= FEWEST_SEEDS:
            low, high = self.interval
            over = f"95 % interval {low:+z.{digits}f} to {high:+z.{digits}f}, {over}"
        wins = f"better in {self.wins} of {self.cases} case{'s' * (self.cases > 1)}"
        return f"against {self.name} {fmean(self.seeds):+z.{digits}f} ({over}; {wins}{without})"


def verdicts(table: PaperTable, results: Results) -> list[Verdict]:
    """Return the verdict on every claim of a table."""
    found = measured(table, results)
    return [verdict(found, claim) for claim in table.claims]


def verdict(found: Measured, claim: Claim) -> Verdict:
    """Return the verdict on one claim."""
    if claim.kind == "untestable":
        return Verdict(claim, "cannot be tested here", claim.because)
    if claim.method not in {method.name for method in found.table.methods}:
        return Verdict(claim, "cannot be tested here", f"{claim.method} is left out of this version of the table")
    value, cases = found.table.value(claim.value), _cases(found, claim, claim.method)
    if not any(found.cell(case, claim.method).runs for case in cases):
        return Verdict(claim, "no results yet")
    return _better(found, claim, value) if claim.kind == "better" else _level(found, claim, value, cases)


def _cases(found: Measured, claim: Claim, *methods: str) -> list[str]:
    """Return the cases of the claim in which all of these methods are compared."""
    return [
        case.name
        for case in found.table.cases
        if (not claim.cases or case.name in claim.cases)
        and set(methods) <= {method.name for method in found.table.methods_of(case)}
    ]


def _lacking(found: Measured, value: Value, method: str, cases: Sequence[str]) -> list[str]:
    """Return what is to be said of the runs of a method without a number, with their cases and seeds."""
    count = sum(len(found.cell(case, method).runs) for case in cases)
    reasons: dict[str, list[Result]] = {}
    for case in cases:
        for why, runs in found.cell(case, method).lacking(value).items():
            reasons.setdefault(why, []).extend(runs)
    return [
        f"{method}: {why} in {len(runs)} of {count} runs ({', '.join(f'{run.case} seed {run.seed}' for run in runs)})"
        for why, runs in reasons.items()
    ]


# -- better than others ------------------------------------------------------------------------------------------------


def _better(found: Measured, claim: Claim, value: Value) -> Verdict:
    if not value.better or not claim.others:
        raise FedskewError(f"{found.table.label}: 'better' needs others, and a value that is better higher or lower")
    known = {method.name for method in found.table.methods}
    rivals = [_rival(found, claim, value, other) for other in claim.others if other in known]
    absent = [other for other in claim.others if other not in known]
    lines = [rival.text(value.digits + 1) for rival in rivals]
    lines += [f"against {other}: left out of this version of the table" for other in absent]
    own = _lacking(found, value, claim.method, _cases(found, claim, claim.method))
    for name in (rival.name for rival in rivals):
        lines += _lacking(found, value, name, _cases(found, claim, claim.method, name))
    numbers = (*own, *lines)
    if own:
        return Verdict(claim, "not held", own[0], numbers)
    compared = [rival for rival in rivals if rival.seeds]
    whole = [rival for rival in compared if len(rival.seeds) >= FEWEST_SEEDS and not rival.unmeasured]
    above = [rival.name for rival in whole if rival.interval[0] > 0]
    below = [rival.name for rival in whole if rival.interval[1] < 0]
    level = [rival.name for rival in whole if rival.name not in (*above, *below)]
    ahead = all(fmean(rival.seeds) > 0 for rival in compared)
    never = [rival.name for rival in rivals if not rival.seeds and not rival.unmeasured]
    outcome: Outcome = "held"
    why = ""
    if below:
        outcome, why = "not held", f"reversed against {', '.join(below)}"
    elif above and level:
        why = f"mixed, better than {', '.join(above)}, no difference beyond noise to {', '.join(level)}"
        outcome = "not held"
    elif level:
        outcome, why = "not held", "no difference beyond noise"
    elif ahead and (never or not rivals):
        outcome, why = "cannot be tested here", f"no seed with a number of both for {', '.join(never or absent)}"
    elif not compared:
        outcome = "no results yet"
    elif len(whole) < len(claim.others) or set(claim.cases) - {case.name for case in found.table.cases}:
        outcome = "points that way" if ahead else "points another way"
        few = any(len(rival.seeds) < FEWEST_SEEDS for rival in compared)
        why = f"fewer than {FEWEST_SEEDS} seeds" if few else "not everything is measured"
    return Verdict(claim, outcome, why, numbers)


def _rival(found: Measured, claim: Claim, value: Value, rival: str) -> _Rival:
    """Compare in the seeds in which all cases have a number of both.

    Cases in which a run of the rival has none (it diverged) are left out, if there are others and unless the rival is
    the better one in the seeds that remain.
    """
    sign = -1 if value.better == "lower" else 1
    pairs: dict[str, dict[int, float]] = {}
    unmeasured, lacking = [], []
    for case in _cases(found, claim, claim.method, rival):
        ours, theirs = (found.cell(case, method) for method in (claim.method, rival))
        mine, other = ours.numbers(value), theirs.numbers(value)
        if both := {seed: sign * (mine[seed] - other[seed]) for seed in mine.keys() & other.keys()}:
            pairs[case] = both
        if not ours.runs or not theirs.runs:
            unmeasured.append(case)
        if theirs.lacking(value) and (not both or fmean(both.values()) > 0):
            lacking.append(case)
    pairs = {case: both for case, both in pairs.items() if case not in lacking} or pairs
    seeds = sorted(set.intersection(*(set(both) for both in pairs.values()))) if pairs else []
    wins = sum(fmean(both[seed] for seed in seeds) > 0 for both in pairs.values()) if seeds else 0
    means = [fmean(both[seed] for both in pairs.values()) for seed in seeds]
    return _Rival(rival, means, wins, len(pairs), unmeasured, [case for case in lacking if case not in pairs])


# -- the level of one method -------------------------------------------------------------------------------------------


def _level(found: Measured, claim: Claim, value: Value, cases: Sequence[str]) -> Verdict:
    """Return the verdict on the means of a method in each case: near the paper's, above a bound, or steady."""
    printed = value.paper.get(claim.method, {})
    if claim.kind == "near":
        cases = [case for case in cases if case in printed]
    numbers = {case: list(found.cell(case, claim.method).numbers(value).values()) for case in cases}
    means = {case: fmean(some) for case, some in numbers.items() if some}
    lacking = _lacking(found, value, claim.method, cases)
    if not lacking and len(means) < (2 if claim.kind == "steady" else 1):
        return Verdict(claim, "cannot be tested here", "too few cases that can be compared")
    why, lines = _exceeded(claim, value, means, printed)
    texts = (*lacking, *lines)
    if lacking or why:
        return Verdict(claim, "not held", why or lacking[0], texts)
    absent = set(claim.cases) - {case.name for case in found.table.cases}
    if unmeasured := [*(case for case in cases if case not in means), *sorted(absent)]:
        return Verdict(claim, "points that way", f"not measured: {', '.join(unmeasured)}", texts)
    return Verdict(claim, "held", "", texts)


def _exceeded(
    claim: Claim, value: Value, means: Mapping[str, float], printed: Mapping[str, float]
) -> tuple[str, list[str]]:
    """Return why the means do not fit the claim, empty if they do, and the numbers."""
    digits, limit = value.digits + 1, claim.tolerance + _ROUNDING
    lines = [f"{case}: {mean:.{digits}f}" for case, mean in means.items()]
    if claim.kind == "steady":
        spread = max(means.values()) - min(means.values()) if means else 0.0
        lines.append(f"best and worst case differ by {spread:.{digits}f}, at most {claim.tolerance:g} claimed")
        return f"cases differ by more than {claim.tolerance:g}" if spread > limit else "", lines
    if claim.kind == "above":
        short = [case for case, mean in means.items() if mean < claim.bound - _ROUNDING]
        return f"below {claim.bound:g} in {len(short)} of {len(means)} cases" if short else "", lines
    apart = {case: mean - printed[case] for case, mean in means.items()}
    far = [case for case, difference in apart.items() if abs(difference) > limit]
    lines = [
        f"{line}, paper {printed[case]:.{value.digits}f}, difference {apart[case]:+z.{digits}f}"
        for case, line in zip(means, lines, strict=True)
    ]
    return f"off by more than {claim.tolerance:g} in {len(far)} of {len(means)} cases" if far else "", lines
