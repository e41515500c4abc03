"""Several runs in one folder: methods x numbers x skews x seeds on the same partitions; it is resumed as a whole.

Runs of one method that differ in their seed, learning rate and numeric options are trained side by side, where a stack
of the clients of all of them is faster than one run after the other.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedskew.algorithms.contract import algorithms as methods
from fedskew.algorithms.contract import resolve
from fedskew.core.config import AUTO, Experiment
from fedskew.core.errors import DivergedError, FedskewError, unknown
from fedskew.core.files import reading
from fedskew.core.lock import locked
from fedskew.core.registry import Choice, compose, parts_of
from fedskew.core.writing import write_atomically
from fedskew.data.federation import Federation
from fedskew.engine.together import numeric_options
from fedskew.runs.callbacks import Callback, CallbackSpec, as_callbacks
from fedskew.runs.choices import brief, spell
from fedskew.runs.environment import check_imports
from fedskew.runs.execute import fresh_folder, prepare, resuming, starting
from fedskew.runs.experiment import check_choices
from fedskew.runs.federate import DEFAULT_SKEW, federate
from fedskew.runs.folder import (
    ENVIRONMENT,
    GROUP,
    SUMMARY,
    RunFolder,
    TakenError,
    must_be_new,
    new_folder,
    resume_command,
    to_json,
)
from fedskew.runs.run import Run
from fedskew.runs.runner import CheckpointInterval, Steps
from fedskew.runs.summary import Row, mean_and_std
from fedskew.server.server import RoundResult
from fedskew.study.jobs import Tell, in_processes
from fedskew.study.side_by_side import fits, side_by_side

FAILED, TARGET = "failed.json", "target.txt"
MOST_SEEDS = 1_000  # of one group: all are partitioned and checked before the first run
MOST_TOGETHER = 16  # runs that are trained side by side: all of them are in memory
_EXACT = 2**53  # whole numbers below are exact, and written in digits
_MEMORY = 4 << 30  # bytes of data sets that depend on the seed
GRID_SETTINGS = ("lr", "momentum", "weight_decay", "clip_norm")  # beside the method's own options


@dataclass(frozen=True)
class Member:
    """One of several runs: the method as it was written, all settings, and the numbers of the grid among them.

    ``skew`` is that of the run where a comparison has several.
    """

    name: str
    algorithm: str
    values: Mapping[str, Any]
    varied: Mapping[str, float] = field(default_factory=dict)
    skew: str = ""

    @property
    def label(self) -> str:
        """Return the method, its numbers of the grid and its skew: the same for all seeds."""
        numbers = (f"{name}={value:g}" for name, value in self.varied.items())
        return " ".join([self.algorithm, *numbers, *([f"on {self.skew}"] if self.skew else [])])

    def experiment(self) -> Experiment:
        """Return the validated experiment."""
        return Experiment(**self.values)


def members(
    values: Mapping[str, Any],
    algorithms: Sequence[str],
    seeds: Sequence[int],
    grid: Mapping[str, Sequence[float]] | None = None,
    skews: Sequence[str] = (),
) -> list[Member]:
    """Return all methods with all numbers of the grid, all seeds and all skews; bad choices are errors.

    A name of the grid is a setting of the training that is a number, or an option of a method: methods without it have
    their runs once. Without several skews they are part of the values.
    """
    if len(seeds) > MOST_SEEDS:
        raise FedskewError(
            f"{len(seeds):,} seeds are more than a group holds: give at most {MOST_SEEDS:,} at a time"
        )
    result = []
    applied = _applied(algorithms, grid or {})
    for skew, seed in product(skews or [""], seeds):
        for algorithm, numbers in (
            (one, some) for one in algorithms for some in _combinations(applied[one])
        ):
            words = [
                algorithm,
                *(f"{name}={value:g}" for name, value in numbers.items()),
                *([skew] if skew else []),
            ]
            name = re.sub(r"[^A-Za-z0-9.+-]+", "-", "-".join(words)).strip("-") + f"-s{seed}"
            chosen = {**values, **_with_numbers(algorithm, numbers, values), "seed": seed}
            result.append(
                Member(name, algorithm, {**chosen, "skew": skew} if skew else chosen, numbers, skew)
            )
    twice = next(
        (name for name, count in Counter(member.name for member in result).items() if count > 1),
        None,
    )
    if twice:
        raise FedskewError(
            f"{twice} is given twice: give every algorithm, number, skew and seed once"
        )
    known: dict[str, Member] = {}
    for member in result:
        check_choices(member.experiment())
        same = known.setdefault(repr(_in_short(member.experiment())), member)
        if same is not member:
            raise FedskewError(
                f"{same.label} is given twice, also as {member.label}: give every algorithm, number, skew and seed once"
            )
    return result


def _in_short(experiment: Experiment) -> Experiment:
    """Return an experiment that is the same in all spellings of its method and skew."""
    if experiment.skew == AUTO:
        skew = AUTO
    else:
        skew = brief("skew", experiment.skew)
    return replace(experiment, algorithm=brief("algorithm", experiment.algorithm), skew=skew)


def plan(values: Mapping[str, Any]) -> list[Member]:
    """Return the runs of a comparison from its settings, of which ``algorithm`` and ``skew`` may be lists.

    ``seeds`` are whole numbers or a text such as ``0-4``, ``grid`` has numbers by name, or texts such as
    ``mu=0,0.01,0.1``.
    """
    seeds = values.get("seeds")
    grid = values.get("grid") or {}
    if isinstance(grid, str):
        raise FedskewError(
            f"grid={grid!r} is no table of numbers, such as mu = [0, 0.01, 0.1] or {{'mu': [0, 0.1]}}"
        )
    rest = {}
    for name, value in values.items():
        if name not in ("algorithm", "skew", "seeds", "grid"):
            rest[name] = value
    if seeds is not None and "seed" in rest:
        raise FedskewError(f"--seed {rest['seed']} clashes with --seeds {seeds}: give one of them")
    if seeds is None:
        some = [Experiment(**rest).seed]
    else:
        some = _whole_numbers(seeds)
    algorithms = []
    for one in choices_of(values, "algorithm", "fedavg"):
        algorithms.append(spell("algorithm", one))
    skews = []
    for one in choices_of(values, "skew", AUTO):
        skews.append(one if one == AUTO else spell("skew", one))
    if len(skews) > 1:
        rest = rest
    else:
        rest = {**rest, **({"skew": skews[0]} if "skew" in values else {})}
    if not isinstance(grid, Mapping):
        numbers = parse_grid(grid)
    else:
        numbers = _numbers(grid)
    return members(rest, algorithms, some, numbers, skews if len(skews) > 1 else ())


def choices_of(values: Mapping[str, Any], name: str, usual: str) -> list[Any]:
    """Return the choices of a setting that may be one or a list of them."""
    asked = values.get(name, usual)
    if isinstance(asked, (list, tuple)):
        found = list(asked)
    else:
        found = [asked]
    if not found:
        raise FedskewError(f"{name} = [] is empty: give one or several (fedskew list {name}s)")
    return found


def _whole_numbers(seeds: Any) -> list[int]:
    """Return the seeds of a text, or of a list or a range of whole numbers."""
    if isinstance(seeds, str):
        return parse_seeds(seeds)
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        raise FedskewError(
            f"seeds={seeds} may be one seed or so many: give [{seeds}], or range({seeds}) in Python"
        )
    if isinstance(seeds, Iterable):
        found = list(seeds)
    else:
        found = []
    if not found or not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in found):
        raise FedskewError(f"seeds={seeds!r} are not whole numbers, such as [0, 1, 2] or '0-4'")
    return found


def _numbers(grid: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the numbers of a table of lists."""
    found = {}
    for name, numbers in grid.items():
        found[name.replace("-", "_")] = choices_of({name: numbers}, name, "")
    for name, numbers in found.items():
        if not all(
            isinstance(number, (int, float)) and not isinstance(number, bool) for number in numbers
        ):
            raise FedskewError(
                f"grid: {name} = {numbers} are not numbers, such as mu = [0, 0.01, 0.1]"
            )
    result: dict[str, list[float]] = {}
    for name, numbers in found.items():
        result[name] = [float(number) for number in numbers]
    return result


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of a text such as ``0-4`` or ``0,3,7``.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not found or (found[2] and int(found[2]) < int(found[1])):
            raise FedskewError(f"seeds {text!r}: {part!r} is not a number or a range such as 0-4")
        first = int(found[1])
        last = int(found[2] or found[1])
        if last - first >= MOST_SEEDS:
            raise FedskewError(
                f"seeds {part}: that is more than a group holds, give at most {MOST_SEEDS:,} at a time"
            )
        seeds.extend(range(first, last + 1))
    return seeds


