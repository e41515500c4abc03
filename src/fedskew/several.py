"""Several runs that belong together: methods x seeds on the same cuts, in one folder that can be resumed as a whole."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.api import Run, Watcher, federate, resume, run_experiment
from fedskew.config import Experiment
from fedskew.errors import FedskewError
from fedskew.report.folder import SUMMARY, RunFolder, write_atomically, writing
from fedskew.report.summary import Row
from fedskew.skew.federation import Federation

GROUP = "group.json"


@dataclass(frozen=True)
class Member:
    """One of several runs: the method as it was written, the seed, and everything that was set."""

    name: str
    algorithm: str
    values: Mapping[str, Any]

    def experiment(self) -> Experiment:
        """Validated."""
        return Experiment(**self.values)


def members(values: Mapping[str, Any], algorithms: Sequence[str], seeds: Sequence[int]) -> list[Member]:
    """All methods with all seeds; every one is validated before the first is run."""
    result = []
    for algorithm in algorithms:
        for seed in seeds:
            name = re.sub(r"[^A-Za-z0-9.+-]+", "-", algorithm).strip("-") + f"-s{seed}"
            result.append(Member(name, algorithm, {**values, "algorithm": algorithm, "seed": seed}))
    names = [member.name for member in result]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise FedskewError(f"{twice} is asked for twice: give every algorithm and seed once")
    for member in result:
        member.experiment()
    return result


def parse_seeds(text: str) -> list[int]:
    """``0-4`` or ``0,3,7`` or both.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not found or (found[2] and int(found[2]) < int(found[1])):
            raise FedskewError(f"seeds {text!r}: {part!r} is not a number or a range such as 0-4")
        seeds.extend(range(int(found[1]), int(found[2] or found[1]) + 1))
    return seeds


def create(folder: Path, wanted: Sequence[Member]) -> None:
    """The folder of a group, with the list of what is to be run."""
    if folder.exists():
        raise FedskewError(
            f"{folder} exists already: go on with it (fedskew resume {folder}), remove it or choose another folder"
        )
    with writing(folder):
        folder.mkdir(parents=True)
    listed = [{"name": m.name, "algorithm": m.algorithm, "values": m.values} for m in wanted]
    write_atomically(folder / GROUP, json.dumps(listed, indent=2).encode())


def read(folder: Path) -> list[Member]:
    """What a group is to run."""
    try:
        return [Member(**entry) for entry in json.loads((folder / GROUP).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as problem:
        raise FedskewError(f"{folder / GROUP} cannot be read: {problem}") from None


def run_all(folder: Path, wanted: Sequence[Member], watch: Callable[[Member], Watcher | None]) -> list[Row]:
    """Run, resume or skip every member in turn; returns their summaries, and leaves them with means in the folder."""
    federations: dict[int, Federation] = {}
    summaries = []
    for member in wanted:
        place = folder / member.name
        if place.exists() and RunFolder.open(place).finished:
            summary: Row = json.loads((place / SUMMARY).read_text(encoding="utf-8"))
        else:
            summary = _run(member, place, federations, watch(member)).summary
        summaries.append(summary)
    write_atomically(
        folder / SUMMARY, (json.dumps({"runs": summaries, "means": means(wanted, summaries)}, indent=2) + "\n").encode()
    )
    return summaries


def _run(member: Member, place: Path, federations: dict[int, Federation], watch: Watcher | None) -> Run:
    experiment = member.experiment()
    seed = experiment.seed if experiment.split_seed is None else experiment.split_seed
    if seed not in federations:
        federations.clear()  # one data set in memory at a time
        federations[seed] = federate(experiment)
    if place.exists():
        return resume(place, fed=federations[seed], watch=watch)
    return run_experiment(experiment, folder=place, watch=watch, fed=federations[seed])


def means(wanted: Sequence[Member], summaries: Sequence[Row]) -> dict[str, Row]:
    """For every method, mean and standard deviation (n - 1) over the seeds of whatever is a number in all its runs."""
    result = {}
    for algorithm in dict.fromkeys(member.algorithm for member in wanted):
        rows = [row for member, row in zip(wanted, summaries, strict=True) if member.algorithm == algorithm]
        numbers = [key for key, value in rows[0].items() if isinstance(value, (int, float)) and key != "seed"]
        result[algorithm] = {
            key: {"mean": float(np.mean([row[key] for row in rows])), "std": float(np.std([row[key] for row in rows], ddof=1))}
            if len(rows) > 1
            else {"mean": float(rows[0][key]), "std": None}
            for key in numbers
            if all(isinstance(row.get(key), (int, float)) for row in rows)
        }
    return result
