"""Compare methods: what the command line and ``fedskew.compare`` both call.

A comparison is planned, frozen on disk, executed, judged and written. What writes its page and its figures is passed
in, because that lies above.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedskew.core.errors import BudgetSpentError, FedskewError, Interrupted
from fedskew.runs.folder import GROUP, Row, resume_command
from fedskew.runs.run import Run
from fedskew.study.comparison_table import Comparison
from fedskew.study.overview import overview
from fedskew.study.partitions import Partitions
from fedskew.study.read_comparison import comparison
from fedskew.study.settle import plan_of
from fedskew.study.sitting import WHOLE, Sitting
from fedskew.study.stages import wanted
from fedskew.study.study_folder import BEFORE_THE_FIRST_RUN, Study, freeze, record_target
from fedskew.study.study_runs import (
    Execution,
    Watcher,
    execute,
    groups_to_run,
    unfinished,
    unwatched,
)
from fedskew.study.target_score import Target

if TYPE_CHECKING:
    import pandas as pd

_NAME = attrgetter("name")  # of a run
# Writes the files of a comparison into a folder
ComparisonWriter: TypeAlias = Callable[[Comparison, Path], None]


@dataclass(frozen=True)
class Outcome:
    """A comparison that was made.

    Args:
        folder: where it is, if it was written
        runs: the summaries of all its runs, their means and warnings; empty for runs that had finished before
        found: what follows from the runs; None if all of them failed, or some are left
        left: how many runs other shards have left to run
    """

    folder: Path | None
    runs: Row
    found: Comparison | None
    left: int = 0

    def frame(self) -> "pd.DataFrame":
        """Return one row per configuration; an empty frame while runs are left, an error if all failed."""
        import pandas as pd

        if self.found is not None:
            frame = self.found.frame()
        elif self.left:
            frame = pd.DataFrame()
            frame.attrs["left"] = self.left
        else:
            raise FedskewError(f"{self.folder}: no run has finished: nothing to report")
        frame.attrs["folder"] = self.folder and str(self.folder)
        return frame


def compare(
    given: Mapping[str, Any],
    write: ComparisonWriter,
    *,
    out: Path | None = None,
    or_resume: bool = False,
    watch: Watcher = unwatched,
) -> Outcome:
    """Compare methods x numbers x skews x seeds; ``given`` are the settings by name that ``plan_of`` takes.

    Everything is checked, and recorded in the folder, before the first run. With a ``budget`` or a ``shard`` the study
    in ``out`` goes on, if it is there.
    """
    sitting = Sitting.of(given.get("budget"), given.get("shard"))
    if sitting.is_limited and out is None:
        raise FedskewError("budget and shard need out: give the folder that the study goes on in")
    partitions = Partitions()
    try:
        plan = plan_of(given, partitions)
    except KeyboardInterrupt:
        raise Interrupted(BEFORE_THE_FIRST_RUN) from None
    study = freeze(plan, out, or_resume or sitting.is_limited, partitions)
    return carry_out(study, write, sitting=sitting, watch=watch)


def carry_out(
    study: Study,
    write: ComparisonWriter,
    *,
    sitting: Sitting = WHOLE,
    watch: Watcher = unwatched,
    retry: bool = False,
    force: bool = False,
) -> Outcome:
    """Run what a study has left to run in this sitting, judge all its runs, and write its files."""
    try:
        how = Execution(retry=retry, force=force, sitting=sitting)
        first = wanted(study.folder, study.plan.members, study.plan.judging)
        to_run = list(chain.from_iterable(groups_to_run(study.folder, first, how)))
        left = {*map(_NAME, to_run), *map(_NAME, unfinished(study.folder, first))}
        with watch(to_run, len(first) - len(left)) as callbacks:
            done = execute(study, replace(how, callbacks=callbacks))
        if done.left:
            return Outcome(study.folder, {}, None, len(done.left))
        runs = overview(done.members, done.summaries)
        if all("failed" in row for row in done.summaries):
            return Outcome(study.folder, runs, None)
        found = comparison([study.folder])
        write(found, study.folder)
        return Outcome(study.folder, runs, found)
    except KeyboardInterrupt as stop:
        code = getattr(stop, "code", 130)
        again = resume_command(study.folder)
        if code == BudgetSpentError.code:
            raise BudgetSpentError(
                f"{_progress(study)}; give the command again, or: {again}"
            ) from None
        raise Interrupted(f"interrupted; resume with: {again}", code) from None


def _progress(study: Study) -> str:
    """Return what is said of a study whose time is up."""
    members = wanted(study.folder, study.plan.members, study.plan.judging)
    left = len(unfinished(study.folder, members))
    return f"the budget is spent, {len(members) - left} of {len(members)} runs are done"


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
