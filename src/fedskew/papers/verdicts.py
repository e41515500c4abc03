"""Whether what a paper claims of a table held here: its numbers, handed to the study that judges them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedskew.core.errors import FedskewError
from fedskew.papers.comparison import Measured, measured
from fedskew.papers.paper_tables import Claim, PaperTable, Value
from fedskew.papers.results import Results
from fedskew.study.claims import (
    Judged,
    Level,
    Outcome,
    Superiority,
    judge_above,
    judge_better,
    judge_choice,
    judge_near,
    judge_steady,
    runs_without_number,
)
from fedskew.study.method_contrasts import CasePair, Contrast, contrast, differences_by_seed


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
    return verdicts_on(measured(table, results))


def verdicts_on(found: Measured) -> list[Verdict]:
    """Return the verdict on every claim of a table of which the runs are read already."""
    return [verdict(found, claim) for claim in found.table.claims]


def verdict(found: Measured, claim: Claim) -> Verdict:
    """Return the verdict on one claim."""
    judged = _judge(found, claim)
    return Verdict(claim, judged.outcome, judged.reason, judged.lines)


def _judge(found: Measured, claim: Claim) -> Judged:
    if claim.kind == "untestable":
        return Judged("cannot be tested here", claim.because)
    if claim.method not in found.table.method_names:
        reason = f"{claim.method} is left out of this version of the table"
        return Judged("cannot be tested here", reason)
    value = found.table.value(claim.value)
    cases = _cases_of(found, claim, claim.method)
    if not any(found.cell(case, claim.method).runs for case in cases):
        return Judged("no results yet")
    if claim.kind == "chosen":
        return _judge_choice(found, claim, value, cases)
    if claim.kind == "better":
        return _judge_better(found, claim, value, cases)
    return _judge_level(found, claim, value, cases)


def _judge_choice(found: Measured, claim: Claim, value: Value, cases: Sequence[str]) -> Judged:
    """Judge whether the method has the best mean, among the others of the claim or all methods."""
    means = {}
    for method in found.table.method_names:
        if claim.others and method not in (claim.method, *claim.others):
            continue
        numbers: list[float] = []
        for case in cases:
            numbers += found.cell(case, method).numbers(value).values()
        if numbers:
            means[method] = fmean(numbers)
    return judge_choice(
        means, claim.method, lower_is_better=value.better != "higher", digits=value.digits
    )


def _judge_better(found: Measured, claim: Claim, value: Value, cases: Sequence[str]) -> Judged:
    if not value.better or not claim.others:
        raise FedskewError(
            f"{found.table.label}: 'better' needs others, and a value that is better higher or lower"
        )
    contrasts = []
    absent = []
    rivals_without_number: list[str] = []
    for rival in claim.others:
        if rival not in found.table.method_names:
            absent.append(rival)
            continue
        contrasts.append(_contrast(found, claim, value, rival))
        both = _cases_of(found, claim, claim.method, rival)
        rivals_without_number += _without_number(found, value, rival, both)
    return judge_better(
        Superiority(
            contrasts,
            absent,
            without_number=_without_number(found, value, claim.method, cases),
            rivals_without_number=rivals_without_number,
            all_cases=not _absent_cases(found, claim),
            tolerance=claim.tolerance,
            digits=value.digits,
        )
    )


def _contrast(found: Measured, claim: Claim, value: Value, rival: str) -> Contrast:
    pairs = []
    for case in _cases_of(found, claim, claim.method, rival):
        ours = found.cell(case, claim.method)
        theirs = found.cell(case, rival)
        pairs.append(
            CasePair(
                case,
                differences_by_seed(
                    ours.numbers(value), theirs.numbers(value), value.better == "lower"
                ),
                measured=bool(ours.runs and theirs.runs),
                rival_failed=bool(theirs.lacking(value)),
            )
        )
    return contrast(rival, pairs)


def _judge_level(found: Measured, claim: Claim, value: Value, cases: Sequence[str]) -> Judged:
    """Judge the means of a method in each case: near the paper's, above a bound, or steady."""
    printed = value.paper.get(claim.method, {})
    if claim.kind == "near":
        cases = [case for case in cases if case in printed]
    means = {}
    unmeasured = []
    for case in cases:
        numbers = found.cell(case, claim.method).numbers(value)
        if numbers:
            means[case] = fmean(numbers.values())
        else:
            unmeasured.append(case)
    level = Level(
        means,
        without_number=_without_number(found, value, claim.method, cases),
        unmeasured=[*unmeasured, *_absent_cases(found, claim)],
        digits=value.digits,
    )
    if claim.kind == "near":
        return judge_near(level, printed, claim.tolerance)
    if claim.kind == "above":
        return judge_above(level, claim.bound)
    return judge_steady(level, claim.tolerance)


def _cases_of(found: Measured, claim: Claim, *methods: str) -> list[str]:
    """Return the cases of the claim in which all of these methods are compared."""
    cases = []
    for case in found.table.cases:
        if claim.cases and case.name not in claim.cases:
            continue
        compared = {method.name for method in found.table.methods_of(case)}
        if compared.issuperset(methods):
            cases.append(case.name)
    return cases


def _absent_cases(found: Measured, claim: Claim) -> list[str]:
    """Return the cases of the claim that this version of the table does not have."""
    return sorted(set(claim.cases).difference(found.table.case_names))


def _without_number(found: Measured, value: Value, method: str, cases: Sequence[str]) -> list[str]:
    """Return what is to be said of the runs of a method without a number, with their cases and seeds."""
    count = 0
    places: dict[str, list[str]] = {}
    for case in cases:
        cell = found.cell(case, method)
        count += len(cell.runs)
        for why, runs in cell.lacking(value).items():
            for run in runs:
                places.setdefault(why, []).append(f"{run.case} seed {run.seed}")
    return runs_without_number(method, count, places)
