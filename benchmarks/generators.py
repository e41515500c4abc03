"""Every generator on 1,623,118 rows of 14 features, as in MFedBN: time and peak memory of splitting and measuring."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np

from benchmarks.workloads import peak_megabytes
from fedskew.data.dataset import Rows
from fedskew.heterogeneity.heterogeneity import measure
from fedskew.skew.partitioning import partition_rows
from fedskew.skew.skews import skews

ROWS, FEATURES, CLASSES, GROUPS, CLIENTS = 1_623_118, 14, 10, 40, 10
WANTED_SECONDS, WANTED_GIGABYTES = 60, 4

# Skews with an option that has no default
NEEDED = {"classes": "classes:k=2", "domains": "domains:k=4"}
EXTRA = (
    "dirichlet:by=group",
    "wgc:overlap=true",
    "quantity:law=lognormal",
    "iid + noise:sigma=0.1",
    "iid + relabel:fraction=0.5",
)


class Cost(NamedTuple):
    cut_seconds: float
    cut_gigabytes: float
    measure_seconds: float
    measure_gigabytes: float


def main() -> None:
    print(
        f"{'skew':30} {'cut':>8} {'peak':>9}   {'measure':>8} {'peak':>9}   ({CLIENTS} clients; data alone "
        f"{_alone():.2f} GB)"
    )
    slow = []
    for spec in (*(NEEDED.get(name, name) for name in skews), *EXTRA):
        cost = _in_fresh_process(spec)
        ok = cost.cut_seconds < WANTED_SECONDS and cost.cut_gigabytes < WANTED_GIGABYTES
        slow += [] if ok else [spec]
        print(
            f"{spec:30} {cost.cut_seconds:6.1f} s {cost.cut_gigabytes:6.2f} GB   "
            f"{cost.measure_seconds:6.1f} s {cost.measure_gigabytes:6.2f} GB",
            flush=True,
        )
    wanted = f"each cut under {WANTED_SECONDS} s and {WANTED_GIGABYTES} GB"
    print(f"wanted: {wanted}: {'missed by ' + ', '.join(slow) if slow else 'all are'}")


def table() -> Rows:
    """Return normal, heavy-tailed, integer and binary features that depend on the label; unequal labels, in runs."""
    rng = np.random.default_rng(0)
    y = np.sort(rng.choice(CLASSES, ROWS, p=np.arange(1, CLASSES + 1) / 55)).astype(np.int64)
    x = rng.standard_normal((ROWS, FEATURES), dtype=np.float32)
    x += (y[:, None] * np.linspace(0, 0.4, FEATURES)).astype(np.float32)
    x[:, 4:8] = np.exp(x[:, 4:8])
    x[:, 8:12] = np.floor(4 * x[:, 8:12])
    x[:, 12:] = x[:, 12:] > 0
    return Rows(x, y, rng.integers(0, GROUPS, ROWS))


def _alone() -> float:
    return ROWS * (FEATURES * 4 + 16) / 1e9


def _in_fresh_process(spec: str) -> Cost:
    """Run each generator in its own process, because peak memory is that of a whole process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_cost, spec).result()


def _cost(spec: str) -> Cost:
    rows = table()
    began = time.perf_counter()
    made = partition_rows(spec, rows, CLIENTS, seed=0)
    cut_seconds, cut_peak = time.perf_counter() - began, peak_megabytes() / 1e3
    began = time.perf_counter()
    measure(made.rows, made.partition)
    return Cost(cut_seconds, cut_peak, time.perf_counter() - began, peak_megabytes() / 1e3)
