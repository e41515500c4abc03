"""The page of a run, or of several, as one HTML file that needs nothing else, and the callback that writes it."""

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew import __version__
from fedskew.core.errors import FedskewError
from fedskew.core.writing import write_atomically
from fedskew.report import charts
from fedskew.report.charts import Option
from fedskew.report.markup import Markup, escaped, joined, shown, table, tag
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import Callback
from fedskew.runs.choices import from_python
from fedskew.runs.folder import RunFolder, to_json
from fedskew.runs.run import Run, open_run, run_on_disk
from fedskew.runs.runner import only_warned
from fedskew.runs.summary import NAMES, without_shared_score
from fedskew.study.compared_runs import Compared
from fedskew.study.run_data import PROFILE, RunData, name_of, spelled
from fedskew.study.significance import said_p
from fedskew.tasks.scores import class_table

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison

_ROWS = 50  # of a table that says what a chart shows
_WHOLE = 60  # rows of a comparison that are shown at once
_MOST_OWN = 12  # charts of columns that only this method has
_ROUND_PANELS = {  # of a method's own columns: how they begin, and the title
    "mu_": "Proximal coefficient of each layer",
    "drift_": "Drift of each layer",
    "dp_epsilon": "Privacy spent so far (epsilon)",
    "backdoor_success": "Success of the backdoor",
}
_CLIENT_PANELS = {
    "vulnerable": "Vulnerable clients of each round",
    "hostile": "Hostile clients of each round",
    "variance": "Variance of the clients' gradients",
    "staleness": "Staleness of the updates",
}
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


@dataclass
class _Page:
    """A page in the making: its sections, its charts, and the tables that they draw from."""

    title: str
    tables: dict[str, Any]
    charts: dict[str, Option] = field(default_factory=dict)
    sections: list[tuple[str, str, list[Markup]]] = field(default_factory=list)

    def section(self, name: str, title: str, *parts: Markup) -> None:
        """Add a section."""
        self.sections.append((name, title, [part for part in parts if part]))

    def chart(
        self,
        name: str,
        title: str,
        option: Option,
        says: str,
        numbers: Markup,
        tall: int | None = None,
    ) -> Markup:
        """Return a chart with its title, what it says in words, and its numbers as a table."""
        self.charts[name] = option
        if tall:
            style = {"style": f"height:{tall}px"}
        else:
            style = {}
        place = tag(
            "div",
            class_="chart",
            data_chart=name,
            role="img",
            aria_label=f"{title}. {says}",
            **style,
        )
        more = tag("details", tag("summary", "Numbers of this chart"), numbers)
        return tag(
            "figure",
            tag("figcaption", tag("h3", title), tag("p", says)),
            place,
            more,
            id=f"chart-{name}",
        )

    def content(self, axes: Mapping[str, str]) -> dict[str, Any]:
        """Return what is particular to this page: its title, its parts as HTML, and its data."""
        links = joined(tag("a", title, href=f"#{name}") for name, title, _ in self.sections)
        body = joined(
            tag(
                "section",
                tag("h2", title, id=f"{name}-title"),
                *parts,
                id=name,
                aria_labelledby=f"{name}-title",
            )
            for name, title, parts in self.sections
        )
        switch = joined(
            tag("label", Markup(f'<input type="radio" name="axis" value="{escaped(name)}">'), title)
            for name, title in axes.items()
        )
        data = {"tables": self.tables, "charts": self.charts, "axes": axes}
        legend = tag("legend", "Curves against")
        parts = {
            "links": links,
            "axes": joined([legend, switch if len(axes) > 1 else ""]),
            "body": body,
        }
        return {"title": self.title, **parts, "data": data}


