"""What was run of each table in a line: made of its settings, so that it cannot say anything else."""

from collections.abc import Sequence
from typing import Any

from fedskew.core.config import Experiment
from fedskew.papers.cell_settings import values_of
from fedskew.papers.comparison import Measured
from fedskew.papers.paper_tables import PaperTable

HEAD = ("data", "clients", "model", "rounds x local epochs", "batch", "optimiser, learning rate")
_MOST = 3  # values of a setting that are listed


def set_up(table: PaperTable) -> list[str]:
    """Return the settings that a reader asks for first, in the order of ``HEAD``; several values where cells differ."""
    if table.kind != "training":
        return [_given(table, "data"), _given(table, "clients"), "", "", "", ""]
    rounds = f"{_several(table, 'rounds')} x {_several(table, 'epochs')}"
    trained = f"{_several(table, 'optimizer')}, {_several(table, 'lr')}"
    return [
        _several(table, "data"),
        _several(table, "clients"),
        _several(table, "model"),
        rounds,
        _several(table, "batch_size"),
        trained,
    ]


def seeds_measured(found: Measured) -> str:
    """Return over how many seeds the cells were measured: one number, or the fewest and the most."""
    counts = sorted({len(cell.runs) for cell in found.cells.values()})
    if not counts:
        return "none yet"
    if len(counts) == 1:
        return str(counts[0])
    return f"{counts[0]} to {counts[-1]}"


def _given(table: PaperTable, name: str) -> str:
    """Return a setting of a table that trains nothing; empty if it has none."""
    named = set(table.settings)
    for entry in (*table.cases, *table.methods):
        named |= set(entry.settings)
    if name not in named:
        return ""
    return _several(table, name)


def _several(table: PaperTable, name: str) -> str:
    """Return the values that a setting has in the cells of a table."""
    values: dict[str, None] = {}
    for case in table.cases:
        for method in table.methods_of(case):
            values[_value(values_of(table, case, method), name)] = None
    return _listed([value for value in values if value])


def _value(settings: dict[str, Any], name: str) -> str:
    """Return a setting of a cell as text, its default where it is not set; the data without their options."""
    value = settings.get(name, getattr(Experiment, name, ""))
    if value is None:
        return "as the data come"
    if name == "data":
        return str(value).split(":")[0].replace("csv", "a CSV file")
    return str(value)


def _listed(values: Sequence[str]) -> str:
    if len(values) > _MOST:
        return "several"
    return " / ".join(values)
