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
from dataclasses import replace
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
# Names of runs and their rounds, to a context with callbacks
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
    if seeds is not None:
        wanted = seeds
    else:
        wanted = parse_seeds(table.seeds)
    (folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
    for case in table.cases:
        if cases and case.name not in cases:
            continue
        done = {result.key: result.configuration for result in results.read()}
        partitions = Partitions()
        for method in table.methods_of(case):
            now = configuration(table, case, method)
            left = []
            for seed in wanted:
                if done.get((case.name, method.name, seed)) != now:
                    left.append(seed)
            if not left:
                continue
            place = (
                folder
                / UNFINISHED
                / slug(f"{table.label} {case.name} {method.name} {left[0]} {left[-1]}")
            )
            began = time.perf_counter()
            with locked(place, at=place.with_name(f"{place.name}.lock")):
                if table.kind == "training":
                    found = _train(table, case, method, left, place, watch, device, partitions)
                else:
                    found = [_measured(table, case, method, seed) for seed in left]
                results.add(found, _sitting(case, device, time.perf_counter() - began))
                shutil.rmtree(place, ignore_errors=True)


def values_of(table: PaperTable, case: Entry, method: Entry) -> Row:
    """Return the settings of a cell: those of the table, then of the case, then of the method."""
    return {**table.settings, **case.settings, **method.settings}


def _here(values: Row) -> Row:
    """Return settings in which a path in the data folder, written DATA/..., is that of this machine."""
    result: Row = {}
    for name, v in values.items():
        if isinstance(v, str):
            result[name] = v.replace("DATA/", f"{root()}/")
        else:
            result[name] = v
    return result


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
    table: PaperTable,
    case: Entry,
    method: Entry,
    seeds: Sequence[int],
    place: Path,
    watch: Watch,
    device: str | None,
    partitions: Partitions,
) -> list[Result]:
    """Train a method in a case with all seeds, side by side where that is faster, and return what the runs tell."""
    if device is None:
        given = {}
    else:
        given = {"device": device}
    if pick_device(device or Experiment().device).type == "cpu":
        given["precision"] = "float32"  # another one is for the speed of GPUs
    values = {**_here(values_of(table, case, method)), **given}
    members = []
    for seed in seeds:
        members.append(
            Member(f"{slug(method.name)}-s{seed}", method.name, {**values, "seed": seed})
        )
    plan = Plan(members)
    if place.exists() and study_folder.read_members(place) != members:
        shutil.rmtree(place)  # of an earlier version of the table
    if not place.exists():
        study_folder.check(plan, partitions)
        study_folder.create(place, plan)
    with watch(
        [f"{case.name}: {member.name}" for member in members], members[0].experiment().rounds
    ) as callbacks_of:

        def callbacks(member: Member) -> list[CallbackSpec]:
            found: list[CallbackSpec] = callbacks_of(f"{case.name}: {member.name}")
            return found

        summaries = execute(Study(place, plan), Execution(callbacks, partitions=partitions))
    now = configuration(table, case, method)
    return [
        _result(table, Result(case.name, method.name, seed, now), place / member.name, summary)
        for seed, member, summary in zip(seeds, members, summaries, strict=True)
    ]


def _result(table: PaperTable, empty: Result, place: Path, summary: Row) -> Result:
    """Return what a run tells: the numbers of its summary, what a round of it takes, and its curves."""
    if "failed" in summary:
        return replace(empty, failed=str(summary["failed"]))
    numbers = {}
    for name, v in summary.items():
        if isinstance(v, (int, float)) and name != "seed":
            numbers[name] = float(v)
    disk = RunFolder(place)
    rounds = disk.table(on_disk.ROUNDS)
    numbers |= _of_a_round(rounds, disk.table(on_disk.TIMING))
    return replace(empty, numbers=numbers, curves=_thinned(rounds, table.curves))


def _of_a_round(rounds: Sequence[Row], timing: Sequence[Row]) -> dict[str, float]:
    """Return what a round takes: the median of its seconds, megabytes both ways, and transfers in a schedule."""
    found = {
        "seconds_of_a_round": float(np.median([row["seconds"] for row in timing])),
        "megabytes_of_a_round": float(
            np.median([row["bytes_down"] + row["bytes_up"] for row in rounds])
        )
        / 1e6,
    }
    transfers = []
    for row in rounds:
        if row.get("transfers") is not None:
            transfers.append(row["transfers"])
    return found | ({"transfers_of_a_round": float(np.median(transfers))} if transfers else {})


def _thinned(rounds: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[Row]:
    """Return some of the rounds that were scored, at even steps, with the last one."""
    if columns:
        scored = [row for row in rounds if row.get(columns[0]) is not None]
    else:
        scored = []
    places = np.unique(
        np.linspace(0, len(scored) - 1, min(POINTS, len(scored))).round().astype(int)
    )
    names = ("round", *columns)
    result: list[Row] = []
    for place in places:
        result.append(
            {name: scored[place][name] for name in names if scored[place].get(name) is not None}
        )
    return result


def _measured(table: PaperTable, case: Entry, method: Entry, seed: int) -> Result:
    """Measure a cell that needs no training."""
    numbers = MEASUREMENTS[table.kind](**_here(values_of(table, case, method)), seed=seed)
    return Result(case.name, method.name, seed, configuration(table, case, method), numbers)


def _sitting(case: Entry, device: str | None, seconds: float) -> Row:
    """Return how some results were made."""
    from fedskew import __version__

    used = pick_device(device or Experiment().device)
    return {
        "command": " ".join(["fedskew", *map(shlex.quote, sys.argv[1:])]),
        "case": case.name,
        "fedskew": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": torch.cuda.get_device_name(used)
        if used.type == "cuda"
        else f"{platform.machine()} CPU",
        "seconds": round(seconds, 1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
