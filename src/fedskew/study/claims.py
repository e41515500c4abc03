"""Whether a claim about methods held, from numbers alone: the outcome, the reason, and the numbers in words.

A claim is that a method is better than others, near a number, above a bound, steady over cases, or the best choice.
Everywhere, ``digits`` are those with which a number is printed; the numbers behind a verdict have one more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from fedskew.study.judge import FEWEST_BLOCKS
from fedskew.study.method_contrasts import Contrast

_ROUNDING = 1e-9  # below which a difference is none
Outcome = Literal[
    "held", "not held", "points that way", "points another way", "cannot be tested here", "no results yet",
    "chosen", "not the best",
]  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """The outcome of a claim, why, and the numbers: one line each."""

    outcome: Outcome
    reason: str = ""
    lines: tuple[str, ...] = ()


def runs_without_number(method: str, runs: int, places: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for every reason why runs of a method have no number; ``places`` are these runs by reason.

    >>> runs_without_number("new", 6, {"diverged": ["a seed 1"]})
    ['new: diverged in 1 of 6 runs (a seed 1)']
    """
    lines = []
    for reason, where in places.items():
        lines.append(f"{method}: {reason} in {len(where)} of {runs} runs ({', '.join(where)})")
    return lines


def judge_choice(
    means: Mapping[str, float], chosen: str, *, lower_is_better: bool, digits: int
) -> Judged:
    """Return whether what was chosen has the best mean."""
    if lower_is_better:
        best = min(means, key=means.__getitem__)
    else:
        best = max(means, key=means.__getitem__)
    lines = tuple(f"{name}: {mean:.{digits}f}" for name, mean in means.items())
    if best == chosen:
        return Judged("chosen", lines=lines)
    return Judged("not the best", lines=lines)


# -- better than others ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Superiority:
    """The claim that a method is better than each of some rivals, and what is known of it.

    Args:
        contrasts: the method against every rival of which there may be runs
        absent: the rivals that are left out
        without_number: lines about the runs of the method itself that have no number
        rivals_without_number: lines about those of the rivals
        all_cases: whether every case of the claim is there
        tolerance: how much worse than a rival the method may be
        digits: with which the value is printed
    """

    contrasts: Sequence[Contrast]
    absent: Sequence[str] = ()
    without_number: Sequence[str] = ()
    rivals_without_number: Sequence[str] = ()
    all_cases: bool = True
    tolerance: float = 0.0
    digits: int = 1

    @property
    def compared(self) -> list[Contrast]:
        """Return the contrasts with at least one seed."""
        compared: list[Contrast] = []
        for contrast in self.contrasts:
            if contrast.differences:
                compared.append(contrast)
        return compared

    @property
    def incomparable(self) -> list[str]:
        """Return the rivals that were run, but in no seed with a number of both."""
        rivals = []
        for contrast in self.contrasts:
            if not contrast.differences and not contrast.unmeasured:
                rivals.append(contrast.rival)
        return rivals

    @property
    def complete(self) -> bool:
        """Return whether the method was compared with all rivals, in all cases and with enough seeds."""
        every_contrast = all(contrast.complete for contrast in self.contrasts)
        return every_contrast and not self.absent and self.all_cases

    def points_that_way(self) -> bool:
        """Return whether every mean difference is in favour of the method."""
        bound = _ROUNDING - self.tolerance
        return all(fmean(contrast.differences) > bound for contrast in self.compared)

    def lines(self) -> tuple[str, ...]:
        """Return the numbers in words."""
        lines = list(self.without_number)
        for contrast in self.contrasts:
            lines.append(contrast.text(self.digits + 1))
        for rival in self.absent:
            lines.append(f"against {rival}: left out of this version of the table")
        return (*lines, *self.rivals_without_number)


def judge_better(claim: Superiority) -> Judged:
    """Return whether a method is better than each rival.

    It is if the interval of every difference is on its side, and it is not if one interval is not. Where something
    is missing, the mean differences only point in a direction.
    """
    lines = claim.lines()
    if claim.without_number:
        return Judged("not held", claim.without_number[0], lines)
    if against := _what_speaks_against(claim):
        return Judged("not held", against, lines)
    ahead = claim.points_that_way()
    if ahead and (claim.incomparable or not claim.contrasts):
        names = ", ".join(claim.incomparable or claim.absent)
        return Judged("cannot be tested here", f"no seed with a number of both for {names}", lines)
    if not claim.compared:
        return Judged("no results yet", lines=lines)
    if claim.complete:
        return Judged("held", lines=lines)
    if ahead:
        return Judged("points that way", _what_is_missing(claim), lines)
    return Judged("points another way", _what_is_missing(claim), lines)


