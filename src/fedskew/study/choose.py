"""Choosing the numbers of a method by validation rows. Values in, values out; nothing is read or trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Try:
    """The numbers of a grid that a method was run with, and how its runs did on validation rows.

    Args:
        numbers: by name
        scores: on validation rows, of the runs that have one
        failed: how many runs diverged, or collapsed
    """

    numbers: Mapping[str, float]
    scores: Sequence[float]
    failed: int = 0

    @property
    def mean(self) -> float | None:
        """Return the mean score on validation rows; None without one."""
        if not self.scores:
            return None
        return fmean(self.scores)


@dataclass(frozen=True)
class Chosen:
    """What was chosen for a method, and among what.

    Args:
        best: the try that was chosen
        tries: all of them
        at_edge: names of the numbers that are the least or the largest that was tried
    """

    best: Try
    tries: Sequence[Try]
    at_edge: Sequence[str] = ()


def choose(tries: Sequence[Try], sign: int) -> Chosen:
    """Return the try with the best mean on validation rows; ``sign`` is -1 where low scores are good.

    A try with a failed run is not chosen, unless every try has one: then it is one with the fewest failures. Of equal
    ones it is the first.

    >>> found = choose([Try({"lr": 0.1}, [0.7, 0.8]), Try({"lr": 1.0}, [0.9], failed=1)], sign=1)
    >>> found.best.numbers, found.at_edge
    ({'lr': 0.1}, ['lr'])
    """

    def place(one: Try) -> tuple[int, bool, float]:
        if one.mean is None:
            return one.failed, True, 0.0
        return one.failed, False, -sign * one.mean

    best = min(tries, key=place)
    return Chosen(best, tries, _at_edge(best, tries))


def _at_edge(best: Try, tries: Sequence[Try]) -> list[str]:
    """Return the numbers of the best try beyond which nothing was tried, on one side."""
    names = []
    for name, number in best.numbers.items():
        tried = {one.numbers[name] for one in tries}
        if len(tried) > 1 and number in (min(tried), max(tried)):
            names.append(name)
    return names


def unequal_tries(tries: Mapping[str, int]) -> str:
    """Return a warning if methods had different numbers of tries; empty if they had not.

    >>> unequal_tries({"fedavg": 3, "fedprox": 9})
    'methods had different numbers of tries, fedavg 3, fedprox 9: more tries find better numbers by chance alone'
    """
    if len(set(tries.values())) < 2:
        return ""
    counts = ", ".join(f"{method} {count}" for method, count in tries.items())
    return f"methods had different numbers of tries, {counts}: more tries find better numbers by chance alone"
