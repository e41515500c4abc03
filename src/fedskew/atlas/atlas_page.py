"""The page of the atlas: what came out, the grid of verdicts, gains over heterogeneity, and how to repeat a cell."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from fedskew.atlas.atlas_map import BUDGETS, AtlasMap, Overall, Square, tuning_curve
from fedskew.atlas.nearest_cells import Regret
from fedskew.atlas.protocol import Cell
from fedskew.report.html_page import Page, grid, html_file, listed, pairs
from fedskew.report.map_charts import MapPoint, over_tries, scatter
from fedskew.report.markup import Markup, joined, table, tag
from fedskew.runs.goals import Goal

GOAL_TITLES: Mapping[Goal, str] = {
    "shared": "One model for everybody",
    "own": "A model for each client",
}
_BUDGET_TITLES = {
    "rounds": "equal rounds",
    "bytes": "equal bytes",
    "time": "equal simulated time",
}
_BOUND_OF: Mapping[Goal, str] = {"shared": "central", "own": "local"}
_HETEROGENEITY = "label distance between clients (Hellinger)"
_GAIN = "gain over FedAvg in points"


def atlas_page(
    found: AtlasMap,
    regrets: Mapping[Goal, Sequence[Regret]],
    notes: Sequence[str] = (),
    added: str = "",
) -> bytes:
    """Return the page of a map; ``added`` is a method of the reader's own, and ``notes`` what is to be known of it."""
    title = found.protocol.title
    if added:
        title = f"{added} on the atlas"
    page = Page(title, {})
    goals = [goal for goal in GOAL_TITLES if found.cells(goal)]
    _add_summary(page, found, goals)
    page.warnings(notes)
    for goal in goals:
        _add_goal(page, found, goal)
    for goal in goals:
        _add_heterogeneity(page, found, goal)
    _add_predictions(page, regrets)
    _add_cells(page, found, goals)
    _add_protocol(page, found)
    return html_file(page.content({}))


def _add_summary(page: Page, found: AtlasMap, goals: Sequence[Goal]) -> None:
    """Add the numbers of the whole, and what came out in sentences."""
    runs = found.runs
    squares = found.squares
    undecided = sum(square.contrast.verdict == "undecided" for square in squares)
    cells = set()
    natural = set()
    for goal in goals:
        for cell in found.cells(goal):
            cells.add(cell.name)
            if cell.natural:
                natural.add(cell.name)
    smallest = "–"
    if found.smallest_visible is not None:
        smallest = f"{100 * found.smallest_visible:.1f} points"
    tiles = {
        "cells": f"{len(cells)} ({len(natural)} natural)",
        "runs": f"{runs['choose'] + runs['judge']:,}",
        "diverged or collapsed": f"{runs['diverged'] + runs['collapsed']:,}",
        "verdicts": len(squares),
        "undecided": f"{100 * undecided / max(len(squares), 1):.0f} %",
        "smallest visible difference (median)": smallest,
    }
    said = []
    for goal in goals:
        for one in found.overall(goal):
            said.append(f"{GOAL_TITLES[goal]}: {overall_said(found, one)}")
    page.section("summary", "What came out", pairs(tiles, "tiles"), tag("ul", *listed(said)))


def overall_said(found: AtlasMap, one: Overall) -> str:
    """Return in a sentence what a method is worth over all cells."""
    low, high = 100 * one.interval.low, 100 * one.interval.high
    counts = ", ".join(f"{verdict} in {count}" for verdict, count in one.counts.items())
    return (
        f"{found.title_of(one.method)} gains {100 * one.mean:+z.1f} points over FedAvg ({low:+z.1f} to {high:+z.1f}), "
        f"and is {counts} of {one.cells} cells."
    )


# -- the verdicts ------------------------------------------------------------------------------------------------------


