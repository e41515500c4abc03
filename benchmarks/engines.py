"""Stacked engine against the loop: seconds a round, interleaved in one process; peak memory of each in its own."""

import subprocess
import sys
from statistics import median

from benchmarks.workloads import ALL, Workload, interleaved, peak_megabytes
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES: dict[str, Engine] = {"loop": Loop(), "stacked": Stacked()}


def main(rounds: int = 7) -> None:
    print(
        f"{'workload':76} {'sequential':>12} {'stacked':>12} {'ratio':>7} {'wanted':>7}  peak MB loop / stacked"
    )
    for number, workload in enumerate(ALL):
        seconds = {name: median(times) for name, times in _rounds(workload, rounds).items()}
        ratio = seconds["loop"] / seconds["stacked"]
        memory = [_peak_of_process(number, name) for name in ENGINES]
        verdict = "" if ratio >= workload.wanted else "  SHORT"
        times = f"{seconds['loop'] * 1e3:9.1f} ms {seconds['stacked'] * 1e3:9.1f} ms"
        ratios = f"{ratio:6.1f}x {workload.wanted:6.1f}x"
        print(
            f"{workload.title:76} {times} {ratios}  {memory[0]:.0f} / {memory[1]:.0f}{verdict}",
            flush=True,
        )


def _rounds(workload: Workload, rounds: int) -> dict[str, list[float]]:
    fed = workload.federation()
    return interleaved(
        {name: workload.training(fed, engine) for name, engine in ENGINES.items()}, rounds
    )


def _peak_of_process(number: int, engine: str) -> float:
    """Return the peak resident memory of a new process that trains two rounds."""
    command = [sys.executable, "-m", "benchmarks.engines", str(number), engine]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    chosen = ALL[int(sys.argv[1])]
    run = chosen.training(chosen.federation(), ENGINES[sys.argv[2]])
    run.advance()
    run.advance()
    print(peak_megabytes())
