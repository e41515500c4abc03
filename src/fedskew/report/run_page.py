"""The page of a run: its results, its curves, its clients, what its method did, and how to run it again."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from fedskew.core.units import SIZES, TIMES
from fedskew.report import charts
from fedskew.report.classes_section import add_classes
from fedskew.report.clients_section import add_clients, add_holdings
from fedskew.report.html_page import (
    Page,
    curve_switch,
    ends_of,
    grid,
    numbers_of_rounds,
    pairs,
)
from fedskew.report.markup import Markup, tag
from fedskew.report.method_section import add_method
from fedskew.report.readable import amount, in_words, rows_in_words, shows
from fedskew.report.settings_section import settings_parts
from fedskew.runs import folder as on_disk
from fedskew.runs.recorded_config import from_python
from fedskew.runs.summary_reading import without_shared_score
from fedskew.server.score_names import CLIENT_NAMES, NAMES
from fedskew.study.run_data import RunData, name_of, spelled

_TILES = {  # of the summary, with their titles
    "test_{metric}_last": "test {name}, last round",
    "test_{metric}_best": "test {name}, best round",
    "own_test_{metric}_mean": "personal models, test {name}",
    "client_{metric}_mean": "clients, mean {name}",
    "client_{metric}_worst_10_percent": "worst 10 % of the clients, {name}",
}
_FACTS = (
    "clients",
    "clients_per_round",
    "parameters",
    "frozen_parameters",
    "trained_bytes",
    "frozen_bytes",
    "weights",
    "metric",
)
_FATES = ("late", "dropped", "excluded")
_SETTLED = re.compile(r",min_size=\d+|:min_size=\d+(?= |$)")
_VERSIONS = ("fedskew", "python", "torch", "numpy", "platform", "device")


def run_content(run: RunData) -> dict[str, Any]:
    """Return what the page of one run shows."""
    summary = run.summary
    page = Page(_title(summary), {"rounds": run.curves})
    _add_results(page, run)
    page.warnings(run.warnings())
    _add_curves(page, run)
    add_holdings(page, run)
    add_clients(page, run)
    add_method(page, run)
    add_classes(page, run)
    _add_setting(page, run)
    return page.content(run.drawn.axes)


def _title(summary: Mapping[str, Any]) -> str:
    """Return method, data and skew, without options of the skew that it settles itself where nobody gives them."""
    title = f"{summary['algorithm']} on {name_of(summary['data'])}"
    skew = _SETTLED.sub("", str(summary["skew"]))
    if skew == "natural":
        return title
    return f"{title}, {skew}"


def _add_results(page: Page, run: RunData) -> None:
    values: dict[str, Any] = {}
    name = in_words(run.metric)
    for key, title in _TILES.items():
        value = run.summary.get(key.format(metric=run.metric))
        if value is not None:
            values[title.format(name=name)] = shows(run.metric)(value)
    sent = run.summary["bytes_down"] + run.summary["bytes_up"]
    values["sent, both ways"] = amount(sent, SIZES)
    # Nodes have no virtual clock
    if "simulated_seconds" in run.summary:
        values["simulated time"] = amount(run.summary["simulated_seconds"], TIMES)
    values["real time"] = amount(run.summary["seconds"], TIMES)
    values["Gini coefficient of the weights"] = run.summary["gini_of_client_weights"]
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
        columns = {name: name for name in ("clients", *_FATES)}
        numbers = numbers_of_rounds(run.curves, columns, caption)
        figures.append(page.chart("fates", "Lost updates", charts.fates(run.curves), says, numbers))
    page.section("curves", "Curves", curve_switch(run.drawn.axes), grid(*figures))


def _curve(page: Page, run: RunData, metric: str) -> Markup:
    """Return the curves of one metric on all parts that were evaluated."""
    name = in_words(metric)
    show = shows(metric)
    columns = {}
    for part in (*NAMES, *CLIENT_NAMES):
        if f"{part}_{metric}" in run.curves:
            columns[f"{part}_{metric}"] = rows_in_words(part)
    said = next(iter(columns))
    if f"test_{metric}" in columns:
        said = f"test_{metric}"
    says = ends_of(run.curves, said, columns[said], show)
    has_best = metric == run.metric and "best round" in run.curves
    if has_best:
        best = run.summary[f"test_{metric}_best"]
        says += f"; best {show(best)} in round {run.summary[f'test_{metric}_best_round']}"
    drawn = len(run.curves["round"])
    rounds = len(run.rounds["round"])
    if drawn < rounds:
        says += f"; {drawn:,} of {rounds:,} rounds are drawn"
    option = charts.curves(run.curves, metric, name, has_best)
    numbers = numbers_of_rounds(run.curves, columns, name, show)
    title = f"{name[0].upper()}{name[1:]}"
    return page.chart(metric, title, option, f"{says[0].upper()}{says[1:]}.", numbers)


def _add_setting(page: Page, run: RunData) -> None:
    """Add what was run, on what, and how to run it again."""
    config = run.record.config
    facts = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            facts[name] = run.summary.get(name, spelled(value))
    for name in _FACTS:
        if name in run.summary:
            facts[name] = run.summary[name]
    versions = {name: run.environment.get(name) for name in _VERSIONS}
    page.section(
        "setting", "What was run",
        tag("h3", "Run it again"), *_again(run),
        tag("h3", "Settings"), *settings_parts(config, facts),
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