def _add_goal(page: Page, found: AtlasMap, goal: Goal) -> None:
    """Add the grids of one goal."""
    parts = [
        tag("p", _how_to_read(goal)),
        tag("p", zones_said(found, goal)),
        tag("div", _grid(found, goal), class_="whole"),
        tag("h3", "By kind of heterogeneity"),
        tag("div", _kinds(found, goal), class_="whole"),
        tag("h3", "At equal rounds, bytes and time"),
        _budgets(found, goal),
        tag("details", tag("summary", "Intervals of all gains"), _intervals(found, goal)),
        tag("details", tag("summary", "Learning rates that were chosen"), _rates(found, goal)),
    ]
    page.section(f"verdicts-{goal}", GOAL_TITLES[goal], *parts)


def _how_to_read(goal: Goal) -> str:
    """Return what the grid shows."""
    return (
        "Each number is a method's gain over FedAvg in points, as a mean over the blocks. The sign says the verdict: "
        "▲ better, ▼ worse, = equal, and none for undecided. A * marks gains that remain if no more than 5 % of all "
        f"marked ones on the map may be false. {_BOUND_OF[goal]} is a bound, and not judged. ◆ marks clients that came "
        "with the data."
    )


def zones_said(found: AtlasMap, goal: Goal) -> str:
    """Return in a sentence what counts as equal, which differs by cell."""
    zones = []
    for cell in found.cells(goal):
        zones.append(100 * (found.results[f"{cell.name}-{goal}"].zone or 0.0))
    return (
        f"Equal is a difference within ±{min(zones):.1f} to ±{max(zones):.1f} points, by cell: half a point, or two of "
        "the rows that a cell is tested on where these are few."
    )


SIGNS = {"better": "▲", "worse": "▼", "equal": "=", "undecided": ""}


def _grid(found: AtlasMap, goal: Goal) -> Markup:
    """Return a row per cell and a column per method."""
    methods = found.methods(goal)
    bound = _BOUND_OF[goal]
    rows = []
    for cell in found.cells(goal):
        row: list[object] = [name_of(cell), control_score(found, cell, goal)]
        for method in methods:
            row.append(_square(found, found.square(cell.name, goal, method)))
        gain = found.bound_gain(cell, goal, bound)
        row.append(points(gain))
        rows.append(row)
    head = ["cell", "FedAvg, %", *map(found.title_of, methods), bound]
    return table(f"Gains over FedAvg: {GOAL_TITLES[goal].lower()}", head, rows)


def name_of(cell: Cell) -> str:
    """Return the title of a cell, marked if it is natural."""
    if cell.natural:
        return f"◆ {cell.title}"
    return cell.title


def control_score(found: AtlasMap, cell: Cell, goal: Goal) -> str:
    """Return the mean score of FedAvg in percent."""
    scores = []
    for row in found.results[f"{cell.name}-{goal}"].judged:
        if row.method == "fedavg" and row.score is not None:
            scores.append(row.score)
    return f"{100 * fmean(scores):.1f}"


def _square(found: AtlasMap, square: Square | None) -> object:
    """Return a method in a cell: its verdict and its gain."""
    if square is None:
        return "–"
    verdict = square.contrast.verdict
    text = f"{SIGNS[verdict]} {points(square.gain)}".strip()
    if (square.cell.name, square.goal, square.method) in found.discoveries:
        text += "*"
    if square.failed:
        text += f" ({square.failed} failed)"
    return tag("span", text, class_=verdict)


def points(gain: float | None) -> str:
    """Return a gain in points.

    >>> points(0.0312), points(None)
    ('+3.1', '–')
    """
    if gain is None:
        return "–"
    return f"{100 * gain:+z.1f}"


def _kinds(found: AtlasMap, goal: Goal) -> Markup:
    """Return the mean gain of every method over the cells of each kind, with how often it is better and worse."""
    head, rows = kind_rows(found, goal)
    caption = "Mean gain over the cells of a kind (in how many better, worse, of how many)"
    return table(caption, head, rows)


