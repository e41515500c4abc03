"""How the cost of a round grows: with clients, with the size of the model and with unequal clients; three plots."""

import sys
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.workloads import NEVER, interleaved
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.config import Settings
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.server.server import Server

ROUNDS = 5
FEATURES, CLASSES, BATCH = 60, 10, 16


def training(sizes: list[int], model: str, engine: Engine, device: str) -> Server:
    """Return a server whose rounds have all clients of these sizes."""
    rng, count = np.random.default_rng(0), sum(sizes)
    rows = Rows(
        rng.standard_normal((count, FEATURES), dtype=np.float32), rng.integers(0, CLASSES, count)
    )
    data = Dataset("growth", rows, rows.take(np.arange(1)), tuple(map(str, range(CLASSES))))
    fed = Federation(data, Partition(np.arange(count), np.concatenate([[0], np.cumsum(sizes)])))
    settings = Settings(rounds=NEVER, eval_every=NEVER, device=device, batch_size=BATCH, lr=0.1)
    return Server(fed, build(model, (FEATURES,), CLASSES, seed=0), FedAvg(), settings, engine)


def unequal(clients: int, rows: int, spread: float) -> list[int]:
    """Return log-normal sizes with the same total; ``spread`` is the standard deviation of their logarithm."""
    drawn = np.exp(spread * np.random.default_rng(1).standard_normal(clients))
    sizes = np.maximum(1, np.round(drawn / drawn.sum() * clients * rows)).astype(int)
    return [int(size) for size in sizes]


CASES = {
    "clients in a round": {
        count: ([64] * count, "logreg") for count in (1, 3, 10, 30, 100, 300, 1000)
    },
    "hidden units of an MLP, 20 clients": {
        width: ([64] * 20, f"mlp:hidden={width}") for width in (8, 32, 128, 512, 2048)
    },
    "spread of client sizes (std of log), 100 clients": {
        spread: (unequal(100, 64, spread), "logreg") for spread in (0.0, 0.5, 1.0, 1.5, 2.0)
    },
}


def main(device: str = "cpu", save: Path | None = None) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, (title, cases) in zip(axes, CASES.items(), strict=True):
        print(f"\n{title:>50} {'loop':>12} {'stacked':>12}")
        lines: dict[str, list[float]] = {"loop": [], "stacked": []}
        for x, (sizes, model) in cases.items():
            engines: dict[str, Engine] = {"loop": Loop(), "stacked": Stacked()}
            servers = {
                name: training(sizes, model, engine, device) for name, engine in engines.items()
            }
            found = {
                name: 1e3 * median(times) for name, times in interleaved(servers, ROUNDS).items()
            }
            for name, line in lines.items():
                line.append(found[name])
            print(f"{x:>50} {found['loop']:9.2f} ms {found['stacked']:9.2f} ms", flush=True)
        for name, line in lines.items():
            axis.plot(
                list(cases), line, marker="o", label="one by one" if name == "loop" else "stacked"
            )
        axis.set(xlabel=title, ylabel="milliseconds a round", yscale="log")
        if 0.0 not in cases:
            axis.set_xscale("log")
        axis.grid(alpha=0.3)
    axes[0].legend()
    if save:
        figure.savefig(save)
        print(f"\nsaved {save}")


if __name__ == "__main__":
    main(*sys.argv[1:2], *(Path(path) for path in sys.argv[2:3]))
