"""Five seeds in one stack, against one seed and five one after the other: milliseconds a round, on a CPU its own."""

import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.workloads import CIFAR, HAR, MNIST, TINY, Workload
from fedskew.engine.device import computing, pick_device
from fedskew.engine.stacked import Stacked
from fedskew.engine.together import Asked, Together
from fedskew.server.server import Server
from fedskew.skew.partitioning import partition_rows

SEEDS = range(5)
ROUNDS = 12


def main(rounds: int = ROUNDS) -> None:
    device = pick_device("auto").type
    heads = ("one seed", "five, in turn", "five, together", "x one seed", "x in turn")
    print(
        f"{'workload':58}"
        + "".join(f"{head:>16}" for head in heads)
        + f"   ({device}, least of {rounds} rounds)"
    )
    few = replace(
        TINY, title=f"{TINY.title[:41]} 10 a round", settings={**TINY.settings, "per_round": 10}
    )
    chosen = (TINY, few, MNIST) if device == "cpu" else (TINY, few, MNIST, HAR, CIFAR)
    for workload in chosen:
        apart, together = (_servers(workload, device) for _ in range(2))
        jobs = dict(enumerate(server.job for server in together))
        engine = Together(jobs, Stacked(memory=8 << 30), dict.fromkeys(jobs, 0))
        times = [(_seconds(apart, None), _seconds(together, engine)) for _ in range(rounds + 2)][2:]
        turn, joint = (1e3 * min(one) for one in zip(*times, strict=True))
        one = turn / len(SEEDS)
        print(
            f"{workload.title:58}{one:16.2f}{turn:16.2f}{joint:16.2f}{joint / one:16.2f}{joint / turn:16.2f}",
            flush=True,
        )


def _servers(workload: Workload, device: str) -> list[Server]:
    """Return the servers of all seeds, each with a partition of its own."""
    fed, found = workload.federation(), []
    for seed in SEEDS:
        cut = partition_rows(workload.skew, fed.data.train, workload.clients, seed=seed).partition
        found.append(workload.training(replace(fed, partition=cut), None, seed=seed, device=device))
    return found


def _seconds(servers: Sequence[Server], engine: Together | None) -> float:
    """Run a round of all servers, and return the time it took; on a GPU that is the time on the clock."""
    clock = time.process_time if servers[0].device.type == "cpu" else time.perf_counter
    began = clock()
    if engine is None:
        for server in servers:
            server.advance()
        return clock() - began
    halves = [half for server in servers if (half := server.invite())]
    with computing(servers[0].threads):
        learnt = engine.train([Asked(i, half.start, half.plan) for i, half in enumerate(halves)])
    assert len(learnt) == len(servers), "a run was not trained together with the others"
    for i, server in enumerate(servers):
        server.complete(halves[i], learnt[i])
    return clock() - began
