"""Compare methods: what the command line and ``fedskew.compare`` both call.

A comparison is planned, frozen on disk, executed, judged and written. What writes its page and its figures is passed
in, because that lies above.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fedskew.core.errors import FedskewError, Interrupted
from fedskew.runs.callbacks import Callback
from fedskew.runs.folder import GROUP, Row, resume_command
from fedskew.runs.run import Run
from fedskew.study.comparison_table import Comparison
from fedskew.study.overview import overview
from fedskew.study.read_comparison import comparison
from fedskew.study.settle import plan_of
from fedskew.study.stages import wanted
from fedskew.study.study_folder import BEFORE_THE_FIRST_RUN, Study, freeze, record_target
from fedskew.study.study_runs import Execution, Watcher, execute, unwatched
from fedskew.study.target_score import Target

ComparisonWriter: TypeAlias = Callable[[Comparison, Path], None]


@dataclass(frozen=True)
class Writers:
    """What writes the files of every run, and those of the comparison."""

    run: Sequence[Callback]
    comparison: ComparisonWriter


@dataclass(frozen=True)
class Outcome:
    """A comparison that was made.

    Args:
        folder: where it is, if it was written
        runs: the summaries of all its runs, their means and warnings; empty for runs that had finished before
        found: what follows from the runs; None if all of them failed
    """

    folder: Path | None
    runs: Row
    found: Comparison | None


def compare(
    given: Mapping[str, Any],
    writers: Writers,
    *,
    out: Path | None = None,
    or_resume: bool = False,
    watch: Watcher = unwatched,
) -> Outcome:
    """Compare methods x numbers x skews x seeds; ``given`` are the settings by name that ``plan_of`` takes.

    Everything is checked, and recorded in the folder, before the first run.
    """
    try:
        plan = plan_of(given)
    except KeyboardInterrupt:
        raise Interrupted(BEFORE_THE_FIRST_RUN) from None
    return carry_out(freeze(plan, out, or_resume), writers, watch=watch)


def carry_out(
    study: Study,
    writers: Writers,
    *,
    watch: Watcher = unwatched,
    retry: bool = False,
    force: bool = False,
) -> Outcome:
    """Run what a study has left to run, judge all its runs, and write its files."""
    try:
        first = wanted(study.folder, study.plan.members, study.plan.judging)
        with watch(first) as callbacks:
            done = execute(study, Execution(callbacks, writers.run, retry, force))
        runs = overview(done.members, done.summaries)
        if all("failed" in row for row in done.summaries):
            return Outcome(study.folder, runs, None)
        found = comparison([study.folder])
        writers.comparison(found, study.folder)
        return Outcome(study.folder, runs, found)
    except KeyboardInterrupt as stop:
        code = getattr(stop, "code", 130)
        again = resume_command(study.folder)
        raise Interrupted(f"interrupted; resume with: {again}", code) from None


def compare_finished(
    folders: Sequence[Path],
    write: ComparisonWriter,
    *,
    target: "Target | str | float | None" = None,
    out: Path | None = None,
    judged_by: Mapping[str, Any] | None = None,
) -> Outcome:
    """Judge runs that are there; nothing is trained, and nothing written without ``out``.

    A given target is recorded if ``out`` is the folder of the runs. One that cannot be looked for raises an error
    before anything is written.
    """
    found = comparison(folders, target, judged_by)
    own = own_folder(folders)
    if out is None:
        return Outcome(own, {}, found)
    sought = found.rows.target  # refuses a target that no run has followed
    out.mkdir(parents=True, exist_ok=True)
    has_new_target = sought and found.rows.given
    if has_new_target and found.rows.asked and out == own:
        record_target(out, found.rows.asked)
    write(found, out)
    return Outcome(out, {}, found)


def own_folder(folders: Sequence[Path]) -> Path | None:
    """Return the folder of the comparison, if the runs are those of one."""
    if len(folders) == 1 and (folders[0] / GROUP).is_file():
        return folders[0]
    return None


def folders_of(given: Sequence[Any]) -> list[Path]:
    """Return the folders of runs; each run is given by its folder or as a ``Run``, alone or in a list."""
    places = []
    for argument in given:
        if isinstance(argument, (list, tuple)):
            places += [_folder_of(run) for run in argument]
        else:
            places.append(_folder_of(argument))
    if not places:
        raise FedskewError(
            "compare([]) has no run: give folders of finished runs, or settings by name"
        )
    return places


def _folder_of(given: Any) -> Path:
    """Return the folder of a run that is given by its folder or as a ``Run``."""
    if isinstance(given, Run):
        if given.folder is None:
            raise FedskewError("compare needs folders of finished runs, got Run without a folder")
        return given.folder
    if isinstance(given, (str, os.PathLike)):
        return Path(given)
    raise FedskewError(
        f"compare needs folders of finished runs, got {type(given).__name__}: "
        "methods are given as algorithm=[...]"
    )
