"""A method of the reader's own, run through the cells of the published atlas and drawn beside the others."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import numpy as np

from fedskew.algorithms.contract import algorithms, resolve
from fedskew.atlas.atlas_map import AtlasMap
from fedskew.atlas.atlas_page import atlas_page
from fedskew.atlas.atlas_runs import Atlas, open_atlas, studies_of
from fedskew.atlas.cell_results import CellResult
from fedskew.atlas.protocol import Entry
from fedskew.atlas.published import published_map
from fedskew.core.errors import BudgetSpentError, FedskewError, unknown
from fedskew.core.plugins import OWN, import_modules
from fedskew.core.writing import write_atomically
from fedskew.runs.goals import Goal
from fedskew.study.judging import CONTROL
from fedskew.study.sitting import Sitting
from fedskew.study.study_runs import Watcher

PAGE = "atlas.html"
_SAME = 1e-9  # of a score: bits of another processor may differ by more
Say = Callable[[str], None]


def add_method(
    method: str,
    out: Path,
    goal: str,
    *,
    cells: Sequence[str] = (),
    sitting: Sitting,
    watch: Watcher,
    say: Say,
) -> Path:
    """Run a method, and FedAvg beside it, through the cells of the published atlas; return the page.

    Args:
        method: a Python file that registers it, or how a method is written
        out: folder of the runs and the page
        goal: shared or own
        cells: names of cells; all of them if none are given
        sitting: how long this may take
        watch: shows progress
        say: is called with a line before each cell
    """
    if goal not in get_args(Goal):
        raise unknown("goal", goal, get_args(Goal))
    published = published_map()
    name = name_of(method)
    judged = cast(Goal, goal)
    studies_of(published.protocol, cells)  # raises an error for an unknown cell
    if name == CONTROL or name in published.methods(judged):
        raise FedskewError(
            f"{name} is on the atlas already: give a method, or options, that are not"
        )
    entries = [
        Entry(CONTROL, "FedAvg", (judged,), frozenset()),
        Entry(name, name, (judged,), frozenset()),
    ]
    frozen = open_atlas(out).protocol
    if frozen.digest != published.protocol.digest:
        raise FedskewError(
            f"{out} has another protocol than the published atlas: give a new folder"
        )
    settings = {judged: frozen.goals[judged]}
    atlas = Atlas(out, replace(frozen, methods=entries, goals=settings))
    _check_method(out, name, atlas.results)
    refused = _run(atlas, cells, sitting, watch, say)
    results = atlas.results
    if not results:
        raise FedskewError(f"no cell takes {name}: {'; '.join(refused)}")
    notes = [*refused, *_repeated(results, published)]
    everybody = replace(published.protocol, methods=[*published.protocol.methods, entries[1]])
    found = AtlasMap(everybody, published.results, added=results)
    page = out / PAGE
    write_atomically(page, atlas_page(found, {}, notes, added=name))
    return page


def name_of(method: str) -> str:
    """Return how a method is written: as it is given, or the name under which a Python file registers one."""
    if not method.endswith(".py"):
        resolve(method)
        return method
    known = len(OWN)
    import_modules([method])
    new = []
    for thing in OWN[known:]:
        new += [name for name in algorithms if algorithms.get(name) is thing]
    if len(new) != 1:
        raise FedskewError(
            f"{method} registers {len(new)} methods, and one is added at a time: import it with --import, and give the "
            "name of one"
        )
    return str(new[0])


def _run(
    atlas: Atlas, cells: Sequence[str], sitting: Sitting, watch: Watcher, say: Say
) -> list[str]:
    """Run the cells that are left, and return why cells refuse the method."""
    refused = []
    for study in studies_of(atlas.protocol, cells):
        if atlas.result(study) is not None:
            continue
        say(study.cell.title)
        try:
            atlas.run(study, sitting, watch)
        except BudgetSpentError:
            raise
        except FedskewError as problem:
            refused.append(f"{study.cell.title} refuses it: {problem}")
    return refused


def _check_method(out: Path, name: str, results: dict[str, CellResult]) -> None:
    """Raise an error for a folder that holds runs of another method."""
    for result in results.values():
        if name not in result.chosen:
            others = ", ".join(method for method in result.chosen if method != CONTROL)
            raise FedskewError(f"{out} holds the runs of {others}: give {name} a folder of its own")


def _repeated(results: dict[str, CellResult], published: AtlasMap) -> list[str]:
    """Return in a sentence whether FedAvg has the same scores here as in the published runs."""
    gaps = []
    for name, result in results.items():
        before = published.results.get(name)
        if before is None:
            continue
        here = _control_scores(result)
        there = _control_scores(before)
        gaps += [abs(here[seed] - there[seed]) for seed in here if seed in there]
    if not gaps:
        return []
    same = int(np.sum(np.array(gaps) <= _SAME))
    return [
        f"FedAvg was run again beside the method: {same} of {len(gaps)} scores are those of the published runs, and "
        f"the largest difference is {100 * max(gaps):.2f} points. The method's gains are over the FedAvg that ran here."
    ]


def _control_scores(result: CellResult) -> dict[int, float]:
    """Return the judged scores of FedAvg by block."""
    scores = {}
    for row in result.judged:
        if row.method == CONTROL and row.score is not None:
            scores[row.seed] = row.score
    return scores
