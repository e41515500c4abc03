"""The page of a comparison: verdicts, methods, what clients gain, curves, and how to run them again."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedskew.report import charts
from fedskew.report.client_gains import add_gains
from fedskew.report.html_page import MOST_ROWS, Page, grid, html_file, listed, pairs
from fedskew.report.markup import Markup, table, tag
from fedskew.report.run_page import command_of
from fedskew.study.compared_runs import Compared
from fedskew.study.run_data import spelled

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison

COSTS = ("traffic", "simulated time")  # compared with the control
_WHOLE = 60  # rows of a comparison that are shown at once


def comparison_page(found: "Comparison") -> bytes:
    """Return the page of several runs."""
    runs = found.rows.runs
    page = Page(runs.title, dict(runs.tables))
    _add_verdict(page, found)
    page.warnings([*found.judgement.cautions(), *runs.warnings()])
    _add_results(page, found)
    add_gains(page, found)
    _add_curves(page, runs)
    _add_setting(page, runs)
    return html_file(page.content(runs.axes))


def _add_verdict(page: Page, found: "Comparison") -> None:
    """Add the goal, the verdicts in words, and the forest plot of every cell."""
    says = tag("ul", *listed(found.judgement.says))
    figures = []
    for number, cell in enumerate(found.forest.cells):
        figures.append(_forest(page, found, number, cell))
    notes = []
    for text in (found.judgement.how_judged(), *found.judgement.shared_rows()):
        notes.append(tag("p", text))
    first = tag("p", found.judgement.goal_said)
    page.section("verdict", "Verdict", first, says, grid(*figures), *notes)


def _forest(page: Page, found: "Comparison", number: int, cell: str) -> Markup:
    """Return the forest plot of one cell."""
    forest = found.forest
    rows = forest.of_cell(cell)
    title = forest.title
    if cell:
        title += f", {cell}"
    says = (
        "Lines are the intervals that hold together for all methods; the zone of equal is shaded."
    )
    cells = []
    for row in rows:
        cells.append([row.name, row.numbers(forest.digits), row.verdict, *row.costs])
    head = ["method", "difference (interval)", "verdict", *COSTS[: len(rows[0].costs)]]
    numbers = table(title, head, cells, ["difference (interval)", "verdict"])
    option = charts.forest(rows, forest.zone, float(f"{forest.reach:.2g}"))
    name = "forest"
    if number:
        name += f"-{number}"
    return page.chart(name, title, option, says, numbers, 90 + 38 * len(rows))


def _add_results(page: Page, found: "Comparison") -> None:
    """Add the table of methods and what is to be known of it."""
    lines = []
    for line in found.lines():
        lines.append(_score_first(found, line))
    texts = []
    for title, is_text in zip(found.head()[1:], found.texts()[1:], strict=True):
        if is_text:
            texts.append(title)
    style = "long"
    if len(lines) <= _WHOLE:
        style = "whole"
    head = _score_first(found, found.head())
    methods = tag("div", table("Methods", head, lines, texts), class_=style)
    notes = tag("ul", *listed(_notes(found)))
    meanings = pairs(found.meanings(), "facts")
    meanings = tag("details", tag("summary", "What the columns are"), meanings)
    page.section("results", "Methods", methods, notes, meanings)


def _notes(found: "Comparison") -> list[str]:
    """Return the notes of the table that are nowhere else on the page."""
    shown = {
        found.judgement.goal_said,
        *found.judgement.says,
        *found.judgement.cautions(),
        *found.judgement.shared_rows(),
    }
    others = []
    for text in found.notes():
        if text not in shown:
            others.append(text)
    return others


def _score_first(found: "Comparison", line: Sequence[str]) -> list[str]:
    """Return a row of the table with score, difference and verdict right after the method, for narrow screens."""
    first = 1 + len(found.rows.options) + len(found.rows.conditions) + 1
    judged = 2
    if found.rows.rules.control is not None:
        judged = 3
    return [
        line[0],
        *line[first : first + judged],
        *line[1:first],
        *line[first + judged :],
    ]


def _add_curves(page: Page, runs: Compared) -> None:
    """Add a chart for each metric and condition."""
    figures = []
    for column, title in runs.columns().items():
        for number, (where, labels) in enumerate(runs.panels.items()):
            name = column
            if number:
                name += f"-{number}"
            called = title
            if where:
                called += f", {where}"
            figures += _curves(page, runs, name, called, column, labels)
    page.section("curves", "Curves", grid(*figures))


def _curves(
    page: Page, runs: Compared, name: str, title: str, column: str, labels: Mapping[str, str]
) -> list[Markup]:
    """Return the curves of the methods with these labels; none where no method has this column."""
    tables = {label: runs.tables[label] for label in labels}
    if not any(column in curves for curves in tables.values()):
        return []
    says = runs.ends(column, labels)
    if any(f"{column} low" in curves for curves in tables.values()):
        says = f"Bands are one standard deviation over seeds. {says}"
    option = charts.overlaid(tables, labels, column, runs.metric_of(column))
    means = _means_by_round(runs, column, labels)
    return [page.chart(name, title, option, says, means, 380)]


def _means_by_round(runs: Compared, column: str, labels: Mapping[str, str]) -> Markup:
    """Return the means of a column in up to 50 rounds, by label."""
    by_round = {}
    for label, name in labels.items():
        curves = runs.tables[label]
        if column in curves:
            by_round[name] = dict(zip(curves["round"], curves[column], strict=True))
    rounds = sorted(set().union(*by_round.values()))
    step = -(-len(rounds) // MOST_ROWS)
    rows = []
    for number in rounds[::step]:
        rows.append([number, *(means.get(number) for means in by_round.values())])
    return table(column, ["round", *by_round], rows)


def _add_setting(page: Page, runs: Compared) -> None:
    """Add how to repeat each run, and what all of them have in common."""
    commands = []
    for run, setting in zip(runs.runs, runs.settings, strict=False):
        command = command_of(run) or "from Python only"
        label = runs.label_of(setting)
        commands.append([run.disk.path.name, label, run.summary["seed"], command])
    same = {name: spelled(value) for name, value in runs.common().items()}
    page.section(
        "setting", "What was run",
        tag("h3", "Run it again"), table("Runs", ["folder", "method", "seed", "command"], commands),
        tag("h3", "Common to all runs"), pairs(same, "facts"),
    )  # fmt: skip
