"""Stratify at a tenth of its traffic: accuracy over bytes at one class per client, ten blocks, on two data sets.

The traffic of Stratify is what 30 of its epochs send, both ways; all other methods stop at a tenth of it. The learning
rate of every method is the best of five there, by balanced accuracy on validation rows of three other seeds.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

import fedskew as fs
from benchmarks.paired import interval, verdict
from fedskew.core.streams import Floats
from fedskew.plots.drawing import OKABE_ITO
from fedskew.server.scorer import RoundResult

SEEDS = range(10)
TUNED_ON = range(10, 13)
RATES = (1.0, 0.3, 0.1, 0.03, 0.01)
EPOCHS = 30  # of stratify-batch: the whole traffic
SHARES = (0.01, 0.1, 1.0)  # of the traffic
TENTH = 1  # the place of a tenth among them
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "stratify-traffic.svg"
METHODS = {
    "SCAFFOLD": "scaffold",
    "FedAvg": "fedavg",
    "SFL": "sfl",
    "Stratify": "stratify-batch",
    "Stratify, a step a round": "stratify-batch:per_label=3",
    "FedAvg, every 10th round synchronous": "fedavg + stratify-rounds:share=0.1,per_label=30",
    "SCAFFOLD, every 10th round synchronous": "scaffold + stratify-rounds:share=0.1,per_label=30",
    "SCAFFOLD after a synchronous epoch": "scaffold + stratify-rounds:share=1,until=1",
}
WHOLE = "stratify-batch"  # the one that is trained to the end
FIRST = 200  # the figure begins at the traffic over this
COLOURS = [colour for colour in OKABE_ITO if colour != "#000000"]
STYLES = ("-", "--", "-.", ":")


class Task(NamedTuple):
    """A data set, its clients and a model."""

    title: str
    data: str
    clients: int
    model: str


class Curve(NamedTuple):
    """Bytes sent so far, in megabytes, and a score, by round."""

    megabytes: Floats
    score: Floats

    def at(self, megabytes: float) -> float:
        """Return the score, in %, of the last round within so many megabytes; NaN if none ends there."""
        within = self.score[self.megabytes <= megabytes]
        if not len(within):
            return float("nan")
        return 100 * float(within[-1])


TASKS = (
    Task("digits, 10 clients, mlp of 64 units", "digits", 10, "mlp:hidden=64"),
    Task("UCI-HAR, 12 clients, logistic regression", "uci-har:part=train", 12, "logreg"),
)


def main() -> None:
    """Print the tables of docs/stratify.md, and draw its figure."""
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(1, len(TASKS))
    for axes, task in zip(panels, TASKS, strict=True):
        _measure(task, axes)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    with rc_context({"svg.hashsalt": "fedskew", "svg.fonttype": "path"}):
        figure.savefig(PICTURE, metadata={"Date": None})


def _measure(task: Task, axes: Axes) -> None:
    """Print the table of one data set, and draw its curves."""
    whole = _traffic(task)
    print(f"{task.title}: {EPOCHS} epochs of Stratify send {whole:.0f} MB\n")
    heads = [f"{share:.0%} of the traffic ({whole * share:.3g} MB)" for share in SHARES]
    print(f"| method | lr | {' | '.join(heads)} | at 10 %, less SCAFFOLD |")
    print("|" + "---|" * (len(SHARES) + 3))
    scores: dict[str, Floats] = {}
    for number, (title, method) in enumerate(METHODS.items()):
        rate = _chosen_rate(task, method, whole * SHARES[TENTH])
        most = whole * SHARES[TENTH]
        if method == WHOLE:
            most = whole
        curves = [_curve(task, method, rate, seed, most, "test") for seed in SEEDS]
        found = []
        for curve in curves:
            found.append([curve.at(whole * share) for share in SHARES])
        scores[title] = np.array(found)
        cells = [_spread(values) for values in scores[title].T]
        if method != WHOLE:
            cells[-1] = ""
        cells.append(_against(scores[title][:, TENTH], scores["SCAFFOLD"][:, TENTH]))
        print(f"| {title} | {rate:g} | {' | '.join(cells)} |", flush=True)
        _draw(axes, curves, title, number, whole)
    print(flush=True)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlim(whole / FIRST, whole)
    axes.set_ylim(40, 100)
    axes.set_title(task.title, fontsize=10)
    axes.set_xlabel("MB sent, both ways")
    axes.set_ylabel("balanced test accuracy, %")


def _traffic(task: Task) -> float:
    """Return the megabytes that the epochs of Stratify send, on average over the seeds."""
    found = []
    for seed in SEEDS:
        run = fs.train(
            _federation(task, seed), task.model, "stratify-batch", rounds=1, **_how(seed)
        )
        found.append(_megabytes(run)[-1])
    return EPOCHS * float(np.mean(found))


def _chosen_rate(task: Task, method: str, megabytes: float) -> float:
    """Return the learning rate with the best mean score on validation rows within so many megabytes."""
    best, chosen = -1.0, RATES[0]
    for rate in RATES:
        found = []
        for seed in TUNED_ON:
            curve = _curve(task, method, rate, seed, megabytes, "validation")
            found.append(curve.at(megabytes))
        mean = float(np.mean(found))  # NaN, and so not chosen, where no round ends in time
        if mean > best:
            best, chosen = mean, rate
    return chosen


def _curve(task: Task, method: str, rate: float, seed: int, megabytes: float, rows: str) -> Curve:
    """Train until so many megabytes are sent; return the scores on test or validation rows."""
    sent = 0.0

    def enough(result: RoundResult, rounds: int) -> bool:
        nonlocal sent
        sent += (result.round["bytes_up"] + result.round["bytes_down"]) / 1e6
        return sent >= megabytes

    fed = _federation(task, seed)
    run = fs.train(fed, task.model, method, lr=rate, rounds=100_000, callbacks=enough, **_how(seed))
    return Curve(_megabytes(run), run.rounds[f"{rows}_balanced_accuracy"].to_numpy())


def _federation(task: Task, seed: int) -> fs.Federation:
    """Return clients of one class each."""
    return fs.split(_data(task.data), "classes:k=1", clients=task.clients, seed=seed)


@cache
def _data(name: str) -> fs.Dataset:
    return fs.load(name, validation=0.2)


def _how(seed: int) -> dict[str, object]:
    return {"seed": seed, "threads": 1, "device": "cpu", "folder": False, "eval_rows": None}


def _megabytes(run: fs.Run) -> Floats:
    """Return the megabytes sent until the end of each round, both ways."""
    return (run.rounds["bytes_up"] + run.rounds["bytes_down"]).cumsum().to_numpy() / 1e6


def _spread(values: Floats) -> str:
    """Return the mean with its interval, or that no round ends in time."""
    if np.isnan(values).any():
        return "no round"
    return interval(values)


def _against(values: Floats, others: Floats) -> str:
    """Return the paired difference with its interval and verdict."""
    difference = values - others
    if np.isnan(difference).any() or not difference.any():
        return ""
    return f"{interval(difference)}: {verdict(difference)}"


def _draw(axes: Axes, curves: list[Curve], title: str, number: int, whole: float) -> None:
    """Draw the mean over the blocks, from the first megabytes at which every block has a score to the last."""
    last = min(curve.megabytes[-1] for curve in curves)
    places = np.geomspace(whole / FIRST, min(last, whole), 120)
    scores = []
    for place in places:
        scores.append(np.mean([curve.at(place) for curve in curves]))
    colour, style, width = "black", "-", 2.2
    if METHODS[title] != WHOLE:
        colour, style, width = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)], 1.4
    axes.plot(places, scores, label=title, color=colour, linestyle=style, linewidth=width)