def _html(content: Mapping[str, Any], live: bool = False) -> bytes:
    """Return a page as a file; a live one asks its server for newer content."""
    script = _asset("page.js")
    library = _asset("vendor/echarts.min.js")
    scripts = " ".join(f"'sha256-{_digest(code)}'" for code in (library, script))
    data = to_json(content["data"])
    parts = {
        **content,
        "title": escaped(content["title"]),
        "policy": f"{scripts}; connect-src 'self'" if live else scripts,
        "style": _asset("page.css"),
        "live": tag("p", "", id="live") if live else "",
        "version": escaped(__version__),
        "data": data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"),
        "library": library,
        "script": script,
    }
    return Template(_asset("page.html")).substitute(parts).encode()


def live_content() -> dict[str, Any]:
    """Return what a live page shows before the first round has ended."""
    return _Page("Waiting for the first round", {}).content({})


def live_page() -> bytes:
    """Return a page that asks its server for its content."""
    return _html(live_content(), live=True)


@cache
def _asset(name: str) -> str:
    return (files("fedskew.report") / name).read_text(encoding="utf-8")


@cache
def _digest(code: str) -> str:
    """Return the hash by which a browser knows the only scripts that it may run."""
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


class PageWriter(Callback):
    """A callback that writes the page of a run into its folder; an error is only a warning, as the run is whole."""

    def on_run_end(self, run: Run) -> None:
        """Write the page."""
        if run.folder is not None:
            with only_warned(str(run.folder / on_disk.PAGE)):
                disk = RunFolder(run.folder)
                written = run_on_disk(disk, disk.read_json(on_disk.SUMMARY))
                write_atomically(run.folder / on_disk.PAGE, _of_run(RunData(written)))


