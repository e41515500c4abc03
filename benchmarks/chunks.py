"""Visits that chunks save in Stratify's single-sample learning, against random passing, by the retained holders."""

import numpy as np

from fedskew.core.streams import Stream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.sample_schedules.holdings import Holdings
from fedskew.sample_schedules.label_schedule import label_schedule
from fedskew.sample_schedules.sample_schedule import schedule_singles
from fedskew.skew.dirichlet import dirichlet

ROWS, CLASSES, CLIENTS, SPLITS = 50_000, 10, 10, 8
LABELS = np.arange(ROWS) % CLASSES
RETAINED = (None, 1, 2, 3, 4, 5, 6, 8)


def split(seed: int, balance: bool) -> Partition:
    """Return CIFAR-10's rows partitioned by Dirichlet(0.5)."""
    rows = Rows(np.zeros((ROWS, 1), dtype=np.float32), LABELS)
    return dirichlet(rows, CLIENTS, Stream(seed, "cut"), alpha=0.5, balance=balance, min_size=10)


def visits(holdings: Holdings, chunk: int, retain: int | None, seed: int) -> int:
    """Return how often the model is sent to a client in an epoch of all rows, including clients with no rows left."""
    schedule = label_schedule(holdings.counts.sum(axis=0), Stream(seed, "schedule"))
    walk = schedule_singles(
        holdings,
        schedule,
        selection="uniform",
        chunk=chunk,
        retain=retain,
        stream=Stream(seed, "walk"),
    )
    return len(walk.visits) + len(walk.idle)


def main() -> None:
    """Print a row for every number of retained holders: the mean over splits, and the range."""
    for balance in (True, False):
        print(
            f"{'balanced' if balance else 'plain'} Dirichlet(0.5), {CLIENTS} clients, {SPLITS} splits: visits spared"
        )
        splits = [Holdings.of(split(seed, balance), LABELS, CLASSES) for seed in range(SPLITS)]
        naive = [visits(holdings, 1, None, seed) for seed, holdings in enumerate(splits)]
        for retain in RETAINED:
            line = f"  retain={retain or 'all':<4}"
            for chunk in (5, 10):
                spared = [
                    1 - visits(each, chunk, retain, seed) / naive[seed]
                    for seed, each in enumerate(splits)
                ]
                line += f"  chunk={chunk:<2} {np.mean(spared):5.1%} ({min(spared):.0%} to {max(spared):.0%})"
            print(line, flush=True)
