"""The curves of a run: what is drawn, and against what."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedskew.core.units import SIZES, TIMES, unit_for
from fedskew.server.score_names import CLIENT_NAMES, NAMES

Columns = dict[str, list[Any]]
CELLS = 40_000  # numbers of the curves; with more, rounds at even steps are shown
_FATES = ("excluded", "dropped", "late")
_USUAL = {  # columns of the table of rounds that are not a method's own
    "round", "clients", *_FATES, "lr", "local_loss", "local_accuracy", "bytes_down", "bytes_up", "simulated_seconds",
    "clock", "seconds",
}  # fmt: skip
_PARTS = "|".join(sorted({*NAMES, *CLIENT_NAMES, "calibrated_train"}, key=len, reverse=True))


@dataclass(frozen=True)
class RunCurves:
    """The curves of a run.

    Args:
        rounds: the table of rounds by columns
        metric: the metric that decides
        best: the best round on test rows, if there is one
        of_clients: titles of columns that are numbers over the clients of a round
    """

    rounds: Columns
    metric: str
    best: int | None
    of_clients: frozenset[str]

    @cached_property
    def columns(self) -> Columns:
        """Return what the curves show: some rounds if there are very many, among them the best and the last."""
        columns: Columns = {"round": self.rounds["round"], **self._spent()}
        for name, values in self.rounds.items():
            if name in (*_FATES, "clients") or self._is_drawn(name):
                columns[name] = values
        if self.best is not None:
            columns["best round"] = self._best_alone()
        kept = self._kept_rounds(len(columns))
        shown: Columns = {}
        for name, values in columns.items():
            shown[name] = [values[place] for place in kept]
        return shown

    def _spent(self) -> Columns:
        """Return what was sent and the simulated time until each round, in units that suit them."""
        sent = np.cumsum(np.add(self.rounds["bytes_down"], self.rounds["bytes_up"])).tolist()
        found: Columns = {}
        for name, spent, units in (("sent", sent, SIZES), ("clock", self.rounds["clock"], TIMES)):
            if spent[-1]:
                unit = unit_for(spent[-1], units)
                found[f"{name} ({unit})"] = [value / units[unit] for value in spent]
        return found

    def _is_drawn(self, name: str) -> bool:
        return name not in _USUAL and any(value is not None for value in self.rounds[name])

    def _best_alone(self) -> list[float | None]:
        """Return the score on test rows in the best round, and nothing in all others."""
        alone: list[float | None] = [None] * len(self.rounds["round"])
        scores = self.rounds[f"test_{self.metric}"]
        for place, number in enumerate(self.rounds["round"]):
            if number == self.best:
                alone[place] = scores[place]
        return alone

    def _kept_rounds(self, columns: int) -> list[int]:
        count = len(self.rounds["round"])
        step = max(1, -(-count * columns // CELLS))
        kept = {*range(0, count, step), count - 1}
        if self.best is not None:
            kept.add(self.rounds["round"].index(self.best))
        return sorted(kept)

    @property
    def axes(self) -> dict[str, str]:
        """Return what the curves can be drawn against: column and title."""
        titles = {"round": "round", "sent": "sent so far, both ways", "clock": "simulated time"}
        found = {}
        for name in self.columns:
            first = name.split(" ")[0]
            if first in titles:
                found[name] = name.replace(first, titles[first], 1)
        return found

    @property
    def metrics(self) -> list[str]:
        """Return the metrics of the curves, the one that decides first and the loss second."""
        names: list[str] = []
        for column in self.columns:
            match = re.fullmatch(rf"(?:{_PARTS})_(\w+)", column)
            if match and match[1] not in names:
                names.append(match[1])
        return sorted(names, key=lambda name: (name != self.metric, name != "loss"))

    @property
    def own_columns(self) -> list[str]:
        """Return the columns of the table of rounds that only this method has."""
        mine = []
        for name in self.columns:
            if name not in self.rounds or name in _USUAL or name in self.of_clients:
                continue
            if not re.fullmatch(rf"(?:{_PARTS})_\w+", name):
                mine.append(name)
        return mine
