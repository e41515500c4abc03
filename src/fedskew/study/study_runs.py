"""The runs of a study: each is begun, resumed or left as it ended.

Runs of one method that differ in their skew, seed, learning rate and numeric options are trained side by side, where a
stack of the clients of all of them is faster than one run after the other.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from fedskew.algorithms.contract import resolve
from fedskew.core.config import AUTO
from fedskew.core.errors import DivergedError, FedskewError, Interrupted
from fedskew.core.lock import locked
from fedskew.core.writing import write_atomically
from fedskew.engine.together import numeric_options
from fedskew.runs.callbacks import Callback, CallbackSpec, as_callbacks
from fedskew.runs.execute import prepare, resuming, starting
from fedskew.runs.folder import ENVIRONMENT, SUMMARY, Row, RunFolder, to_json
from fedskew.runs.resume_checks import check_imports
from fedskew.runs.run import Run
from fedskew.runs.runner import (
    STOPS,
    CheckpointInterval,
    Resumption,
    Steps,
    Watch,
    stopping,
    within,
)
from fedskew.server.scorer import RoundResult
from fedskew.study.jobs import Tell, in_processes
from fedskew.study.member import FAILED, Member
from fedskew.study.overview import overview
from fedskew.study.partitions import Partitions
from fedskew.study.side_by_side import can_share_a_stack, side_by_side
from fedskew.study.sitting import WHOLE, Shard, Sitting
from fedskew.study.stages import wanted
from fedskew.study.study_folder import Study, named_in_errors

MOST_TOGETHER = 16  # runs that are trained side by side: all of them are in memory
CallbacksOf: TypeAlias = Callable[[Member], list[CallbackSpec]]
# From the runs of this sitting, and how many have ended before, to a context that yields their callbacks
Watcher: TypeAlias = Callable[[Sequence[Member], int], AbstractContextManager[CallbacksOf]]


@contextmanager
def unwatched(members: Sequence[Member], ended: int) -> Iterator[CallbacksOf]:
    """Watch no run."""
    yield lambda member: []


@dataclass(frozen=True)
class Execution:
    """How the runs of a study are executed.

    Args:
        callbacks: those of a run, which are called in this process
        retry: run those again that failed
        force: use the last intact checkpoints, and accept a changed configuration
        sitting: for how long, and which share of the runs
    """

    callbacks: CallbacksOf = lambda member: []
    retry: bool = False
    force: bool = False
    sitting: Sitting = WHOLE


class Executed(NamedTuple):
    """The runs that a study wanted, and their summaries; those of failed ones are their names and reasons.

    ``left`` are runs of other shards that have not ended; where there are any, there are no summaries.
    """

    members: list[Member]
    summaries: list[Row]
    left: list[Member]


def execute(study: Study, how: Execution) -> Executed:
    """Run, resume or skip every run that a study wants, and write their summaries with means to its folder.

    A run that diverges is recorded as failed, with its reason, and the others continue; it is run again only with
    ``retry``. With several jobs, what cannot be trained in one stack is trained in as many processes. Where numbers are
    chosen by other seeds, the runs that methods are judged by come after the choice. A sitting with a shard leaves the
    runs of the others.
    """
    folder = study.folder
    if how.sitting.seconds_left == 0:
        raise FedskewError(
            "budget: the time was up before the first round, as reading and checking took longer: give more"
        )
    with _held(folder, how.sitting.shard), within(how.sitting.seconds_left):
        finished_now: dict[str, Row] = {}
        members: list[Member] = []
        more = wanted(folder, study.plan.members, study.plan.judging)
        while more != members:
            members = more
            finished_now |= _run(study, members, how)
            left = unfinished(folder, members)
            if left:
                return Executed(members, [], left)
            how = replace(how, retry=False)  # what fails again has had its second try
            more = wanted(folder, study.plan.members, study.plan.judging)
        summaries = []
        for member in members:
            summary = finished_now.get(member.name) or _recorded(folder / member.name)
            summaries.append(summary)
        content = to_json(overview(members, summaries), indent=2) + "\n"
        write_atomically(folder / SUMMARY, content.encode())
        return Executed(members, summaries, [])


def unfinished(folder: Path, members: Sequence[Member]) -> list[Member]:
    """Return the runs that have neither finished nor failed."""
    return [member for member in members if _is_to_run(folder / member.name, retry=False)]


def _held(folder: Path, shard: Shard) -> AbstractContextManager[None]:
    """Hold the lock of a study, or of one shard of it: several shards may run in one folder."""
    if shard.count == 1:
        return locked(folder)
    return locked(folder, folder / f".shard-{shard.number}-of-{shard.count}.lock")


def _run(study: Study, members: Sequence[Member], how: Execution) -> dict[str, Row]:
    """Run those members that have neither finished nor failed, and return the summaries of those that finished."""
    folder = study.folder
    groups = groups_to_run(folder, members, how)
    _check_rows(folder, members, groups, study.partitions)
    if not groups:
        return {}
    if study.plan.jobs > 1:
        return _run_in_processes(study, groups, how)
    return _run_here(study, groups, how)


def groups_to_run(folder: Path, members: Sequence[Member], how: Execution) -> list[list[Member]]:
    """Return the runs of this sitting that have neither finished nor failed, those of one stack together.

    Runs that have begun must find the code that they imported.
    """
    for member in members:
        if (folder / member.name).exists():
            begun = RunFolder(folder / member.name)
            check_imports(begun.path, begun.read_json(ENVIRONMENT), how.force)
    shard = how.sitting.shard
    groups = []
    for group in shard.share_of(_groups(members)):
        left = [member for member in group if _is_to_run(folder / member.name, how.retry)]
        if left:
            groups.append(left)
    return groups


def _check_rows(
    folder: Path,
    members: Sequence[Member],
    groups: Sequence[Sequence[Member]],
    partitions: Partitions,
) -> None:
    """Refuse to train on other rows than those of the runs of the same block that have begun."""
    begun: dict[tuple[str, int, int | None], tuple[str, str]] = {}
    for member in members:
        if (folder / member.name).exists():
            recorded = RunFolder(folder / member.name).read_json(ENVIRONMENT).get("federation")
            begun[block_of(member)] = member.name, str(recorded)
    for group in groups:
        for member in group:
            if block_of(member) not in begun:
                continue
            name, recorded = begun[block_of(member)]
            if partitions.of(member.experiment()).fingerprint != recorded:
                raise FedskewError(
                    f"{member.name}: the clients hold other rows than in {name}: put the data back, or begin a new "
                    "comparison"
                )


def block_of(member: Member) -> tuple[str, int, int | None]:
    """Return what the rows of a run follow from, within a study."""
    experiment = member.experiment()
    return str(experiment.skew), experiment.seed, experiment.split_seed


def _groups(members: Sequence[Member]) -> list[list[Member]]:
    """Return the members that may be trained in one stack: they differ in skew, seed, lr and numeric options.

    They do not depend on shards and processes, because the last bits of a run may depend on its group.
    """
    alike: dict[str, list[Member]] = {}
    for member in members:
        experiment = member.experiment()
        method = resolve(experiment.algorithm)
        same = replace(experiment, seed=0, lr=1.0, algorithm="fedavg", skew=AUTO)
        numeric = numeric_options(method)
        options = {name: value for name, value in method.options().items() if name not in numeric}
        alike.setdefault(repr((same, method.label(), options)), []).append(member)
    groups = []
    for equals in alike.values():
        for start in range(0, len(equals), MOST_TOGETHER):
            groups.append(equals[start : start + MOST_TOGETHER])
    return groups


def _is_to_run(place: Path, retry: bool) -> bool:
    """Return whether a member is to be run or resumed: it has neither finished nor failed."""
    if place.exists() and RunFolder.open(place).finished:
        return False
    return retry or not (place / FAILED).exists()


def _recorded(place: Path) -> Row:
    """Return the summary of a member that ended earlier; for a failed one, its name and the reason."""
    if (place / FAILED).exists():
        return RunFolder(place).read_json(FAILED)
    return RunFolder(place).read_json(SUMMARY)


def _run_here(study: Study, groups: Sequence[Sequence[Member]], how: Execution) -> dict[str, Row]:
    """Run groups in this process, one after the other."""
    summaries: dict[str, Row] = {}
    with stopping() as stopped:
        for group in groups:
            if stopped:  # before the folder of another run is made
                raise Interrupted("interrupted", STOPS[stopped[0]])
            runs = _Group(study.folder, group, how.force)
            summaries |= runs.run(study.partitions, how.callbacks)
    return summaries


def _run_in_processes(
    study: Study, groups: Sequence[Sequence[Member]], how: Execution
) -> dict[str, Row]:
    """Run groups in several processes; those that gain nothing from one stack are single runs."""
    tasks = []
    members: dict[str, Member] = {}
    for group in groups:
        shares = [[member] for member in group]
        if _gain_from_a_stack(group[0], study.partitions):
            shares = [list(group)]
        for share in shares:
            tasks.append(_Group(study.folder, share, how.force))
        members |= {member.name: member for member in group}
    watching: dict[str, list[Callback]] = {}

    def told(message: tuple[str, RoundResult, int]) -> None:
        name, result, rounds = message
        if name not in watching:
            watching[name] = as_callbacks(how.callbacks(members[name]))
        for callback in watching[name]:
            callback.on_round_end(result, rounds)

    summaries: dict[str, Row] = {}
    for of_one_task in in_processes(_run_group, tasks, study.plan.jobs, told):
        summaries |= of_one_task
    return summaries


def _gain_from_a_stack(member: Member, partitions: Partitions) -> bool:
    """Return whether runs like this one gain from one stack."""
    experiment = member.experiment()
    with named_in_errors(member):
        fed = partitions.of(experiment)
        method = resolve(experiment.algorithm)
        server, _ = prepare(fed, experiment.model, method, experiment.settings())
        return can_share_a_stack(server)


def _run_group(group: "_Group", tell: Tell) -> dict[str, Row]:
    """Run the members of a group in this process, and tell the first process of every round."""

    def callbacks(member: Member) -> list[CallbackSpec]:
        def show(result: RoundResult, rounds: int) -> None:
            tell((member.name, result, rounds))

        return [show]

    return group.run(Partitions(), callbacks)


@dataclass(frozen=True)
class _Group:
    """Members that are trained side by side."""

    folder: Path
    members: Sequence[Member]
    force: bool

    def run(self, partitions: Partitions, callbacks: CallbacksOf) -> dict[str, Row]:
        """Run or resume them, and return the summaries of those that finished, by name.

        They make checkpoints after the same rounds, and go on from the last one that all of them have.
        """
        first = self.members[0].experiment()
        interval = CheckpointInterval(first.checkpoint_every, first.rounds)
        latest = self._latest_checkpoint()
        runs = []
        for member in self.members:
            runs.append(self._steps(member, partitions, callbacks, interval, latest))
        found: dict[str, Row] = {}
        for member, run in zip(self.members, side_by_side(runs), strict=True):
            if not isinstance(run, DivergedError):
                found[member.name] = run.summary
        return found

    def _latest_checkpoint(self) -> int:
        """Return the round of the last checkpoint that all begun members have, 0 if there is none."""
        rounds = []
        for member in self.members:
            place = self.folder / member.name
            if place.exists():
                rounds.append(max(RunFolder(place).checkpoints.rounds(), default=0))
        return min(rounds, default=0)

    def _steps(
        self,
        member: Member,
        partitions: Partitions,
        callbacks: CallbacksOf,
        interval: CheckpointInterval,
        latest: int,
    ) -> "Steps[Run]":
        """Begin or resume one member; if it diverges, that is recorded."""
        place = self.folder / member.name
        (place / FAILED).unlink(missing_ok=True)
        experiment = member.experiment()
        method = resolve(experiment.algorithm)
        try:
            with named_in_errors(member):
                fed = partitions.of(experiment)
                watch = Watch(callbacks(member), interval)
                if place.exists():
                    how = Resumption(self.force, experiment.workers, latest)
                    return (yield from resuming(place, fed, how=how, watch=watch))
                settings = experiment.settings()
                return (yield from starting(fed, experiment.model, method, settings, place, watch))
        except DivergedError as problem:
            row = {"algorithm": member.algorithm, "seed": experiment.seed, "failed": str(problem)}
            RunFolder(place).write_json(FAILED, row)
            raise
