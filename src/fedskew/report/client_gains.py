"""What each client gains: the model that a method gives it against training alone and against the control."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from fedskew.report.html_page import Page
from fedskew.report.markup import Markup, table, tag
from fedskew.study.comparison_rows import BOUND
from fedskew.study.judging import ALONE
from fedskew.study.run_data import RunData

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison

_LISTED = 40  # clients in the table
Scores = Mapping[str, float]  # by client


def add_gains(page: Page, found: "Comparison") -> None:
    """Add what clients gain, if the models that they use are judged: by name where clients have one, or in shares."""
    if found.rows.goal != "own":
        return
    parts: list[Markup] = []
    for cell in found.judgement.families:
        by_label = _runs_of_cell(found, cell)
        if ALONE not in by_label and found.rows.rules.control not in by_label:
            continue
        if cell:
            parts.append(tag("h3", cell))
        parts.append(_shares(found, by_label))
        if _are_named(by_label):
            parts.append(_by_name(found, by_label))
    if parts:
        page.section("clients", "What each client gains", *parts)


def _runs_of_cell(found: "Comparison", cell: str) -> dict[str, list[RunData]]:
    """Return the runs of every method in a cell."""
    by_label: dict[str, list[RunData]] = {}
    runs = found.rows.runs
    for run, setting in zip(runs.runs, runs.settings, strict=False):
        conditions = []
        for name in found.rows.conditions:
            conditions.append(f"{name} {setting.values.get(name)}")
        if ", ".join(conditions) == cell and setting.method != BOUND:
            by_label.setdefault(runs.label_of(setting, conditions=False), []).append(run)
    return by_label


def _are_named(by_label: Mapping[str, Sequence[RunData]]) -> bool:
    """Return whether the clients of all runs have names: then they are the same in every seed."""
    for runs in by_label.values():
        for run in runs:
            if "name" not in run.final_rows[0]:
                return False
    return True


def _scores(run: RunData) -> dict[str, float]:
    """Return the score of every client that has one, by its name or number."""
    scores = {}
    for row in run.final_rows:
        score = row.get(run.metric)
        if score is not None and np.isfinite(score):
            scores[str(row.get("name", row["client"]))] = float(score)
    return scores


def _gains(runs: Sequence[RunData], others: Sequence[RunData], sign: int) -> dict[str, list[float]]:
    """Return by how much each client is better off than in the other runs of the same seeds, one number a seed."""
    by_seed = {}
    for run in others:
        by_seed[run.summary["seed"]] = _scores(run)
    gains: dict[str, list[float]] = {}
    for run in runs:
        theirs = by_seed.get(run.summary["seed"], {})
        for client, score in _scores(run).items():
            if client in theirs:
                gains.setdefault(client, []).append(sign * (score - theirs[client]))
    return gains


def _baselines(found: "Comparison", by_label: Mapping[str, Sequence[RunData]]) -> list[str]:
    """Return what gains are held against: training alone, and the control."""
    names = []
    for name in (ALONE, found.rows.rules.control):
        if name is not None and name in by_label and name not in names:
            names.append(name)
    return names


def _shares(found: "Comparison", by_label: Mapping[str, Sequence[RunData]]) -> Markup:
    """Return how many clients are better and worse off with each method, over all seeds."""
    head = ["method"]
    baselines = _baselines(found, by_label)
    for baseline in baselines:
        head += [f"better off than {baseline}", f"worse off than {baseline}", "least gain"]
    rows = []
    for label, runs in by_label.items():
        row: list[str | None] = [label]
        for baseline in baselines:
            if baseline == label:
                row += [None, None, None]
                continue
            values = []
            for of_client in _gains(runs, by_label[baseline], found.rows.sign).values():
                values += of_client
            row += _summed_up(values)
        rows.append(row)
    return table("Clients that gain and lose, of all seeds together", head, rows)


def _summed_up(gains: Sequence[float]) -> list[str | None]:
    """Return the share of clients that gain, of those that lose, and the least gain."""
    if not gains:
        return [None, None, None]
    better = 0
    worse = 0
    for gain in gains:
        better += gain > 0
        worse += gain < 0
    return [
        f"{better / len(gains):.0%}",
        f"{worse / len(gains):.0%}",
        f"{min(gains):+.3f}",
    ]


def _by_name(found: "Comparison", by_label: Mapping[str, Sequence[RunData]]) -> Markup:
    """Return the mean score of every client by name: alone, with the control, and its gains with every method."""
    baselines = _baselines(found, by_label)
    base = baselines[0]
    means = _mean_scores(by_label[base])
    gains = {}
    for label, runs in by_label.items():
        if label != base:
            gains[label] = _gains(runs, by_label[base], found.rows.sign)
    rows = []
    for client, mean in means.items():
        row: list[str | None] = [client, f"{mean:.3f}"]
        for by_client in gains.values():
            of_client = by_client.get(client)
            cell = None
            if of_client:
                cell = f"{fmean(of_client):+.3f}"
            row.append(cell)
        rows.append(row)
    caption = f"Each client: its score with {base}, and its mean gain with each method"
    if len(rows) > _LISTED:
        caption += f" (the first {_LISTED} of {len(rows)})"
    return table(caption, ["client", base, *gains], rows[:_LISTED])


def _mean_scores(runs: Sequence[RunData]) -> dict[str, float]:
    """Return the mean score of every client over seeds."""
    collected: dict[str, list[float]] = {}
    for run in runs:
        for client, score in _scores(run).items():
            collected.setdefault(client, []).append(score)
    return {client: fmean(scores) for client, scores in collected.items()}