def kind_rows(found: AtlasMap, goal: Goal) -> tuple[list[str], list[list[str]]]:
    """Return the head, and a row per method with its gain by kind of heterogeneity."""
    kinds = dict.fromkeys(cell.kind for cell in found.cells(goal))
    rows = []
    for method in found.methods(goal):
        row = [found.title_of(method)]
        for kind in kinds:
            row.append(_kind_of(found, goal, method, kind))
        rows.append(row)
    return ["method", *kinds], rows


def _kind_of(found: AtlasMap, goal: Goal, method: str, kind: str) -> str:
    """Return what a method gained over the cells of one kind."""
    gains = []
    counts: Counter[str] = Counter()
    for square in found.squares:
        if (square.goal, square.method, square.cell.kind) == (goal, method, kind):
            gains.append(square.gain)
            counts[square.contrast.verdict] += 1
    if not gains:
        return "–"
    return f"{points(fmean(gains))} ({counts['better']}, {counts['worse']} of {len(gains)})"


def _budgets(found: AtlasMap, goal: Goal) -> Markup:
    """Return the gains over all cells at equal rounds, and within FedAvg's bytes and simulated time."""
    rows = []
    for method in found.methods(goal):
        rows.append([found.title_of(method), *budget_row(found, goal, method)])
    head = ["method", *_BUDGET_TITLES.values()]
    caption = "Mean gain over all cells, with cells as a random effect (95 %)"
    return table(caption, head, rows)


def budget_row(found: AtlasMap, goal: Goal, method: str) -> list[str]:
    """Return the mean gains of a method with their intervals, by budget."""
    row = []
    for budget in BUDGETS:
        overall = {one.method: one for one in found.overall(goal, budget)}
        said = "–"
        if method in overall:
            one = overall[method]
            low, high = 100 * one.interval.low, 100 * one.interval.high
            said = f"{points(one.mean)} ({low:+z.1f} to {high:+z.1f})"
        row.append(said)
    return row


def _intervals(found: AtlasMap, goal: Goal) -> Markup:
    """Return every gain with its interval and verdict."""
    rows = []
    for square in found.squares:
        if square.goal != goal:
            continue
        interval = "–"
        if square.interval is not None:
            low, high = 100 * square.interval.low, 100 * square.interval.high
            interval = f"{low:+.2f} to {high:+.2f}"
        rows.append(
            [
                square.cell.title,
                found.title_of(square.method),
                f"{100 * square.gain:+.2f}",
                interval,
                square.contrast.verdict,
                f"{square.failed} of {square.runs}",
            ]
        )
    head = ["cell", "method", "gain, points", "95 %", "verdict", "failed"]
    return table("Gains with intervals", head, rows, ["method", "verdict"])


def _rates(found: AtlasMap, goal: Goal) -> Markup:
    """Return the learning rates that were chosen."""
    methods = ["fedavg", *found.methods(goal)]
    rows = []
    for cell in found.cells(goal):
        name = f"{cell.name}-{goal}"
        chosen = dict(found.results[name].chosen)
        if name in found.added:
            chosen = {**found.added[name].chosen, **chosen}
        rows.append([cell.title, *map(chosen.get, methods)])
    head = ["cell", *map(found.title_of, methods)]
    return table("Learning rates", head, rows)


# -- heterogeneity, tuning, predictions --------------------------------------------------------------------------------


