"""Whether what a paper claims of a table held here: its runs, handed to the judge of studies."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, TypeAlias

from fedskew.papers.comparison import Measured, measured
from fedskew.papers.paper_claims import Claim, Value
from fedskew.papers.paper_tables import PaperTable
from fedskew.papers.results import Results
from fedskew.study.claims import (
    NOT_MEASURED,
    Answer,
    Demand,
    Findings,
    Outcome,
    Part,
    answer,
    judge_claim,
    runs_without_number,
)
from fedskew.study.judge import Contrast, Rules
from fedskew.study.method_contrasts import (
    BySeed,
    CasePair,
    against_number,
    against_rival,
    as_family,
    between_cases,
    difference_of_gaps,
    trend,
)

# Of what a table settles on validation rows, and of a question of ours
Settled: TypeAlias = Literal["chosen", "not the best", "answered"]


@dataclass(frozen=True)
class Verdict:
    """A claim, what became of it, why, and the numbers: one line each; a question of ours has an answer instead."""

    claim: Claim
    outcome: Outcome | Settled
    reason: str = ""
    numbers: tuple[str, ...] = ()
    answer: Answer | None = None

    @property
    def of_the_paper(self) -> bool:
        """Return whether it is about what the paper says."""
        return not self.claim.ours and self.claim.kind != "chosen"

    @property
    def lacks_runs(self) -> bool:
        """Return whether it is undecided because a part of what it is about has not been run."""
        return self.outcome == "undecided" and self.reason.startswith(NOT_MEASURED)

    def __str__(self) -> str:
        if self.answer is not None:
            return str(self.answer)
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
    if claim.kind == "untestable":
        return Verdict(claim, "cannot be tested here", claim.because)
    if claim.kind == "chosen":
        return _choice(found, claim)
    findings = findings_on(found, claim)
    if claim.ours:
        answered = answer(findings)
        return Verdict(claim, "answered", numbers=answered.lines, answer=answered)
    judged = judge_claim(findings)
    return Verdict(claim, judged.outcome, judged.reason, judged.lines)


def findings_on(found: Measured, claim: Claim) -> Findings:
    """Return what the runs of a table say of a claim: its contrasts, and what is missing."""
    if claim.method not in found.table.method_names:
        absent = f"{claim.method} is left out of this version of the table"
        return Findings(incomparable=[absent])
    reader = _Reader(found, claim, found.table.value(claim.value))
    if claim.kind in ("better", "no worse", "equal"):
        return reader.against_rivals()
    if claim.kind == "gap":
        return reader.gaps()
    if claim.kind == "trend":
        return reader.trends()
    return reader.levels()


def _choice(found: Measured, claim: Claim) -> Verdict:
    """Say whether the method has the best mean, among the others of the claim or all methods."""
    value = found.table.value(claim.value)
    sign = _sign(value)
    means = {}
    lines = []
    for method in found.table.method_names:
        if claim.others and method not in (claim.method, *claim.others):
            continue
        numbers: list[float] = []
        for case in _cases_of(found, claim.cases, method):
            numbers += found.cell(case, method).numbers(value).values()
        if numbers:
            means[method] = sign * fmean(numbers)
            lines.append(f"{method}: {fmean(numbers):.{value.digits}f}")
    if not means:
        return Verdict(claim, "undecided", NOT_MEASURED)
    if max(means, key=means.__getitem__) == claim.method:
        return Verdict(claim, "chosen", numbers=tuple(lines))
    return Verdict(claim, "not the best", numbers=tuple(lines))


def _sign(value: Value) -> int:
    if value.better == "lower":
        return -1
    return 1


def _cases_of(found: Measured, wanted: Sequence[str], *methods: str) -> list[str]:
    """Return the cases, of those that are wanted or of all, in which all of these methods are compared."""
    cases = []
    for case in found.table.cases:
        if wanted and case.name not in wanted:
            continue
        compared = {method.name for method in found.table.methods_of(case)}
        if compared.issuperset(methods):
            cases.append(case.name)
    return cases


@dataclass(frozen=True)
class _Reader:
    """Reads what the runs of a table say of one claim."""

    found: Measured
    claim: Claim
    value: Value

    @property
    def _method(self) -> str:
        return self.claim.method

    @property
    def _rules(self) -> Rules:
        """Return the zone: that of the claim or, where it names none, of the value."""
        return Rules(self.claim.tolerance or self.value.zone_in_use)

    # -- against rivals --------------------------------------------------------------------------------------------

    def against_rivals(self) -> Findings:
        """Return the method against each of the others."""
        demand: Demand = "better"
        if self.claim.kind == "no worse":
            demand = "no worse"
        elif self.claim.kind == "equal":
            demand = "equal"
        parts = []
        base = self._base()
        unmeasured = list(base.unmeasured)
        incomparable = list(base.incomparable)
        for rival in self._present_rivals():
            cases = self._cases(self._method, rival)
            result = against_rival(self._method, rival, self._pairs(rival, cases), self._rules)
            unmeasured += [f"{rival} in {case}" for case in result.unmeasured]
            if result.contrast.blocks:
                part = Part(
                    rival,
                    result.contrast,
                    demand,
                    beside=result.beside(),
                    is_partial=bool(result.unmeasured),
                )
                if self._lead:
                    part = replace(part, lead=self._lead, plain=self._plain(rival, cases))
                parts.append(part)
            elif not result.unmeasured:
                incomparable.append(f"no seed with a number of both for {rival}")
        return replace(
            base, parts=_as_family(parts), unmeasured=unmeasured, incomparable=incomparable
        )

    def gaps(self) -> Findings:
        """Return, for each of the others, the gap in the cases of the claim against that in the other cases."""
        parts = []
        base = self._base()
        unmeasured = list(base.unmeasured)
        for rival in self._present_rivals():
            here, elsewhere = self._here_and_elsewhere(rival)
            contrast = difference_of_gaps(
                rival, self._pairs(rival, here), self._pairs(rival, elsewhere), self._rules
            )
            if contrast.blocks:
                parts.append(Part(f"gap to {rival}", contrast, is_change=True))
            else:
                unmeasured.append(rival)
        return replace(base, parts=_as_family(parts), unmeasured=unmeasured)

    def _here_and_elsewhere(self, rival: str) -> tuple[list[str], list[str]]:
        """Return the cases in which the gap is said to be larger, and those in which it is smaller."""
        here, elsewhere = [], []
        for case in _cases_of(self.found, (), self._method, rival):
            if case in self.claim.cases:
                here.append(case)
            elif not self.claim.elsewhere or case in self.claim.elsewhere:
                elsewhere.append(case)
        return here, elsewhere

    def trends(self) -> Findings:
        """Return how the method's numbers, or its gaps to the others, change along the cases."""
        base = self._base()
        parts = []
        unmeasured = list(base.unmeasured)
        named: list[tuple[str, list[BySeed]]] = []
        if not self.claim.others:
            own: list[BySeed] = []
            for case in self.claim.cases:
                own.append(self.found.cell(case, self._method).numbers(self.value))
            named.append((self._method, own))
        for rival in self._present_rivals():
            pairs = self._pairs(rival, self.claim.cases)
            named.append((f"gap to {rival}", [pair.differences() for pair in pairs]))
        for name, by_case in named:
            contrast = trend(name, self.claim.at, by_case, self._rules)
            if self.claim.falls:
                contrast = replace(contrast, differences=_negated(contrast.differences))
            if contrast.blocks:
                part = Part(name, contrast, is_change=True, beside="for every doubling")
                parts.append(part)
            else:
                unmeasured.append(name)
        return replace(base, parts=_as_family(parts), unmeasured=unmeasured)

    def _pairs(self, rival: str, cases: Sequence[str]) -> list[CasePair]:
        """Return the numbers of the method and of a rival in every case, such that higher ones are good."""
        pairs = []
        for case in cases:
            mine = self._numbers(case, self._method)
            theirs = self._to_beat(self._numbers(case, rival))
            own_cell = self.found.cell(case, self._method)
            their_cell = self.found.cell(case, rival)
            pair = CasePair(
                case,
                mine,
                theirs,
                measured=bool(own_cell.measured(self.value) and their_cell.measured(self.value)),
                rival_failed=bool(their_cell.lacking(self.value)),
            )
            pairs.append(pair)
        return pairs

    @property
    def _lead(self) -> str:
        """Return by how much the claim says that the method is ahead, in words; empty if it does not say."""
        if self.claim.share:
            return f"{self.claim.share:.0%}".replace("%", " %")
        if self.claim.margin:
            return f"{self.claim.margin:g}"
        return ""

    def _plain(self, rival: str, cases: Sequence[str]) -> Contrast:
        """Return the method against a rival without the lead of the claim, which is the zone."""
        zone = self.claim.margin or self._rules.zone
        plain = replace(self, claim=replace(self.claim, margin=0.0, share=0.0))
        pairs = plain._pairs(rival, cases)
        return against_rival(self._method, rival, pairs, replace(self._rules, zone=zone)).contrast

    def _to_beat(self, theirs: BySeed) -> BySeed:
        """Return a rival's numbers with what the claim says that the method is ahead of them."""
        numbers = {}
        for seed, number in theirs.items():
            numbers[seed] = number + self.claim.margin + self.claim.share * abs(number)
        return numbers

    # -- the level of one method -----------------------------------------------------------------------------------

    def levels(self) -> Findings:
        """Return the method against the printed numbers, against a bound, or its cases against each other."""
        base = self._base()
        cases = self._cases(self._method)
        printed = self.value.paper.get(self._method, {})
        if self.claim.kind == "near":
            cases = [case for case in cases if case in printed]
        numbers = {}
        unmeasured = list(base.unmeasured)
        for case in cases:
            of_case = self._numbers(case, self._method)
            if of_case:
                numbers[case] = of_case
            elif not self.found.cell(case, self._method).measured(self.value):
                unmeasured.append(case)
        if self.claim.kind == "steady":
            return self._steady(numbers, replace(base, unmeasured=unmeasured))
        parts = []
        for case, of_case in numbers.items():
            if self.claim.kind == "above":
                parts.append(self._against_bound(case, of_case))
            else:
                parts.append(self._against_printed(case, of_case, printed[case]))
        return replace(base, parts=_as_family(parts), unmeasured=unmeasured)

    def _against_bound(self, case: str, numbers: BySeed) -> Part:
        bound = self.claim.bound
        rules = replace(self._rules, zone=None)
        contrast = against_number(case, numbers, _sign(self.value) * bound, rules)
        return Part(f"the bound {bound:g} ({case})", contrast)

    def _against_printed(self, case: str, numbers: BySeed, printed: float) -> Part:
        contrast = against_number(case, numbers, _sign(self.value) * printed, self._rules)
        name = f"the printed {printed:.{self.value.digits}f} ({case})"
        return Part(name, contrast, "equal")

    def _steady(self, numbers: dict[str, BySeed], base: Findings) -> Findings:
        parts = []
        for contrast in between_cases(numbers, self._rules):
            name = f"{contrast.method} against {contrast.control}"
            parts.append(Part(name, contrast, "equal"))
        incomparable = list(base.incomparable)
        if len(numbers) < 2 and not base.unmeasured and not base.failures:
            incomparable.append("too few cases that can be compared")
        return replace(base, parts=parts, incomparable=incomparable)

    # -- what is there ---------------------------------------------------------------------------------------------

    def _cases(self, *methods: str) -> list[str]:
        return _cases_of(self.found, self.claim.cases, *methods)

    def _numbers(self, case: str, method: str) -> BySeed:
        """Return the numbers of a method by seed, such that higher ones are good."""
        numbers: dict[Hashable, float] = {}
        for seed, number in self.found.cell(case, method).numbers(self.value).items():
            numbers[seed] = _sign(self.value) * number
        return numbers

    def _present_rivals(self) -> list[str]:
        return [rival for rival in self.claim.others if rival in self.found.table.method_names]

    def _base(self) -> Findings:
        """Return what there is to say apart from the contrasts: failures, and what this version leaves out."""
        table = self.found.table
        incomparable = []
        for rival in self.claim.others:
            if rival not in table.method_names:
                incomparable.append(f"{rival} is left out of this version of the table")
        for case in (*self.claim.cases, *self.claim.elsewhere):
            if case not in table.case_names:
                incomparable.append(f"{case} is left out of this version of the table")
        cases = self._cases(self._method)
        beside: list[str] = []
        for rival in self._present_rivals():
            beside += self._without_number(rival, self._cases(self._method, rival))
        seeds = set()
        for case in cases:
            seeds |= {run.seed for run in self.found.cell(case, self._method).runs}
        return Findings(
            incomparable=incomparable,
            failures=self._without_number(self._method, cases),
            seeds=len(seeds),
            beside=beside,
            digits=self.value.digits,
        )

    def _without_number(self, method: str, cases: Sequence[str]) -> list[str]:
        """Return what is to be said of the runs of a method without a number, with their cases and seeds."""
        count = 0
        places: dict[str, list[str]] = {}
        for case in cases:
            cell = self.found.cell(case, method)
            count += len(cell.measured(self.value))
            for why, runs in cell.lacking(self.value).items():
                for run in runs:
                    places.setdefault(why, []).append(f"{run.case} seed {run.seed}")
        return runs_without_number(method, count, places)


def _as_family(parts: Sequence[Part]) -> list[Part]:
    """Return the parts of a claim with intervals that hold together."""
    members = []
    for part in parts:
        plain = part.plain
        if plain is not None:
            plain = replace(plain, family=len(parts))
        members.append(replace(part, plain=plain))
    contrasts: list[Contrast] = as_family([part.contrast for part in parts])
    return [replace(part, contrast=of) for part, of in zip(members, contrasts, strict=True)]


def _negated(differences: BySeed) -> BySeed:
    return {seed: -difference for seed, difference in differences.items()}