def _combinations(grid: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    result: list[dict[str, float]] = []
    for numbers in product(*grid.values()):
        result.append(dict(zip(grid, numbers, strict=True)))
    return result


def _applied(
    algorithms: Sequence[str], grid: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, Sequence[float]]]:
    """Return which numbers of the grid apply to every method; a name that applies to none is an error."""
    options = {}
    for algorithm in algorithms:
        options[algorithm] = set[str]().union(*_numeric_options(algorithm))
    known = set(GRID_SETTINGS).union(*options.values())
    for name in grid:
        if name not in known:
            raise unknown(
                f"number of {' or '.join(algorithms)} or of its training in --grid", name, known
            )
    result: dict[str, dict[str, Sequence[float]]] = {}
    for algorithm, mine in options.items():
        result[algorithm] = {name: grid[name] for name in grid if name in (*mine, *GRID_SETTINGS)}
    return result


def _numeric_options(algorithm: str) -> list[set[str]]:
    """Return the names of the numeric options of every part of a method."""
    result: list[set[str]] = []
    for part in parts_of(methods.choose(algorithm), methods.kind):
        result.append(
            {
                option.name
                for option in methods.home(part).options(part.name).values()
                if option.numeric
            }
        )
    return result


def _with_numbers(
    algorithm: str, numbers: Mapping[str, float], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the method and the settings with these numbers."""
    parts = parts_of(methods.choose(algorithm), methods.kind)
    options = _numeric_options(algorithm)
    settings: dict[str, Any] = {}
    for name, number in numbers.items():
        value = int(number) if number.is_integer() and abs(number) < _EXACT else number
        at = next((i for i, known in enumerate(options) if name in known), None)
        if name in (values if at is None else parts[at].options):
            raise FedskewError(
                f"{name} is given twice: in --grid, and as {'a setting' if at is None else algorithm}"
            )
        if at is None:
            settings[name] = value
        else:
            parts[at] = Choice(parts[at].name, {**parts[at].options, name: value})
    return {**settings, "algorithm": spell("algorithm", str(compose(parts)))}


def parse_grid(texts: Sequence[str]) -> dict[str, list[float]]:
    """Return the numbers of texts such as ``mu=0,0.01,0.1``, by name.

    >>> parse_grid(["mu=0,0.1", "server-lr=1"])
    {'mu': [0.0, 0.1], 'server_lr': [1.0]}
    """
    grid: dict[str, list[float]] = {}
    for text in texts:
        written, equals, numbers = text.partition("=")
        name = written.strip().replace("-", "_")
        if not equals or not name:
            raise FedskewError(f"grid {text!r} is not a name with numbers, such as mu=0,0.01,0.1")
        if name in grid:
            raise FedskewError(f"grid: {name} is given twice")
        grid[name] = [_number(part, text) for part in numbers.split(",")]
    return grid


def _number(part: str, text: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise FedskewError(f"grid {text!r}: {part!r} is not a number") from None


class Partitions:
    """The federations of a group; the data is read once, or once for every seed if rows are set aside by it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Federation] = {}

    def of(self, experiment: Experiment) -> Federation:
        """Return the federation of this experiment."""
        if experiment.split_seed is None:
            seed = experiment.seed
        else:
            seed = experiment.split_seed
        key = str(experiment.skew), seed
        if key not in self._known:
            last = next(reversed(self._known.values()), None)
            apart = (
                experiment.validation
                and sum(fed.data.train.x.nbytes for fed in self._known.values()) > _MEMORY
            )
            if apart or len(self._known) >= MOST_TOGETHER:
                self._known.clear()
            self._known[key] = federate(
                experiment, None if last is None or experiment.validation else last.data
            )
        return self._known[key]


