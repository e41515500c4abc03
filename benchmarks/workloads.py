"""The workloads: shapes and settings of the papers' experiments, on random numbers, so that no download is needed."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedskew.algorithms.contract import Algorithm
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.config import Settings
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.engine.job import Engine
from fedskew.models.build import build
from fedskew.server.server import Server
from fedskew.skew.partitioning import partition_rows

NEVER = 10**9  # rounds to plan for, and rounds between evaluations: only training is timed


@dataclass(frozen=True)
class Workload:
    """Random rows with balanced random labels, split by ``skew`` as in the paper that the workload is from."""

    title: str
    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    rows: int
    settings: dict[str, Any]
    wanted: float  # the least ratio of sequential to stacked time that we promise
    skew: str = "iid"
    tokens: bool = False  # rows of as many tokens as there are classes, and not of numbers

    def federation(self) -> Federation:
        """Return a federation of the same random rows every time."""
        rng, count = np.random.default_rng(0), self.clients * self.rows
        x = rng.standard_normal((count, *self.shape), dtype=np.float32)
        if self.tokens:
            x = rng.integers(0, self.classes, x.shape).astype(np.float32)
        rows = Rows(x, rng.permutation(count) % self.classes)
        names = tuple(map(str, range(self.classes)))
        data = Dataset(self.title, rows, rows.take(np.arange(1)), names)
        return Federation(data, partition_rows(self.skew, rows, self.clients, seed=0).partition)

    def training(
        self,
        fed: Federation,
        engine: Engine | None,
        algorithm: Algorithm | None = None,
        **settings: Any,
    ) -> Server:
        """Return a server before its first round."""
        fixed = {"rounds": NEVER, "eval_every": NEVER, "device": "cpu"}
        chosen = Settings(**{**fixed, **self.settings, **settings})
        model: nn.Module = build(self.model, self.shape, self.classes, seed=0)
        return Server(fed, model, algorithm or FedAvg(), chosen, engine)


TINY = Workload(
    "1000 clients of 60x10 logistic regression, 200 a round",
    "logreg", (60,), 10, 1000, 64, {"per_round": 200, "batch_size": 16, "lr": 0.1}, 15.0,
)  # fmt: skip
MNIST = Workload(
    "MNIST logistic regression, 250 clients, 20 a round, 3 epochs",
    "logreg", (1, 28, 28), 10, 250, 192,
    {"per_round": 20, "epochs": 3, "batch_size": 20, "lr": 0.03, "momentum": 0.9}, 3.0, "two-class-dirichlet",
)  # fmt: skip
HAR = Workload(
    "UCI-HAR MLP 561-128-64-6, 10 clients, 5 epochs",
    "mlp", (561,), 6, 10, 735, {"epochs": 5, "batch_size": 64, "lr": 1e-3, "momentum": 0.9}, 1.2, "dirichlet:alpha=0.2",
)  # fmt: skip
CIFAR = Workload(
    "CIFAR-10 CNN, 30 clients, 10 a round",
    "cnn", (3, 32, 32), 10, 30, 250, {"per_round": 10, "batch_size": 32, "lr": 0.01}, 1.0, "dirichlet:alpha=0.5",
)  # fmt: skip
TEXT = Workload(
    "tokens, 10 clients",
    "char-lstm", (40,), 50, 10, 50, {"batch_size": 10, "lr": 0.1}, 1.0, tokens=True,
)  # fmt: skip
ALL = (TINY, MNIST, HAR, CIFAR)


def interleaved(trainings: dict[str, Server], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round, with one round of every training in turn."""
    times: dict[str, list[float]] = {name: [] for name in trainings}
    for number in range(rounds + 1):
        for name, training in trainings.items():
            began = time.perf_counter()
            training.advance()
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - began)
    return times


def peak_megabytes() -> float:
    """Return the peak resident memory of this process (Linux); unlike getrusage, not inherited from its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3