def report(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of a run, of a comparison, or of several runs; return its path.

    All folders are verified before anything is written.

    Args:
        folders: run folders, or the folder of a comparison
        out: the file; by default ``report.html`` in the folder, which is needed for several folders
    """
    if out is None and len(folders) != 1:
        raise FedskewError(
            "several runs have no common folder: say where the page goes with --out FILE"
        )
    if not folders:
        raise FedskewError("a report needs a run: name its folder")
    place = out or folders[0] / on_disk.PAGE
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise FedskewError(f"--out {out} is no file in an existing folder: give another")
    from fedskew.study.comparison_table import comparison

    if len(folders) == 1 and not (folders[0] / on_disk.GROUP).is_file():
        content = _of_run(RunData(open_run(folders[0])))
    else:
        content = comparison_page(comparison(folders))
    write_atomically(place, content)
    return place


def _of_run(run: RunData) -> bytes:
    """Return the page of one run."""
    return _html(run_content(run))


def run_content(run: RunData) -> dict[str, Any]:
    """Return what the page of one run shows."""
    summary = run.summary
    page = _Page(
        f"{summary['algorithm']} on {name_of(summary['data'])}, {summary['skew']}",
        {"rounds": run.curves},
    )
    _results(page, run)
    warned = [tag("li", text) for text in run.warnings()]
    page.section("warnings", "Warnings", tag("ul", *warned) if warned else tag("p", "None."))
    _curves(page, run)
    _data(page, run)
    _clients(page, run)
    _method(page, run)
    _classes(page, run)
    _setting(page, run)
    return page.content(run.axes)


def _results(page: _Page, run: RunData) -> None:
    keys = {}
    for key, title in _TILES.items():
        keys[key.format(metric=run.metric)] = title.format(metric=run.metric)
    values = {}
    for key, title in keys.items():
        if run.summary.get(key) is not None:
            values[title] = run.summary[key]
    values["megabytes sent"] = (run.summary["bytes_down"] + run.summary["bytes_up"]) / 1e6
    why = []
    for text in without_shared_score([str(run.summary["algorithm"])], [run.summary]):
        why.append(tag("p", text))
    page.section("results", "Results", _pairs(values, "tiles"), *why)


def _pairs(values: Mapping[str, Any], kind: str) -> Markup:
    """Return names with values."""
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", shown(value))) for name, value in values.items()),
        class_=kind,
    )


def _numbers(
    page_table: Mapping[str, Sequence[Any]], columns: Sequence[str], caption: str
) -> Markup:
    """Return columns of a table of the page, with rows at even steps where there are many."""
    count = len(page_table["round"])
    at = np.unique(np.linspace(0, count - 1, min(count, _ROWS)).astype(np.int64)).tolist()
    rows = []
    for i in at:
        rows.append([page_table["round"][i], *(page_table[name][i] for name in columns)])
    if len(at) < count:
        some = f" ({len(at)} of {count} rounds)"
    else:
        some = ""
    return table(caption + some, ["round", *columns], rows)


def _ends(run: RunData, column: str) -> str:
    """Say where a curve begins and ends."""
    known = []
    for n, v in zip(run.curves["round"], run.curves[column], strict=True):
        if v is not None:
            known.append((n, v))
    (first, start), (last, end) = known[0], known[-1]
    return f"{column}: {start:.4g} in round {first}, {end:.4g} in round {last}"


def _curves(page: _Page, run: RunData) -> None:
    figures = []
    for metric in run.metrics:
        columns = [name for part in NAMES if (name := f"{part}_{metric}") in run.curves]
        best = metric == run.metric and "best round" in run.curves
        says = _ends(run, next((name for name in columns if name.startswith("test_")), columns[0]))
        if best:
            best = run.summary[f"test_{metric}_best"]
            says += f"; best {best:.4g} in round {run.summary[f'test_{metric}_best_round']}"
        if len(run.curves["round"]) < len(run.rounds["round"]):
            says += (
                f"; {len(run.curves['round']):,} of {len(run.rounds['round']):,} rounds are drawn"
            )
        option = charts.curves(run.curves, metric, best)
        figures.append(
            page.chart(metric, metric, option, says + ".", _numbers(run.curves, columns, metric))
        )
    fates = ("late", "dropped", "excluded")
    if any(any(run.curves[fate]) for fate in fates):
        lost = sum(run.summary[f"{fate}_updates"] for fate in fates)
        says = f"{lost:,} of {run.summary['updates']:,} updates were lost."
        numbers = _numbers(run.curves, ["clients", *fates], "Outcomes of the clients of each round")
        figures.append(page.chart("fates", "Lost updates", charts.fates(run.curves), says, numbers))
    page.section("curves", "Curves", tag("div", *figures, class_="grid"))


def _data(page: _Page, run: RunData) -> None:
    figures, holdings = [], run.holdings
    if holdings is not None:
        counts, names = holdings.counts, holdings.names
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        most = np.sort(np.argsort(-counts.sum(0), kind="stable")[: charts.MOST_CLASSES])
        option = charts.heat_map(
            holdings.clients,
            [names[k] for k in most],
            shares[:, most],
            counts[:, most],
            "client",
            holdings.title,
        )
        if len(counts) == len(run.sizes):
            some = ""
        else:
            some = f" {len(counts)} of {len(run.sizes):,} clients, at even steps."
        if len(most) == len(names):
            some += ""
        else:
            some += f" The {len(most)} most frequent of {len(names)} columns."
        says = f"Colour is the share of the client's rows.{some}"
        rows = []
        for i, client in enumerate(holdings.clients[:_ROWS]):
            rows.append([client, *counts[i, most].tolist()])
        numbers = table("Training rows of clients", ["client", *(names[k] for k in most)], rows)
        tall = min(max(300, 24 * len(counts) + 110), 640)
        figures.append(
            page.chart("matrix", f"Clients and {holdings.title}", option, says, numbers, tall)
        )
    says = f"{run.sizes.sum():,} training rows at {len(run.sizes):,} clients."
    if len(run.sizes) <= charts.MOST_BARS:
        if holdings is not None:
            clients = holdings.clients
        else:
            clients = [str(client) for client in range(len(run.sizes))]
        option = charts.bars(clients, run.sizes.tolist(), "client", "training rows")
        pairs = list(zip(clients, run.sizes.tolist(), strict=True))
        numbers = table("Training rows of each client", ["client", "rows"], pairs)
    else:
        option, pairs = charts.histogram(run.sizes, "training rows")
        numbers = table("Clients by training rows", ["rows", "clients"], pairs)
    figures.append(page.chart("sizes", "Sizes of the clients", option, says, numbers))
    page.section(
        "data", "Who holds what", _pairs(run.facts(), "facts"), tag("div", *figures, class_="grid")
    )


def _clients(page: _Page, run: RunData) -> None:
    figures = []
    worst = Markup()
    if run.client_metric is not None:
        scores = run.scores()
        metric = run.client_metric
        option, rows = charts.histogram(scores, f"{metric} of a client")
        says = f"{len(scores):,} clients, from {scores.min():.4g} to {scores.max():.4g}, mean {scores.mean():.4g}."
        if where := run.summary.get(
            f"client_{metric}_rows", run.summary.get("client_accuracy_rows")
        ):
            says += f" On {where}."
        numbers = table("Clients by their metric", [metric, "clients"], rows)
        figures.append(page.chart("clients", f"{metric} of the clients", option, says, numbers))
        lines = []
        for row in run.left_behind():
            lines.append([row.get("name") or row["client"], row["rows"], row[metric]])
        worst = table("Clients left behind, the worst first", ["client", "rows", metric], lines)
    trained, weights = run.participation
    gini = run.summary["gini_of_client_weights"]
    top = np.sort(weights)[::-1][: -(-len(weights) // 10)].sum() / max(weights.sum(), 1e-300)
    says = f"Gini coefficient {gini:.3f}; the tenth of the clients with the largest weights has {top:.1%} of them."
    option = charts.lorenz(weights)
    points = option["series"][0]["data"]
    numbers = table(
        "Lorenz curve",
        ["share of the clients", "share of the weights"],
        points[:: -(-len(points) // _ROWS)],
    )
    figures.append(
        page.chart("lorenz", "Weights of the clients (Lorenz curve)", option, says, numbers)
    )
    option, rows = charts.histogram(trained, "rounds in which a client trained")
    never = int((trained == 0).sum())
    if never < len(trained):
        mean = float(trained[trained > 0].mean())
    else:
        mean = 0.0
    says = f"{never:,} of {len(trained):,} clients never trained; the others did in {mean:.3g} rounds on average."
    numbers = table("Clients by rounds", ["rounds", "clients"], rows)
    figures.append(page.chart("participation", "Participation", option, says, numbers))
    page.section("fairness", "Clients", tag("div", *figures, worst, class_="grid"))


def _method(page: _Page, run: RunData) -> None:
    """What only this method has in its tables."""
    found: list[tuple[str, str, dict[str, str]]] = []
    left = run.own_columns
    for start, title in _ROUND_PANELS.items():
        columns = {}
        for name in left:
            if name.startswith(start):
                columns[name] = name.removeprefix(start) or name
        left = [name for name in left if name not in columns]
        found.append((start.strip("_"), title, columns))
    profile = {}
    for name in PROFILE:
        if f"mean {name}" in run.curves:
            profile[f"mean {name}"] = name
    found.append(("profile", "Profiles of the clients, mean of each round", profile))
    for name, title in _CLIENT_PANELS.items():
        columns = {}
        for key in (f"{name} clients", f"mean {name}", f"largest {name}"):
            if key in run.curves:
                columns[key] = key
        found.append((name, title, columns))
    for number, name in enumerate(left[:_MOST_OWN]):
        found.append((f"own-{number}", name, {name: name}))
    figures = [
        page.chart(name, title, charts.lines(columns, title if len(columns) == 1 else ""),
                   "; ".join(_ends(run, column) for column in list(columns)[:2]) + ".",
                   _numbers(run.curves, list(columns), title))
        for name, title, columns in found if columns
    ]  # fmt: skip
    if figures:
        page.section("method", "The method", tag("div", *figures, class_="grid"))


def _classes(page: _Page, run: RunData) -> None:
    if run.confusion is None:
        return
    names = run.confusion[0]
    matrix = np.array(run.confusion[1], np.int64)
    columns = {"rows": matrix.sum(1), "predicted": matrix.sum(0), **class_table(matrix)}
    order = range(len(names))
    if len(names) > charts.MOST_CLASSES:
        order = np.argsort(columns["f1"], kind="stable")[: charts.MOST_CLASSES].tolist()
    lines = []
    for k in order:
        lines.append([names[k], *(values[k].item() for values in columns.values())])
    caption = "Classes on the test rows" + (
        f": the worst {len(lines)} of {len(names)}" if len(lines) < len(names) else ""
    )
    by_class = table(caption, ["class", *columns], lines)
    figures = []
    if len(names) <= charts.MOST_CLASSES:
        shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
        option = charts.heat_map(names, names, shares, matrix, "true class", "predicted class")
        says = f"{np.trace(matrix):,} of {matrix.sum():,} test rows are on the diagonal."
        numbers = table("True classes down, predicted ones across", ["", *names],
                        ([name, *row] for name, row in zip(names, matrix.tolist(), strict=True)))  # fmt: skip
        tall = min(max(320, 24 * len(names) + 110), 640)
        figures = [page.chart("confusion", "Confusion matrix", option, says, numbers, tall)]
    page.section("classes", "Classes", tag("div", *figures, by_class, class_="grid"))


def _setting(page: _Page, run: RunData) -> None:
    """What was run, on what, and how to run it again."""
    summary = run.summary
    config = run.record.config
    environment = run.environment
    kinds = ("data", "skew", "algorithm", "model", "task", "fleet")
    facts = {kind: spelled(config.get(kind, summary.get(kind))) for kind in kinds}
    for key in ("clients", "clients_per_round", "parameters", "weights", "metric"):
        facts[key] = summary[key]
    facts |= {
        key: value
        for key, value in config.items()
        if key not in (*facts, *kinds) and not isinstance(value, dict)
    }
    versions = {}
    for name in ("fedskew", "python", "torch", "numpy", "platform", "device"):
        versions[name] = environment.get(name)
    page.section(
        "setting", "What was run",
        tag("h3", "Run it again"), *_again(run),
        tag("h3", "Choices and settings"), _pairs(facts, "facts"),
        tag("h3", "Versions"), _pairs(versions, "facts"),
    )  # fmt: skip


def command(run: RunData) -> str | None:
    """Return the command that repeats a run; None where a part of it was a Python object."""
    config = run.record.config
    if any(
        from_python(config.get(kind)) for kind in ("data", "skew", "model", "algorithm", "task")
    ):
        return None
    modules = []
    for one in run.environment.get("imports", []):
        for word in ("--import", one["source"]):
            modules.append(word)
    return shlex.join(["fedskew", *modules, "run", str(run.disk.path / on_disk.CONFIG)])


def _again(run: RunData) -> list[Markup]:
    text = (run.disk.path / on_disk.CONFIG).read_text(encoding="utf-8")
    how = command(run)
    if how:
        first = tag("pre", tag("code", how), tabindex="0")
    else:
        first = tag(
            "p", "A part of this run was a Python object: it can be repeated from Python only."
        )
    return [
        first,
        tag("details", tag("summary", "config.toml"), tag("pre", tag("code", text), tabindex="0")),
    ]


def comparison_page(table_of: "Comparison") -> bytes:
    """Return the page of several runs."""
    found = table_of.rows.runs
    page = _Page(found.title, dict(found.tables))
    notes = [tag("li", text) for text in table_of.notes()]
    meanings = tag(
        "details", tag("summary", "What the columns are"), _pairs(table_of.meanings(), "facts")
    )
    head, *lines = (_score_first(table_of, line) for line in (table_of.head(), *table_of.lines()))
    texts = []
    for title, text in zip(table_of.head()[1:], table_of.texts()[1:], strict=True):
        if text:
            texts.append(title)
    rows = tag(
        "div",
        table("Methods", head, lines, texts),
        class_="whole" if len(lines) <= _WHOLE else "long",
    )
    first = tag("p", f"{table_of.judgement.goal} {table_of.judgement.verdict.says}")
    page.section("results", "Results", first, rows, tag("ul", *notes[2:]), meanings)
    warned = [tag("li", text) for text in found.warnings()]
    page.section("warnings", "Warnings", tag("ul", *warned) if warned else tag("p", "None."))
    _significance(page, table_of)
    figures = []
    for column, title in found.columns().items():
        for number, (where, labels) in enumerate(found.panels.items()):
            tables = {label: found.tables[label] for label in labels}
            if not any(column in curves for curves in tables.values()):
                continue
            banded = any(f"{column} low" in curves for curves in tables.values())
            says = ("Bands are one standard deviation over seeds. " if banded else "") + found.ends(
                column, labels
            )
            option = charts.overlaid(tables, labels, column, found.metric_of(column))
            if number:
                name = f"{column}-{number}"
            else:
                name = column
            if where:
                called = f"{title}, {where}"
            else:
                called = title
            figures.append(
                page.chart(name, called, option, says, _means_by_round(found, column, labels), 380)
            )
    page.section("curves", "Curves", tag("div", *figures, class_="grid"))
    same = {name: spelled(value) for name, value in found.common().items()}
    commands = []
    for run, setting in zip(found.runs, found.settings, strict=False):
        commands.append(
            [
                run.disk.path.name,
                found.label_of(setting),
                run.summary["seed"],
                command(run) or "from Python only",
            ]
        )
    page.section(
        "setting", "What was run",
        tag("h3", "Run it again"), table("Runs", ["folder", "method", "seed", "command"], commands),
        tag("h3", "Common to all runs"), _pairs(same, "facts"),
    )  # fmt: skip
    return _html(page.content(found.axes))


def _score_first(found: "Comparison", line: list[str]) -> list[str]:
    """Return a row of the table with the score that decides and p right after the method, for narrow screens."""
    if found.judgement.score not in found.columns:
        return line
    method, *cells, p = line
    place = len(cells) - len(found.columns) + list(found.columns).index(found.judgement.score)
    return [method, cells.pop(place), p, *cells]


def _significance(page: _Page, found: "Comparison") -> None:
    """Whether methods differ beyond noise."""
    judged = found.judgement
    by = tag(
        "p",
        f"{judged.verdict.says} Methods are compared by {judged.score_said}, "
        "paired over seeds and conditions.",
    )
    pairs = []
    for label in found.judgement.scores:
        if label in found.judgement.verdict.differences:
            pairs.append(
                [
                    label,
                    f"{0.0 - found.rows.sign * found.judgement.verdict.differences[label]:+.4g}",
                    found.judgement.verdict.p_values.get(label),
                ]
            )
    numbers = table(
        f"Difference to {found.judgement.verdict.best}",
        ["method", "difference", "p, corrected"],
        pairs,
    )
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
    listed = table("Mean ranks", ["method", "mean rank"], ranks.means.items())
    figure = page.chart(
        "ranks", "Critical differences", option, says, listed, 90 + 32 * len(ranks.means)
    )
    page.section("significance", "Significance", by, tag("div", figure, numbers, class_="grid"))


def _means_by_round(found: Compared, column: str, labels: Mapping[str, str]) -> Markup:
    """Return the means of a column in up to 50 rounds, by label."""
    by_round = {}
    for label, name in labels.items():
        if column in found.tables[label]:
            by_round[name] = dict(
                zip(found.tables[label]["round"], found.tables[label][column], strict=True)
            )
    rounds = sorted({number for one in by_round.values() for number in one})
    some = rounds[:: -(-len(rounds) // 50)]
    rows = []
    for number in some:
        rows.append([number, *(one.get(number) for one in by_round.values())])
    return table(column, ["round", *by_round], rows)