def _what_speaks_against(claim: Superiority) -> str:
    """Say against which rivals the method is worse or no better beyond noise; empty if it is better than all."""
    beaten, undecided, ahead = [], [], []
    for contrast in claim.contrasts:
        if not contrast.complete:
            continue
        low, high = contrast.interval
        if low > _ROUNDING - claim.tolerance:
            beaten.append(contrast.rival)
        elif high < -_ROUNDING - claim.tolerance:
            ahead.append(contrast.rival)
        else:
            undecided.append(contrast.rival)
    if ahead:
        return f"reversed against {', '.join(ahead)}"
    if not undecided:
        return ""
    no_difference = f"no difference beyond noise to {', '.join(undecided)}"
    if beaten:
        return f"mixed, better than {', '.join(beaten)}, {no_difference}"
    return no_difference


def _what_is_missing(claim: Superiority) -> str:
    """Return why the mean differences only point in a direction."""
    if any(len(contrast.differences) < FEWEST_BLOCKS for contrast in claim.compared):
        return f"fewer than {FEWEST_BLOCKS} seeds"
    return "not everything is measured"


# -- the level of one method -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """The mean of a method in each case, and what is missing.

    Args:
        means: over seeds, by case
        without_number: lines about the runs that have no number
        unmeasured: the cases of the claim without a mean
        digits: with which the value is printed
    """

    means: Mapping[str, float]
    without_number: Sequence[str] = ()
    unmeasured: Sequence[str] = ()
    digits: int = 1

    def lines(self) -> list[str]:
        """Return the means in words."""
        lines: list[str] = []
        for case, mean in self.means.items():
            lines.append(f"{case}: {mean:.{self.digits + 1}f}")
        return lines


def judge_near(level: Level, printed: Mapping[str, float], tolerance: float) -> Judged:
    """Return whether every mean is within the tolerance of the printed number of its case."""
    if _too_few(level, 1):
        return _TOO_FEW
    lines = []
    far = 0
    for case, line in zip(level.means, level.lines(), strict=True):
        difference = level.means[case] - printed[case]
        if abs(difference) > tolerance + _ROUNDING:
            far += 1
        paper = f"paper {printed[case]:.{level.digits}f}"
        lines.append(f"{line}, {paper}, difference {difference:+z.{level.digits + 1}f}")
    if far:
        reason = f"off by more than {tolerance:g} in {far} of {len(level.means)} cases"
        return _judge_level(level, lines, reason)
    return _judge_level(level, lines)


def judge_above(level: Level, bound: float) -> Judged:
    """Return whether every mean is at least the bound."""
    if _too_few(level, 1):
        return _TOO_FEW
    short = 0
    for mean in level.means.values():
        if mean < bound - _ROUNDING:
            short += 1
    if short:
        reason = f"below {bound:g} in {short} of {len(level.means)} cases"
        return _judge_level(level, level.lines(), reason)
    return _judge_level(level, level.lines())


def judge_steady(level: Level, tolerance: float) -> Judged:
    """Return whether the best and the worst mean differ by at most the tolerance."""
    if _too_few(level, 2):
        return _TOO_FEW
    spread = 0.0
    if level.means:
        spread = max(level.means.values()) - min(level.means.values())
    differ = f"best and worst case differ by {spread:.{level.digits + 1}f}"
    lines = [*level.lines(), f"{differ}, at most {tolerance:g} claimed"]
    if spread > tolerance + _ROUNDING:
        return _judge_level(level, lines, f"cases differ by more than {tolerance:g}")
    return _judge_level(level, lines)


_TOO_FEW = Judged("cannot be tested here", "too few cases that can be compared")


def _too_few(level: Level, needed: int) -> bool:
    """Return whether there are too few means; runs without a number are an answer nevertheless."""
    return len(level.means) < needed and not level.without_number


def _judge_level(level: Level, lines: Sequence[str], reason: str = "") -> Judged:
    """Return the verdict; ``reason`` says why the means contradict the claim, and is empty if they fit it."""
    texts = (*level.without_number, *lines)
    if reason:
        return Judged("not held", reason, texts)
    if level.without_number:
        return Judged("not held", level.without_number[0], texts)
    if level.unmeasured:
        return Judged("points that way", f"not measured: {', '.join(level.unmeasured)}", texts)
    return Judged("held", lines=texts)
