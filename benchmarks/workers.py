"""Workers against none: seconds a round, interleaved; a worker has one thread, a run without any the usual ones."""

from contextlib import ExitStack
from statistics import median

from benchmarks.workloads import ALL, Workload, interleaved
from fedskew.runs.worker_processes import with_workers

COUNTS = (None, 1, 2)


def main(rounds: int = 7) -> None:
    print(f"{'workload':76} {'none':>11} {'1 worker':>11} {'2 workers':>11} {'none / 2':>9}")
    for workload in ALL:
        seconds = [median(times) for times in _rounds(workload, rounds)]
        shown = "".join(f"{one * 1e3:9.1f} ms" for one in seconds)
        print(f"{workload.title:76}{shown} {seconds[0] / seconds[-1]:8.2f}x", flush=True)


def _rounds(workload: Workload, rounds: int) -> list[list[float]]:
    fed = workload.federation()
    trainings = {str(count): workload.training(fed, None, workers=count) for count in COUNTS}
    with ExitStack() as stack:
        for server in trainings.values():
            stack.enter_context(with_workers(server, {}))
        return list(interleaved(trainings, rounds).values())
