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
# Over the clients of a round
_SUMS, _SPREADS = ("vulnerable", "hostile"), ("variance", "staleness")


@dataclass(frozen=True)
class ClientColumns:
    """The columns of the table of clients that a page shows."""

    disk: RunFolder

    @cached_property
    def titles(self) -> dict[str, tuple[str, str]]:
        """Return the numbers over the clients of a round: by title, the column and what is done with it."""
        if not (self.disk.path / on_disk.CLIENTS).exists():
            return {}
        there = set(self.disk.header(on_disk.CLIENTS))
        wanted = [(f"{name} clients", name, "sum") for name in _SUMS]
        wanted += [(f"mean {name}", name, "mean") for name in (*PROFILE, *_SPREADS)]
        wanted += [(f"largest {name}", name, "max") for name in _SPREADS]
        found = {}
        for title, name, how in wanted:
            if name in there:
                found[title] = (name, how)
        return found

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
        found: Columns = {}
        for title, (column, how) in self.titles.items():
            found[title] = self._over_rounds(column, how, rounds)
        return found

    def _over_rounds(self, column: str, how: str, rounds: Sequence[int]) -> list[float | None]:
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
        found: list[float | None] = numbers.tolist()
        for place in np.flatnonzero(counts == 0):
            found[place] = None
        return found
