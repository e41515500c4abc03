"""A method against another one: their differences in the same cases and seeds, the interval, and the words for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedskew.study.judge import FEWEST_BLOCKS, paired_interval


@dataclass(frozen=True)
class CasePair:
    """What a method and its rival have in one case.

    ``differences`` are by seed, of the seeds with a number of both, and positive where the method is better.
    ``measured`` is whether both have runs, and ``rival_failed`` whether a run of the rival has no number.
    """

    case: str
    differences: Mapping[int, float]
    measured: bool = True
    rival_failed: bool = False


@dataclass(frozen=True)
class Contrast:
    """The differences to a rival, positive where the method is better: means over cases, one for each seed."""

    rival: str
    differences: Sequence[float]
    wins: int  # cases in which the method is better
    cases: int
    unmeasured: Sequence[str] = ()  # cases without runs of both
    left_out: Sequence[str] = ()  # cases in which the rival diverged

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the mean difference (Student's t over seeds)."""
        return paired_interval(self.differences)

    @property
    def complete(self) -> bool:
        """Return whether there are enough seeds for an interval and runs of both in every case."""
        return len(self.differences) >= FEWEST_BLOCKS and not self.unmeasured

    def text(self, digits: int) -> str:
        """Return the numbers in words."""
        without = self._without()
        if not self.differences:
            return f"against {self.rival}: no seed with a number of both{without}"
        over = _counted(len(self.differences), "seed")
        if len(self.differences) >= FEWEST_BLOCKS:
            low, high = self.interval
            over = f"95 % interval {low:+z.{digits}f} to {high:+z.{digits}f}, {over}"
        mean = fmean(self.differences)
        wins = f"better in {self.wins} of {_counted(self.cases, 'case')}"
        return f"against {self.rival} {mean:+z.{digits}f} ({over}; {wins}{without})"

    def _without(self) -> str:
        """Return the cases that the differences are not about."""
        text = ""
        if self.unmeasured:
            text += f"; not measured yet: {', '.join(self.unmeasured)}"
        if self.left_out:
            text += f"; left out: {', '.join(self.left_out)}"
        return text


def _counted(count: int, noun: str) -> str:
    if count > 1:
        return f"{count} {noun}s"
    return f"{count} {noun}"


def differences_by_seed(
    ours: Mapping[int, float], theirs: Mapping[int, float], lower_is_better: bool = False
) -> dict[int, float]:
    """Return the differences in the seeds that both have, positive where ours is better.

    >>> differences_by_seed({0: 3.0, 1: 5.0}, {1: 4.0, 2: 1.0}, lower_is_better=True)
    {1: -1.0}
    """
    found = {}
    for seed in ours.keys() & theirs.keys():
        difference = ours[seed] - theirs[seed]
        if lower_is_better:
            difference = -difference
        found[seed] = difference
    return found


def contrast(rival: str, pairs: Sequence[CasePair]) -> Contrast:
    """Compare in the seeds in which all cases have a number of both.

    Cases in which a run of the rival has none (it diverged) are left out, if there are others and unless the rival is
    the better one in the seeds that remain.
    """
    diverged, unmeasured, with_numbers = [], [], []
    for pair in pairs:
        if _rival_diverged(pair):
            diverged.append(pair.case)
        if not pair.measured:
            unmeasured.append(pair.case)
        if pair.differences:
            with_numbers.append(pair)
    compared = [pair for pair in with_numbers if pair.case not in diverged]
    left_out = diverged
    if not compared:
        compared = with_numbers
        left_out = [pair.case for pair in pairs if pair.case in diverged and not pair.differences]
    seeds = _shared_seeds(compared)
    wins = 0
    differences: list[float] = []
    if seeds:
        wins = _wins(compared, seeds)
        differences = _means_over_cases(compared, seeds)
    return Contrast(rival, differences, wins, len(compared), unmeasured, left_out)


def _rival_diverged(pair: CasePair) -> bool:
    """Return whether the rival has runs without a number and is not the better one in those that have one."""
    if not pair.rival_failed:
        return False
    return not pair.differences or fmean(pair.differences.values()) > 0


def _shared_seeds(pairs: Sequence[CasePair]) -> list[int]:
    """Return the seeds that all of these cases have."""
    if not pairs:
        return []
    first, *others = pairs
    shared = set(first.differences)
    for pair in others:
        shared &= pair.differences.keys()
    return sorted(shared)


def _wins(pairs: Sequence[CasePair], seeds: Sequence[int]) -> int:
    """Return in how many cases the method is better, on average over the seeds."""
    wins = 0
    for pair in pairs:
        if fmean(pair.differences[seed] for seed in seeds) > 0:
            wins += 1
    return wins


def _means_over_cases(pairs: Sequence[CasePair], seeds: Sequence[int]) -> list[float]:
    """Return the mean difference of every seed."""
    means = []
    for seed in seeds:
        means.append(fmean(pair.differences[seed] for pair in pairs))
    return means
