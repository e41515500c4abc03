"""Measuring a table again: every cell that is not recorded yet, and recording it."""

import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedskew.core.config import Experiment
from fedskew.core.errors import BudgetSpentError, Interrupted
from fedskew.core.lock import locked
from fedskew.data.source import root
from fedskew.engine.device import pick_device
from fedskew.papers.cell_settings import configuration, values_of
from fedskew.papers.comparison import measured
from fedskew.papers.measurements import MEASUREMENTS
from fedskew.papers.paper_tables import Entry, PaperTable
from fedskew.papers.results import Result, Results
from fedskew.papers.stopping import wanted_seeds
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import CallbackSpec
from fedskew.runs.folder import RunFolder
from fedskew.study import study_folder
from fedskew.study.member import Member, read_members
from fedskew.study.partitions import Partitions
from fedskew.study.sitting import WHOLE, Sitting
from fedskew.study.study_folder import Study
from fedskew.study.study_plan import Plan
from fedskew.study.study_runs import CallbacksOf, Execution, Watcher, execute, unwatched

UNFINISHED = "unfinished"  # folder with the runs of cells that have not ended
POINTS = 25  # of a curve that are kept
Row = dict[str, Any]


def rerun(
    table: PaperTable,
    folder: Path,
    watch: Watcher = unwatched,
    *,
    seeds: Sequence[int] | None = None,
    cases: Sequence[str] = (),
    methods: Sequence[str] = (),
    device: str | None = None,
    sitting: Sitting = WHOLE,
) -> None:
    """Measure the cells of a table that are not recorded in the folder yet, and record each method when it is done.

    Without ``seeds``, a stopping rule says after every pass which cells need more of them. Results of other settings
    than the table has now are measured again. What was interrupted goes on from its last checkpoint; a sitting that
    ends leaves the rest to the next one. Several processes may measure different cases of a table.
    """
    results = Results(folder, table.label)
    how = _How(watch, device, sitting)
    asked = _Asked(seeds, cases, methods)
    to_measure = _to_measure(table, results, asked)
    while to_measure:
        _measure(to_measure, results, how)
        to_measure = _to_measure(table, results, asked)


@dataclass(frozen=True)
class _Asked:
    """Which cells are asked for, all if none is named, and with which seeds, if the stopping rule is not to say."""

    seeds: Sequence[int] | None
    cases: Sequence[str]
    methods: Sequence[str]

    def is_about(self, case: str, method: str) -> bool:
        """Return whether a cell is asked for."""
        if self.cases and case not in self.cases:
            return False
        return not self.methods or method in self.methods


@dataclass(frozen=True)
class _How:
    """How cells are measured: who watches, on which device, and for how long."""

    watch: Watcher
    device: str | None
    sitting: Sitting


@dataclass(frozen=True)
class _Task:
    """A method in a case of a table, and the seeds that it lacks."""

    cell: "_Cell"
    seeds: Sequence[int]

    def members(self, device: str | None) -> list[Member]:
        """Return the run of every seed; none where nothing is trained."""
        if self.cell.table.kind != "training":
            return []
        return _members(self.cell, self.seeds, device)


def _to_measure(table: PaperTable, results: Results, asked: _Asked) -> list[_Task]:
    """Return what is still to be measured, by the seeds that were given or by the stopping rule."""
    done = {result.key: result.configuration for result in results.read()}
    by_rule = wanted_seeds(measured(table, results))
    tasks = []
    for case in table.cases:
        for method in table.methods_of(case):
            if not asked.is_about(case.name, method.name):
                continue
            cell = _Cell(table, case, method)
            left = cell.left(asked.seeds or by_rule[case.name, method.name], done)
            if left:
                tasks.append(_Task(cell, left))
    return tasks


def _measure(tasks: Sequence[_Task], results: Results, how: _How) -> None:
    """Measure and record some cells, those of a case with the same partitions."""
    (results.folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
    wanted: list[Member] = []
    for task in tasks:
        for member in task.members(how.device):
            wanted.append(_titled(task.cell, member))
    partitions: dict[str, Partitions] = {}
    with how.watch(wanted, 0) as callbacks_of:
        for task in tasks:
            _check_time(how.sitting)
            case = task.cell.case
            began = time.perf_counter()
            place = results.folder / UNFINISHED / task.cell.folder_name(task.seeds)
            with locked(place, at=place.with_name(f"{place.name}.lock")):
                if task.cell.table.kind == "training":
                    of_case = partitions.setdefault(case.name, Partitions())
                    new = _train(task, place, callbacks_of, how, of_case)
                else:
                    new = [_measured(task.cell, seed) for seed in task.seeds]
                results.add(new, _sitting(case, how.device, time.perf_counter() - began))
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


def _here(values: Row) -> Row:
    """Return settings in which a path in the data folder, written DATA/..., is that of this machine."""
    here = dict(values)
    for name, value in values.items():
        if isinstance(value, str):
            here[name] = value.replace("DATA/", f"{root()}/")
    return here


def slug(name: str) -> str:
    """Return a name as part of a file name.

    >>> slug("FedPBS, section 4")
    'FedPBS-section-4'
    """
    return re.sub(r"[^A-Za-z0-9.+]+", "-", name).strip("-")


def _train(
    task: _Task, place: Path, callbacks_of: CallbacksOf, how: _How, partitions: Partitions
) -> list[Result]:
    """Train a method in a case with all seeds, side by side where that is faster, and return what the runs tell."""
    cell = task.cell
    members = task.members(how.device)
    plan = Plan(members)
    if place.exists() and read_members(place) != members:
        shutil.rmtree(place)  # its runs are of an earlier version of the table
    if not place.exists():
        study_folder.check(plan, partitions)
        study_folder.create(place, plan)

    def callbacks(member: Member) -> list[CallbackSpec]:
        return callbacks_of(_titled(cell, member))

    _check_time(how.sitting)  # reading and checking took some of it
    done = execute(Study(place, plan, partitions), Execution(callbacks, sitting=how.sitting))
    results = []
    for seed, member, summary in zip(task.seeds, done.members, done.summaries, strict=True):
        results.append(_result(cell, seed, place / member.name, summary))
    return results


def _check_time(sitting: Sitting) -> None:
    """End the sitting if its time is up."""
    if sitting.seconds_left == 0:
        raise Interrupted("the budget is spent", BudgetSpentError.code)


def _titled(cell: "_Cell", member: Member) -> Member:
    """Return a run by the name that progress shows, which no other run of the table has."""
    return replace(member, name=f"{cell.case.name}: {member.name}")


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
    numbers |= _within(cell.case.budgets, rounds)
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


def _within(budgets: Mapping[str, float], rounds: Sequence[Row]) -> dict[str, float]:
    """Return the scores in the last round that ended within each budget, and which round that was.

    A run whose first scored round goes beyond a budget has no score there.
    """
    found = {}
    megabytes = 0.0
    for row in rounds:
        megabytes += (row["bytes_down"] + row["bytes_up"]) / 1e6
        spent = {"megabytes": megabytes, "simulated_seconds": row["clock"]}
        for budget, most in budgets.items():
            if spent[budget] > most or row.get("test_accuracy") is None:
                continue
            found[f"round_at_{budget}"] = float(row["round"])
            for score in ("test_accuracy", "test_balanced_accuracy"):
                if row.get(score) is not None:
                    found[f"{score}_at_{budget}"] = float(row[score])
    return found


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
