"""The runs of the atlas: one study after the other, within a budget, each recorded when it has ended."""

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from fedskew.atlas.cell_results import CellResult, read_result, result_of, write_result
from fedskew.atlas.protocol import OWN_PROTOCOL, CellStudy, Protocol, read_protocol
from fedskew.core.errors import BudgetSpentError, FedskewError, Interrupted
from fedskew.core.lock import locked
from fedskew.core.writing import write_atomically
from fedskew.runs.goals import Goal
from fedskew.study.compare import compare
from fedskew.study.comparison_table import Comparison
from fedskew.study.judging import ALONE
from fedskew.study.sitting import Sitting
from fedskew.study.study_plan import asked_of
from fedskew.study.study_runs import Watcher, unwatched

PROTOCOL = "protocol.toml"
RESULTS = "results"  # a file per study that has ended
_UNFINISHED = "unfinished"  # the study that is under way
Say = Callable[[str], None]


@dataclass(frozen=True)
class Atlas:
    """A folder of the atlas: the protocol that it was begun with, and what has ended."""

    folder: Path
    protocol: Protocol

    def result(self, study: CellStudy) -> CellResult | None:
        """Return the result of a study; None while it has not ended."""
        path = self._result_path(study)
        if not path.is_file():
            return None
        result = read_result(path)
        if (result.cell, result.goal) != (study.cell.name, study.goal):
            raise FedskewError(
                f"{path} is damaged: it is of cell {result.cell} and goal {result.goal}: remove it"
            )
        return result

    @property
    def results(self) -> dict[str, CellResult]:
        """Return the results of the studies that have ended, by name."""
        found = {}
        for study in self.protocol.studies:
            result = self.result(study)
            if result is not None:
                found[study.name] = result
        return found

    def run(self, study: CellStudy, sitting: Sitting, watch: Watcher) -> CellResult:
        """Run a study from where it is, and record it; an error if the time is up before it has ended."""
        place = self.folder / _UNFINISHED / study.name
        place.parent.mkdir(parents=True, exist_ok=True)
        given = study.given()
        if sitting.seconds_left is not None:
            if sitting.seconds_left == 0:
                raise BudgetSpentError("the budget is spent")
            given["budget"] = sitting.seconds_left
        try:
            outcome = compare(given, _without_files, out=place, or_resume=True, watch=watch)
        except Interrupted as stop:
            raise Interrupted("interrupted; give the command again to go on", stop.code) from None
        except FedskewError:
            # A study of its own would ask for a larger budget; here the next call goes on with it
            if sitting.seconds_left == 0:
                raise BudgetSpentError("the budget is spent") from None
            raise
        result = result_of(study, outcome.folder or place)
        path = self._result_path(study)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_result(path, result)
        shutil.rmtree(place)
        return result

    def _result_path(self, study: CellStudy) -> Path:
        return self.folder / RESULTS / f"{study.name}.json"


def _without_files(found: Comparison, folder: Path) -> None:
    """Write no table and no page of a cell: the map is of all cells."""


def open_atlas(folder: Path, protocol: Path | None = None, cells: Sequence[str] = ()) -> Atlas:
    """Return the atlas of a folder; a new one is begun with the protocol that is given, by default our own.

    A folder that was begun with another protocol is refused: its rows would not be comparable. ``cells`` are those
    that will be run; none is begun for unknown ones.
    """
    frozen = folder / PROTOCOL
    if not frozen.is_file():
        asked = read_protocol(protocol or OWN_PROTOCOL)
        studies_of(asked, cells)  # raises an error for an unknown cell
        for study in asked.studies:
            _check(study)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(frozen, (protocol or OWN_PROTOCOL).read_bytes())
        return Atlas(folder, asked)
    found = read_protocol(frozen)
    if protocol is not None and read_protocol(protocol).digest != found.digest:
        raise FedskewError(
            f"{folder} was begun with another protocol ({found.digest[:12]}): give a new folder"
        )
    return Atlas(folder, found)


def _check(study: CellStudy) -> None:
    """Raise an error for a name, number or choice that no run of a study would take."""
    try:
        asked_of(study.given())
    except FedskewError as problem:
        raise FedskewError(f"cell {study.cell.name}, goal {study.goal}: {problem}") from None


def atlas_in(folder: Path) -> Atlas:
    """Return the atlas that a folder has; an error if there is none."""
    if not (folder / PROTOCOL).is_file():
        raise FedskewError(
            f"{folder} is not an atlas: begin one with fedskew atlas run --out {folder}"
        )
    return open_atlas(folder)


def run_atlas(
    atlas: Atlas,
    *,
    cells: Sequence[str] = (),
    sitting: Sitting,
    watch: Watcher = unwatched,
    say: Say,
) -> None:
    """Run all studies that are left, or those of some cells, until the budget is spent.

    ``say`` is called with a line before each study. Shards share the studies, and may share the folder.
    """
    wanted = studies_of(atlas.protocol, cells)
    for study in sitting.shard.share_of(wanted):
        if atlas.result(study) is not None:
            continue
        with _held(atlas, study):
            say(f"{study.cell.title}, goal {study.goal}")
            atlas.run(study, sitting, watch)


@dataclass(frozen=True)
class StudyProgress:
    """How one study stands: how many runs it has, and the seconds they took; None while it has not ended."""

    cell: str
    goal: Goal
    runs: int
    seconds: float | None


@dataclass(frozen=True)
class Progress:
    """How the atlas stands.

    Args:
        studies: one per cell and goal
        runs: of all studies
        runs_done: of those that have ended
        seconds_left: by the pace of the runs that are done; None before the first
    """

    studies: Sequence[StudyProgress]
    runs: int
    runs_done: int
    seconds_left: float | None


def progress_of(atlas: Atlas) -> Progress:
    """Return how an atlas stands."""
    studies = []
    results = atlas.results
    for study in atlas.protocol.studies:
        result = results.get(study.name)
        seconds = None
        if result is not None:
            seconds = result.seconds
        studies.append(StudyProgress(study.cell.name, study.goal, runs_of(study), seconds))
    runs = sum(study.runs for study in studies)
    done = sum(study.runs for study in studies if study.seconds is not None)
    seconds_left = None
    if done:
        spent = math.fsum(study.seconds or 0.0 for study in studies)
        seconds_left = spent / done * (runs - done)
    return Progress(studies, runs, done, seconds_left)


def _held(atlas: Atlas, study: CellStudy) -> AbstractContextManager[None]:
    """Hold the lock of one study."""
    return locked(atlas.folder, atlas.folder / f".{study.name}.lock")


def studies_of(protocol: Protocol, cells: Sequence[str]) -> list[CellStudy]:
    """Return the studies of these cells, or all of them."""
    if not cells:
        return protocol.studies
    names = {protocol.cell(name).name for name in cells}
    return [study for study in protocol.studies if study.cell.name in names]


def runs_of(study: CellStudy) -> int:
    """Return how many runs a study has: those by which learning rates are chosen, and those that are judged."""
    asked = asked_of(study.given())
    methods = len(asked.algorithms)
    if study.goal == "own" and ALONE not in asked.algorithms:
        methods += 1
    rates, choosing = len(study.protocol.lr), len(study.protocol.choose_seeds)
    return methods * (rates * choosing + len(study.protocol.blocks))
