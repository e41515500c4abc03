"""The findings about clients and columns as tables of text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedskew.heterogeneity.contrasts import Contrast
from fedskew.heterogeneity.effects import Effect, with_interval

if TYPE_CHECKING:
    from fedskew.heterogeneity.findings import ClientFindings, Findings

_SHOWN = 12  # columns in a table
_CLASSES = 6  # whose shares are printed


def client_table(found: "Findings") -> str:
    """Return a line for each client: its rows, its labels, and what differs most."""
    classes = list(found.clients[0].label_shares)
    if len(classes) > _CLASSES:
        classes = []
    lacking = any(one.missing for one in found.clients)
    heads = ["client", "rows"]
    if lacking:
        heads.append("missing")
    for name in classes:
        heads.append(_short(name, 12))
    heads += ["labels against others", "two-sample AUC", "most different column"]
    lines = [heads]
    for one in found.clients:
        lines.append(_client_cells(one, classes, lacking))
    return _aligned(lines)


def _client_cells(one: "ClientFindings", classes: Sequence[str], lacking: bool) -> list[str]:
    cells = [one.name, f"{one.rows:,}"]
    if lacking:
        cells.append(f"{sum(one.missing.values()):,}")
    for name in classes:
        cells.append(f"{one.label_shares[name]:.1%}")
    label = auc = column = ""
    if one.label is not None:
        label = _effect(one.label)
    if one.auc is not None:
        auc = with_interval(one.auc)
    if one.columns:
        column = f"{one.columns[0].column}, {_effect(one.columns[0])}"
    return [*cells, label, auc, column]


def column_table(found: "Findings") -> str:
    """Return a line for each of the columns that differ most."""
    lines = [["column", "most different at", "effect [95 %]", "how"]]
    for one in found.columns[:_SHOWN]:
        lines.append([_short(one.column, 30), found.names[one.client], _effect(one), one.words()])
    table = _aligned(lines)
    more = len(found.columns) - _SHOWN
    if more > 0:
        table += f"\n… and {more} more columns (as_dict(), --json)"
    return table


def _effect(one: Contrast) -> str:
    """Return an effect and its interval."""
    symbol = "V"
    if one.kind == "number":
        symbol = "g"
    return f"{symbol} = {with_interval(Effect(one.effect, one.low, one.high))}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = []
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        aligned.append("  ".join(cells).rstrip())
    return "\n".join(aligned)


def _short(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return text[: most - 1] + "…"
