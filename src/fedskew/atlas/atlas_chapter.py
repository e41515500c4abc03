"""The tables of the map as Markdown, for the documentation."""

from collections.abc import Mapping, Sequence

from fedskew.atlas.atlas_map import AtlasMap, Square
from fedskew.atlas.atlas_page import (
    GOAL_TITLES,
    SIGNS,
    budget_row,
    control_score,
    kind_rows,
    name_of,
    points,
    zones_said,
)
from fedskew.atlas.nearest_cells import Regret
from fedskew.runs.goals import Goal


def chapter(found: AtlasMap, regrets: Mapping[Goal, Sequence[Regret]]) -> str:
    """Return the tables: over all cells, by kind of heterogeneity, every verdict, and regret."""
    lines = [_summary(found), ""]
    for goal, title in GOAL_TITLES.items():
        if not found.cells(goal):
            continue
        lines += [
            f"### {title}",
            "",
            "Over all cells, with 95 % intervals and cells as a random effect:",
            "",
        ]
        lines += _overall(found, goal)
        lines += [
            "",
            "By kind of heterogeneity (in how many cells better, worse, of how many):",
            "",
        ]
        lines += _lines(*kind_rows(found, goal))
        lines += ["", f"Every cell. {zones_said(found, goal)}", ""]
        lines += _grid(found, goal)
        lines.append("")
    lines += ["### Regret", ""]
    for goal, ones in regrets.items():
        lines += _regrets(found, goal, ones)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _summary(found: AtlasMap) -> str:
    """Return in sentences what was run."""
    runs = found.runs
    squares = found.squares
    undecided = 0
    for square in squares:
        undecided += square.contrast.verdict == "undecided"
    ended = len(found.results)
    hours = found.seconds / 3600
    share = 100 * undecided / max(len(squares), 1)
    visible = 100 * (found.smallest_visible or 0)
    return (
        f"{ended} of {len(found.protocol.studies)} studies have ended: {runs['choose']:,} runs that chose learning "
        f"rates, and {runs['judge']:,} that methods are judged by, in {hours:.1f} hours of training on one CPU core. "
        f"{runs['diverged']:,} runs diverged and {runs['collapsed']:,} collapsed. Of {len(squares)} verdicts, "
        f"{undecided} are undecided ({share:.0f} %). The median of the smallest differences that could have been seen "
        f"is {visible:.1f} points. The protocol has the SHA-256 `{found.protocol.digest}`."
    )


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        lines.append("| " + " | ".join(row) + " |")
    return lines


def _overall(found: AtlasMap, goal: Goal) -> list[str]:
    """Return the gains at equal rounds, bytes and time, and how often a method is better."""
    counts = {}
    for one in found.overall(goal):
        verdicts = []
        for verdict, count in one.counts.items():
            verdicts.append(f"{count} {verdict}")
        counts[one.method] = ", ".join(verdicts)
    rows = []
    for method, said in counts.items():
        rows.append([found.title_of(method), *budget_row(found, goal, method), said])
    head = ["method", "equal rounds", "equal bytes", "equal simulated time", "cells"]
    return _lines(head, rows)


def _grid(found: AtlasMap, goal: Goal) -> list[str]:
    """Return a row per cell and a column per method."""
    methods = found.methods(goal)
    bound = {"shared": "central", "own": "local"}[goal]
    rows = []
    for cell in found.cells(goal):
        row = [name_of(cell), control_score(found, cell, goal)]
        for method in methods:
            row.append(_square(found.square(cell.name, goal, method)))
        row.append(points(found.bound_gain(cell, goal, bound)))
        rows.append(row)
    head = ["cell", "FedAvg, %", *map(found.title_of, methods), bound]
    return _lines(head, rows)


def _square(square: Square | None) -> str:
    """Return the verdict and the gain of a method in a cell."""
    if square is None:
        return "–"
    text = f"{SIGNS[square.contrast.verdict]} {points(square.gain)}".strip()
    if square.failed:
        text += f" ({square.failed} failed)"
    return text


def _regrets(found: AtlasMap, goal: Goal, ones: Sequence[Regret]) -> list[str]:
    """Return what is lost by each rule."""
    rows = []
    for one in sorted(ones, key=lambda regret: regret.mean):
        rule = one.rule
        if rule.startswith("always "):
            rule = f"always {found.title_of(rule.removeprefix('always '))}"
        rows.append(
            [rule, f"{100 * one.mean:.2f}", f"{100 * one.worst:.1f}", f"{one.right} of {one.cells}"]
        )
    head = [GOAL_TITLES[goal], "regret, points", "worst cell", "within half a point of the best"]
    return _lines(head, rows)
