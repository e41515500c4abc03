"""A method against a rival: the differences in the same cases and seeds, and their interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedskew.papers.comparison import Measured
from fedskew.papers.paper_tables import Claim, Value
from fedskew.study.significance import FEWEST_BLOCKS, paired_interval


@dataclass(frozen=True)
class Rival:
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
        return paired_interval(self.seeds)

    def text(self, digits: int) -> str:
        """Return the numbers in words."""
        parts = (("not measured yet", self.unmeasured), ("left out", self.left_out))
        without = "".join(f"; {what}: {', '.join(cases)}" for what, cases in parts if cases)
        if not self.seeds:
            return f"against {self.name}: no seed with a number of both{without}"
        over = f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"
        if len(self.seeds) >= FEWEST_BLOCKS:
            low, high = self.interval
            over = f"95 % interval {low:+z.{digits}f} to {high:+z.{digits}f}, {over}"
        wins = f"better in {self.wins} of {self.cases} case{'s' * (self.cases > 1)}"
        return f"against {self.name} {fmean(self.seeds):+z.{digits}f} ({over}; {wins}{without})"


def cases_of(found: Measured, claim: Claim, *methods: str) -> list[str]:
    """Return the cases of the claim in which all of these methods are compared."""
    result: list[str] = []
    for case in found.table.cases:
        if (not claim.cases or case.name in claim.cases) and set(methods) <= {
            method.name for method in found.table.methods_of(case)
        }:
            result.append(case.name)
    return result


def against(found: Measured, claim: Claim, value: Value, rival: str) -> Rival:
    """Compare in the seeds in which all cases have a number of both.

    Cases in which a run of the rival has none (it diverged) are left out, if there are others and unless the rival is
    the better one in the seeds that remain.
    """
    if value.better == "lower":
        sign = -1
    else:
        sign = 1
    pairs: dict[str, dict[int, float]] = {}
    unmeasured, lacking = [], []
    for case in cases_of(found, claim, claim.method, rival):
        ours, theirs = (found.cell(case, method) for method in (claim.method, rival))
        mine = ours.numbers(value)
        other = theirs.numbers(value)
        if both := {seed: sign * (mine[seed] - other[seed]) for seed in mine.keys() & other.keys()}:
            pairs[case] = both
        if not ours.runs or not theirs.runs:
            unmeasured.append(case)
        if theirs.lacking(value) and (not both or fmean(both.values()) > 0):
            lacking.append(case)
    pairs = {case: both for case, both in pairs.items() if case not in lacking} or pairs
    if pairs:
        seeds = sorted(set.intersection(*(set(both) for both in pairs.values())))
    else:
        seeds = []
    if seeds:
        wins = sum(fmean(both[seed] for seed in seeds) > 0 for both in pairs.values())
    else:
        wins = 0
    means = []
    for seed in seeds:
        means.append(fmean(both[seed] for both in pairs.values()))
    return Rival(
        rival, means, wins, len(pairs), unmeasured, [case for case in lacking if case not in pairs]
    )
