"""Measuring a table again: every cell that is not recorded yet, and recording it."""

import hashlib
import json
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskew.core.config import Experiment
from fedskew.core.lock import locked
from fedskew.data.source import root
from fedskew.engine.device import pick_device
from fedskew.papers.measurements import MEASUREMENTS
from fedskew.papers.paper_tables import Entry, PaperTable
from fedskew.papers.results import Result, Results
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import CallbackSpec
from fedskew.runs.folder import RunFolder
from fedskew.study import study_folder
from fedskew.study.grid import parse_seeds
from fedskew.study.member import Member
from fedskew.study.partitions import Partitions
from fedskew.study.study_folder import Study
from fedskew.study.study_plan import Plan
from fedskew.study.study_runs import Execution, execute

UNFINISHED = "unfinished"  # folder with the runs of cells that have not ended
POINTS = 25  # of a curve that are kept
Row = dict[str, Any]
# From the names of runs and the number of their rounds to a context that yields their callbacks
Watch = Callable[[Sequence[str], int], Any]


def rerun(
    table: PaperTable,
    folder: Path,
    watch: Watch,
    *,
    seeds: Sequence[int] | None = None,
    cases: Sequence[str] = (),
    device: str | None = None,
) -> None:
    """Measure the cells of a table that are not recorded in the folder yet, and record each method when it is done.

    Results of other settings than the table has now are measured again. What was interrupted goes on from its last
    checkpoint. Several processes may measure different cases of a table.
    """
    results = Results(folder, table.label)
    if seeds is None:
        seeds = parse_seeds(table.seeds)
    (folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
    for case in table.cases:
        if cases and case.name not in cases:
            continue
        done = {result.key: result.configuration for result in results.read()}
        partitions = Partitions()
        for method in table.methods_of(case):
            cell = _Cell(table, case, method)
            left = cell.left(seeds, done)
            if not left:
                continue
            began = time.perf_counter()
            place = folder / UNFINISHED / cell.folder_name(left)
            with locked(place, at=place.with_name(f"{place.name}.lock")):
                if table.kind == "training":
                    new = _train(cell, left, place, watch, device, partitions)
                else:
                    new = [_measured(cell, seed) for seed in left]
                results.add(new, _sitting(case, device, time.perf_counter() - began))
                shutil.rmtree(place, ignore_errors=True)


@dataclass(frozen=True)
class _Cell:
    """A method in a case of a table."""

    table: PaperTable
    case: Entry
    method: Entry

    @property
    def values(self) -> Row:
        """Return the settings, with paths of this machine."""
        return _here(values_of(self.table, self.case, self.method))

    def left(self, seeds: Sequence[int], done: Mapping[tuple[str, str, int], str]) -> list[int]:
        """Return the seeds that are not done with the settings that the table has now."""
        now = configuration(self.table, self.case, self.method)
        left = []
        for seed in seeds:
            if done.get((self.case.name, self.method.name, seed)) != now:
                left.append(seed)
        return left

    def folder_name(self, seeds: Sequence[int]) -> str:
        """Return the name of the folder with the runs of these seeds."""
        names = f"{self.table.label} {self.case.name} {self.method.name}"
        return slug(f"{names} {seeds[0]} {seeds[-1]}")

    def empty(self, seed: int) -> Result:
        """Return a run of which nothing is known yet."""
        now = configuration(self.table, self.case, self.method)
        return Result(self.case.name, self.method.name, seed, now)


def values_of(table: PaperTable, case: Entry, method: Entry) -> Row:
    """Return the settings of a cell: those of the table, then of the case, then of the method."""
    return {**table.settings, **case.settings, **method.settings}


def _here(values: Row) -> Row:
    """Return settings in which a path in the data folder, written DATA/..., is that of this machine."""
    here = dict(values)
    for name, value in values.items():
        if isinstance(value, str):
            here[name] = value.replace("DATA/", f"{root()}/")
    return here


def configuration(table: PaperTable, case: Entry, method: Entry) -> str:
    """Return a fingerprint of the settings of a cell, beside its seed."""
    content = json.dumps({"kind": table.kind, **values_of(table, case, method)}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def slug(name: str) -> str:
    """Return a name as part of a file name.

    >>> slug("FedPBS, section 4")
    'FedPBS-section-4'
    """
    return re.sub(r"[^A-Za-z0-9.+]+", "-", name).strip("-")


def _train(
    cell: _Cell,
    seeds: Sequence[int],
    place: Path,
    watch: Watch,
    device: str | None,
    partitions: Partitions,
) -> list[Result]:
    """Train a method in a case with all seeds, side by side where that is faster, and return what the runs tell."""
    members = _members(cell, seeds, device)
    plan = Plan(members)
    if place.exists() and study_folder.read_members(place) != members:
        shutil.rmtree(place)  # its runs are of an earlier version of the table
    if not place.exists():
        study_folder.check(plan, partitions)
        study_folder.create(place, plan)
    titles = {member.name: f"{cell.case.name}: {member.name}" for member in members}
    with watch(list(titles.values()), members[0].experiment().rounds) as callbacks_of:

        def callbacks(member: Member) -> list[CallbackSpec]:
            of_member: list[CallbackSpec] = callbacks_of(titles[member.name])
            return of_member

        done = execute(Study(place, plan), Execution(callbacks, partitions=partitions))
    results = []
    for seed, member, summary in zip(seeds, done.members, done.summaries, strict=True):
        results.append(_result(cell, seed, place / member.name, summary))
    return results


def _members(cell: _Cell, seeds: Sequence[int], device: str | None) -> list[Member]:
    """Return the run of every seed."""
    values = cell.values
    if device is not None:
        values["device"] = device
    if pick_device(device or Experiment().device).type == "cpu":
        values["precision"] = "float32"  # another one is for the speed of GPUs
    members = []
    for seed in seeds:
        name = f"{slug(cell.method.name)}-s{seed}"
        members.append(Member(name, cell.method.name, {**values, "seed": seed}))
    return members


def _result(cell: _Cell, seed: int, place: Path, summary: Row) -> Result:
    """Return what a run tells: the numbers of its summary, what a round of it takes, and its curves."""
    empty = cell.empty(seed)
    if "failed" in summary:
        return replace(empty, failed=str(summary["failed"]))
    numbers = {}
    for name, value in summary.items():
        if isinstance(value, (int, float)) and name != "seed":
            numbers[name] = float(value)
    disk = RunFolder(place)
    rounds = disk.table(on_disk.ROUNDS)
    numbers |= _costs_of_a_round(rounds, disk.table(on_disk.TIMING))
    return replace(empty, numbers=numbers, curves=_thinned(rounds, cell.table.curves))


def _costs_of_a_round(rounds: Sequence[Row], timing: Sequence[Row]) -> dict[str, float]:
    """Return what a round takes: the median of its seconds, megabytes both ways, and transfers in a schedule."""
    seconds = [row["seconds"] for row in timing]
    sent = []
    transfers = []
    for row in rounds:
        sent.append(row["bytes_down"] + row["bytes_up"])
        if row.get("transfers") is not None:
            transfers.append(row["transfers"])
    costs = {
        "seconds_of_a_round": float(np.median(seconds)),
        "megabytes_of_a_round": float(np.median(sent)) / 1e6,
    }
    if transfers:
        costs["transfers_of_a_round"] = float(np.median(transfers))
    return costs


def _thinned(rounds: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[Row]:
    """Return some of the rounds that were scored, at even steps, with the last one."""
    if not columns:
        return []
    scored = [row for row in rounds if row.get(columns[0]) is not None]
    steps = np.linspace(0, len(scored) - 1, min(POINTS, len(scored)))
    points = []
    for place in np.unique(steps.round().astype(int)):
        point = {}
        for name in ("round", *columns):
            if scored[place].get(name) is not None:
                point[name] = scored[place][name]
        points.append(point)
    return points


def _measured(cell: _Cell, seed: int) -> Result:
    """Measure a cell that needs no training."""
    measurement = MEASUREMENTS[cell.table.kind]
    return replace(cell.empty(seed), numbers=measurement(**cell.values, seed=seed))


def _sitting(case: Entry, device: str | None, seconds: float) -> Row:
    """Return how some results were made."""
    from fedskew import __version__

    used = pick_device(device or Experiment().device)
    machine = f"{platform.machine()} CPU"
    if used.type == "cuda":
        machine = torch.cuda.get_device_name(used)
    return {
        "command": " ".join(["fedskew", *map(shlex.quote, sys.argv[1:])]),
        "case": case.name,
        "fedskew": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": machine,
        "seconds": round(seconds, 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