def check(
    wanted: Sequence[Member], partitions: Partitions | None = None, target: str | None = None
) -> None:
    """Raise before the first run the errors that would stop a later one; every partition and model is made once.

    ``target`` is the metric of a score to reach, which the runs must follow; empty for the one that decides.
    """
    partitions = partitions or Partitions()
    reasons = []
    for member in wanted:
        experiment = member.experiment()
        method = resolve(member.experiment().algorithm)
        with _named(member):
            server, _ = prepare(
                partitions.of(experiment), experiment.model, method, experiment.settings()
            )
            if target and target not in server.evaluator.names:
                more = "; others are followed with --metrics"
                raise unknown("metric of the target", target, server.evaluator.names, more)
            if not server.has_common_model:
                reasons.append(server.job.shared_model)
    if target is not None and len(reasons) == len(wanted):
        raise FedskewError(
            f"a target is a score of a shared model on test rows, and {reasons[0]}: leave it out"
        )


def prepared(
    folder: Path | None, wanted: Sequence[Member], or_resume: bool, target: str | None, metric: str
) -> Path:
    """Return the folder of a group, after all checks: a new one, or with ``or_resume`` one that has the same runs.

    The target, if one is given, is recorded in it; ``metric`` is the target's own, empty for the one that decides.
    """
    if target is None:
        followed = None
    else:
        followed = metric
    if or_resume and folder and folder.exists():
        must_be_the_same(folder, wanted)
        if target is not None:
            check(wanted, target=followed)
            record_target(folder, target)
        return folder
    if folder:
        must_be_new(folder)
    check(wanted, target=followed)
    return create_somewhere(folder, wanted, target)


