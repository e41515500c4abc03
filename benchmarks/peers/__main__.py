"""Seconds a round of fedskew, a bare PyTorch loop and other simulators on the same workloads, in the same window.

``python -m benchmarks.peers install [names]`` makes an environment for each peer in ``.peers/``, which needs PyPI;
``python -m benchmarks.peers`` runs all that are there and writes the table as Markdown and JSON. With ``--device cuda``
only fedskew and the bare loop take part. Every repeat is a new process for each contender in turn, whose first round
is not counted.
"""

import argparse
import json
import platform
import sys
from pathlib import Path
from statistics import median
from typing import Any

import torch

import fedskew
from benchmarks.peers.contenders import CONTENDERS, PEERS, Contender, install
from benchmarks.peers.rounds import ENVIRONMENTS, WORKLOADS
from fedskew.engine.device import usable_cores

DEFAULT = ("many-tiny", "mnist-logreg", "har-mlp", "cifar-cnn")
OURS = "fedskew"


def main() -> None:
    given = _arguments()
    if given.action == "install":
        for name in given.names or PEERS:
            print(f"installing {name} …", flush=True)
            install(name)
        return
    found: dict[str, dict[str, Any]] = {}
    chosen = [one for one in CONTENDERS if _wanted(one, given)]
    for workload in given.workloads.split(","):
        found[workload] = _compare(chosen, workload, given)
        text = _table(found, given)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.with_suffix(".json").write_text(
            json.dumps({"machine": _machine(), "results": found}, indent=2)
        )
        given.out.with_suffix(".md").write_text(text)
    print(text)


def _compare(chosen: list[Contender], workload: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return the result of every contender on a workload: seconds of all rounds, or why there are none."""
    found: dict[str, Any] = {}
    for _ in range(given.repeats):
        for one in chosen:
            so_far = found.setdefault(one.name, {"seconds": []})
            if not one.python.exists():
                so_far["error"] = "not installed"
            if "error" in so_far:
                continue
            printed, problems = one.run(workload, given.rounds, given.device, given.limit)
            lines = [line for line in printed.splitlines() if line.startswith('{"seconds"')]
            if not lines:
                so_far["error"] = (problems.strip().splitlines() or ["nothing printed"])[-1][:200]
                print(f"{workload} {one.name}: {so_far['error']}", file=sys.stderr, flush=True)
                continue
            result = json.loads(lines[-1])
            found[one.name] = {**result, "seconds": so_far["seconds"] + result["seconds"]}
            print(
                f"{workload} {one.name}: {median(result['seconds']):.4g} s",
                file=sys.stderr,
                flush=True,
            )
    return found


def _table(found: dict[str, dict[str, Any]], given: argparse.Namespace) -> str:
    """Return a Markdown table: median seconds a round, and how many times as fast as the best peer that is."""
    lines = [
        f"Median seconds a round on {given.device}; in brackets, how many times as fast as the best contender that is "
        f"not fedskew. Rounds of a process: {given.rounds}; processes of each, in turn: {given.repeats}. {_machine()}.",
        "",
        f"| | {' | '.join(found)} | versions |",
        "|---" * (len(found) + 2) + "|",
    ]
    best = {
        workload: min(
            (
                median(one["seconds"])
                for name, one in results.items()
                if one["seconds"] and not name.startswith(OURS)
            ),
            default=None,
        )
        for workload, results in found.items()
    }
    for name in dict.fromkeys(name for results in found.values() for name in results):
        cells, versions = [], ""
        for workload, results in found.items():
            one = results[name]
            versions = one.get("version", versions)
            if not one["seconds"]:
                cells.append("not installed" if one["error"] == "not installed" else "failed")
                continue
            seconds, least = median(one["seconds"]), best[workload]
            cells.append(f"{seconds:.3g}" + (f" ({least / seconds:.2g}x)" if least else ""))
        lines.append(f"| {name} | {' | '.join(cells)} | {versions} |")
    return "\n".join(lines) + "\n"


def _machine() -> str:
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"fedskew {fedskew.__version__}, Python {platform.python_version()}, {usable_cores()} cores{gpu}"


def _wanted(one: Contender, given: argparse.Namespace) -> bool:
    only = given.only.split(",") if given.only else None
    named = only is None or one.name in only or one.name.partition("-")[0] in only
    return named and (given.device == "cpu" or one.on_gpu)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("compare", "install"), default="compare")
    parser.add_argument("names", nargs="*", help=f"with install: which peers ({', '.join(PEERS)})")
    parser.add_argument("--only", help="names of contenders, such as bare,fedskew")
    parser.add_argument("--workloads", default=",".join(DEFAULT), help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--rounds", type=int, default=6, help="timed rounds of a process, after one that warms up"
    )
    parser.add_argument("--repeats", type=int, default=3, help="processes of each contender")
    parser.add_argument("--limit", type=float, default=300, help="seconds that a process may take")
    parser.add_argument(
        "--out", type=Path, default=ENVIRONMENTS / "results", help="table, without .md and .json"
    )
    given = parser.parse_args()
    unknown = {*given.workloads.split(",")} - {*WORKLOADS} | {*given.names} - {*PEERS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return given


if __name__ == "__main__":
    main()
