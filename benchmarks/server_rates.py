"""MFedBN beyond tables: a server learning rate for FedBN on images and text, beside FedAdam and FedAvgM.

Clients hold rows of one domain each (digit domains, PACS, VADER's kinds of sentences), or images with noise of their
own (4,000 of CIFAR-10). Every method keeps BatchNorm at the clients but FedAvg, has six tries, and is tuned by the
accuracy of the models that clients use on validation rows of two other seeds.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from torch import nn

import fedskew as fs
from benchmarks.paired import interval, verdict
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.source import root
from fedskew.models.build import ModelSpec

SEEDS = range(6)
TUNED_ON = range(6, 8)
ROUNDS = 12
RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
FEWER_RATES = (0.3, 0.1)
CIFAR_ROWS = 4000


class Case(NamedTuple):
    """Clients and a model with BatchNorm."""

    title: str
    data: str
    skew: str
    clients: int
    model: ModelSpec


class Method(NamedTuple):
    """A method, and the numbers of the server that are tried."""

    title: str
    algorithm: str
    norm: str
    server: tuple[float, ...] = ()

    def tries(self) -> Iterator[tuple[str, float]]:
        """Yield six pairs of algorithm and learning rate."""
        if not self.server:
            for rate in RATES:
                yield self.algorithm, rate
        for number in self.server:
            for rate in FEWER_RATES:
                yield f"{self.algorithm}={number:g}", rate


def small_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return two convolutions of stride 2 with BatchNorm, and a head."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), classes),
    )


CASES = (
    Case(
        "digit domains",
        "images:path={root}/digits-domains,layout=group/class,size=16",
        "domains:k=1",
        9,
        small_cnn,
    ),
    Case("PACS", "pacs:size=16", "domains:k=1", 8, small_cnn),
    Case("CIFAR-10, noise", "cifar10", "iid + noise:sigma=1", 10, small_cnn),
    Case("VADER", "vader:words=512", "domains:k=1", 8, "tabular:hidden=32"),
)
METHODS = (
    Method("FedBN", "fedbn", "aggregate"),
    Method("MFedBN", "mfedbn:eta", "aggregate", (0.3, 0.1, 0.01)),
    Method("FedAdam, BatchNorm local", "fedadam:server_lr", "local", (0.1, 0.03, 0.01)),
    Method("FedAvgM, BatchNorm local", "fedavgm:server_lr", "local", (1.0, 0.3, 0.1)),
    Method("FedAvg, BatchNorm averaged", "fedavg", "aggregate"),
)


def main() -> None:
    """Print the table of docs/choosing.md."""
    print("| clients | method | chosen | own accuracy, % | less FedBN |")
    print("|---|---|---|---|---|")
    for case in CASES:
        reference = np.zeros(len(SEEDS))
        for method in METHODS:
            algorithm, rate = _chosen(case, method)
            found = np.array([_score(case, method, algorithm, rate, seed, "") for seed in SEEDS])
            said = ""
            if method is METHODS[0]:
                reference = found
            else:
                said = f"{interval(found - reference)}: {verdict(found - reference)}"
            numbers = f"lr {rate:g}"
            if method.server:
                numbers += f", server {algorithm.rpartition('=')[2]}"
            print(
                f"| {case.title} | {method.title} | {numbers} | {interval(found)} | {said} |",
                flush=True,
            )


def _chosen(case: Case, method: Method) -> tuple[str, float]:
    """Return the algorithm and learning rate with the best mean accuracy on validation rows."""
    best, chosen = -1.0, ("", 0.0)
    for algorithm, rate in method.tries():
        found = []
        for seed in TUNED_ON:
            found.append(_score(case, method, algorithm, rate, seed, "validation_"))
        if np.mean(found) > best:
            best, chosen = float(np.mean(found)), (algorithm, rate)
    return chosen


def _score(case: Case, method: Method, algorithm: str, rate: float, seed: int, rows: str) -> float:
    """Return the mean accuracy, in %, of the models that clients use on test or validation rows; 0 if it diverges."""
    fed = fs.split(
        _data(case.data), case.skew, case.clients, client_test=0.2, client_validation=0.2, seed=seed
    )
    try:
        run = fs.train(
            fed,
            case.model,
            algorithm,
            lr=rate,
            rounds=ROUNDS,
            norm=method.norm,
            seed=seed,
            eval_every=ROUNDS,
            engine="loop",
            threads=1,
            device="cpu",
            folder=False,
        )
    except fs.FedskewError:
        return 0.0
    return 100 * float(run.summary[f"client_{rows}accuracy_mean"])


@cache
def _data(spec: str) -> Dataset:
    """Return the data set; of CIFAR-10 the first rows."""
    data = fs.load(spec.format(root=root()))
    if spec == "cifar10":
        first = data.train
        few = Rows(first.x[:CIFAR_ROWS], first.y[:CIFAR_ROWS])
        return Dataset("cifar10", few, data.test, data.classes)
    return data
