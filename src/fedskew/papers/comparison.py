"""The runs of a table by case and method, and the paper's number, ours and the difference as text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedskew.papers.paper_tables import PaperTable, Value
from fedskew.papers.rerun import configuration
from fedskew.papers.results import Result, Results
from fedskew.runs.summary import mean_and_std

MOST_COLUMNS = 7  # methods up to which each has a column; more have rows


@dataclass(frozen=True)
class Cell:
    """The runs of a method in a case."""

    runs: tuple[Result, ...] = ()

    def numbers(self, value: Value) -> dict[int, float]:
        """Return the number of every run that has one, by seed."""
        found = {}
        for run in self.runs:
            found[run.seed] = run.numbers.get(value.measure_of(run.method), math.nan)
        result: dict[int, float] = {}
        for seed, number in found.items():
            if math.isfinite(number):
                result[seed] = number * value.factor
        return result

    def lacking(self, value: Value) -> dict[str, list[Result]]:
        """Return the runs without a number, by reason."""
        numbers = self.numbers(value)
        failed = [run for run in self.runs if run.failed]
        others = []
        for run in self.runs:
            if not run.failed and run.seed not in numbers:
                others.append(run)
        result: dict[str, list[Result]] = {}
        for reason, runs in (("diverged", failed), ("no number", others)):
            if runs:
                result[reason] = runs
        return result


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
    cells = {}
    for case in table.cases:
        for method in table.methods_of(case):
            wanted = (case.name, method.name, configuration(table, case, method))
            runs = tuple(
                run for run in recorded if (run.case, run.method, run.configuration) == wanted
            )
            if runs:
                cells[case.name, method.name] = Cell(runs)
    return Measured(table, cells, len(recorded) - sum(len(cell.runs) for cell in cells.values()))


def summary_table(table: PaperTable, results: Results) -> list[list[str]]:
    """Return a heading and rows: the paper's number / ours ± standard deviation over seeds / the difference.

    A table with several values has their names in its first column.
    """
    found = measured(table, results)
    head, *rows = [["value", *row] for row in value_table(found, table.values[0])]
    rows = []
    for value in table.values:
        for row in value_table(found, value)[1:]:
            rows.append([value.name, *row])
    if len(table.values) > 1:
        return [head, *rows]
    return [row[1:] for row in (head, *rows)]


def value_table(found: Measured, value: Value, mark: str = "") -> list[list[str]]:
    """Return the rows of one value, with ``mark`` before and after the paper's numbers.

    Few methods are columns, many are rows.
    """
    cases = [case.name for case in found.table.cases]
    methods = [method.name for method in found.table.methods]
    if len(methods) <= MOST_COLUMNS:
        return [
            ["", *methods],
            *([case, *(_text(found, value, case, m, mark) for m in methods)] for case in cases),
        ]
    return [
        ["", *cases],
        *([method, *(_text(found, value, c, method, mark) for c in cases)] for method in methods),
    ]


def _text(found: Measured, value: Value, case: str, method: str, mark: str) -> str:
    """Return a cell such as ``81.3 / 80.1 ± 0.4 / -1.2``; fewer seeds than the table has are said."""
    cell = found.cell(case, method)
    printed = value.paper.get(method, {}).get(case)
    numbers = list(cell.numbers(value).values())
    digits = value.digits
    if printed is None:
        parts = []
    else:
        parts = [f"{mark}{printed:.{digits}f}{mark}"]
    wanted = next(entry for entry in found.table.methods if entry.name == method).only
    if not cell.runs and (not wanted or case in wanted):
        parts.append("not measured yet")
    if numbers:
        mean, std = mean_and_std(numbers)
        parts.append(f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}"))
        if printed is None:
            parts += []
        else:
            parts += [f"{mean - printed:+z.{digits}f}"]
    lacking = []
    for why, runs in cell.lacking(value).items():
        lacking.append(f"{why} in {len(runs)} of {len(cell.runs)} runs")
    if 0 < len(cell.runs) < len(found.seeds):
        few = [f"{len(cell.runs)} of {len(found.seeds)} seeds"]
    else:
        few = []
    notes = ", ".join(few + lacking)
    if not numbers:
        return " / ".join([*parts, *([notes] if notes else [])])
    return " / ".join(parts) + (f" ({notes})" if notes else "")
