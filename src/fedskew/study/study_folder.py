"""A study on disk: the list of its runs, how it is judged and its target, frozen before the first run."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fedskew.algorithms.contract import resolve
from fedskew.core.config import AUTO, Experiment
from fedskew.core.errors import FedskewError, Interrupted, unknown
from fedskew.core.files import reading
from fedskew.core.writing import write_atomically
from fedskew.runs.choices import spell
from fedskew.runs.execute import fresh_folder, prepare
from fedskew.runs.folder import GROUP, TakenError, must_be_new, new_folder, resume_command
from fedskew.server.server import Server
from fedskew.skew.federate import DEFAULT_SKEW
from fedskew.study.jobs import checked_jobs
from fedskew.study.judging import JUDGING, Judging, freeze_judging, read_judging, written
from fedskew.study.member import Member, read_members
from fedskew.study.partitions import Partitions
from fedskew.study.row_worth import RowWorth, row_and_zone, row_worth
from fedskew.study.study_plan import Plan
from fedskew.study.target_score import Target
from fedskew.tasks.task import Task

TARGET = "target.txt"
_PATIENCE = 30.0  # seconds to wait for another process that creates the same study
BEFORE_THE_FIRST_RUN = (
    "interrupted before the first run: nothing was written, give the command again"
)


@dataclass(frozen=True)
class Study:
    """A plan that is frozen in a folder, and the partitions that were made so far."""

    folder: Path
    plan: Plan
    partitions: Partitions = field(default_factory=Partitions, compare=False)


def freeze(
    plan: Plan,
    folder: Path | None,
    or_resume: bool = False,
    partitions: Partitions | None = None,
) -> Study:
    """Return the study of a plan, after all checks, in a new folder: nothing of it changes from now on.

    With ``or_resume`` the folder may hold the study already, if it has the same runs and is judged in the same way; a
    given target replaces its own. ``partitions`` are those that the plan has made.
    """
    if or_resume and folder is None:
        raise FedskewError("or_resume needs out: give the folder to resume")
    made = partitions or Partitions()
    try:
        return _new_study(plan, folder, made)
    except KeyboardInterrupt:
        raise Interrupted(BEFORE_THE_FIRST_RUN) from None
    except TakenError:  # also where another shard has begun it by now
        if not or_resume or not folder or not (folder / GROUP).is_file():
            raise
        return _frozen_before(plan, folder, made)


def _new_study(plan: Plan, folder: Path | None, partitions: Partitions) -> Study:
    """Return the study of a plan, after all checks, in a new folder."""
    if folder:
        must_be_new(folder)
    checked = check(plan, partitions)
    return Study(_create_somewhere(folder, checked), checked, partitions)


def _frozen_before(plan: Plan, folder: Path, partitions: Partitions) -> Study:
    """Return the study of a folder, which must be that of the plan."""
    must_be_the_same(folder, plan.members)
    frozen = _same_judging(folder, plan.judging)
    if plan.target:
        check(plan, partitions)
        record_target(folder, plan.target)
    return Study(folder, replace(plan, judging=frozen), partitions)


def _same_judging(folder: Path, given: Judging) -> Judging:
    """Return how the study of a folder is judged; an error if it is to be judged otherwise now."""
    frozen = read_judging(folder)
    if frozen is None:  # an older version has begun it
        freeze_judging(folder, given)
        return given
    for name in ("goal", "score", "control", "pool", "choose", "choose_seeds"):
        if getattr(frozen, name) != getattr(given, name):
            raise FedskewError(
                f"{folder} was begun with {name}={getattr(frozen, name)}, and this is {getattr(given, name)}: a study "
                f"is judged as it was planned; resume it ({resume_command(folder)}), or choose another folder"
            )
    if given.zone not in (None, frozen.zone):
        raise FedskewError(
            f"{folder} was begun with equal={frozen.zone}, and this is {given.zone}: a study is judged as it was "
            f"planned; resume it ({resume_command(folder)}), or choose another folder"
        )
    return frozen


def open_study(folder: Path, jobs: int = 1, workers: int | None = None) -> Study:
    """Return the study of a folder, to go on with it; ``workers`` is their number, if runs have some."""
    members = read_members(folder)
    checked_jobs(jobs, workers)
    if workers:
        members = with_workers(members, workers)
    judging = read_judging(folder)
    if judging is None:
        if any(member.purpose != "both" for member in members):
            raise FedskewError(
                f"{folder / JUDGING} is not there: put it back, it says what the runs are for"
            )
        judging = Judging()  # an older version has begun it
    return Study(folder, Plan(members, target_of(folder), jobs, judging))


def check(plan: Plan, partitions: Partitions) -> Plan:
    """Raise before the first run the errors that would stop a later one; every partition is made once.

    Returns the plan with the zone that follows from the test rows, if none was given.
    """
    without_shared_model = []
    worth: list[RowWorth] = []
    is_share = True
    for member in plan.members:
        experiment = member.experiment()
        with named_in_errors(member):
            fed = partitions.of(experiment)
            method = resolve(experiment.algorithm)
            server, _ = prepare(fed, experiment.model, method, experiment.settings())
            if plan.target:
                _check_followed(plan.target, _followed(server, plan.judging))
            if not server.has_common_model:
                without_shared_model.append(server.job.shared_model)
            worth.append(row_worth(fed, plan.judging.goal or "shared", server.headline.name))
            is_share = is_share and is_a_share(server.job.task, server.headline.name)
    _check_shared(plan, without_shared_model)
    if not is_share:
        return plan
    row, zone = row_and_zone(worth, plan.judging.zone)
    return replace(plan, judging=replace(plan.judging, row=row, zone=zone))


def _check_shared(plan: Plan, without_shared_model: Sequence[str]) -> None:
    """Refuse the goal shared where no method has a shared model."""
    if len(without_shared_model) == len(plan.members) and plan.judging.goal == "shared":
        raise FedskewError(
            f"goal=shared: {without_shared_model[0]}; judge the model that each client uses: client_test=0.2"
        )


def is_a_share(task: Task, metric: str) -> bool:
    """Return whether a metric is between 0 and 1, so that a test row has its part in it."""
    allowed = task.ranges.get(metric)
    return allowed is not None and (allowed.low, allowed.high) == (0, 1)


def _followed(server: Server, judging: Judging) -> tuple[str, ...]:
    """Return the metrics whose curves a target may be looked for in."""
    if judging.goal == "own":
        return (server.headline.name, "loss")
    return server.evaluator.names


def _check_followed(target: Target, names: Sequence[str]) -> None:
    if target.metric and target.metric not in names:
        more = "; others are followed if metrics names them"
        raise unknown("metric of the target", target.metric, names, more)


@contextmanager
def named_in_errors(member: Member) -> Iterator[None]:
    """Name the run in its errors."""
    try:
        yield
    except FedskewError as problem:
        raise type(problem)(f"{member.name}: {problem}") from problem


def create(folder: Path, plan: Plan) -> None:
    """Create the folder of a study, with the list of its runs, how it is judged, and the target.

    Where another shard is creating it, this one waits.
    """
    with new_folder(folder, _PATIENCE) as part:
        (part / GROUP).write_text(_listed(plan.members), encoding="utf-8")
        (part / JUDGING).write_bytes(written(plan.judging))
        if plan.target:
            (part / TARGET).write_text(f"{plan.target}\n", encoding="utf-8")


def _create_somewhere(folder: Path | None, plan: Plan) -> Path:
    """Create and return the folder of a study; without a given folder, names are tried until one is free."""
    if folder:
        create(folder, plan)
        return folder
    words = _words(plan.members[0].experiment())
    while True:
        place = fresh_folder("compare", *words)
        try:
            create(place, plan)
        except TakenError:
            continue
        return place


def _words(experiment: Experiment) -> list[str]:
    """Return the data and the skew, which name a folder."""
    data = spell("data", experiment.data)
    skew = experiment.skew
    if skew == AUTO and data.startswith("silos:"):
        skew = "natural"
    elif skew == AUTO:
        skew = DEFAULT_SKEW
    return [data, spell("skew", skew)]


def target_of(folder: Path) -> Target | None:
    """Return the target that the runs of a study are to reach, if one was given."""
    path = folder / TARGET
    if not path.is_file():
        return None
    with reading(path):
        return Target.of(path.read_text(encoding="utf-8").strip())


def record_target(folder: Path, target: Target) -> None:
    """Record another target that the runs of a study are to reach."""
    write_atomically(folder / TARGET, f"{target}\n".encode())


def _listed(members: Sequence[Member]) -> str:
    return json.dumps([asdict(member) for member in members], indent=2) + "\n"


def must_be_the_same(folder: Path, members: Sequence[Member]) -> None:
    """Raise an error if the folder holds another study."""
    there = _by_one_worker(read_members(folder))
    if _listed(there) != _listed(_by_one_worker(members)):
        raise FedskewError(
            f"{folder} holds other runs than these: choose another folder, or resume what it holds ("
            f"{resume_command(folder)})"
        )


def with_workers(members: Sequence[Member], workers: int) -> list[Member]:
    """Return runs with another number of workers, which gives the same results; an error for runs without any."""
    changed = []
    for member in members:
        if member.experiment().workers is None:
            raise FedskewError(
                f"{member.name} began without workers, which add up clients in another order: resume it without"
            )
        changed.append(replace(member, values={**member.values, "workers": workers}))
    return changed


def _by_one_worker(members: Sequence[Member]) -> list[Member]:
    """Return runs that are equal if they differ in their number of workers only."""
    changed = []
    for member in members:
        if member.experiment().workers is None:
            changed.append(member)
        else:
            changed += with_workers([member], 1)
    return changed
