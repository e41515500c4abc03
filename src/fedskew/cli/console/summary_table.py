"""The table of results: one row for each method and its hyper-parameters, as wide as the terminal allows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console
from rich.table import Table

from fedskew.cli.console.summary_columns import SummaryColumn, columns_of
from fedskew.cli.console.terminal import escape

if TYPE_CHECKING:
    from fedskew.runs.summary import Row

# A method, and the hyper-parameters and conditions that have a column
Kind: TypeAlias = tuple[str, Mapping[str, Any]]

_LARGE = 1e6  # from here on numbers are in powers of ten
_ENDING = ("seeds", "p")  # columns at the end of the table of a comparison
# Titles of columns that are left out of a table that is too wide, the first ones first; the files have all.
_DISPENSABLE = (
    "clients majority", "clients balanced", "majority", "simulated s", "s", "balanced best", "balanced", "MB", "Gini",
    "to target", "clients", "worst 10 %",
)  # fmt: skip


def print_table(
    console: Console, kinds: Sequence[Kind], rows: "Sequence[Row]", failed: Sequence[Kind]
) -> None:
    """Print one row per method and its hyper-parameters, those that failed last, and the meaning of the columns."""
    columns = columns_of(rows)
    lines = _fitted(_lines(columns, kinds, rows, failed), console.width)
    console.print()
    console.print(_grid(lines))
    console.print()
    _print_meanings(console, columns.values(), lines)


def _lines(
    columns: Mapping[str, SummaryColumn],
    kinds: Sequence[Kind],
    rows: "Sequence[Row]",
    failed: Sequence[Kind],
) -> list[list[str]]:
    """Return the cells of the whole table, the titles first."""
    before = [name for name in kinds[0][1] if name not in _ENDING]
    after = [name for name in kinds[0][1] if name in _ENDING]

    def line(kind: Kind, cells: Iterable[str]) -> list[str]:
        method, options = kind
        first = [_option(options[name]) for name in before]
        last = [_option(options[name]) for name in after]
        return [escape(method), *first, *cells, *last]

    titles = [column.title for column in columns.values()]
    lines = [["method", *before, *titles, *after]]
    for kind in _distinct(kinds):
        mine = [row for other, row in zip(kinds, rows, strict=True) if other == kind]
        lines.append(line(kind, _means(columns, mine)))
    for kind in failed:
        lines.append(line(kind, ["failed"] * len(columns)))
    return lines


def _means(columns: Mapping[str, SummaryColumn], rows: "Sequence[Row]") -> list[str]:
    """Return the means of the runs of one kind, by column."""
    cells = []
    for key, column in columns.items():
        values = [row.get(key) for row in rows]
        cells.append(mean_text(values, column.scale, column.digits))
    return cells


def _distinct(kinds: Sequence[Kind]) -> list[Kind]:
    distinct: list[Kind] = []
    for kind in kinds:
        if kind not in distinct:
            distinct.append(kind)
    return distinct


def _option(value: Any) -> str:
    """Return a hyper-parameter; empty where a method has no such one."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return escape(str(value))


def mean_text(values: Sequence[Any], scale: float, digits: int) -> str:
    """Return mean and standard deviation of the values that there are, and how many these are; a text as it is."""
    if isinstance(values[0], str):
        return escape(values[0])
    numbers = [scale * value for value in values if value is not None]
    if not numbers:
        return "-"
    from fedskew.runs.summary import mean_and_std

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


def _fitted(lines: list[list[str]], width: int) -> list[list[str]]:
    """Return a table that fits: with methods across where that does, else without columns that are less needed."""
    upright = _transposed(lines)
    if _width(upright) <= width < _width(lines):
        return upright
    for title in _DISPENSABLE:
        if _width(lines) <= width:
            break
        lines = _transposed([column for column in _transposed(lines) if column[0] != title])
    return lines


def _transposed(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*lines, strict=True)]


def _width(lines: Sequence[Sequence[str]]) -> int:
    """Return how many characters wide a table is."""
    return sum(max(map(len, column)) + 2 for column in _transposed(lines))


def _grid(lines: Sequence[Sequence[str]]) -> Table:
    """Return a table with the first column aligned left and the others right."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    first, *others = lines[0]
    table.add_column(first, justify="left", no_wrap=True)
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _print_meanings(
    console: Console, columns: Iterable[SummaryColumn], lines: Sequence[Sequence[str]]
) -> None:
    """Print what those columns mean that were printed, across or down."""
    printed = {*lines[0], *(line[0] for line in lines)}
    meanings = {}
    for column in columns:
        if column.title in printed:
            meanings[column.title] = column.meaning
    width = max(map(len, meanings))
    for title, meaning in meanings.items():
        console.print(f"[dim]{title:{width}}  {meaning}[/dim]")
