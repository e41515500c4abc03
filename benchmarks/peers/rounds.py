"""What the scripts of all peers share: workloads, data, the model, local training, and the clock.

It imports only NumPy by itself, because a peer's environment need not have PyTorch.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".peers"
CACHE = ENVIRONMENTS / "data"


@dataclass(frozen=True)
class PeerWorkload:
    """FedAvg on random rows, as many for every client; 3x3 convolutions with pooling, then dense layers."""

    name: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    rows: int
    per_round: int
    epochs: int
    batch: int
    lr: float
    momentum: float = 0.0
    convolutions: tuple[int, ...] = ()
    dense: tuple[int, ...] = ()

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Return inputs and outputs of every dense layer, the head included."""
        flat = int(np.prod(self.shape))
        if self.convolutions:
            flat = (
                self.convolutions[-1] * int(np.prod(self.shape[1:])) // 4 ** len(self.convolutions)
            )
        sizes = [flat, *self.dense, self.classes]
        return list(pairwise(sizes))


IMAGE = (3, 32, 32)
WORKLOADS = {
    workload.name: workload
    for workload in (
        PeerWorkload("many-tiny", (60,), 10, 1000, 64, 200, 1, 16, 0.1),
        PeerWorkload("mnist-logreg", (784,), 10, 250, 192, 20, 3, 20, 0.03, 0.9),
        PeerWorkload("har-mlp", (561,), 6, 10, 735, 10, 20, 64, 1e-3, 0.9, dense=(128, 64)),
        PeerWorkload("cifar-cnn", IMAGE, 10, 30, 500, 10, 1, 32, 0.01, convolutions=(32, 64)),
        PeerWorkload("cifar-cnn-100", IMAGE, 10, 100, 500, 100, 1, 32, 0.01, convolutions=(32, 64)),
        PeerWorkload(
            "pfl-cifar", IMAGE, 10, 1000, 50, 50, 1, 10, 0.1, convolutions=(32, 64), dense=(128,)
        ),
    )
}


def arrays(work: PeerWorkload) -> tuple[Any, Any]:
    """Return rows ``[client, row, ...]`` and labels ``[client, row]``, random and always the same."""
    CACHE.mkdir(parents=True, exist_ok=True)
    files = [CACHE / f"{work.name}-{name}.npy" for name in ("x", "y")]
    if not all(file.exists() for file in files):
        draw = np.random.default_rng(0)
        x = draw.standard_normal((work.clients, work.rows, *work.shape), dtype=np.float32)
        y = draw.integers(0, work.classes, (work.clients, work.rows), dtype=np.int64)
        for file, array in zip(files, (x, y), strict=True):
            part = file.with_suffix(f".{os.getpid()}.npy")
            np.save(part, array)
            part.replace(file)
    return np.load(files[0]), np.load(files[1])


def tensors(work: PeerWorkload, device: str = "cpu") -> tuple[Any, Any]:
    """Return the same as PyTorch tensors."""
    import torch

    x, y = arrays(work)
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


def model(work: PeerWorkload) -> Any:
    """Return the PyTorch model, always with the same initial weights."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in zip((work.shape[0], *work.convolutions), work.convolutions, strict=False):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten()] if work.convolutions else []
    for before, after in work.widths:
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def local_sgd(net: Any, x: Any, y: Any, work: PeerWorkload) -> None:
    """Train one client, in all peers whose training loop is the user's own."""
    import torch

    optimizer = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum)
    for _ in range(work.epochs):
        order = torch.randperm(len(y), device=y.device)
        for first in range(0, len(y), work.batch):
            rows = order[first : first + work.batch]
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()


def loss_of(net: Any, work: PeerWorkload) -> float:
    """Return the mean loss on the first clients' rows, which shows that all peers learned as much."""
    import torch

    x, y = (part[:10].flatten(0, 1) for part in tensors(work))
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(net.cpu().eval()(x), y))


class Clock:
    """Takes the time before the first round and after every round, and reports it as a line of JSON."""

    def __init__(self, synchronise: Callable[[], object] = lambda: None) -> None:
        self.marks: list[float] = []
        self._synchronise = synchronise

    def mark(self) -> None:
        """Note the time."""
        self._synchronise()
        self.marks.append(time.perf_counter())

    def report(self, loss: float, *packages: str) -> None:
        """Print the seconds of every round but the first, which warms up, with the versions of these packages."""
        from importlib.metadata import version

        versions = ", ".join(f"{name} {version(name)}" for name in packages)
        seconds = np.diff(self.marks)[1:].tolist()
        print(json.dumps({"seconds": seconds, "version": versions, "loss": loss}), flush=True)


def arguments() -> argparse.Namespace:
    """Return the command line of every peer's script, with the workload as ``work``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument(
        "--rounds", type=int, default=6, help="timed rounds, after one that warms up"
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--engine", default="stacked")
    parser.add_argument("--device", default="cpu")
    found = parser.parse_args()
    found.work = WORKLOADS[found.workload]
    return found
