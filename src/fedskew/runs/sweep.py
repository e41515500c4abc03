"""Several runs in one folder: methods x seeds on the same partitions, which can be resumed as a whole."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedskew.algorithms.contract import resolve
from fedskew.core.config import Experiment
from fedskew.core.errors import DivergedError, FedskewError
from fedskew.core.files import reading
from fedskew.core.lock import locked
from fedskew.data.federation import Federation
from fedskew.runs.callbacks import CallbackSpec
from fedskew.runs.execute import prepare, resume_run
from fedskew.runs.experiment import check_choices, run_experiment
from fedskew.runs.federate import federate
from fedskew.runs.folder import SUMMARY, RunFolder, new_folder, resume_command, to_json, write_atomically
from fedskew.runs.run import Run
from fedskew.runs.summary import Row, mean_and_std

GROUP, FAILED = "group.json", "failed.json"
MOST_SEEDS = 1_000  # of one group: all are partitioned and checked before the first run


@dataclass(frozen=True)
class Member:
    """One of several runs: the method as it was written, the seed, and all settings."""

    name: str
    algorithm: str
    values: Mapping[str, Any]

    def experiment(self) -> Experiment:
        """Return the validated experiment."""
        return Experiment(**self.values)


def members(values: Mapping[str, Any], algorithms: Sequence[str], seeds: Sequence[int]) -> list[Member]:
    """Return all methods with all seeds, seed by seed so that each partition is made once; bad choices are errors."""
    if len(seeds) > MOST_SEEDS:
        raise FedskewError(f"{len(seeds):,} seeds are more than a group holds: give at most {MOST_SEEDS:,} at a time")
    result = []
    for seed in seeds:
        for algorithm in algorithms:
            name = re.sub(r"[^A-Za-z0-9.+-]+", "-", algorithm).strip("-") + f"-s{seed}"
            result.append(Member(name, algorithm, {**values, "algorithm": algorithm, "seed": seed}))
    twice = next((name for name, count in Counter(member.name for member in result).items() if count > 1), None)
    if twice:
        raise FedskewError(f"{twice} is given twice: give every algorithm and seed once")
    for member in result:
        check_choices(member.experiment())
    return result


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of a text such as ``0-4`` or ``0,3,7``.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not found or (found[2] and int(found[2]) < int(found[1])):
            raise FedskewError(f"seeds {text!r}: {part!r} is not a number or a range such as 0-4")
        first, last = int(found[1]), int(found[2] or found[1])
        if last - first >= MOST_SEEDS:
            raise FedskewError(f"seeds {part}: that is more than a group holds, give at most {MOST_SEEDS:,} at a time")
        seeds.extend(range(first, last + 1))
    return seeds


class Partitions:
    """The federations of a group, one in memory at a time; the data is read once, unless it depends on the seed."""

    def __init__(self) -> None:
        self._seed: int | None = None
        self._last: Federation | None = None

    def of(self, experiment: Experiment) -> Federation:
        """Return the federation of this experiment."""
        seed = experiment.seed if experiment.split_seed is None else experiment.split_seed
        if self._last is None or seed != self._seed:
            data = None if self._last is None or experiment.validation else self._last.data
            self._seed, self._last = seed, federate(experiment, data)
        return self._last


def check(wanted: Sequence[Member]) -> None:
    """Raise before the first run the errors that would stop a later one; every partition and model is made once."""
    partitions = Partitions()
    for member in wanted:
        experiment = member.experiment()
        with _named(member):
            prepare(partitions.of(experiment), experiment.model, resolve(experiment.algorithm), experiment.settings())


@contextmanager
def _named(member: Member) -> Iterator[None]:
    """Name the run in its errors."""
    try:
        yield
    except FedskewError as problem:
        raise type(problem)(f"{member.name}: {problem}") from problem


def create(folder: Path, wanted: Sequence[Member]) -> None:
    """Create the folder of a group, with the list of its runs."""
    with new_folder(folder) as part:
        (part / GROUP).write_text(_listed(wanted), encoding="utf-8")


def _listed(wanted: Sequence[Member]) -> str:
    return json.dumps([{"name": m.name, "algorithm": m.algorithm, "values": m.values} for m in wanted], indent=2) + "\n"


def must_be_the_same(folder: Path, wanted: Sequence[Member]) -> None:
    """Raise an error if the folder holds another group."""
    if _listed(_by_one_worker(read(folder))) != _listed(_by_one_worker(wanted)):
        raise FedskewError(
            f"{folder} holds other runs than these: choose another folder, or resume what it holds ("
            f"{resume_command(folder)})"
        )


def with_workers(wanted: Sequence[Member], workers: int) -> list[Member]:
    """Return runs with another number of workers, which gives the same results; an error for runs without any."""
    for member in wanted:
        if member.experiment().workers is None:
            raise FedskewError(
                f"{member.name} began without workers, which add up clients in another order: resume it without"
            )
    return [replace(member, values={**member.values, "workers": workers}) for member in wanted]


def _by_one_worker(wanted: Sequence[Member]) -> list[Member]:
    """Return runs that are equal if they differ in their number of workers only."""
    return [member if member.experiment().workers is None else with_workers([member], 1)[0] for member in wanted]


def read(folder: Path) -> list[Member]:
    """Return the runs of a group."""
    path = folder / GROUP
    with reading(path):
        found = [Member(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
        for member in found:
            if not isinstance(member.algorithm, str) or not isinstance(member.values, dict):
                raise FedskewError(f"{path} is damaged: {member.name!r} needs an algorithm and values")
            if not re.fullmatch(r"[A-Za-z0-9.+-]+", member.name) or not member.name.strip("."):
                raise FedskewError(f"{path} is damaged: the run {member.name!r} is no name of a folder in it")
            if strange := set(member.values) - {field.name for field in fields(Experiment)}:
                raise FedskewError(
                    f"{path} is damaged: {member.name} has the unknown settings {', '.join(sorted(strange))}"
                )
    if not found:
        raise FedskewError(f"{path} cannot be read: it names no run")
    return found


def run_all(
    folder: Path,
    wanted: Sequence[Member],
    callbacks: Callable[[Member], list[CallbackSpec]],
    *,
    retry: bool = False,
    force: bool = False,
) -> list[Row]:
    """Run, resume or skip every member in turn; return their summaries, and write them with means to the folder.

    A run that diverges is recorded as failed, with its reason, and the others continue; it is run again only with
    ``retry``.
    """
    with locked(folder):
        partitions = Partitions()
        summaries = [_outcome(folder / member.name, member, partitions, callbacks, retry, force) for member in wanted]
        content = to_json(overview(wanted, summaries), indent=2) + "\n"
        write_atomically(folder / SUMMARY, content.encode())
        return summaries


def _outcome(
    place: Path,
    member: Member,
    partitions: Partitions,
    callbacks: Callable[[Member], list[CallbackSpec]],
    retry: bool,
    force: bool,
) -> Row:
    """Return the summary of a member, which may exist already; for a failed one, its name and the reason."""
    failed = place / FAILED
    if place.exists() and RunFolder.open(place).finished:
        return RunFolder.open(place).read_json(SUMMARY)
    if failed.exists() and not retry:
        return RunFolder(place).read_json(FAILED)
    failed.unlink(missing_ok=True)
    try:
        with _named(member):
            return _run(member, place, partitions, callbacks(member), force).summary
    except DivergedError as problem:
        row = {"algorithm": member.algorithm, "seed": member.experiment().seed, "failed": str(problem)}
        RunFolder(place).write_json(FAILED, row)
        return row


def overview(wanted: Sequence[Member], summaries: Sequence[Row]) -> Row:
    """Return the summaries of all runs, their means over seeds, and warnings about the comparison."""
    warned = unequal_weights([member.algorithm for member in wanted], summaries)
    return {"runs": list(summaries), "means": means(wanted, summaries), "warnings": [warned] if warned else []}


def unequal_weights(methods: Sequence[str], summaries: Sequence[Row]) -> str:
    """Return a warning if the aggregation weights differ between methods; empty if they do not.

    Factors that a method itself applies to the weights are not compared.
    """
    found: dict[str, list[str]] = {}
    for method, summary in zip(methods, summaries, strict=True):
        base = str(summary.get("weights", "")).split(" ")[0]
        if base in ("size", "uniform") and method not in found.setdefault(base, []):
            found[base].append(method)
    if len(found) < 2:
        return ""
    sides = " but ".join(f"{base} in {', '.join(names)}" for base, names in found.items())
    return f"the aggregation weights differ, {sides}: on heterogeneous clients that can decide a ranking (--weights)"


def _run(member: Member, place: Path, partitions: Partitions, callbacks: list[CallbackSpec], force: bool) -> Run:
    experiment = member.experiment()
    fed = partitions.of(experiment)
    if place.exists():
        return resume_run(place, fed, None, None, callbacks, force, workers=experiment.workers)
    return run_experiment(experiment, folder=place, callbacks=callbacks, fed=fed)


def means(wanted: Sequence[Member], summaries: Sequence[Row]) -> dict[str, Row]:
    """Return mean and standard deviation (n - 1) over the seeds of every number, for every method.

    Failed runs are not included; a method without finished runs is omitted.
    """
    result = {}
    for algorithm in dict.fromkeys(member.algorithm for member in wanted):
        rows = [
            row for m, row in zip(wanted, summaries, strict=True) if m.algorithm == algorithm and "failed" not in row
        ]
        if not rows:
            continue
        numbers = [key for key, value in rows[0].items() if isinstance(value, (int, float)) and key != "seed"]
        result[algorithm] = {
            key: dict(zip(("mean", "std"), mean_and_std([row[key] for row in rows]), strict=True))
            for key in numbers
            if all(isinstance(row.get(key), (int, float)) for row in rows)
        }
    return result
