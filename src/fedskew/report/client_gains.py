"""What each client gains: the model that a method gives it against training alone and against the control."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from fedskew.core.units import ScoreUnit
from fedskew.plots.drawing import PALETTE
from fedskew.report.charts import LINE_STYLES, Option, frame
from fedskew.report.html_page import Page, grid
from fedskew.report.markup import Markup, table, tag
from fedskew.report.readable import percent, shows
from fedskew.study.comparison_rows import BOUND
from fedskew.study.judging import ALONE
from fedskew.study.run_data import RunData

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison

_LISTED = 40  # clients in the table
_WIDEST = 7  # methods in a table
_POINTS = 200  # of a curve
_SHARES = (10, 25, 50, 75, 90)  # per cent of the clients in the table of the curves
Scores = Mapping[str, float]  # by client


def add_gains(page: Page, found: "Comparison") -> None:
    """Add what clients gain on rows that they do not train on: as curves, in shares, and by name if they have one."""
    if found.rows.goal != "own" and not found.rows.are_held_out:
        return
    parts: list[Markup] = []
    for number, cell in enumerate(found.judgement.families):
        by_label = _runs_of_cell(found, cell)
        if ALONE not in by_label and found.rows.rules.control not in by_label:
            continue
        if len(by_label) < 2:
            continue
        if cell:
            parts.append(tag("h3", cell))
        parts.append(_curves(page, found, by_label, number))
        parts.append(_shares(found, by_label))
        if _are_named(by_label):
            parts += _by_name(found, by_label)
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
    """Return by how much each client is better off than in the other runs of the same seeds, one number per seed."""
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


def _curves(
    page: Page, found: "Comparison", by_label: Mapping[str, Sequence[RunData]], number: int
) -> Markup:
    """Return the gains of all clients from the least to the largest, one curve for each method."""
    unit = found.judgement.unit
    base = _baselines(found, by_label)[0]
    option = frame("share of the clients", f"gain over {base}{_in_brackets(unit)}")
    option["xAxis"] |= {"min": 0, "max": 1, "percent": True, "scale": False}
    option["series"] = []
    head = [f"{share} % of the clients" for share in _SHARES]
    rows = []
    for place, (label, runs) in enumerate(by_label.items()):
        gains = np.array(_of_all_seeds(runs, by_label[base], found.rows.sign)) * unit.factor
        if label == base or not len(gains):
            continue
        shares = np.linspace(0, 1, min(len(gains), _POINTS))
        points = np.stack([shares, np.quantile(gains, shares)], 1)
        series: Option = {
            "type": "line",
            "name": label,
            "showSymbol": len(points) == 1,
            "color": PALETTE[place % len(PALETTE)],
            "lineStyle": {"width": 2, "type": LINE_STYLES[place % len(LINE_STYLES)]},
            "data": np.round(points, 4).tolist(),
        }
        option["series"].append(series)
        quantiles = np.quantile(gains, np.array(_SHARES) / 100)
        rows.append([label, *(f"{gain:+.{found.digits}f}" for gain in quantiles)])
    if not rows:
        return Markup()
    numbers = table(
        f"Gains over {base} that so many clients do not exceed", ["method", *head], rows
    )
    title = f"Gains of the clients over {base}"
    says = "All clients of all seeds, from the least gain to the largest: below 0 a client is worse off."
    return grid(page.chart(f"gains-{number}", title, option, says, numbers))


def _in_brackets(unit: ScoreUnit) -> str:
    """Return the unit of differences as it stands after a title."""
    if unit.of_differences:
        return f" ({unit.of_differences.strip()})"
    return ""


def _of_all_seeds(runs: Sequence[RunData], others: Sequence[RunData], sign: int) -> list[float]:
    """Return the gains of all clients in all seeds."""
    values = []
    for of_client in _gains(runs, others, sign).values():
        values += of_client
    return values


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
        least = f"least gain{_in_brackets(found.judgement.unit)}"
        head += [f"better off than {baseline}", f"worse off than {baseline}", least]
    rows = []
    for label, runs in by_label.items():
        row: list[str | None] = [label]
        for baseline in baselines:
            if baseline == label:
                row += [None, None, None]
                continue
            values = _of_all_seeds(runs, by_label[baseline], found.rows.sign)
            row += _summed_up(found, values)
        rows.append(row)
    return table("Clients that gain and lose, of all seeds together", head, rows)


def _summed_up(found: "Comparison", gains: Sequence[float]) -> list[str | None]:
    """Return the share of clients that gain, of those that lose, and the least gain."""
    if not gains:
        return [None, None, None]
    better = 0
    worse = 0
    for gain in gains:
        better += gain > 0
        worse += gain < 0
    return [
        percent(better / len(gains)),
        percent(worse / len(gains)),
        _gain(found, min(gains)),
    ]


def _gain(found: "Comparison", gain: float) -> str:
    """Return a gain in the unit of the page."""
    return f"{found.judgement.unit.factor * gain:+z.{found.digits}f}"


def _by_name(found: "Comparison", by_label: Mapping[str, Sequence[RunData]]) -> list[Markup]:
    """Return the mean score of every client by name: alone, with the control, and its gains with every method."""
    baselines = _baselines(found, by_label)
    base = baselines[0]
    means = _mean_scores(by_label[base])
    gains = {}
    for label, runs in by_label.items():
        if label != base:
            gains[label] = _gains(runs, by_label[base], found.rows.sign)
    unit = found.judgement.unit
    caption = f"Each client: its score with {base}, and its mean gain with each method"
    caption += _in_brackets(unit)
    if len(means) > _LISTED:
        caption += f" (the first {_LISTED} of {len(means)})"
    labels = list(gains)
    tables = []
    for start in range(0, max(len(labels), 1), _WIDEST):
        several = labels[start : start + _WIDEST]
        rows = []
        for client, mean in list(means.items())[:_LISTED]:
            row: list[str | None] = [client, shows(found.rows.metric)(mean)]
            for label in several:
                of_client = gains[label].get(client)
                cell = None
                if of_client:
                    cell = _gain(found, fmean(of_client))
                row.append(cell)
            rows.append(row)
        tables.append(table(caption, ["client", base, *several], rows))
    first, *others = tables
    if not others:
        return [first]
    summary = tag("summary", f"{len(labels) - _WIDEST} more methods")
    return [first, tag("details", summary, *others)]


def _mean_scores(runs: Sequence[RunData]) -> dict[str, float]:
    """Return the mean score of every client over seeds."""
    collected: dict[str, list[float]] = {}
    for run in runs:
        for client, score in _scores(run).items():
            collected.setdefault(client, []).append(score)
    return {client: fmean(scores) for client, scores in collected.items()}
