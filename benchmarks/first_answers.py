"""How long a command takes to answer in a fresh process: seconds on the clock, and of the CPU."""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

COMMANDS = (
    "--version",
    "list",
    "status done",
    "run --rounds x",
    "resume changed",
    "resume done",
    "run --rounds 1 --folder run",
    "measure --data digits --clients 10",
)


class Cost(NamedTuple):
    seconds: float
    cpu: float


def main(repeats: int = 5) -> None:
    print(f"{'fedskew ...':36} {'seconds':>8} {'CPU':>8}   (medians of {repeats}, in turn)")
    costs: dict[str, list[Cost]] = {command: [] for command in COMMANDS}
    with TemporaryDirectory() as place:
        _prepare(Path(place))
        for repeat in range(repeats):
            for command in COMMANDS:
                words = command.replace("--folder run", f"--folder run-{repeat}").split()
                costs[command].append(_answer(Path(place), words))
    for command, found in costs.items():
        seconds = median(cost.seconds for cost in found)
        cpu = median(cost.cpu for cost in found)
        print(f"{command:36} {seconds:8.2f} {cpu:8.2f}", flush=True)


def _prepare(place: Path) -> None:
    """Train two runs: one that is done, and one that cannot be resumed, as its configuration was changed."""
    for name in ("done", "changed"):
        _answer(place, ["run", "--rounds", "1", "--folder", name])
    (place / "changed" / "summary.json").unlink()
    with (place / "changed" / "config.toml").open("a") as file:
        file.write("\n")


def _answer(place: Path, words: list[str]) -> Cost:
    """Return what a command costs from its start to its end, imports included."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "fedskew", *words], cwd=place, capture_output=True)
    seconds, after = time.perf_counter() - start, os.times()
    cpu = after.children_user - before.children_user
    cpu += after.children_system - before.children_system
    return Cost(seconds, cpu)


if __name__ == "__main__":
    main()
