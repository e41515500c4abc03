"""A character transformer of ten roles of Shakespeare, adapted to ten others: accuracy over bytes, five blocks.

A block draws which of the 20 roles with the most text are trained on in one place, and which are clients afterwards.
The learning rate of every method is the best of three by the accuracy on validation rows of another block.
"""

import copy
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from torch import nn

import fedskew as fs
from benchmarks.paired import interval
from fedskew.data.dataset import Dataset
from fedskew.models.build import build
from fedskew.plots.drawing import OKABE_ITO

DATA = "shakespeare:roles=20,window=40,stride=400,targets=sequence"
MODEL = "char-transformer:width=32,layers=2,per_token=true"
BLOCKS = range(5)
TUNED_ON = range(5, 6)
RATES = (0.03, 0.01, 0.003)
ROUNDS = 12
FIRST_ROUNDS = 30  # of training in one place
RANK = "rank=4,head=true"
METHODS = {
    "all weights, not pretrained": "fedavg",
    "all weights": "fedavg",
    "head alone": "fedavg",
    "lora": f"fedavg + lora:{RANK}",
    "ffa-lora": f"fedavg + ffa-lora:{RANK}",
    "flora": f"fedavg + flora:{RANK}",
    "fedex-lora": f"fedavg + fedex-lora:{RANK}",
    "fed-sb": f"fedavg + fed-sb:{RANK},alpha=4",
    "fed-sb, rank 16": "fedavg + fed-sb:rank=16,alpha=16",
}
HEADS = (
    "what is adapted",
    "lr",
    "trained",
    "kB a client sends a round",
    "after 5 rounds",
    f"after {ROUNDS} rounds",
    "MB",
)
SETTINGS = {
    "task": "next-token",
    "optimizer": "adam",
    "batch_size": 32,
    "threads": 1,
    "device": "cpu",
    "folder": False,
}
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "adapted-text.svg"
STYLES = ("-", "--", "-.", ":", (0, (5, 1)))


def main() -> None:
    """Print the table of docs/pretrained.md, and draw its figure."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    print(f"| {' | '.join(HEADS)} |")
    print("|" + "---|" * len(HEADS))
    for number, (title, method) in enumerate(METHODS.items()):
        rate = _chosen(title, method)
        runs = [_adapted(title, method, block, rate) for block in BLOCKS]
        curves = np.array([100 * run.rounds["test_accuracy"].to_numpy() for run in runs])
        summary = runs[0].summary
        sent = (runs[0].rounds["bytes_up"] + runs[0].rounds["bytes_down"]).cumsum().to_numpy() / 1e6
        last = runs[0].rounds.iloc[-1]  # fed-sb sends more in its first
        up = last["bytes_up"] / last["clients"] / 1e3
        cells = [title, f"{rate:g}", f"{summary['parameters']:,}", f"{up:.1f}"]
        cells += [interval(curves[:, 4]), interval(curves[:, -1])]
        print(f"| {' | '.join(cells)} | {sent[-1]:.2f} |", flush=True)
        colour, style = OKABE_ITO[number % len(OKABE_ITO)], STYLES[number % len(STYLES)]
        axes.plot(sent, curves.mean(0), label=title, color=colour, linestyle=style)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("MB sent, both ways, all clients")
    axes.set_ylabel("test accuracy per character, %")
    axes.legend(fontsize=8)
    with rc_context({"svg.hashsalt": "fedskew", "svg.fonttype": "path"}):
        figure.savefig(PICTURE, metadata={"Date": None})


def _chosen(title: str, method: str) -> float:
    """Return the learning rate with the best mean accuracy on the clients' validation rows."""
    scores = {}
    for rate in RATES:
        found = []
        for block in TUNED_ON:
            run = _adapted(title, method, block, rate)
            found.append(run.summary["client_validation_accuracy_last"])
        scores[rate] = float(np.mean(found))
    return max(scores, key=lambda rate: scores[rate])


def _adapted(title: str, method: str, block: int, rate: float) -> fs.Run:
    """Return the run that adapts a model to the second half of the roles."""
    model = _start(title, block)
    if title == "head alone":
        model.requires_grad_(False)
        model.head.requires_grad_(True)
    fed = fs.split(_roles(block, 1), "natural", client_validation=0.2, seed=block)
    return fs.train(fed, model, method, rounds=ROUNDS, lr=rate, seed=block, **SETTINGS)


def _start(title: str, block: int) -> nn.Module:
    """Return the model that is adapted: new, or trained on the first half of the roles."""
    if title == "all weights, not pretrained":
        data = _data()
        return build(MODEL, data.shape, len(data.classes), block)
    return copy.deepcopy(_pretrained(block))


@cache
def _pretrained(block: int) -> nn.Module:
    fed = fs.split(_roles(block, 0), "natural", seed=block)
    how = {**SETTINGS, "eval_every": FIRST_ROUNDS}
    return fs.train(fed, MODEL, "central", rounds=FIRST_ROUNDS, lr=0.003, seed=block, **how).model


@cache
def _data() -> Dataset:
    return fs.load(DATA)


def _roles(block: int, half: int) -> Dataset:
    """Return the rows of one half of the roles, drawn by the block's number."""
    data = _data()
    drawn = np.random.default_rng(block).permutation(len(data.groups))
    chosen = np.sort(np.array_split(drawn, 2)[half])
    parts = {}
    for name in ("train", "test"):
        rows = getattr(data, name)
        taken = rows.take(np.flatnonzero(np.isin(rows.group, chosen)))
        parts[name] = taken
    return Dataset(f"roles-{half}", classes=data.classes, groups=data.groups, **parts)
