"""The page of a run: its results, its curves, its clients, what its method did, and how to run it again."""

import shlex
from typing import Any

from fedskew.report import charts
from fedskew.report.classes_section import add_classes
from fedskew.report.clients_section import add_clients, add_holdings
from fedskew.report.html_page import Page, ends_of, grid, numbers_of_rounds, pairs
from fedskew.report.markup import Markup, tag
from fedskew.report.method_section import add_method
from fedskew.runs import folder as on_disk
from fedskew.runs.choices import from_python
from fedskew.runs.summary import CLIENT_NAMES, NAMES, without_shared_score
from fedskew.study.run_data import RunData, name_of, spelled

_TILES = {  # of the summary, with their titles
    "test_{metric}_last": "test {metric}, last round",
    "test_{metric}_best": "test {metric}, best round",
    "own_test_{metric}_mean": "personal models, test {metric}",
    "client_{metric}_mean": "clients, mean {metric}",
    "client_{metric}_worst_10_percent": "clients, worst 10 %",
    "gini_of_client_weights": "Gini of the weights",
    "simulated_seconds": "simulated seconds",
    "seconds": "real seconds",
}
_FATES = ("late", "dropped", "excluded")
_CHOICES = ("data", "skew", "algorithm", "model", "task", "fleet")
_VERSIONS = ("fedskew", "python", "torch", "numpy", "platform", "device")


def run_content(run: RunData) -> dict[str, Any]:
    """Return what the page of one run shows."""
    summary = run.summary
    title = f"{summary['algorithm']} on {name_of(summary['data'])}, {summary['skew']}"
    page = Page(title, {"rounds": run.curves})
    _add_results(page, run)
    page.warnings(run.warnings())
    _add_curves(page, run)
    add_holdings(page, run)
    add_clients(page, run)
    add_method(page, run)
    add_classes(page, run)
    _add_setting(page, run)
    return page.content(run.drawn.axes)


def _add_results(page: Page, run: RunData) -> None:
    values = {}
    for key, title in _TILES.items():
        value = run.summary.get(key.format(metric=run.metric))
        if value is not None:
            values[title.format(metric=run.metric)] = value
    values["megabytes sent"] = (run.summary["bytes_down"] + run.summary["bytes_up"]) / 1e6
    why = []
    for text in without_shared_score([str(run.summary["algorithm"])], [run.summary]):
        why.append(tag("p", text))
    page.section("results", "Results", pairs(values, "tiles"), *why)


def _add_curves(page: Page, run: RunData) -> None:
    figures = [_curve(page, run, metric) for metric in run.drawn.metrics]
    if any(any(run.curves[fate]) for fate in _FATES):
        lost = sum(run.summary[f"{fate}_updates"] for fate in _FATES)
        says = f"{lost:,} of {run.summary['updates']:,} updates were lost."
        caption = "Outcomes of the clients of each round"
        numbers = numbers_of_rounds(run.curves, ["clients", *_FATES], caption)
        figures.append(page.chart("fates", "Lost updates", charts.fates(run.curves), says, numbers))
    page.section("curves", "Curves", grid(*figures))


def _curve(page: Page, run: RunData, metric: str) -> Markup:
    """Return the curves of one metric on all parts that were evaluated."""
    columns = []
    for part in (*NAMES, *CLIENT_NAMES):
        if f"{part}_{metric}" in run.curves:
            columns.append(f"{part}_{metric}")
    column_in_words = columns[0]
    if f"test_{metric}" in columns:
        column_in_words = f"test_{metric}"
    says = ends_of(run.curves, column_in_words)
    has_best = metric == run.metric and "best round" in run.curves
    if has_best:
        best = run.summary[f"test_{metric}_best"]
        says += f"; best {best:.4g} in round {run.summary[f'test_{metric}_best_round']}"
    drawn = len(run.curves["round"])
    rounds = len(run.rounds["round"])
    if drawn < rounds:
        says += f"; {drawn:,} of {rounds:,} rounds are drawn"
    option = charts.curves(run.curves, metric, has_best)
    numbers = numbers_of_rounds(run.curves, columns, metric)
    return page.chart(metric, metric, option, says + ".", numbers)


def _add_setting(page: Page, run: RunData) -> None:
    """Add what was run, on what, and how to run it again."""
    config = run.record.config
    facts = {}
    for kind in _CHOICES:
        facts[kind] = spelled(config.get(kind, run.summary.get(kind)))
    for key in ("clients", "clients_per_round", "parameters", "weights", "metric"):
        facts[key] = run.summary[key]
    for key, value in config.items():
        if key not in facts and not isinstance(value, dict):
            facts[key] = value
    versions = {name: run.environment.get(name) for name in _VERSIONS}
    page.section(
        "setting", "What was run",
        tag("h3", "Run it again"), *_again(run),
        tag("h3", "Choices and settings"), pairs(facts, "facts"),
        tag("h3", "Versions"), pairs(versions, "facts"),
    )  # fmt: skip


def command_of(run: RunData) -> str | None:
    """Return the command that repeats a run; None where a part of it was a Python object."""
    config = run.record.config
    for kind in ("data", "skew", "model", "algorithm", "task"):
        if from_python(config.get(kind)):
            return None
    modules = []
    for module in run.environment.get("imports", []):
        modules += ["--import", module["source"]]
    return shlex.join(["fedskew", *modules, "run", str(run.disk.path / on_disk.CONFIG)])


def _again(run: RunData) -> list[Markup]:
    """Return the command that repeats a run, and its configuration."""
    command = command_of(run)
    if command:
        how = tag("pre", tag("code", command), tabindex="0")
    else:
        how = tag(
            "p", "A part of this run was a Python object: it can be repeated from Python only."
        )
    text = (run.disk.path / on_disk.CONFIG).read_text(encoding="utf-8")
    config = tag("pre", tag("code", text), tabindex="0")
    return [how, tag("details", tag("summary", "config.toml"), config)]
