"""Several runs that belong together: methods x seeds on the same cuts, in one folder that can be resumed as a whole."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.algorithms.base import resolve
from fedskew.api import Run, Watcher, check_choices, federate, prepare, resume, run_experiment
from fedskew.config import Experiment
from fedskew.errors import FedskewError
from fedskew.report.folder import SUMMARY, RunFolder, new_folder, to_json, write_atomically
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
    """All methods with all seeds, seed by seed so that each cut is made once; refuses what is wrong without any data."""
    result = []
    for seed in seeds:
        for algorithm in algorithms:
            name = re.sub(r"[^A-Za-z0-9.+-]+", "-", algorithm).strip("-") + f"-s{seed}"
            result.append(Member(name, algorithm, {**values, "algorithm": algorithm, "seed": seed}))
    names = [member.name for member in result]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise FedskewError(f"{twice} is asked for twice: give every algorithm and seed once")
    for member in result:
        check_choices(member.experiment())
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


class Cuts:
    """The federations of a group, one in memory at a time; the data is read once, unless the seed decides what is held out."""

    def __init__(self) -> None:
        self._seed: int | None = None
        self._last: Federation | None = None

    def of(self, experiment: Experiment) -> Federation:
        """What this experiment trains on."""
        seed = experiment.seed if experiment.split_seed is None else experiment.split_seed
        if self._last is None or seed != self._seed:
            data = None if self._last is None or experiment.validation else self._last.data
            self._seed, self._last = seed, federate(experiment, data)
        return self._last


def check(wanted: Sequence[Member]) -> None:
    """Refuse before the first run what would stop a later one: every cut is made and every model is built once."""
    cuts = Cuts()
    for member in wanted:
        experiment = member.experiment()
        with _named(member):
            prepare(cuts.of(experiment), experiment.model, resolve(experiment.algorithm), experiment.settings())


@contextmanager
def _named(member: Member) -> Iterator[None]:
    """Errors say which of the runs they are about."""
    try:
        yield
    except FedskewError as problem:
        raise FedskewError(f"{member.name}: {problem}") from problem


def create(folder: Path, wanted: Sequence[Member]) -> None:
    """The folder of a group, with the list of what is to be run."""
    listed = [{"name": m.name, "algorithm": m.algorithm, "values": m.values} for m in wanted]
    with new_folder(folder) as part:
        (part / GROUP).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> list[Member]:
    """What a group is to run."""
    try:
        found = [Member(**entry) for entry in json.loads((folder / GROUP).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as problem:
        raise FedskewError(f"{folder / GROUP} cannot be read: {problem}") from None
    if not found:
        raise FedskewError(f"{folder / GROUP} cannot be read: it names no run")
    return found


def run_all(folder: Path, wanted: Sequence[Member], watch: Callable[[Member], Watcher | None]) -> list[Row]:
    """Run, resume or skip every member in turn; returns their summaries, and leaves them with means in the folder."""
    cuts, summaries = Cuts(), []
    for member in wanted:
        place = folder / member.name
        if place.exists() and RunFolder.open(place).finished:
            summaries.append(RunFolder.open(place).read_json(SUMMARY))
        else:
            with _named(member):
                summaries.append(_run(member, place, cuts, watch(member)).summary)
    content = to_json(overview(wanted, summaries), indent=2) + "\n"
    write_atomically(folder / SUMMARY, content.encode())
    return summaries


def overview(wanted: Sequence[Member], summaries: Sequence[Row]) -> Row:
    """The summaries of all runs, their means over seeds, and what to mind when they are compared."""
    warned = unequal_weights([member.algorithm for member in wanted], summaries)
    return {"runs": list(summaries), "means": means(wanted, summaries), "warnings": [warned] if warned else []}


def unequal_weights(methods: Sequence[str], summaries: Sequence[Row]) -> str:
    """A warning where clients count by their rows in one method and alike in another; nothing if they do not.

    What a method multiplies that with, or does instead, is its idea and no difference of set-up.
    """
    found: dict[str, list[str]] = {}
    for method, summary in zip(methods, summaries, strict=True):
        base = str(summary.get("weights", "")).split(" ")[0]
        if base in ("size", "uniform") and method not in found.setdefault(base, []):
            found[base].append(method)
    if len(found) < 2:
        return ""
    sides = " but ".join(f"{base} in {', '.join(names)}" for base, names in found.items())
    return f"clients count by unlike weights, {sides}: on heterogeneous clients that alone can decide a ranking (--weights)"


def _run(member: Member, place: Path, cuts: Cuts, watch: Watcher | None) -> Run:
    experiment = member.experiment()
    fed = cuts.of(experiment)
    if place.exists():
        return resume(place, fed=fed, watch=watch)
    return run_experiment(experiment, folder=place, watch=watch, fed=fed)


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