def _add_heterogeneity(page: Page, found: AtlasMap, goal: Goal) -> None:
    """Add the gains over measured heterogeneity, and over the number of tries."""
    gained: dict[str, list[MapPoint]] = {}
    numbers = []
    for square in found.squares:
        if square.goal != goal:
            continue
        measured = found.measured(square.cell, goal)
        title = found.title_of(square.method)
        point = MapPoint(
            measured["labels"], 100 * square.gain, square.cell.title, square.cell.natural
        )
        gained.setdefault(title, []).append(point)
        numbers.append([title, point.cell, point.heterogeneity, point.gain])
    curves = {}
    for method in found.methods(goal):
        gains = [100 * gain for gain in tuning_curve(found, goal, method)]
        if gains:
            curves[found.title_of(method)] = gains
    figures = [
        page.chart(
            f"gains-{goal}",
            "Gain over measured heterogeneity",
            scatter(gained, _HETEROGENEITY, _GAIN),
            "Circles are clients that a skew made, diamonds are clients that came with the data.",
            table("Gains", ["method", "cell", _HETEROGENEITY, _GAIN], numbers, ["cell"]),
            420,
        )
    ]
    if curves:
        rows = [[method, *gains] for method, gains in curves.items()]
        tries = list(map(str, range(1, len(found.protocol.lr) + 1)))
        figures.append(
            page.chart(
                f"tuning-{goal}",
                "What tuning does",
                over_tries(curves, "learning rates tried", f"mean {_GAIN}"),
                "Each method against FedAvg with as many tries, on the choosing seeds.",
                table("Gains by tries", ["method", *tries], rows),
                420,
            )
        )
    page.section(f"map-{goal}", f"{GOAL_TITLES[goal]}: the map", grid(*figures))


def _add_predictions(page: Page, regrets: Mapping[Goal, Sequence[Regret]]) -> None:
    """Add what is lost by choosing a method by the map, or always the same."""
    parts = []
    for goal, lines in regrets.items():
        rows = []
        for one in lines:
            rows.append(
                [
                    one.rule,
                    f"{100 * one.mean:.2f}",
                    f"{100 * one.worst:.1f}",
                    f"{one.right} of {one.cells}",
                ]
            )
        head = ["rule", "regret, points", "worst cell", "within half a point of the best"]
        parts.append(table(f"Regret: {GOAL_TITLES[goal].lower()}", head, rows))
    if parts:
        says = (
            "Regret is the gain of a cell's best method minus that of the chosen one. The map is asked without any "
            "cell of the same data set."
        )
        page.section("predictions", "Does the map predict?", tag("p", says), *parts)


# -- what was run ------------------------------------------------------------------------------------------------------


def _add_cells(page: Page, found: AtlasMap, goals: Sequence[Goal]) -> None:
    """Add what was measured of the clients of every cell, and the command that repeats it."""
    names = ["labels", "features", "features_given_label", "labels_given_features"]
    rows = []
    for cell in found.protocol.cells:
        for goal in goals:
            result = found.results.get(f"{cell.name}-{goal}")
            if result is None:
                continue
            measured = result.measured
            row: list[object] = [name_of(cell), measured["clients"], measured["rows"]]
            for name in names:
                row.append(measured.get(name))
            row += [measured["size_gini"], f"fedskew atlas run --cell {cell.name} --out again"]
            rows.append(row)
            break
    head = ["cell", "clients", "rows"]
    for name in names:
        head.append(name.replace("_", " "))
    head += ["Gini of sizes", "repeat it"]
    caption = "Hellinger distances between clients, as means over the first partitions"
    page.section("cells", "Cells", table(caption, head, rows, ["repeat it"]))


def _add_protocol(page: Page, found: AtlasMap) -> None:
    """Add what was settled before the first run."""
    protocol = found.protocol
    facts = {
        "protocol": f"version {protocol.version}, SHA-256 {protocol.digest}",
        "learning rates": ", ".join(map("{:g}".format, protocol.lr)),
        "blocks": len(protocol.blocks),
        "choosing seeds": len(protocol.choose_seeds),
        "seconds of training, all runs": round(found.seconds),
    }
    versions = sorted({result.version for result in found.results.values()})
    facts["fedskew"] = ", ".join(versions)
    settings = {}
    for name, value in protocol.settings.items():
        settings[name] = value
    parts = joined([tag("h3", "Settings of all cells"), pairs(settings, "facts")])
    page.section("protocol", "The protocol", pairs(facts, "facts"), parts)
