"""Whether a claim about methods held: what the judge says of its contrasts, in the words of claims.

A claim demands something of every one of its parts, and a part is a contrast of the judge: a method against a rival, a
mean against a printed number, a case against another one. It *held* if all parts do as demanded, it is *refuted* if one
of them does the contrary, and it is *undecided* otherwise. Numbers become verdicts only as the judge has them: better,
equal, worse or undecided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from fedskew.study.judge import FEWEST_BLOCKS, VERDICTS, Contrast, Verdict

Outcome: TypeAlias = Literal["held", "refuted", "undecided", "cannot be tested here"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
# What a claim wants of a contrast: better than its control, no worse, or within the zone
Demand: TypeAlias = Literal["better", "no worse", "equal"]
FEWEST_TO_REFUTE = 5  # seeds
NOT_MEASURED = "not measured yet"  # how the reason of a claim begins that lacks runs
_NAMED = 3  # things without runs that are named


@dataclass(frozen=True)
class Part:
    """One contrast of a claim, and what the claim demands of it.

    Args:
        name: of the rival, or of what else the contrast is with
        contrast: as the judge has it, positive where it speaks for the claim
        demand: what the claim says of it
        is_change: whether it is about a change, of a gap or along cases, and not about who is better
        beside: what is said beside the interval, such as the cases in which the method is better
        lead: by how much the claim says that the method is ahead, in words; ``contrast`` has it taken off
        plain: the contrast without a lead, where there is one; its zone is the lead
        is_partial: whether cases are missing from the mean, so that it cannot refute what is said of all of them
    """

    name: str
    contrast: Contrast
    demand: Demand = "better"
    is_change: bool = False
    beside: str = ""
    lead: str = ""
    plain: Contrast | None = None
    is_partial: bool = False

    @property
    def verdict(self) -> Verdict:
        """Return the judge's word; where a lead is asked for, better is better by the lead.

        A method that is not ahead by so much is equal or worse by the plain contrast, and undecided otherwise.
        """
        word = self.contrast.verdict
        if self.plain is None or word == "better":
            return word
        if self.plain.verdict == "better":
            return "undecided"
        return self.plain.verdict

    @cached_property
    def outcome(self) -> Outcome:
        """Return what follows for the claim."""
        if self._is_met():
            return "held"
        has_enough = self.contrast.blocks >= FEWEST_TO_REFUTE and not self.is_partial
        if self.is_contradicted and has_enough:
            return "refuted"
        return "undecided"

    def _is_met(self) -> bool:
        verdict = self.contrast.verdict
        if self.demand == "better":
            return verdict == "better"
        if self.demand == "no worse":
            return verdict in ("better", "equal")
        return verdict == "equal"

    @cached_property
    def is_contradicted(self) -> bool:
        """Return whether the numbers say the contrary, however few they are."""
        verdict = self.contrast.verdict
        if self.demand == "better":
            return verdict in ("equal", "worse")
        if self.demand == "no worse":
            return verdict == "worse"
        interval = self.contrast.interval
        zone = self.contrast.rules.zone
        if interval is None or zone is None:
            return False
        return interval.low > zone or interval.high < -zone

    def contradiction(self) -> str:
        """Say what the numbers say instead."""
        if self.lead:
            return f"not ahead of {self.name} by {self.lead}"
        zone = self.contrast.rules.zone
        is_equal = self.contrast.verdict == "equal"
        if self.demand == "equal":
            return f"{self.name}: beyond ±{zone:g}"
        if self.is_change and is_equal:
            return f"{self.name} stays the same within ±{zone:g}"
        if self.is_change:
            return f"{self.name} changes the other way"
        if is_equal:
            return f"equal to {self.name} within ±{zone:g}"
        return f"worse than {self.name}"

    def resolution(self, digits: int) -> str:
        """Say how large a difference must be to be seen with these seeds."""
        interval = self.contrast.interval
        if interval is None:
            return f"{self.name} {_counted(self.contrast.blocks, 'seed')}"
        return f"{self.name} ±{interval.half_width:.{digits}f}"

    def line(self, digits: int) -> str:
        """Return the numbers in words."""
        blocks = self.contrast.blocks
        mean = self.contrast.mean
        name = self.name
        if self.lead:
            name = f"{self.name}, beyond a lead of {self.lead}"
        beside = ""
        if self.beside:
            beside = f"; {self.beside}"
        if mean is None:
            return f"{name}: no seed with a number of both{beside}"
        over = _counted(blocks, "seed")
        interval = self.contrast.interval
        if interval is not None:
            low, high = interval
            over = f"interval {low:+z.{digits}f} to {high:+z.{digits}f}, {over}"
        return f"{name}: {mean:+z.{digits}f} ({over}{beside}): {self.verdict}"


def _counted(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"


@dataclass(frozen=True)
class Findings:
    """What is known of a claim.

    Args:
        parts: the contrasts that there are
        incomparable: what cannot be compared, and why: each in a few words
        unmeasured: what has no runs yet
        failures: lines about runs of the method that have no number
        seeds: over how many seeds the method was run
        beside: further lines, such as those about runs of rivals
        digits: with which a value is printed; the numbers behind a verdict have one more
    """

    parts: Sequence[Part] = ()
    incomparable: Sequence[str] = ()
    unmeasured: Sequence[str] = ()
    failures: Sequence[str] = ()
    seeds: int = 0
    beside: Sequence[str] = ()
    digits: int = 1

    def lines(self) -> tuple[str, ...]:
        """Return the numbers in words."""
        lines = list(self.failures)
        for part in self.parts:
            lines.append(part.line(self.digits + 1))
        return (*lines, *self.beside)


@dataclass(frozen=True)
class Judged:
    """The outcome of a claim, why, and the numbers: one line each."""

    outcome: Outcome
    reason: str = ""
    lines: tuple[str, ...] = ()


def judge_claim(findings: Findings) -> Judged:
    """Return the outcome of a claim: refuted by one part, held if all parts are there and hold, undecided otherwise.

    Runs of the method that diverged speak against it as a refutation does: with as many seeds.
    """
    lines = findings.lines()
    against = _what_refutes(findings)
    if against:
        return Judged("refuted", against, lines)
    if findings.incomparable:
        return Judged("cannot be tested here", "; ".join(findings.incomparable), lines)
    missing = _what_is_missing(findings)
    if missing:
        return Judged("undecided", missing, lines)
    open_parts = _with_outcome(findings.parts, "undecided")
    if open_parts:
        return Judged("undecided", _why_open(open_parts, findings.digits), lines)
    return Judged("held", lines=lines)


def _with_outcome(parts: Sequence[Part], outcome: Outcome) -> list[Part]:
    return [part for part in parts if part.outcome == outcome]


def _what_refutes(findings: Findings) -> str:
    """Say what refutes the claim: parts of it, or runs of the method that have no number; empty if nothing does."""
    refuted = _with_outcome(findings.parts, "refuted")
    if refuted:
        return "; ".join(part.contradiction() for part in refuted)
    if findings.failures and findings.seeds >= FEWEST_TO_REFUTE:
        return findings.failures[0]
    return ""


def _what_is_missing(findings: Findings) -> str:
    """Say what must be there before the claim can be judged; empty if all is."""
    if findings.unmeasured:
        return _not_measured(findings)
    if findings.failures:
        return findings.failures[0]
    if not findings.parts:
        return NOT_MEASURED
    return ""


def _not_measured(findings: Findings) -> str:
    """Say what has no runs yet; without names where that is everything, or much."""
    if not findings.parts or len(findings.unmeasured) > _NAMED:
        return NOT_MEASURED
    return f"{NOT_MEASURED}: {', '.join(findings.unmeasured)}"


def _why_open(parts: Sequence[Part], digits: int) -> str:
    """Say what more would be needed, and how large a difference could have been seen."""
    too_few, few_to_refute, wide = [], [], []
    for part in parts:
        if part.contrast.interval is None:
            too_few.append(part)
        elif part.is_contradicted:
            few_to_refute.append(part.contradiction())
        else:
            wide.append(part)
    reasons = []
    if few_to_refute:
        needed = f"a refutation needs {FEWEST_TO_REFUTE} seeds"
        reasons.append(f"{', '.join(few_to_refute)}, but {needed}")
    if wide:
        seen = f"smallest difference that could have been seen: {_resolutions(wide, digits)}"
        reasons.append(f"{seen}{_needed(wide)}")
    if too_few:
        reasons.append(f"an interval needs {FEWEST_BLOCKS} seeds: {_resolutions(too_few, digits)}")
    return "; ".join(reasons)


def _resolutions(parts: Sequence[Part], digits: int) -> str:
    return ", ".join(part.resolution(digits) for part in parts)


def _needed(parts: Sequence[Part]) -> str:
    """Return how many seeds would narrow all intervals to the zone; nothing if that cannot be said."""
    needed = []
    for part in parts:
        if part.contrast.blocks_needed is None:
            return ""
        needed.append(part.contrast.blocks_needed)
    return f"; about {max(needed):,} seeds for ±{parts[0].contrast.rules.zone:g}"


# -- questions of ours, which nobody has answered before ---------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What the judge says of every contrast of a question, why some have none, and the numbers."""

    by_verdict: dict[Verdict, list[str]]
    missing: str = ""
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = []
        for verdict, names in self.by_verdict.items():
            words.append(f"{verdict}: {', '.join(names)}")
        if self.missing:
            words.append(self.missing)
        return "; ".join(words)


def answer(findings: Findings) -> Answer:
    """Return what the judge says of every contrast of a question, in its own words."""
    by_verdict: dict[Verdict, list[str]] = {}
    for verdict in VERDICTS:
        names = []
        for part in findings.parts:
            if part.verdict == verdict:
                names.append(_answered(part, findings.digits))
        if names:
            by_verdict[verdict] = names
    missing = [*findings.incomparable, *findings.failures]
    if findings.unmeasured or not findings.parts:
        missing.append(_not_measured(findings))
    return Answer(by_verdict, "; ".join(missing), findings.lines())


def _answered(part: Part, digits: int) -> str:
    if part.verdict == "undecided":
        return part.resolution(digits)
    return part.name


# -- runs that have no number ------------------------------------------------------------------------------------------


def runs_without_number(method: str, runs: int, places: dict[str, list[str]]) -> list[str]:
    """Return a line for every reason why runs of a method have no number; ``places`` are these runs by reason.

    >>> runs_without_number("new", 6, {"diverged": ["a seed 1"]})
    ['new: diverged in 1 of 6 runs (a seed 1)']
    """
    lines = []
    for reason, where in places.items():
        lines.append(f"{method}: {reason} in {len(where)} of {runs} runs ({', '.join(where)})")
    return lines
