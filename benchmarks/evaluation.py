"""A default run, which is evaluated after every round, against training alone: seconds a round, interleaved."""

from dataclasses import replace
from statistics import median

import numpy as np
import torch

from benchmarks.workloads import NEVER, Workload, interleaved
from fedskew.algorithms.contract import resolve
from fedskew.data.dataset import Rows
from fedskew.data.federation import Federation

WANTED = 1.4
TEST_ROWS = 10_000
MNIST = Workload(
    "MNIST-sized CNN, 100 clients of 600, 10 a round",
    "cnn",
    (1, 28, 28),
    10,
    100,
    600,
    {"per_round": 10},
    1.0,
)
LOGREG = replace(
    MNIST, title="MNIST-sized logistic regression, 100 clients of 600, 10 a round", model="logreg"
)
TINY = Workload(
    "1000 clients of 60x10 logistic regression, 200 a round",
    "logreg",
    (60,),
    10,
    1000,
    64,
    {"per_round": 200},
    1.0,
)
CASES = ((MNIST, "fedavg"), (LOGREG, "fedavg"), (TINY, "fedavg"), (TINY, "fedper"))


def main(rounds: int = 5) -> None:
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        print(f"{device:68} {'training':>12} {'evaluated':>12} {'ratio':>7} {'wanted':>7}")
        for workload, method in CASES:
            fed, runs = _federation(workload), {"training": NEVER, "evaluated": 1}
            trainings = {
                name: workload.training(fed, None, resolve(method), device=device, eval_every=every)
                for name, every in runs.items()
            }
            seconds = {
                name: median(times) for name, times in interleaved(trainings, rounds).items()
            }
            ratio = seconds["evaluated"] / seconds["training"]
            times = " ".join(f"{seconds[name] * 1e3:9.1f} ms" for name in runs)
            title = f"{workload.title}, {method}"
            print(
                f"{title:68} {times} {ratio:6.2f}x {WANTED:6.1f}x{'' if ratio <= WANTED else '  SHORT'}",
                flush=True,
            )


def _federation(workload: Workload) -> Federation:
    """Return the workload's federation with as many test rows as MNIST."""
    fed, rng = workload.federation(), np.random.default_rng(1)
    x = rng.standard_normal((TEST_ROWS, *workload.shape), dtype=np.float32)
    return replace(
        fed, data=replace(fed.data, test=Rows(x, rng.permutation(TEST_ROWS) % workload.classes))
    )
