"""Whether what a paper claims of a table held here, with the numbers behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from fedskew.core.errors import FedskewError
from fedskew.papers.comparison import Measured, measured
from fedskew.papers.paper_tables import Claim, PaperTable, Value
from fedskew.papers.results import Result, Results
from fedskew.papers.rivals import against, cases_of
from fedskew.study.significance import FEWEST_BLOCKS

_ROUNDING = 1e-9  # below which a difference is none
Outcome = Literal[
    "held", "not held", "points that way", "points another way", "cannot be tested here", "no results yet",
    "chosen", "not the best",
]  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it held, why, and the numbers: one line each."""

    claim: Claim
    outcome: Outcome
    reason: str = ""
    numbers: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.reason:
            return f"{self.outcome}: {self.reason}"
        return self.outcome


def verdicts(table: PaperTable, results: Results) -> list[Verdict]:
    """Return the verdict on every claim of a table."""
    found = measured(table, results)
    return [verdict(found, claim) for claim in table.claims]


def verdict(found: Measured, claim: Claim) -> Verdict:
    """Return the verdict on one claim."""
    if claim.kind == "untestable":
        return Verdict(claim, "cannot be tested here", claim.because)
    if claim.method not in {method.name for method in found.table.methods}:
        return Verdict(
            claim,
            "cannot be tested here",
            f"{claim.method} is left out of this version of the table",
        )
    value = found.table.value(claim.value)
    cases = cases_of(found, claim, claim.method)
    if not any(found.cell(case, claim.method).runs for case in cases):
        return Verdict(claim, "no results yet")
    if claim.kind == "chosen":
        return _chosen(found, claim, value, cases)
    if claim.kind == "better":
        return _better(found, claim, value)
    return _level(found, claim, value, cases)


def _chosen(found: Measured, claim: Claim, value: Value, cases: Sequence[str]) -> Verdict:
    """Return whether what was chosen has the best mean, among the others of the claim or all methods."""
    means = {}
    for method in found.table.methods:
        numbers = []
        for case in cases:
            for n in found.cell(case, method.name).numbers(value).values():
                numbers.append(n)
        if numbers and (not claim.others or method.name in (claim.method, *claim.others)):
            means[method.name] = fmean(numbers)
    if value.better == "higher":
        best = max(means, key=means.__getitem__)
    else:
        best = min(means, key=means.__getitem__)
    lines = tuple(f"{name}: {mean:.{value.digits}f}" for name, mean in means.items())
    return Verdict(claim, "chosen" if best == claim.method else "not the best", "", lines)


def _lacking(found: Measured, value: Value, method: str, cases: Sequence[str]) -> list[str]:
    """Return what is to be said of the runs of a method without a number, with their cases and seeds."""
    count = sum(len(found.cell(case, method).runs) for case in cases)
    reasons: dict[str, list[Result]] = {}
    for case in cases:
        for why, runs in found.cell(case, method).lacking(value).items():
            reasons.setdefault(why, []).extend(runs)
    result: list[str] = []
    for why, runs in reasons.items():
        result.append(
            f"{method}: {why} in {len(runs)} of {count} runs "
            f"({', '.join(f'{run.case} seed {run.seed}' for run in runs)})"
        )
    return result


# -- better than others ------------------------------------------------------------------------------------------------


def _better(found: Measured, claim: Claim, value: Value) -> Verdict:
    if not value.better or not claim.others:
        raise FedskewError(
            f"{found.table.label}: 'better' needs others, and a value that is better higher or lower"
        )
    known = {method.name for method in found.table.methods}
    rivals = []
    for other in claim.others:
        if other in known:
            rivals.append(against(found, claim, value, other))
    absent = [other for other in claim.others if other not in known]
    lines = [rival.text(value.digits + 1) for rival in rivals]
    for other in absent:
        lines.append(f"against {other}: left out of this version of the table")
    own = _lacking(found, value, claim.method, cases_of(found, claim, claim.method))
    for name in (rival.name for rival in rivals):
        lines += _lacking(found, value, name, cases_of(found, claim, claim.method, name))
    numbers = (*own, *lines)
    if own:
        return Verdict(claim, "not held", own[0], numbers)
    compared = [rival for rival in rivals if rival.seeds]
    whole = []
    for rival in compared:
        if len(rival.seeds) >= FEWEST_BLOCKS and not rival.unmeasured:
            whole.append(rival)
    slack = claim.tolerance
    above = []
    for rival in whole:
        if rival.interval[0] > _ROUNDING - slack:
            above.append(rival.name)
    below = []
    for rival in whole:
        if rival.interval[1] < -_ROUNDING - slack:
            below.append(rival.name)
    level = [rival.name for rival in whole if rival.name not in (*above, *below)]
    ahead = all(fmean(rival.seeds) > _ROUNDING - slack for rival in compared)
    never = []
    for rival in rivals:
        if not rival.seeds and not rival.unmeasured:
            never.append(rival.name)
    outcome: Outcome = "held"
    why = ""
    if below:
        outcome = "not held"
        why = f"reversed against {', '.join(below)}"
    elif level:
        outcome = "not held"
        why = f"no difference beyond noise to {', '.join(level)}"
        if above:
            why = f"mixed, better than {', '.join(above)}, {why}"
        else:
            why = why
    elif ahead and (never or not rivals):
        outcome = "cannot be tested here"
        why = f"no seed with a number of both for {', '.join(never or absent)}"
    elif not compared:
        outcome = "no results yet"
    elif len(whole) < len(claim.others) or set(claim.cases) - {
        case.name for case in found.table.cases
    }:
        if ahead:
            outcome = "points that way"
        else:
            outcome = "points another way"
        few = any(len(rival.seeds) < FEWEST_BLOCKS for rival in compared)
        if few:
            why = f"fewer than {FEWEST_BLOCKS} seeds"
        else:
            why = "not everything is measured"
    return Verdict(claim, outcome, why, numbers)


# -- the level of one method -------------------------------------------------------------------------------------------


def _level(found: Measured, claim: Claim, value: Value, cases: Sequence[str]) -> Verdict:
    """Return the verdict on the means of a method in each case: near the paper's, above a bound, or steady."""
    printed = value.paper.get(claim.method, {})
    if claim.kind == "near":
        cases = [case for case in cases if case in printed]
    numbers = {}
    for case in cases:
        numbers[case] = list(found.cell(case, claim.method).numbers(value).values())
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
    digits = value.digits + 1
    limit = claim.tolerance + _ROUNDING
    lines = [f"{case}: {mean:.{digits}f}" for case, mean in means.items()]
    if claim.kind == "steady":
        if means:
            spread = max(means.values()) - min(means.values())
        else:
            spread = 0.0
        lines.append(
            f"best and worst case differ by {spread:.{digits}f}, at most {claim.tolerance:g} claimed"
        )
        return f"cases differ by more than {claim.tolerance:g}" if spread > limit else "", lines
    if claim.kind == "above":
        short = []
        for case, mean in means.items():
            if mean < claim.bound - _ROUNDING:
                short.append(case)
        return (
            f"below {claim.bound:g} in {len(short)} of {len(means)} cases" if short else "",
            lines,
        )
    apart = {case: mean - printed[case] for case, mean in means.items()}
    far = []
    for case, difference in apart.items():
        if abs(difference) > limit:
            far.append(case)
    lines = [
        f"{line}, paper {printed[case]:.{value.digits}f}, difference {apart[case]:+z.{digits}f}"
        for case, line in zip(means, lines, strict=True)
    ]
    return (
        f"off by more than {claim.tolerance:g} in {len(far)} of {len(means)} cases" if far else "",
        lines,
    )
