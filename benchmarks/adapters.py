"""Accuracy over bytes of ways to adapt a pretrained model: all weights, the head alone, low-rank adapters.

A model is trained on the digits 0 to 4 in one place; ten clients, who hold 5 to 9 (Dirichlet 0.3), adapt it with a new
head. The learning rate of every method and model is the one with the best mean validation accuracy over other seeds;
one with which a seed diverges gives way to the next best.
"""

import copy
from collections.abc import Callable
from statistics import mean, stdev

import numpy as np
import torch
from torch import Tensor, nn

import fedskew as fs
from fedskew.core.errors import DivergedError
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.models.build import build

ROUNDS, EARLY = 30, 10
TUNED = 3  # seeds of which the learning rate is chosen
RATES = (0.3, 0.1, 0.03, 0.01)
RANKS = "16+8+4+4+2+2+1+1+1+1"  # a quarter of those in the paper of FLoRA
METHODS = {
    "all weights, not pretrained": "fedavg",
    "all weights": "fedavg",
    "head alone": "fedavg",
    "lora": "fedavg + lora:rank=4",
    "ffa-lora": "fedavg + ffa-lora:rank=4",
    "flora": "fedavg + flora:rank=4",
    "flora, rank 1": "fedavg + flora:rank=1,alpha=4",
    "flora, ranks 16 to 1": f"fedavg + flora:rank=16,alpha=64,ranks={RANKS}",
    "flora, rank 16": "fedavg + flora:rank=16,alpha=64",
    "fedex-lora": "fedavg + fedex-lora:rank=4",
    "fed-sb": "fedavg + fed-sb:rank=4,alpha=4",
    "fed-sb, rank 16": "fedavg + fed-sb:rank=16,alpha=16",
}


class Transformer(nn.Module):
    """The eight lines of an image as tokens, through two layers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.places = nn.Parameter(torch.zeros(8, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        tokens = self.embed(x.view(-1, 8, 8)) + self.places
        logits: Tensor = self.head(self.layers(tokens).mean(1))
        return logits


def transformer(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the small transformer for the rows of digits."""
    return Transformer()


MODELS: dict[str, str | Callable[[tuple[int, ...], int], nn.Module]] = {
    "mlp 256+256": "mlp:hidden=256+256",
    "transformer 2 x 32": transformer,
}


def main(seeds: int = 5) -> None:
    for title, spec in MODELS.items():
        print(f"{title}: mean (standard deviation) of {seeds} seeds, test accuracy in %")
        for name in METHODS:
            _print(name, *_tuned(spec, name, seeds))


def _tuned(spec: object, name: str, seeds: int) -> tuple[float, list[fs.Run]]:
    """Return the best learning rate with which no seed diverges, and its runs."""
    scores: dict[float, float] = {}
    for rate in RATES:
        tuned_on = range(seeds, seeds + TUNED)
        scores[rate] = mean(_score(spec, name, seed, rate) for seed in tuned_on)
    for rate in sorted(RATES, key=lambda rate: -scores[rate]):
        try:
            return rate, [_adapted(spec, name, seed, rate) for seed in range(seeds)]
        except DivergedError:
            print(f"{name}: a seed diverges at lr {rate:g}", flush=True)
    raise DivergedError(f"{name}: a seed diverges at every rate")


def _print(name: str, rate: float, runs: list[fs.Run]) -> None:
    summary = runs[0].summary
    rounds = runs[0].rounds
    megabytes = (rounds["bytes_up"] + rounds["bytes_down"]).cumsum().to_numpy() / 1e6
    cells = [f"{name:28}", f"lr {rate:<5g}", f"{summary['parameters']:7,} trained"]
    cells.append(f"{rounds['bytes_up'].iloc[-1] / 10 / 1e3:8.2f} kB up")
    for round in (EARLY, ROUNDS):
        scores = [100 * run.rounds["test_accuracy"].iloc[round - 1] for run in runs]
        cells.append(f"{mean(scores):5.1f} ({stdev(scores):.1f}) at {megabytes[round - 1]:6.2f} MB")
    print("  ".join(cells), flush=True)


def _score(spec: object, name: str, seed: int, rate: float) -> float:
    """Return the validation accuracy of a learning rate; 0 where training diverges."""
    try:
        return float(_adapted(spec, name, seed, rate).summary["validation_accuracy_last"])
    except fs.FedskewError:
        return 0.0


def _adapted(spec: object, name: str, seed: int, rate: float) -> fs.Run:
    """Return the run of a method that adapts the model of a seed."""
    model = build(spec, (8, 8), 5, seed)  # type: ignore[arg-type]
    if name != "all weights, not pretrained":
        model = _pretrained(model, seed)
    if name == "head alone":
        model.requires_grad_(False)
        model.head.requires_grad_(True)
    fed = _federation(range(5, 10), 10, seed)
    how = {"rounds": ROUNDS, "lr": rate, "seed": seed, "folder": False, "device": "cpu"}
    return fs.train(fed, model, METHODS[name], **how)


_known: dict[tuple[str, int], nn.Module] = {}


def _pretrained(model: nn.Module, seed: int) -> nn.Module:
    """Return the model after training on the first five digits, with a head that is as new as it was."""
    known = (type(model).__name__, seed)
    if known not in _known:
        first = _federation(range(5), 1, seed)
        how = {"rounds": 30, "lr": 0.1, "seed": seed, "folder": False, "device": "cpu"}
        trained = fs.train(first, copy.deepcopy(model), "fedavg", **how).model
        trained.head = copy.deepcopy(model.head)
        _known[known] = trained
    return copy.deepcopy(_known[known])


def _federation(digits: range, clients: int, seed: int) -> Federation:
    """Return clients that hold these digits, with validation and test rows."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    chosen = np.isin(y, list(digits))
    x = (x[chosen] / 16).astype(np.float32).reshape(-1, 8, 8)
    y = y[chosen] - digits.start
    shuffled = np.random.default_rng(seed).permutation(len(y))
    parts = []
    for rows in np.split(shuffled, [len(y) // 5, 2 * len(y) // 5]):
        parts.append(Rows(x[rows], y[rows]))
    test, validation, train = parts
    skew = "dirichlet:alpha=0.3"
    if clients == 1:
        skew = "iid"
    names = tuple(map(str, digits))
    data = Dataset("digits", train, test, names, validation=validation)
    return fs.split(data, skew, clients, seed=seed)
