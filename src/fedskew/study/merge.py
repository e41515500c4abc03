"""Shards of one study that ran in folders of their own, as one study."""

import shutil
from collections.abc import Hashable, Sequence
from pathlib import Path

from fedskew.algorithms.contract import resolve
from fedskew.core.errors import FedskewError
from fedskew.runs.folder import (
    ENVIRONMENT,
    GROUP,
    ROUNDS,
    RunFolder,
    must_be_new,
    new_folder,
)
from fedskew.runs.recorded_config import read_config
from fedskew.runs.run import open_run
from fedskew.study.compare import ComparisonWriter, Outcome, carry_out
from fedskew.study.judging import JUDGING
from fedskew.study.member import FAILED, Member, read_members
from fedskew.study.stages import wanted
from fedskew.study.study_folder import TARGET, open_study
from fedskew.study.study_runs import block_of, unfinished

_PLAN = (GROUP, JUDGING, TARGET)  # the files that say what a study is


def merge(folders: Sequence[Path], out: Path, write: ComparisonWriter) -> Outcome:
    """Copy the runs of all shards into one new study, and judge it if no run is left; nothing is trained.

    The folders must hold the same plan. Every finished run is verified before anything is written; runs that have not
    ended are left out.
    """
    must_be_new(out)
    _must_be_outside(folders, out)
    _must_hold_one_plan(folders)
    places = {}
    rows: dict[Hashable, tuple[Path, str]] = {}
    for member in read_members(folders[0]):
        place = _ended_in(folders, member)
        if place is None:
            continue
        places[member.name] = place
        held = str(RunFolder(place).read_json(ENVIRONMENT).get("federation"))
        first, known = rows.setdefault(block_of(member), (place, held))
        if held != known:
            raise FedskewError(
                f"{place}: the clients hold other rows than in {first}: merge shards that ran on the same data"
            )
    with new_folder(out) as part:
        for name in _PLAN:
            if (folders[0] / name).is_file():
                shutil.copyfile(folders[0] / name, part / name)
        for name, place in places.items():
            shutil.copytree(place, part / name, ignore=shutil.ignore_patterns("*.lock"))
    study = open_study(out)
    left = unfinished(out, wanted(out, study.plan.members, study.plan.judging))
    if left:
        return Outcome(out, {}, None, len(left))
    return carry_out(study, write)


def _must_be_outside(folders: Sequence[Path], out: Path) -> None:
    """Refuse a new folder inside a shard."""
    for folder in folders:
        if out.resolve().is_relative_to(folder.resolve()):
            raise FedskewError(
                f"--out {out} is inside {folder}, which is merged: give another folder"
            )


def _must_hold_one_plan(folders: Sequence[Path]) -> None:
    """Refuse folders without a study, and studies of different plans."""
    for folder in folders:
        if not (folder / GROUP).is_file():
            raise FedskewError(f"{folder} is not the folder of a comparison: give those of shards")
    for name in _PLAN:
        first = _content(folders[0] / name)
        for folder in folders:
            if _content(folder / name) != first:
                raise FedskewError(
                    f"{folder} and {folders[0]} hold different studies, their {name} differ: give shards of one command"
                )


def _content(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    return path.read_bytes()


def _ended_in(folders: Sequence[Path], member: Member) -> Path | None:
    """Return where a run has ended; None if nowhere, an error if it ended differently in two folders."""
    found: Path | None = None
    for folder in folders:
        place = folder / member.name
        if not _has_ended(place):
            continue
        _must_be_of(place, member)
        if found is not None and _result(found) != _result(place):
            raise FedskewError(
                f"{found} and {place} are the same run with different results: leave one of the shards out"
            )
        found = found or place
    return found


def _has_ended(place: Path) -> bool:
    """Return whether a run has finished or failed; the files of a finished one are verified."""
    if (place / FAILED).is_file():
        return True
    if not place.exists() or not RunFolder.open(place).finished:
        return False
    open_run(place)
    return True


def _must_be_of(place: Path, member: Member) -> None:
    """Refuse a folder with the run of another method or seed."""
    config = read_config(RunFolder(place))
    wanted = member.experiment()
    same = resolve(config["algorithm"]) == resolve(wanted.algorithm)
    if not same or config["seed"] != wanted.seed:
        raise FedskewError(
            f"{place} holds another run than {member.label}, seed {wanted.seed}: put it back"
        )


def _result(place: Path) -> bytes:
    """Return what a run has found, without the time that it took."""
    if (place / FAILED).is_file():
        return (place / FAILED).read_bytes()
    return (place / ROUNDS).read_bytes()
