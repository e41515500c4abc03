"""The runs of a table by case and method, and the paper's number, ours and the difference as text."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from fedskew.papers.cell_settings import configuration
from fedskew.papers.paper_claims import Value
from fedskew.papers.paper_tables import PaperTable
from fedskew.papers.results import Result, Results
from fedskew.runs.summary_reading import mean_and_std
from fedskew.study.curve_measures import CURVE_MEASURES

MOST_COLUMNS = 7  # methods up to which each has a column; more have rows


@dataclass(frozen=True)
class Cell:
    """The runs of a method in a case."""

    runs: tuple[Result, ...] = ()

    def numbers(self, value: Value) -> dict[Hashable, float]:
        """Return the number of every run that has one, by seed."""
        numbers: dict[Hashable, float] = {}
        for run in self.runs:
            number = _number(run, value)
            if math.isfinite(number):
                numbers[run.seed] = number * value.factor
        return numbers

    def measured(self, value: Value) -> list[Result]:
        """Return the runs of which a value was measured: those that were recorded without its curve are left out."""
        return [run for run in self.runs if run.failed or not value.curve or run.has(value.curve)]

    def lacking(self, value: Value) -> dict[str, list[Result]]:
        """Return the runs without a number, by reason."""
        numbers = self.numbers(value)
        lacking: dict[str, list[Result]] = {"diverged": [], "no number": []}
        for run in self.measured(value):
            if run.failed:
                lacking["diverged"].append(run)
            elif run.seed not in numbers:
                lacking["no number"].append(run)
        return {reason: runs for reason, runs in lacking.items() if runs}


def _number(run: Result, value: Value) -> float:
    """Return the number of a run, or what its curve comes to; NaN if there is none."""
    measure = value.measure_of(run.method)
    if not value.curve:
        return run.numbers.get(measure, math.nan)
    points = [row[value.curve] for row in run.curves if value.curve in row]
    if not points:
        return math.nan
    return CURVE_MEASURES[measure](points)


@dataclass(frozen=True)
class Measured:
    """What was measured of a table as it is now; ``left_out`` counts the runs of other settings, cases or methods."""

    table: PaperTable
    cells: Mapping[tuple[str, str], Cell]
    left_out: int

    def cell(self, case: str, method: str) -> Cell:
        """Return the runs of a method in a case."""
        return self.cells.get((case, method), Cell())

    @property
    def runs(self) -> list[Result]:
        """Return the runs of all cells."""
        runs: list[Result] = []
        for cell in self.cells.values():
            runs += cell.runs
        return runs

    @property
    def seeds(self) -> list[int]:
        """Return all seeds of which there are runs."""
        return sorted({run.seed for run in self.runs})


def measured(table: PaperTable, results: Results) -> Measured:
    """Return the recorded runs that have the settings of the table."""
    recorded = results.read()
    by_settings: dict[tuple[str, str, str], list[Result]] = {}
    for run in recorded:
        by_settings.setdefault((run.case, run.method, run.configuration), []).append(run)
    cells = {}
    left_out = len(recorded)
    for case in table.cases:
        for method in table.methods_of(case):
            wanted = (case.name, method.name, configuration(table, case, method))
            runs = by_settings.get(wanted, [])
            left_out -= len(runs)
            if runs:
                cells[case.name, method.name] = Cell(tuple(runs))
    return Measured(table, cells, left_out)


def summary_table(table: PaperTable, results: Results) -> list[list[str]]:
    """Return a heading and rows: the paper's number / ours ± standard deviation over seeds / the difference.

    A table with several values has their names in its first column.
    """
    found = measured(table, results)
    if len(table.values) == 1:
        return value_table(found, table.values[0])
    head, *_ = value_table(found, table.values[0])
    lines = [["value", *head]]
    for value in table.values:
        _, *rows = value_table(found, value)
        for row in rows:
            lines.append([value.name, *row])
    return lines


def value_table(found: Measured, value: Value, mark: str = "") -> list[list[str]]:
    """Return the rows of one value, with ``mark`` before and after the paper's numbers.

    Few methods are columns, many are rows.
    """
    cases = found.table.case_names
    methods = found.table.method_names
    columns = [["", *cases]]
    for method in methods:
        column = [method]
        for case in cases:
            column.append(_text(found, value, case, method, mark))
        columns.append(column)
    if len(methods) > MOST_COLUMNS:
        return columns  # as rows
    return list(map(list, zip(*columns, strict=True)))


def _text(found: Measured, value: Value, case: str, method: str, mark: str) -> str:
    """Return a cell such as ``81.3 / 80.1 ± 0.4 / -1.2``; fewer seeds than the table has are said."""
    cell = found.cell(case, method)
    printed = value.paper.get(method, {}).get(case)
    numbers = list(cell.numbers(value).values())
    parts = []
    if printed is not None:
        parts.append(f"{mark}{printed:.{value.digits}f}{mark}")
    if not cell.runs and found.table.compares(case, method):
        parts.append("not measured yet")
    if numbers:
        parts += _ours(numbers, printed, value.digits)
    notes = _notes(found, cell, value)
    if not notes:
        return " / ".join(parts)
    if numbers:
        return f"{' / '.join(parts)} ({notes})"
    return " / ".join([*parts, notes])


def _ours(numbers: Sequence[float], printed: float | None, digits: int) -> list[str]:
    """Return our number, and its difference to the printed one if there is one."""
    mean, std = mean_and_std(numbers)
    text = f"{mean:.{digits}f}"
    if std is not None:
        text += f" ± {std:.{digits}f}"
    if printed is None:
        return [text]
    return [text, f"{mean - printed:+z.{digits}f}"]


def _notes(found: Measured, cell: Cell, value: Value) -> str:
    """Return what is missing in a cell."""
    notes = []
    if 0 < len(cell.runs) < len(found.seeds):
        notes.append(f"{len(cell.runs)} of {len(found.seeds)} seeds")
    for why, runs in cell.lacking(value).items():
        notes.append(f"{why} in {len(runs)} of {len(cell.runs)} runs")
    return ", ".join(notes)
