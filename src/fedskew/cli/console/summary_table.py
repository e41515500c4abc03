"""The table of results: one row for each method, as wide as the terminal allows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fedskew.cli.console.summary_columns import SummaryColumn, columns_of
from fedskew.cli.console.terminal import escape

if TYPE_CHECKING:
    from fedskew.runs.folder import Row

_LARGE = 1e6  # from here on numbers are in powers of ten
# Titles of columns that are left out of a table that is too wide, the first ones first; the files have all.
_DISPENSABLE = (
    "clients majority", "clients balanced", "majority", "simulated s", "s", "balanced best", "balanced", "MB", "Gini",
    "to target", "clients", "worst 10 %",
)  # fmt: skip


def print_table(console: Console, methods: Sequence[str], rows: "Sequence[Row]") -> None:
    """Print one row per method, and where the meaning of the columns is."""
    columns = columns_of(rows)
    lines = fitted(_lines(columns, methods, rows), console.width, _DISPENSABLE)
    console.print()
    console.print(grid(lines))
    console.print("\n[dim]what the columns mean: fedskew list columns[/dim]", soft_wrap=True)


def _lines(
    columns: Mapping[str, SummaryColumn], methods: Sequence[str], rows: "Sequence[Row]"
) -> list[list[str]]:
    """Return the cells of the whole table, the titles first."""
    titles = [column.title for column in columns.values()]
    lines = [["method", *titles]]
    for method in dict.fromkeys(methods):
        mine = []
        for other, row in zip(methods, rows, strict=True):
            if other == method:
                mine.append(row)
        lines.append([escape(method), *_means(columns, mine)])
    return lines


def _means(columns: Mapping[str, SummaryColumn], rows: "Sequence[Row]") -> list[str]:
    """Return the means of the runs of one kind, by column."""
    cells = []
    for key, column in columns.items():
        values = [row.get(key) for row in rows]
        cells.append(mean_text(values, column.scale, column.digits))
    return cells


def mean_text(values: Sequence[Any], scale: float, digits: int) -> str:
    """Return mean and standard deviation of the values that there are, and how many these are; a text as it is."""
    if isinstance(values[0], str):
        return escape(values[0])
    numbers = [scale * value for value in values if value is not None]
    if not numbers:
        return "-"
    from fedskew.runs.summary_reading import mean_and_std

    mean, std = mean_and_std(numbers)
    if abs(mean) < _LARGE:
        form = form_of_std = f".{digits}f"
    else:
        form, form_of_std = ".3g", ".2g"
    text = f"{mean:{form}}"
    if std is not None:
        text += f" ± {std:{form_of_std}}"
    if len(numbers) < len(values):
        text += f" ({len(numbers)} of {len(values)})"
    return text


def fitted(lines: list[list[str]], width: int, dispensable: Sequence[str]) -> list[list[str]]:
    """Return a table that fits: with methods across where that does, else without columns that are less needed.

    ``dispensable`` are the titles of such columns, the first ones first.
    """
    upright = _transposed(lines)
    if _width(upright) <= width < _width(lines):
        return upright
    for title in dispensable:
        if _width(lines) <= width:
            break
        lines = _transposed([column for column in _transposed(lines) if column[0] != title])
    return lines


def _transposed(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*lines, strict=True)]


def _width(lines: Sequence[Sequence[str]]) -> int:
    """Return how many characters wide a table is."""
    return sum(max(map(len, column)) + 2 for column in _transposed(lines))


def grid(lines: Sequence[Sequence[str]]) -> Table:
    """Return a table with the first column aligned left and the others right."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    first, *others = lines[0]
    table.add_column(first, justify="left", no_wrap=True)
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*line)
    return table
