"""Several runs in one folder: methods x numbers x seeds on the same partitions, which can be resumed as a whole.

Runs of one method that differ in their seed, learning rate and numeric options are trained side by side, where a stack
of the clients of all of them is faster than one run after the other.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedskew.algorithms.contract import algorithms as methods
from fedskew.algorithms.contract import resolve
from fedskew.core.config import Experiment
from fedskew.core.errors import DivergedError, FedskewError, unknown
from fedskew.core.files import reading
from fedskew.core.lock import locked
from fedskew.core.registry import Choice, compose, parts_of
from fedskew.core.writing import write_atomically
from fedskew.data.federation import Federation
from fedskew.engine.together import numeric_options
from fedskew.runs.callbacks import CallbackSpec
from fedskew.runs.choices import spell
from fedskew.runs.environment import check_imports
from fedskew.runs.execute import prepare, resuming, starting
from fedskew.runs.experiment import check_choices
from fedskew.runs.federate import federate
from fedskew.runs.folder import ENVIRONMENT, SUMMARY, RunFolder, new_folder, resume_command, to_json
from fedskew.runs.run import Run
from fedskew.runs.runner import CheckpointInterval, Steps
from fedskew.runs.side_by_side import side_by_side
from fedskew.runs.summary import Row, mean_and_std

GROUP, FAILED = "group.json", "failed.json"
MOST_SEEDS = 1_000  # of one group: all are partitioned and checked before the first run
MOST_TOGETHER = 16  # runs that are trained side by side: all of them are in memory
_MEMORY = 4 << 30  # bytes of data sets that depend on the seed
GRID_SETTINGS = ("lr", "momentum", "weight_decay", "clip_norm")  # beside the method's own options


@dataclass(frozen=True)
class Member:
    """One of several runs: the method as it was written, all settings, and the numbers of the grid among them."""

    name: str
    algorithm: str
    values: Mapping[str, Any]
    varied: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return the method and its numbers of the grid: the same for all seeds."""
        return " ".join([self.algorithm, *(f"{name}={value:g}" for name, value in self.varied.items())])

    def experiment(self) -> Experiment:
        """Return the validated experiment."""
        return Experiment(**self.values)


def members(
    values: Mapping[str, Any],
    algorithms: Sequence[str],
    seeds: Sequence[int],
    grid: Mapping[str, Sequence[float]] | None = None,
) -> list[Member]:
    """Return all methods with all numbers of the grid and all seeds; bad choices are errors.

    A name of the grid is an option of the method, or a setting of the training that is a number.
    """
    if len(seeds) > MOST_SEEDS:
        raise FedskewError(f"{len(seeds):,} seeds are more than a group holds: give at most {MOST_SEEDS:,} at a time")
    result = []
    for seed in seeds:
        for algorithm, numbers in product(algorithms, _combinations(grid or {})):
            words = [algorithm, *(f"{name}={value:g}" for name, value in numbers.items())]
            name = re.sub(r"[^A-Za-z0-9.+-]+", "-", "-".join(words)).strip("-") + f"-s{seed}"
            chosen = {**values, **_with_numbers(algorithm, numbers, values), "seed": seed}
            result.append(Member(name, algorithm, chosen, numbers))
    twice = next((name for name, count in Counter(member.name for member in result).items() if count > 1), None)
    if twice:
        raise FedskewError(f"{twice} is given twice: give every algorithm, number and seed once")
    for member in result:
        check_choices(member.experiment())
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
        first, last = int(found[1]), int(found[2] or found[1])
        if last - first >= MOST_SEEDS:
            raise FedskewError(f"seeds {part}: that is more than a group holds, give at most {MOST_SEEDS:,} at a time")
        seeds.extend(range(first, last + 1))
    return seeds


