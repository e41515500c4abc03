"""What was measured of a table: a small CSV file with a row for every run, its curves, and how it was made."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
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
            curves.setdefault(key, []).append(
                {k: float(v) for k, v in row.items() if k not in CURVE_KEYS[:3] and v}
            )
        found = []
        for row in self._rows(self._table):
            key = (row["case"], row["method"], int(row["seed"]))
            numbers = {}
            for name, text in row.items():
                if name not in KEYS and text:
                    numbers[name] = float(text)
            found.append(
                Result(*key, row["configuration"], numbers, curves.get(key, []), row["failed"])
            )
        return found

    def history(self) -> list[Row]:
        """Return how the results were made: for every sitting the command, versions, machine and time."""
        if not self._history.exists():
            return []
        with reading(self._history):
            result: list[Row] = []
            for entry in json.loads(self._history.read_text(encoding="utf-8")):
                result.append(dict(entry))
            return result

    def add(self, new: Sequence[Result], sitting: Row) -> None:
        """Record some runs, in place of earlier ones of the same case, method and seed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder, patience=60):
            known = {result.key: result for result in self.read()} | {
                result.key: result for result in new
            }
            kept = sorted(known.values(), key=lambda result: result.key)
            names = sorted({name for result in kept for name in result.numbers})
            rows = [
                {
                    **{key: getattr(result, key) for key in KEYS},
                    **{n: _text(v) for n, v in result.numbers.items()},
                }
                for result in kept
            ]
            write_atomically(self._table, _csv((*KEYS, *names), rows))
            drawn = []
            for r in kept:
                for p in r.curves:
                    drawn.append({"case": r.case, "method": r.method, "seed": r.seed, **_texts(p)})
            if drawn:
                columns = sorted({name for row in drawn for name in row} - set(CURVE_KEYS))
                write_atomically(self._curves, _csv((*CURVE_KEYS, *columns), drawn))
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
                raise FedskewError(f"{path} is no table of results: it lacks case, method or seed")
            return rows


def _text(value: float) -> str:
    return f"{value:.6g}"


def _texts(point: Row) -> Row:
    result: Row = {}
    for name, value in point.items():
        if name == "round":
            result[name] = int(value)
        else:
            result[name] = f"{value:.4g}"
    return result


def _csv(columns: Sequence[str], rows: Iterable[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
