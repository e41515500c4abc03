"""The page of a comparison: the table of methods, whether they differ, their curves, and how to run them again."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedskew.report import charts
from fedskew.report.html_page import MOST_ROWS, Page, grid, html_file, listed, pairs
from fedskew.report.markup import Markup, table, tag
from fedskew.report.run_page import command_of
from fedskew.study.compared_runs import Compared
from fedskew.study.run_data import spelled
from fedskew.study.significance import said_p

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison

_WHOLE = 60  # rows of a comparison that are shown at once


def comparison_page(found: "Comparison") -> bytes:
    """Return the page of several runs."""
    runs = found.rows.runs
    page = Page(runs.title, dict(runs.tables))
    _add_results(page, found)
    page.warnings(runs.warnings())
    _add_significance(page, found)
    _add_curves(page, runs)
    _add_setting(page, runs)
    return html_file(page.content(runs.axes))


def _add_results(page: Page, found: "Comparison") -> None:
    """Add the table of methods and what it says."""
    head = _score_first(found, found.head())
    lines = [_score_first(found, line) for line in found.lines()]
    texts = []
    for title, is_text in zip(found.head()[1:], found.texts()[1:], strict=True):
        if is_text:
            texts.append(title)
    style = "long"
    if len(lines) <= _WHOLE:
        style = "whole"
    first = tag("p", f"{found.judgement.goal} {found.judgement.verdict.says}")
    methods = tag("div", table("Methods", head, lines, texts), class_=style)
    notes = tag("ul", *listed(found.notes()[2:]))
    meanings = pairs(found.meanings(), "facts")
    meanings = tag("details", tag("summary", "What the columns are"), meanings)
    page.section("results", "Results", first, methods, notes, meanings)


def _score_first(found: "Comparison", line: Sequence[str]) -> list[str]:
    """Return a row of the table with the score that decides and p right after the method, for narrow screens."""
    if found.judgement.score not in found.columns:
        return list(line)
    method, *cells, p = line
    place = len(cells) - len(found.columns) + list(found.columns).index(found.judgement.score)
    return [method, cells.pop(place), p, *cells]


def _add_significance(page: Page, found: "Comparison") -> None:
    """Add whether methods differ beyond noise."""
    by = tag(
        "p",
        f"{found.judgement.verdict.says} Methods are compared by {found.judgement.score_said}, "
        "paired over seeds and conditions.",
    )
    numbers = _differences(found)
    if found.judgement.ranks is None:
        page.section(
            "significance", "Significance", by, numbers, tag("p", found.judgement.no_ranks)
        )
        return
    ranks = found.judgement.ranks
    says = (
        f"Mean ranks over {ranks.blocks} blocks (seeds and conditions). Friedman's test: p = {said_p(ranks.p)}. Two "
        f"methods differ if their mean ranks are more than {ranks.distance:.2f} apart (Nemenyi's test, 5 %)."
    )
    option = charts.mean_ranks(ranks.means, ranks.distance)
    means = table("Mean ranks", ["method", "mean rank"], ranks.means.items())
    tall = 90 + 32 * len(ranks.means)
    figure = page.chart("ranks", "Critical differences", option, says, means, tall)
    page.section("significance", "Significance", by, grid(figure, numbers))


def _differences(found: "Comparison") -> Markup:
    """Return by how much methods differ from the best one."""
    rows = []
    for label in found.judgement.scores:
        if label in found.judgement.verdict.differences:
            # Not -x, which is printed as -0 where there is no difference
            difference = 0.0 - found.rows.sign * found.judgement.verdict.differences[label]
            rows.append([label, f"{difference:+.4g}", found.judgement.verdict.p_values.get(label)])
    head = ["method", "difference", "p, corrected"]
    return table(f"Difference to {found.judgement.verdict.best}", head, rows)


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