def _combinations(grid: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    return [dict(zip(grid, numbers, strict=True)) for numbers in product(*grid.values())]


def _with_numbers(algorithm: str, numbers: Mapping[str, float], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the method and the settings with these numbers."""
    parts = parts_of(methods.choose(algorithm), methods.kind)
    options = [
        {option.name for option in methods.home(part).options(part.name).values() if option.numeric} for part in parts
    ]
    settings: dict[str, Any] = {}
    for name, number in numbers.items():
        value = int(number) if number.is_integer() else number
        at = next((i for i, known in enumerate(options) if name in known), None)
        if at is None and name not in GRID_SETTINGS:
            raise unknown(
                f"number of {algorithm} or of its training in --grid", name, set(GRID_SETTINGS).union(*options)
            )
        if name in (values if at is None else parts[at].options):
            raise FedskewError(f"{name} is given twice: in --grid, and as {'a setting' if at is None else algorithm}")
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
        self._known: dict[int, Federation] = {}

    def of(self, experiment: Experiment) -> Federation:
        """Return the federation of this experiment."""
        seed = experiment.seed if experiment.split_seed is None else experiment.split_seed
        if seed not in self._known:
            last = next(reversed(self._known.values()), None)
            apart = experiment.validation and sum(fed.data.train.x.nbytes for fed in self._known.values()) > _MEMORY
            if apart or len(self._known) >= MOST_TOGETHER:
                self._known.clear()
            self._known[seed] = federate(experiment, None if last is None or experiment.validation else last.data)
        return self._known[seed]


def check(wanted: Sequence[Member], partitions: Partitions | None = None) -> None:
    """Raise before the first run the errors that would stop a later one; every partition and model is made once."""
    partitions = partitions or Partitions()
    for member in wanted:
        experiment = member.experiment()
        with _named(member):
            prepare(partitions.of(experiment), experiment.model, resolve(experiment.algorithm), experiment.settings())


@contextmanager
def _named(member: Member) -> Iterator[None]:
    """Name the run in its errors."""
    try:
        yield
    except FedskewError as problem:
        raise type(problem)(f"{member.name}: {problem}") from problem


def create(folder: Path, wanted: Sequence[Member]) -> None:
    """Create the folder of a group, with the list of its runs."""
    with new_folder(folder) as part:
        (part / GROUP).write_text(_listed(wanted), encoding="utf-8")


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
    return [replace(member, values={**member.values, "workers": workers}) for member in wanted]


def _by_one_worker(wanted: Sequence[Member]) -> list[Member]:
    """Return runs that are equal if they differ in their number of workers only."""
    return [member if member.experiment().workers is None else with_workers([member], 1)[0] for member in wanted]


def read(folder: Path) -> list[Member]:
    """Return the runs of a group."""
    path = folder / GROUP
    with reading(path):
        found = [Member(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
        for member in found:
            if not isinstance(member.algorithm, str) or not isinstance(member.values, dict):
                raise FedskewError(f"{path} is damaged: {member.name!r} needs an algorithm and values")
            if not isinstance(member.varied, dict) or not all(isinstance(n, float) for n in member.varied.values()):
                raise FedskewError(f"{path} is damaged: what {member.name!r} varies are no numbers")
            if not re.fullmatch(r"[A-Za-z0-9.+-]+", member.name) or not member.name.strip("."):
                raise FedskewError(f"{path} is damaged: the run {member.name!r} is no name of a folder in it")
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
    retry: bool = False,
    force: bool = False,
    partitions: Partitions | None = None,
) -> list[Row]:
    """Run, resume or skip every member; return their summaries, and write them with means to the folder.

    A run that diverges is recorded as failed, with its reason, and the others continue; it is run again only with
    ``retry``. ``partitions`` spares several groups on the same partitions from making them again.
    """
    with locked(folder):
        for begun in (RunFolder(folder / member.name) for member in wanted if (folder / member.name).exists()):
            check_imports(begun.path, begun.read_json(ENVIRONMENT), force)
        partitions, found = partitions or Partitions(), dict[str, Row]()
        for group in _groups(wanted):
            left = [member for member in group if _runs(folder / member.name, retry)]
            found |= _run(folder, left, partitions, callbacks, force)
        summaries = [found.get(member.name) or _recorded(folder / member.name) for member in wanted]
        content = to_json(overview(wanted, summaries), indent=2) + "\n"
        write_atomically(folder / SUMMARY, content.encode())
        return summaries


def _groups(wanted: Sequence[Member]) -> list[list[Member]]:
    """Return the members that may be trained in one stack: they differ in seed, learning rate and numeric options."""
    groups: dict[str, list[list[Member]]] = {}
    for member in wanted:
        experiment = member.experiment()
        method, same = resolve(experiment.algorithm), replace(experiment, seed=0, lr=1.0, algorithm="fedavg")
        options = {name: value for name, value in method.options().items() if name not in numeric_options(method)}
        some = groups.setdefault(repr((same, method.label(), options)), [[]])
        if len(some[-1]) == MOST_TOGETHER:
            some.append([])
        some[-1].append(member)
    return [group for some in groups.values() for group in some]


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
    if not group:
        return {}
    one = group[0].experiment()
    interval = CheckpointInterval(one.checkpoint_every, one.rounds)
    begun = [RunFolder(place) for place in (folder / member.name for member in group) if place.exists()]
    latest = min((max(disk.checkpoints(), default=0) for disk in begun), default=0)
    runs = [_steps(member, folder / member.name, partitions, callbacks, force, interval, latest) for member in group]
    ended = zip(group, side_by_side(runs), strict=True)
    return {member.name: run.summary for member, run in ended if not isinstance(run, DivergedError)}


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
    experiment, method = member.experiment(), resolve(member.experiment().algorithm)
    try:
        with _named(member):
            fed, watching = partitions.of(experiment), callbacks(member)
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
                    )
                )
            settings = experiment.settings()
            return (yield from starting(fed, experiment.model, method, settings, place, watching, None, interval))
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
    own = [f"{text} (seed {', '.join(seeds[method])})" if several else text for method, text in texts.items()]
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
        rows = [row for m, row in zip(wanted, summaries, strict=True) if m.label == label and "failed" not in row]
        if not rows:
            continue
        numbers = [key for key, value in rows[0].items() if isinstance(value, (int, float)) and key != "seed"]
        result[label] = {
            key: dict(zip(("mean", "std"), mean_and_std([row[key] for row in rows]), strict=True))
            for key in numbers
            if all(isinstance(row.get(key), (int, float)) for row in rows)
        }
    return result
