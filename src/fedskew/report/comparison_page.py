"""The page of a comparison: verdicts, methods, what clients gain, curves, and how to run them again."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedskew.core.units import PERCENT
from fedskew.report import charts
from fedskew.report.chosen_section import add_chosen
from fedskew.report.client_gains import add_gains
from fedskew.report.cost_section import add_costs
from fedskew.report.html_page import (
    MOST_ROWS,
    Page,
    curve_switch,
    grid,
    html_file,
    listed,
    pairs,
)
from fedskew.report.markup import Markup, table, tag
from fedskew.report.readable import in_words, shows
from fedskew.report.run_page import command_of
from fedskew.report.settings_section import settings_parts
from fedskew.report.verdict_reasons import reasons_of
from fedskew.study.compared_runs import Compared
from fedskew.study.run_data import spelled

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison

COSTS = ("traffic", "simulated time")  # compared with the control
_WIDEST = 5  # columns of numbers beside those that say what a row is
_WHOLE = 60  # rows of a comparison that are shown at once


def comparison_page(found: "Comparison") -> bytes:
    """Return the page of several runs."""
    runs = found.rows.runs
    if found.rows.metric in charts.IN_PERCENT:
        found = found.in_unit(PERCENT)
    page = Page(runs.title, dict(runs.tables))
    _add_verdict(page, found)
    page.warnings([*found.judgement.cautions(), *runs.warnings()])
    _add_results(page, found)
    add_gains(page, found)
    add_costs(page, found)
    add_chosen(page, found)
    _add_curves(page, runs)
    _add_setting(page, runs)
    return html_file(page.content(runs.axes))


def _add_verdict(page: Page, found: "Comparison") -> None:
    """Add the verdicts in words with their reasons, the forest plot of every cell, and the goal."""
    says = tag("ul", *listed(found.judgement.says), class_="verdict")
    reasons = reasons_of(found)
    figures = []
    for number, cell in enumerate(found.forest.cells):
        figures.append(_forest(page, found, number, cell))
    notes = []
    judgement = found.judgement
    for text in (judgement.how_judged(), *judgement.shared_rows()):
        notes.append(tag("p", text))
    goal = tag("p", judgement.goal_said)
    page.section("verdict", "Verdict", says, reasons, goal, grid(*figures), *notes)


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
    x = "difference"
    unit = found.judgement.unit.of_differences.strip()
    if unit:
        x += f" ({unit})"
    option = charts.forest(rows, forest.zone, float(f"{forest.reach:.2g}"), x)
    name = "forest"
    if number:
        name += f"-{number}"
    return page.chart(name, title, option, says, numbers, 90 + 38 * len(rows))


def _add_results(page: Page, found: "Comparison") -> None:
    """Add the table of methods and what is to be known of it."""
    head = found.head()
    texts = []
    for title, is_text in zip(head[1:], found.texts()[1:], strict=True):
        if is_text:
            texts.append(title)
    lines = found.lines()
    judged, others = _columns(found)
    first = table(
        "Methods", _picked(head, judged), [_picked(line, judged) for line in lines], texts
    )
    style = "long"
    if len(lines) <= _WHOLE:
        style = "whole"
    parts = [tag("div", first, class_=style)]
    if others:
        more = []
        for start in range(0, len(others), _WIDEST):
            places = [*_named(found), *others[start : start + _WIDEST]]
            rows = [_picked(line, places) for line in lines]
            title = "Further scores and costs"
            if start:
                title += ", continued"
            more.append(table(title, _picked(head, places), rows, texts))
        summary = tag("summary", f"{len(others)} more columns: further scores and costs")
        parts.append(tag("details", summary, tag("div", *more, class_=style)))
    meanings = pairs(found.meanings(), "facts")
    parts.append(tag("details", tag("summary", "What the columns are"), meanings))
    page.section("results", "Methods", *parts, tag("ul", *listed(_notes(found))))


def _notes(found: "Comparison") -> list[str]:
    """Return the notes of the table that are nowhere else on the page."""
    shown = {
        found.judgement.goal_said,
        *found.judgement.says,
        *found.judgement.cautions(),
        *found.judgement.shared_rows(),
        *found.judgement.chosen_lines(),
    }
    others = []
    how = found.judgement.how_judged()
    for text in found.notes():
        if text not in shown:
            others.append(text.removesuffix(how).rstrip())
    return others


def _named(found: "Comparison") -> list[int]:
    """Return the places of the columns that say what a row is: the method, its options and its conditions."""
    return list(range(1 + len(found.rows.options) + len(found.rows.conditions)))


def _columns(found: "Comparison") -> tuple[list[int], list[int]]:
    """Return the columns that are shown first, score and verdict right after the method, and the others."""
    method, *named = _named(found)
    score = len(named) + 2  # after the blocks
    judged = 2
    if found.rows.rules.control is not None:
        judged = 3
    first = [method, *range(score, score + judged), *named, score - 1]
    return first, list(range(score + judged, len(found.head())))


def _picked(line: Sequence[str], places: Sequence[int]) -> list[str]:
    """Return the cells of a line at these places."""
    return [line[place] for place in places]


def _add_curves(page: Page, runs: Compared) -> None:
    """Add a chart for each metric and condition."""
    figures = []
    for column, title in runs.columns().items():
        for number, (where, labels) in enumerate(runs.panels.items()):
            name = column
            if number:
                name += f"-{number}"
            called = f"{title[0].upper()}{title[1:]}"
            if where:
                called += f", {where}"
            figures += _curves(page, runs, name, called, column, labels)
    page.section("curves", "Curves", curve_switch(runs.axes), grid(*figures))


def _curves(
    page: Page, runs: Compared, name: str, title: str, column: str, labels: Mapping[str, str]
) -> list[Markup]:
    """Return the curves of the methods with these labels; none where no method has this column."""
    tables = {label: runs.tables[label] for label in labels}
    if not any(column in curves for curves in tables.values()):
        return []
    metric = runs.metric_of(column)
    show = shows(metric)
    says = runs.ends(column, labels, show)
    if any(f"{column} low" in curves for curves in tables.values()):
        says = f"Bands are one standard deviation over seeds. {says}"
    option = charts.overlaid(tables, labels, column, metric, in_words(metric))
    means = _means_by_round(runs, column, labels, title)
    return [page.chart(name, title, option, says, means, 380)]


def _means_by_round(runs: Compared, column: str, labels: Mapping[str, str], title: str) -> Markup:
    """Return the means of a column in up to 50 rounds, by label."""
    by_round = {}
    for label, name in labels.items():
        curves = runs.tables[label]
        if column in curves:
            by_round[name] = dict(zip(curves["round"], curves[column], strict=True))
    rounds = sorted(set().union(*by_round.values()))
    step = -(-len(rounds) // MOST_ROWS)
    show = shows(runs.metric_of(column))
    rows = []
    for number in rounds[::step]:
        row = [number]
        for means in by_round.values():
            row.append(show(means.get(number)))
        rows.append(row)
    return table(title, ["round", *by_round], rows)


def _add_setting(page: Page, runs: Compared) -> None:
    """Add how to repeat each run, and what all of them have in common."""
    commands = []
    for run, setting in zip(runs.runs, runs.settings, strict=False):
        command = command_of(run) or "from Python only"
        label = runs.label_of(setting)
        commands.append([run.disk.path.name, label, run.summary["seed"], command])
    head = ["folder", "method", "seed", "command"]
    again = table("Runs", head, commands, ["method", "command"])
    summary = tag("summary", f"The commands of {len(commands)} runs")
    common = runs.common()
    short = {}
    for name, value in common.items():
        if isinstance(value, Mapping):
            short[name] = runs.runs[0].summary.get(name, spelled(value))
    short["metric"] = runs.runs[0].metric
    page.section(
        "setting", "What was run",
        tag("h3", "Run it again"), tag("details", summary, again),
        tag("h3", "Settings of all runs"), *settings_parts(common, short),
    )  # fmt: skip
