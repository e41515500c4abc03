"""The table of clients by columns, and numbers over the clients of each round."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedskew.core.streams import Floats
from fedskew.runs import folder as on_disk
from fedskew.runs.folder import RunFolder
from fedskew.study.run_curves import Columns

PROFILE = ("score", "entropy", "reliability", "speed", "consistency")  # of clients, in 0 … 1
_SUMMED = ("vulnerable", "hostile")  # flags: a round shows how many of its clients have them
_SPREAD = ("variance", "staleness")  # a round shows their mean and their maximum over its clients


@dataclass(frozen=True)
class ClientColumns:
    """The columns of the table of clients that a page shows."""

    disk: RunFolder

    @cached_property
    def titles(self) -> dict[str, tuple[str, str]]:
        """Return the numbers over the clients of a round: by title, the column and what is done with it."""
        if not (self.disk.path / on_disk.CLIENTS).exists():
            return {}
        recorded = set(self.disk.header(on_disk.CLIENTS))
        wanted = []
        for name in _SUMMED:
            wanted.append((f"{name} clients", name, "sum"))
        for name in (*PROFILE, *_SPREAD):
            wanted.append((f"mean {name}", name, "mean"))
        for name in _SPREAD:
            wanted.append((f"largest {name}", name, "max"))
        titles = {}
        for title, name, how in wanted:
            if name in recorded:
                titles[title] = (name, how)
        return titles

    @cached_property
    def columns(self) -> dict[str, Floats]:
        """Return the columns that are shown."""
        names = ["round", "client", "steps", "weight"]
        for name, _ in self.titles.values():
            if name not in names:
                names.append(name)
        return self.disk.columns(on_disk.CLIENTS, names)

    def over_rounds(self, rounds: Sequence[int]) -> Columns:
        """Return sums, means and maxima over the clients of each round, of the columns that the method has."""
        by_title: Columns = {}
        for title, (column, how) in self.titles.items():
            by_title[title] = self._one_per_round(column, how, rounds)
        return by_title

    def _one_per_round(self, column: str, how: str, rounds: Sequence[int]) -> list[float | None]:
        """Return the sum, mean or maximum of a column in each round; None where no client has a number."""
        values = self.columns[column]
        known = np.isfinite(values)
        values = values[known]
        at = np.searchsorted(rounds, self.columns["round"].astype(np.int64)[known])
        counts = np.bincount(at, minlength=len(rounds))
        if how == "max":
            numbers = np.full(len(rounds), -np.inf)
            np.maximum.at(numbers, at, values)
        else:
            numbers = np.bincount(at, values, minlength=len(rounds))
        if how == "mean":
            numbers = numbers / np.maximum(counts, 1)
        per_round: list[float | None] = numbers.tolist()
        for place in np.flatnonzero(counts == 0):
            per_round[place] = None
        return per_round
