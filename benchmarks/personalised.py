"""Seconds per round of methods with a model per client or several models, relative to FedAvg, interleaved.

It runs on the GPU where there is one.
"""

from statistics import median
from typing import Any

from benchmarks.workloads import CIFAR, HAR, Workload, interleaved
from fedskew.algorithms.contract import resolve
from fedskew.engine.stacked import Stacked

METHODS = (
    "fedexp",
    "fedrs",
    "fedavg + power-of-choice",
    "fedper",
    "fedrep",
    "fedbabu",
    "fedrod",
    "fedala",
    "ditto",
    "apfl",
    "per-fedavg",
    "per-fedavg:version=hf",
    "pfedme",
    "fedproto",
    "fedpac",
    "fedamp",
    "fedfomo:offers=2",
    "ifca:models=3",
    "cfl",
    "d-psgd",
    "gossip",
)
# Per-FedAvg and pFedMe take plain steps
SETTINGS: dict[str, Any] = {"momentum": 0.0, "device": "auto"}


def main(rounds: int = 9) -> None:
    for workload in (HAR, CIFAR):
        times = _rounds(workload, rounds)
        base = times["fedavg"]
        print(f"{workload.title}: FedAvg {median(base) * 1e3:.1f} ms a round")
        for name in METHODS:
            ratios = [mine / plain for mine, plain in zip(times[name], base, strict=True)]
            print(
                f"    {name:28} {median(times[name]) * 1e3:9.1f} ms {median(ratios):6.2f}x",
                flush=True,
            )


def _rounds(workload: Workload, rounds: int) -> dict[str, list[float]]:
    fed = workload.federation()
    trainings = {}
    for name in ("fedavg", *METHODS):
        trainings[name] = workload.training(fed, Stacked(), resolve(name), **SETTINGS)
    return interleaved(trainings, rounds)
