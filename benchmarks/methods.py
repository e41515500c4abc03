"""What a method costs over FedAvg: seconds a round on the stacked engine, interleaved in one process."""

import time
from statistics import median

from benchmarks.workloads import HAR, MNIST, TINY, Workload
from fedskew.algorithms.base import resolve
from fedskew.engine.stacked import Stacked

# The most that we promise, as a multiple of FedAvg; None: told only. FedBS probes every client, Ditto trains two models.
METHODS: dict[str, float | None] = {
    "fedprox": 1.15,
    "fedprox-layers": 1.15,
    "fedpbs": 1.5,
    "fedpbs:variance=gradient": None,
    "scaffold": 1.3,
    "moon": 2.5,
    "afl-cp": None,
    "feddyn": None,
    "fedbs": None,
    "fedga": None,
    "ditto": None,
    "fedavg + median": None,
    "fedavg + krum:attackers=2": None,
    "fedavg + clip": None,
}


def main(rounds: int = 15) -> None:
    for workload in (TINY, MNIST, HAR):
        times = _interleaved(workload, rounds)
        base = times["fedavg"]
        print(f"{workload.title}: FedAvg {median(base) * 1e3:.1f} ms a round")
        for name, wanted in METHODS.items():
            ratio = median(mine / plain for mine, plain in zip(times[name], base, strict=True))
            verdict = "" if wanted is None else f"  wanted {wanted:.2f}x" + ("" if ratio <= wanted else "  SHORT")
            print(f"    {name:28} {median(times[name]) * 1e3:9.1f} ms {ratio:6.2f}x{verdict}", flush=True)


def _interleaved(workload: Workload, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round; one round of every method, then the next of every method."""
    fed = workload.federation()
    settings = {"momentum": 0.0} if workload.settings.get("momentum") else {}
    trainings = {name: workload.training(fed, Stacked(), resolve(name), **settings) for name in ("fedavg", *METHODS)}
    times: dict[str, list[float]] = {name: [] for name in trainings}
    for number in range(rounds + 1):
        for name, training in trainings.items():
            began = time.perf_counter()
            training.advance()
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - began)
    return times
