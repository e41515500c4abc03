"""What was measured of a table: a small CSV file with a row for every run, its curves, and how it was made."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.lock import locked
from fedskew.core.writing import write_atomically

KEYS = ("case", "method", "seed", "configuration", "failed")
CURVE_KEYS = ("case", "method", "seed", "round")
Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """One run: where it belongs, a fingerprint of its settings, its numbers and its curves; or why it failed."""

    case: str
    method: str
    seed: int
    configuration: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    curves: Sequence[Row] = ()
    failed: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Return what identifies the run in its table."""
        return self.case, self.method, self.seed

    def has(self, curve: str) -> bool:
        """Return whether a curve was recorded."""
        return any(curve in row for row in self.curves)


@dataclass(frozen=True)
class Results:
    """The results of a table in a folder: NAME.csv, NAME-curves.csv and NAME.json; read anew at every use."""

    folder: Path
    name: str

    def read(self) -> list[Result]:
        """Return all runs that are recorded."""
        curves: dict[tuple[str, str, int], list[Row]] = {}
        for row in self._rows(self._curves):
            key = (row["case"], row["method"], int(row["seed"]))
            curves.setdefault(key, []).append(_numbers(row, without=CURVE_KEYS[:3]))
        results = []
        for row in self._rows(self._table):
            key = (row["case"], row["method"], int(row["seed"]))
            numbers = _numbers(row, without=KEYS)
            results.append(
                Result(*key, row["configuration"], numbers, curves.get(key, []), row["failed"])
            )
        return results

    def history(self) -> list[Row]:
        """Return how the results were made: for every sitting the command, versions, machine and time."""
        if not self._history.exists():
            return []
        with reading(self._history):
            return [dict(entry) for entry in json.loads(self._history.read_text(encoding="utf-8"))]

    def add(self, new: Sequence[Result], sitting: Row) -> None:
        """Record some runs, in place of earlier ones of the same case, method and seed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder, patience=60):
            known = {}
            for result in (*self.read(), *new):
                known[result.key] = result
            kept = sorted(known.values(), key=lambda result: result.key)
            rows = []
            points = []
            for result in kept:
                rows.append(_row(result))
                points += _points(result)
            write_atomically(self._table, _csv(KEYS, rows))
            if points:
                write_atomically(self._curves, _csv(CURVE_KEYS, points))
            past = [*self.history(), sitting]
            write_atomically(self._history, (json.dumps(past, indent=1) + "\n").encode())

    @property
    def _table(self) -> Path:
        return self.folder / f"{self.name}.csv"

    @property
    def _curves(self) -> Path:
        return self.folder / f"{self.name}-curves.csv"

    @property
    def _history(self) -> Path:
        return self.folder / f"{self.name}.json"

    @staticmethod
    def _rows(path: Path) -> list[dict[str, str]]:
        if not path.exists():
            return []
        with reading(path), path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
            if rows and not set(KEYS[:3]) <= set(rows[0]):
                raise FedskewError(
                    f"{path} is not a table of results: it lacks case, method or seed"
                )
            return rows


def _numbers(row: Mapping[str, str], without: Sequence[str]) -> dict[str, float]:
    """Return the numbers in a row, without those columns and without empty cells."""
    numbers = {}
    for name, text in row.items():
        if text and name not in without:
            numbers[name] = float(text)
    return numbers


def _row(result: Result) -> Row:
    """Return a run as a row of the table."""
    row: Row = {}
    for key in KEYS:
        row[key] = getattr(result, key)
    for name, number in result.numbers.items():
        row[name] = f"{number:.6g}"
    return row


def _points(result: Result) -> list[Row]:
    """Return the rows of a run's curves."""
    rows = []
    for point in result.curves:
        row: Row = {"case": result.case, "method": result.method, "seed": result.seed}
        for name, number in point.items():
            row[name] = f"{number:.4g}"
        row["round"] = int(point["round"])
        rows.append(row)
    return rows


def _csv(first: Sequence[str], rows: Sequence[Row]) -> bytes:
    """Return rows as a table: these columns first, then all others in the order of their names."""
    names: set[str] = set()
    for row in rows:
        names |= row.keys()
    columns = [*first, *sorted(names.difference(first))]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