@contextmanager
def _named(member: Member) -> Iterator[None]:
    """Name the run in its errors."""
    try:
        yield
    except FedskewError as problem:
        raise type(problem)(f"{member.name}: {problem}") from problem


def create(folder: Path, wanted: Sequence[Member], target: str | None = None) -> None:
    """Create the folder of a group, with the list of its runs and the target that they are to reach."""
    with new_folder(folder) as part:
        (part / GROUP).write_text(_listed(wanted), encoding="utf-8")
        if target is not None:
            (part / TARGET).write_text(target + "\n", encoding="utf-8")


def create_somewhere(folder: Path | None, wanted: Sequence[Member], target: str | None) -> Path:
    """Create and return the folder of a group; without a given folder, names are tried until one is free."""
    experiment = wanted[0].experiment()
    data = spell("data", experiment.data)
    skew = experiment.skew
    if skew == AUTO:
        if data.startswith("silos:"):
            skew = "natural"
        else:
            skew = DEFAULT_SKEW
    while True:
        place = folder or fresh_folder("compare", data, spell("skew", skew))
        try:
            create(place, wanted, target)
        except TakenError:
            if folder:
                raise
        else:
            return place


def target_of(folder: Path) -> str | None:
    """Return the target that the runs of a group are to reach, if one was given."""
    path = folder / TARGET
    if not path.is_file():
        return None
    with reading(path):
        return path.read_text(encoding="utf-8").strip()


def record_target(folder: Path, target: str) -> None:
    """Record another target that the runs of a group are to reach."""
    write_atomically(folder / TARGET, f"{target}\n".encode())


def _listed(wanted: Sequence[Member]) -> str:
    return json.dumps([asdict(member) for member in wanted], indent=2) + "\n"


