"""The host's work in a round outside local training: milliseconds, with an engine that answers at once."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.workloads import TINY
from fedskew.algorithms.contract import Report
from fedskew.core.trees import stacked
from fedskew.engine.job import Job, Start, Updates
from fedskew.engine.loop import Loop
from fedskew.engine.plan import Plan
from fedskew.runs.folder import CLIENTS, RunFolder
from fedskew.server.server import Server

ROUNDS = 200


@dataclass(frozen=True)
class Instant(Loop):
    """Answers with the same small updates for every plan, without training."""

    known: dict[int, Updates] = field(default_factory=dict)

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield all clients of the plan at once."""
        count = len(plan.clients)
        if count not in self.known:
            delta = {name: torch.full_like(value, 1e-6) for name, value in start.params.items()}
            report = Report(
                plan.clients, plan.sizes, plan.steps, np.full(count, 2.3), np.full(count, 0.1)
            )
            self.known[count] = Updates(report, {"delta": stacked(delta, count)}, {}, {})
        done = self.known[count]
        yield replace(done, report=replace(done.report, clients=plan.clients, sizes=plan.sizes))


def main(rounds: int = ROUNDS) -> None:
    print(
        f"{'clients a round':>16} {'advance':>12} {'table of rows':>15} {'clients.csv':>13}   (medians of {rounds})"
    )
    for per_round in (200, 1000):
        workload = replace(
            TINY, clients=5 * per_round, settings={**TINY.settings, "per_round": per_round}
        )
        server = workload.training(workload.federation(), Instant(), threads=1)
        times = [median(part) * 1e3 for part in zip(*_measured(server, rounds), strict=True)]
        print(
            f"{per_round:16} {times[0]:9.3f} ms {times[1]:12.3f} ms {times[2]:10.3f} ms", flush=True
        )


def _measured(server: Server, rounds: int) -> Iterator[tuple[float, float, float]]:
    """Yield the seconds of ``advance``, of the plan's table of rows, and of the rows of the file about clients."""
    with TemporaryDirectory() as place:
        disk = RunFolder(Path(place))
        for number in range(rounds + 5):
            began = time.perf_counter()
            result = server.advance()
            advanced = time.perf_counter()
            disk.append(CLIENTS, result.clients)
            written = time.perf_counter()
            clients = result.clients.columns["client"].values
            sizes = server.trained_on.sizes[clients]
            plan = Plan.draw(
                0, number, clients, sizes, np.full_like(sizes, 16), np.ones_like(sizes)
            )
            ready = time.perf_counter()
            plan.table()
            if number >= 5:  # the first ones warm up
                yield advanced - began, time.perf_counter() - ready, written - advanced
