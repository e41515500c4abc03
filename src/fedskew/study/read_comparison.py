"""A comparison from folders: of a study as it was planned, or of finished runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedskew.core.errors import FedskewError
from fedskew.runs.folder import GROUP, resume_command
from fedskew.study.choose import Chosen
from fedskew.study.compared_runs import Compared, compared
from fedskew.study.comparison_rows import ComparisonRows
from fedskew.study.comparison_table import Comparison
from fedskew.study.judgement import Judgement
from fedskew.study.judging import Judging, judging_of, read_judging
from fedskew.study.member import Member, read_members
from fedskew.study.stages import chosen_numbers, judged, wanted
from fedskew.study.study_folder import target_of
from fedskew.study.target_score import Target


def comparison(
    folders: Iterable[Path],
    target: "Target | str | float | None" = None,
    given: Mapping[str, Any] | None = None,
) -> Comparison:
    """Return the comparison of these runs; the folder of a comparison stands for all its runs.

    Without a target, the first one that a folder has recorded is taken. ``given`` says how finished runs are judged,
    by the names that ``judging_of`` takes.
    """
    places = list(folders)
    asked = None
    if target is not None:
        asked = Target.of(target)
    for place in places:
        if asked is None:
            asked = target_of(place)
    found = _found(places)
    planned = found.judging
    judging = _judged_as_given(planned, given or {})
    changed: tuple[str, ...] = ()
    if planned.goal is not None:
        changed = _changes(planned, judging)
    rows = ComparisonRows(
        found.runs, judging, asked, target is not None, found.chosen, found.written, changed
    )
    if (given or {}).get("goal") is not None and not rows.has_a_score:
        raise FedskewError(
            f"goal={judging.goal}: no run has a score for it; rows of clients are held out with client_test=0.2"
        )
    return Comparison(rows, Judgement(rows))


class _Found(NamedTuple):
    """The runs that methods are judged by, how, among what their numbers were chosen, and their methods as written."""

    runs: Compared
    judging: Judging
    chosen: Mapping[str, Chosen]
    written: Mapping[str, str]


def _found(places: Sequence[Path]) -> _Found:
    """Return what the folders hold: a study as it was planned, or runs without a plan."""
    judging = None
    if len(places) == 1 and (places[0] / GROUP).is_file():
        judging = read_judging(places[0])  # None where an older version has made it
    if judging is None:
        return _Found(compared(places), Judging(), {}, {})
    return _study(places[0], judging)


def _study(folder: Path, judging: Judging) -> _Found:
    """Return the runs that methods of a study are judged by: with the numbers that were chosen, if any were."""
    members = read_members(folder)
    needed = wanted(folder, members, judging)
    if not all((folder / member.name).exists() for member in needed):
        raise FedskewError(f"{folder} is not finished: resume it ({resume_command(folder)})")
    written = {member.name: member.algorithm for member in members}
    if judging.choose == "none":
        return _Found(compared([folder / member.name for member in needed]), judging, {}, written)
    numbers = chosen_numbers(folder, members, judging)
    kept = judged(members, numbers, judging)
    chosen = {}
    for member in kept:
        chosen[member.name] = numbers[member.skew, member.algorithm]
    runs = compared([folder / member.name for member in kept], _names_of_numbers(members))
    return _Found(runs, judging, chosen, written)


def _names_of_numbers(members: Sequence[Member]) -> frozenset[str]:
    """Return the names of the numbers that were chosen, with and without the part of a method that they are of."""
    names: set[str] = set()
    for member in members:
        for name in member.varied:
            names.update((name, name.rpartition(".")[2]))
    return frozenset(names)


def _judged_as_given(judging: Judging, given: Mapping[str, Any]) -> Judging:
    """Return how runs are judged, with what was given for finished ones."""
    asked = judging_of(given)
    changes: dict[str, Any] = {}
    for name, field in (
        ("goal", "goal"),
        ("score", "score"),
        ("control", "control"),
        ("equal", "zone"),
        ("pool", "pool"),
    ):
        if given.get(name) is not None:
            changes[field] = getattr(asked, field)
    if changes.get("goal", judging.goal) != judging.goal:
        # Rows and zone are those of the other goal
        changes = {"row": 0.0, "zone": None, **changes}
    return replace(judging, **changes)


def _changes(planned: Judging, judging: Judging) -> tuple[str, ...]:
    """Return in what a study is judged otherwise than it was planned."""
    changes = []
    for name in ("goal", "score", "control"):
        before, now = getattr(planned, name), getattr(judging, name)
        if before != now:
            changes.append(f"{name} {now} instead of {before}")
    if judging.zone not in (planned.zone, None):
        changes.append(f"equal {judging.zone:.3g} instead of {planned.zone:.3g}")
    return tuple(changes)