def must_be_the_same(folder: Path, wanted: Sequence[Member]) -> None:
    """Raise an error if the folder holds another group."""
    if _listed(_by_one_worker(read(folder))) != _listed(_by_one_worker(wanted)):
        raise FedskewError(
            f"{folder} holds other runs than these: choose another folder, or resume what it holds ("
            f"{resume_command(folder)})"
        )


def with_workers(wanted: Sequence[Member], workers: int) -> list[Member]:
    """Return runs with another number of workers, which gives the same results; an error for runs without any."""
    for member in wanted:
        if member.experiment().workers is None:
            raise FedskewError(
                f"{member.name} began without workers, which add up clients in another order: resume it without"
            )
    result: list[Member] = []
    for member in wanted:
        result.append(replace(member, values={**member.values, "workers": workers}))
    return result


def _by_one_worker(wanted: Sequence[Member]) -> list[Member]:
    """Return runs that are equal if they differ in their number of workers only."""
    result: list[Member] = []
    for member in wanted:
        result.append(
            member if member.experiment().workers is None else with_workers([member], 1)[0]
        )
    return result


def read(folder: Path) -> list[Member]:
    """Return the runs of a group."""
    path = folder / GROUP
    with reading(path):
        found = []
        for entry in json.loads(path.read_text(encoding="utf-8")):
            found.append(Member(**entry))
        for member in found:
            if not isinstance(member.algorithm, str) or not isinstance(member.values, dict):
                raise FedskewError(
                    f"{path} is damaged: {member.name!r} needs an algorithm and values"
                )
            if not isinstance(member.skew, str):
                raise FedskewError(f"{path} is damaged: the skew of {member.name!r} is no text")
            if not isinstance(member.varied, dict) or not all(
                isinstance(n, float) for n in member.varied.values()
            ):
                raise FedskewError(f"{path} is damaged: what {member.name!r} varies are no numbers")
            if not re.fullmatch(r"[A-Za-z0-9.+-]+", member.name) or not member.name.strip("."):
                raise FedskewError(
                    f"{path} is damaged: the run {member.name!r} is no name of a folder in it"
                )
            if strange := set(member.values) - {field.name for field in fields(Experiment)}:
                raise FedskewError(
                    f"{path} is damaged: {member.name} has the unknown settings {', '.join(sorted(strange))}"
                )
    if not found:
        raise FedskewError(f"{path} cannot be read: it names no run")
    return found


def run_all(
    folder: Path,
    wanted: Sequence[Member],
    callbacks: Callable[[Member], list[CallbackSpec]],
    *,
    writers: Sequence[Callback] = (),
    retry: bool = False,
    force: bool = False,
    partitions: Partitions | None = None,
    jobs: int = 1,
) -> list[Row]:
    """Run, resume or skip every member; return their summaries, and write them with means to the folder.

    A run that diverges is recorded as failed, with its reason, and the others continue; it is run again only with
    ``retry``. ``partitions`` spares several groups on the same partitions from making them again. With several ``jobs``
    what cannot be trained in one stack is trained in as many processes; ``callbacks`` are called in this process, and
    ``writers`` where a run ends.
    """
    with locked(folder):
        for begun in (
            RunFolder(folder / member.name) for member in wanted if (folder / member.name).exists()
        ):
            check_imports(begun.path, begun.read_json(ENVIRONMENT), force)
        partitions = partitions or Partitions()
        found = dict[str, Row]()
        groups = []
        for group in _groups(wanted):
            groups.append([member for member in group if _runs(folder / member.name, retry)])
        groups = [group for group in groups if group]
        if jobs > 1:
            found = _run_in_processes(folder, groups, partitions, callbacks, writers, force, jobs)
        else:
            for group in groups:
                found |= _run(
                    folder, group, partitions, lambda member: [*writers, *callbacks(member)], force
                )
        summaries = [found.get(member.name) or _recorded(folder / member.name) for member in wanted]
        content = to_json(overview(wanted, summaries), indent=2) + "\n"
        write_atomically(folder / SUMMARY, content.encode())
        return summaries


