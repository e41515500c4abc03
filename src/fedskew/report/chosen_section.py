"""The section of a comparison's page about the numbers that were chosen for each method."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedskew.report.html_page import Page
from fedskew.report.markup import table, tag
from fedskew.report.readable import shows

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison


def add_chosen(page: Page, found: "Comparison") -> None:
    """Add the chosen numbers and, folded, every try; nothing where nothing was chosen."""
    show = shows(found.rows.metric)
    chosen = []
    tries = []
    for one in found.rows.configurations:
        if one.chosen is None or len(one.chosen.tries) < 2:
            continue
        name = one.label
        if one.cell:
            name = f"{one.label}, {one.cell}"
        best = one.chosen.best
        edge = ", ".join(one.chosen.at_edge) or "–"
        line: list[Any] = [name, _said(best.numbers), show(best.mean), len(one.chosen.tries), edge]
        chosen.append(line)
        for each in one.chosen.tries:
            tries.append([name, _said(each.numbers), show(each.mean), each.failed])
    if not chosen:
        return
    score = "on validation rows"
    head = ["method", "chosen", score, "tries", "at the edge of the grid"]
    first = table("Numbers that were chosen on validation rows", head, chosen, ["chosen"])
    all_tries = table("Every try", ["method", "numbers", score, "failed"], tries, ["numbers"])
    more = tag("details", tag("summary", f"All {len(tries)} tries"), all_tries)
    page.section("chosen", "Chosen numbers", first, more)


def _said(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in numbers.items())
