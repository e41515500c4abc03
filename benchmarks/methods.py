"""The cost of methods relative to FedAvg: seconds per round on the stacked engine, interleaved in one process."""

from statistics import median

from benchmarks.workloads import HAR, MNIST, TINY, Workload, interleaved
from fedskew.algorithms.contract import resolve
from fedskew.engine.stacked import Stacked

# The most that we promise, as a multiple of FedAvg; None: reported only. FedBS probes every client, Ditto trains two
# models.
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
        times = _rounds(workload, rounds)
        base = times["fedavg"]
        print(f"{workload.title}: FedAvg {median(base) * 1e3:.1f} ms a round")
        for name, wanted in METHODS.items():
            ratio = median(mine / plain for mine, plain in zip(times[name], base, strict=True))
            verdict = (
                ""
                if wanted is None
                else f"  wanted {wanted:.2f}x" + ("" if ratio <= wanted else "  SHORT")
            )
            print(
                f"    {name:28} {median(times[name]) * 1e3:9.1f} ms {ratio:6.2f}x{verdict}",
                flush=True,
            )


def _rounds(workload: Workload, rounds: int) -> dict[str, list[float]]:
    fed = workload.federation()
    settings = {"momentum": 0.0} if workload.settings.get("momentum") else {}
    methods = ("fedavg", *METHODS)
    return interleaved(
        {name: workload.training(fed, Stacked(), resolve(name), **settings) for name in methods},
        rounds,
    )