def _groups(wanted: Sequence[Member]) -> list[list[Member]]:
    """Return the members that may be trained in one stack: they differ in seed, learning rate and numeric options."""
    groups: dict[str, list[list[Member]]] = {}
    for member in wanted:
        experiment = member.experiment()
        method = resolve(experiment.algorithm)
        same = replace(experiment, seed=0, lr=1.0, algorithm="fedavg")
        options = {}
        for name, value in method.options().items():
            if name not in numeric_options(method):
                options[name] = value
        some = groups.setdefault(repr((same, method.label(), options)), [[]])
        if len(some[-1]) == MOST_TOGETHER:
            some.append([])
        some[-1].append(member)
    return [group for some in groups.values() for group in some]


@dataclass(frozen=True)
class _Work:
    """What one process is given: some runs, trained in one stack where they can be."""

    folder: Path
    group: Sequence[Member]
    writers: Sequence[Callback]
    force: bool


def _run_in_processes(
    folder: Path,
    groups: Sequence[Sequence[Member]],
    partitions: Partitions,
    callbacks: Callable[[Member], list[CallbackSpec]],
    writers: Sequence[Callback],
    force: bool,
    jobs: int,
) -> dict[str, Row]:
    """Run groups in several processes; those that gain nothing from one stack are single runs."""
    apart = []
    for group in groups:
        for part in [group] if _stacks(group[0], partitions) else [[m] for m in group]:
            apart.append(part)
    tasks = [_Work(folder, group, writers, force) for group in apart]
    members = {}
    for group in groups:
        for member in group:
            members[member.name] = member
    watching: dict[str, list[Callback]] = {}

    def told(message: tuple[str, RoundResult, int]) -> None:
        name, result, rounds = message
        if name not in watching:
            watching[name] = as_callbacks(callbacks(members[name]))
        for callback in watching[name]:
            callback.on_round_end(result, rounds)

    found = in_processes(_run_one, tasks, jobs, told)
    return {name: row for some in found for name, row in some.items()}


def _stacks(member: Member, partitions: Partitions) -> bool:
    """Return whether runs like this one gain from one stack."""
    experiment = member.experiment()
    with _named(member):
        method = resolve(experiment.algorithm)
        settings = experiment.settings()
        return fits(prepare(partitions.of(experiment), experiment.model, method, settings)[0])


def _run_one(work: _Work, tell: Tell) -> dict[str, Row]:
    """Run some members in a process of its own, which tells after every round."""

    def callbacks(member: Member) -> list[CallbackSpec]:
        def show(result: RoundResult, rounds: int) -> None:
            tell((member.name, result, rounds))

        return [*work.writers, show]

    return _run(work.folder, work.group, Partitions(), callbacks, work.force)


def _runs(place: Path, retry: bool) -> bool:
    """Return whether a member is to be run or resumed: it has neither finished nor failed."""
    if place.exists() and RunFolder.open(place).finished:
        return False
    return retry or not (place / FAILED).exists()


def _recorded(place: Path) -> Row:
    """Return the summary of a member that ended earlier; for a failed one, its name and the reason."""
    return RunFolder(place).read_json(FAILED if (place / FAILED).exists() else SUMMARY)


def _run(
    folder: Path,
    group: Sequence[Member],
    partitions: Partitions,
    callbacks: Callable[[Member], list[CallbackSpec]],
    force: bool,
) -> dict[str, Row]:
    """Run or resume some members side by side, and return the summaries of those that finished, by name.

    They make checkpoints after the same rounds, and go on from the last one that all of them have.
    """
    one = group[0].experiment()
    interval = CheckpointInterval(one.checkpoint_every, one.rounds)
    begun = []
    for place in (folder / member.name for member in group):
        if place.exists():
            begun.append(RunFolder(place))
    latest = min((max(disk.checkpoints(), default=0) for disk in begun), default=0)
    runs = []
    for member in group:
        runs.append(
            _steps(member, folder / member.name, partitions, callbacks, force, interval, latest)
        )
    ended = zip(group, side_by_side(runs), strict=True)
    result: dict[str, Row] = {}
    for member, run in ended:
        if not isinstance(run, DivergedError):
            result[member.name] = run.summary
    return result


