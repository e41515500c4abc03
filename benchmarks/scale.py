"""Millions of clients: splitting 10,000,000 rows, and rounds of 100 clients of 1,000,000 and of 1,000 of 10,000,000."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from statistics import median

import numpy as np

from benchmarks.workloads import TINY, peak_megabytes
from fedskew.algorithms.contract import resolve
from fedskew.data.dataset import Rows
from fedskew.skew.partitioning import partition_rows

ROWS, CLIENTS = 10_000_000, 1_000_000
CROWD, COHORT = 10_000_000, 1_000
WANTED_SECONDS, WANTED_GIGABYTES = 0.025, 4


def main() -> None:
    y = np.random.default_rng(0).integers(0, 10, ROWS)
    rows = Rows(np.zeros((ROWS, 1), dtype=np.float32), y)
    for spec in ("iid", "dirichlet:alpha=0.5", "quantity:alpha=1", "classes:k=2"):
        began = time.perf_counter()
        partition = partition_rows(spec, rows, CLIENTS, seed=0).partition
        seconds = time.perf_counter() - began
        size = f"{partition.clients:,} clients over {ROWS:,} rows"
        print(
            f"{spec:22} {size}: {seconds:5.1f} s, peak {peak_megabytes() / 1e3:.2f} GB (wanted: 30 s, 4 GB)",
            flush=True,
        )
    del rows, y, partition
    _rounds()
    for method, fleet in (
        ("fedavg", "uniform"),
        ("fedavg", "phones"),
        ("afl-cp", "uniform"),
        ("afl-cp", "phones"),
    ):
        # Peak memory is that of a process
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(_crowd, method, fleet).result()


def _rounds() -> None:
    """Time rounds of the same 100 clients of 10 rows, out of 1,000 and out of 1,000,000."""
    trainings = {}
    for clients in (1_000, CLIENTS):
        workload = replace(
            TINY,
            clients=clients,
            rows=10,
            shape=(20,),
            settings={"per_round": 100, "batch_size": 5, "lr": 0.1},
        )
        trainings[clients] = workload.training(workload.federation(), None)
    times: dict[int, list[float]] = {clients: [] for clients in trainings}
    for number in range(31):
        for clients, training in trainings.items():
            began = time.perf_counter()
            training.advance()
            if number:
                times[clients].append(time.perf_counter() - began)
    few, many = (median(times[clients]) for clients in trainings)
    ratio = f"{many / few:.2f}x; peak {peak_megabytes() / 1e3:.2f} GB"
    print(
        f"a round on 100 clients: {few * 1e3:.2f} ms among 1,000, {many * 1e3:.2f} ms among 1,000,000: {ratio}"
    )


def _crowd(method: str, fleet: str) -> None:
    """Print seconds a round and peak memory of 10,000,000 clients with two rows each, 1,000 of them a round."""
    settings = {"per_round": COHORT, "batch_size": 2, "lr": 0.1, "fleet": fleet}
    workload = replace(TINY, clients=CROWD, rows=2, shape=(20,), settings=settings)
    training, times = workload.training(workload.federation(), None, resolve(method)), []
    for _ in range(31):
        began = time.perf_counter()
        training.advance()
        times.append(time.perf_counter() - began)
    usual, most = median(times[1:]), peak_megabytes() / 1e3
    short = "" if usual < WANTED_SECONDS and most < WANTED_GIGABYTES else "  SHORT"
    size = f"{COHORT:,} of {CROWD:,} clients, {method} on {fleet}"
    print(
        f"{size}: {usual:.4f} s a round (the first {times[0]:.1f} s), peak {most:.2f} GB (wanted: {WANTED_SECONDS} s, "
        f"{WANTED_GIGABYTES} GB){short}",
        flush=True,
    )