def _steps(
    member: Member,
    place: Path,
    partitions: Partitions,
    callbacks: Callable[[Member], list[CallbackSpec]],
    force: bool,
    interval: CheckpointInterval,
    latest: int,
) -> "Steps[Run]":
    """Begin or resume one member; if it diverges, that is recorded."""
    (place / FAILED).unlink(missing_ok=True)
    experiment = member.experiment()
    method = resolve(member.experiment().algorithm)
    try:
        with _named(member):
            fed = partitions.of(experiment)
            watching = callbacks(member)
            if place.exists():
                return (
                    yield from resuming(
                        place,
                        fed,
                        callbacks=watching,
                        force=force,
                        workers=experiment.workers,
                        interval=interval,
                        latest=latest,
                        picture=False,
                    )
                )
            settings = experiment.settings()
            return (
                yield from starting(
                    fed, experiment.model, method, settings, place, watching, None, interval, False
                )
            )
    except DivergedError as problem:
        row = {"algorithm": member.algorithm, "seed": experiment.seed, "failed": str(problem)}
        RunFolder(place).write_json(FAILED, row)
        raise


def overview(wanted: Sequence[Member], summaries: Sequence[Row]) -> Row:
    """Return the summaries of all runs, their means over seeds, and warnings about the comparison."""
    warned = warnings_of([member.algorithm for member in wanted], summaries)
    return {"runs": list(summaries), "means": means(wanted, summaries), "warnings": warned}


def warnings_of(methods: Sequence[str], summaries: Sequence[Row]) -> list[str]:
    """Return the warnings about a comparison and about its runs."""
    unequal = unequal_weights(methods, summaries)
    seeds: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for row in summaries:
        for text in row.get("warnings", []):
            seeds.setdefault(row["algorithm"], []).append(str(row["seed"]))
            texts.setdefault(row["algorithm"], text)
    several = len(summaries) > 1
    own = []
    for method, text in texts.items():
        own.append(f"{text} (seed {', '.join(seeds[method])})" if several else text)
    return [*([unequal] if unequal else []), *own]


def unequal_weights(methods: Sequence[str], summaries: Sequence[Row]) -> str:
    """Return a warning if the aggregation weights differ between methods; empty if they do not.

    Factors that a method itself applies to the weights are not compared.
    """
    found: dict[str, list[str]] = {}
    for method, summary in zip(methods, summaries, strict=True):
        base = str(summary.get("weights", "")).split(" ")[0]
        if base in ("size", "uniform") and method not in found.setdefault(base, []):
            found[base].append(method)
    if len(found) < 2:
        return ""
    sides = " but ".join(f"{base} in {', '.join(names)}" for base, names in found.items())
    return f"the aggregation weights differ, {sides}: on heterogeneous clients that can decide a ranking (--weights)"


def means(wanted: Sequence[Member], summaries: Sequence[Row]) -> dict[str, Row]:
    """Return mean and standard deviation (n - 1) over the seeds of every number, for every method.

    Failed runs are not included; a method without finished runs is omitted.
    """
    result = {}
    for label in dict.fromkeys(member.label for member in wanted):
        rows = []
        for m, row in zip(wanted, summaries, strict=True):
            if m.label == label and "failed" not in row:
                rows.append(row)
        if not rows:
            continue
        numbers = []
        for key, value in rows[0].items():
            if isinstance(value, (int, float)) and key != "seed":
                numbers.append(key)
        result[label] = {
            key: dict(zip(("mean", "std"), mean_and_std([row[key] for row in rows]), strict=True))
            for key in numbers
            if all(isinstance(row.get(key), (int, float)) for row in rows)
        }
    return result
