"""The plan of a study: values alone, from which all its runs follow, checked before the first of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

from fedskew.algorithms.contract import algorithms as methods
from fedskew.core.config import AUTO, Experiment
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import Choice, compose, parts_of
from fedskew.runs.choices import brief, spell
from fedskew.runs.experiment import check_choices
from fedskew.study.grid import MOST_SEEDS, Grid, combinations_of, grid_of, seeds_of, several
from fedskew.study.jobs import checked_jobs
from fedskew.study.judging import NAMES as JUDGED_BY
from fedskew.study.judging import Judging, judging_of
from fedskew.study.member import Member, name_of_member
from fedskew.study.target_score import Target

GRID_SETTINGS = ("lr", "momentum", "weight_decay", "clip_norm")  # beside the method's own options
# What is a study's, not a run's
_OWN = ("algorithm", "skew", "seeds", "grid", "target", "jobs", "budget", "shard", *JUDGED_BY)
_EXACT = 2**53  # whole numbers below are exact, and written in digits


@dataclass(frozen=True)
class Plan:
    """A study before its first run.

    Args:
        members: its runs; those of ``purpose`` judge are run only with the numbers that were chosen
        target: the score that they are to reach, if one was given
        jobs: processes for what cannot be trained in one stack
        judging: how it is judged
    """

    members: Sequence[Member]
    target: Target | None = None
    jobs: int = 1
    judging: Judging = field(default_factory=Judging)


@dataclass(frozen=True)
class Asked:
    """What a study was asked for, checked by itself; the data have not been looked at.

    Args:
        settings: those of all runs, by name
        algorithms: the methods, as they were written
        seeds: those that methods are judged by
        grid: numbers by name
        skews: several skews; a single one is among the settings
        judging: how it is to be judged, as far as that was given
        target: the score that runs are to reach, if one was given
        jobs: processes for what cannot be trained in one stack
    """

    settings: Mapping[str, Any]
    algorithms: Sequence[str]
    seeds: Sequence[int]
    grid: Grid
    skews: Sequence[str]
    judging: Judging
    target: Target | None
    jobs: int

    def first_of(self, algorithm: str) -> Member:
        """Return the first run of a method."""
        grid = numbers_of(self.algorithms, self.grid)[algorithm]
        first, *_ = members_of(self.settings, [algorithm], self.seeds[:1], grid, self.skews[:1])
        return first

    @property
    def tries(self) -> dict[str, int]:
        """Return with how many numbers of the grid each method is run."""
        counts = {}
        for algorithm, grid in numbers_of(self.algorithms, self.grid).items():
            counts[algorithm] = len(combinations_of(grid))
        return counts

    @property
    def chooses(self) -> bool:
        """Return whether numbers are chosen for a method."""
        return self.judging.choose != "none" and max(self.tries.values()) > 1

    def members(self) -> list[Member]:
        """Return all runs that may be wanted, those by which numbers are chosen first."""
        judged = members_of(self.settings, self.algorithms, self.seeds, self.grid, self.skews)
        others = self.judging.choose_seeds
        if not others or not self.chooses:
            return judged
        members = []
        for member in members_of(self.settings, self.algorithms, others, self.grid, self.skews):
            if self.tries[member.algorithm] > 1:
                members.append(replace(member, purpose="choose"))
        for member in judged:
            if self.tries[member.algorithm] > 1:
                members.append(replace(member, purpose="judge"))
            else:
                members.append(member)
        return members


def asked_of(given: Mapping[str, Any]) -> Asked:
    """Return what is asked for by settings by name; bad names, choices and numbers are errors.

    ``algorithm`` and ``skew`` may be lists. ``seeds`` are whole numbers or a text such as ``0-4``, ``grid`` has numbers
    by name, or texts such as ``mu=0,0.01,0.1``. ``target`` and ``jobs`` are those of the plan; ``goal``, ``score``,
    ``control``, ``equal``, ``pool``, ``choose`` and ``choose_seeds`` say how it is judged. ``budget`` and ``shard`` are
    those of a sitting, and no part of the plan. All other names are settings of an experiment.
    """
    settings = _settings(given)
    target = None
    if given.get("target") is not None:
        target = Target.of(given["target"])
    jobs = checked_jobs(given.get("jobs", 1), settings.get("workers"))
    seeds = _seeds(given.get("seeds"), settings)
    judging = judging_of(given)
    _refuse_common_seeds(judging.choose_seeds, seeds)
    chosen = several("algorithm", given.get("algorithm", "fedavg"))
    algorithms = [spell("algorithm", algorithm) for algorithm in chosen]
    skews = []
    for skew in several("skew", given.get("skew", AUTO)):
        skews.append(_skew(skew))
    if len(skews) == 1:
        if "skew" in given:
            settings["skew"] = skews[0]
        skews = []
    grid = grid_of(given.get("grid") or {})
    asked = Asked(settings, algorithms, seeds, grid, skews, judging, target, jobs)
    members_of(settings, algorithms, seeds[:1], grid, skews)  # refuses what cannot be
    return asked


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given for every run; a name that is neither a run's nor a study's is an error."""
    known = {one.name for one in fields(Experiment)}
    settings = {}
    for name, value in given.items():
        if name in _OWN:
            continue
        if name not in known:
            raise unknown("setting", name, {*known, *_OWN})
        settings[name] = value
    return settings


def _refuse_common_seeds(choosing: Sequence[int], judging: Sequence[int]) -> None:
    for seed in choosing:
        if seed in judging:
            raise FedskewError(
                f"choose_seeds: seed {seed} is also one that methods are judged by: give others than seeds"
            )


def _seeds(given: Any, settings: Mapping[str, Any]) -> list[int]:
    if given is None:
        return [Experiment(**settings).seed]
    if "seed" in settings:
        raise FedskewError(f"seed={settings['seed']} clashes with seeds={given}: give one of them")
    return seeds_of(given)


def _skew(given: Any) -> str:
    if given == AUTO:
        return AUTO
    return spell("skew", given)


def members_of(
    values: Mapping[str, Any],
    algorithms: Sequence[str],
    seeds: Sequence[int],
    grid: Grid | None = None,
    skews: Sequence[str] = (),
) -> list[Member]:
    """Return all methods with all numbers of the grid, all seeds and all skews; bad choices are errors.

    A name of the grid is a numeric setting of the training, or an option of a method; a method without that option is
    run once. A single skew is part of ``values``, and ``skews`` is empty.
    """
    if len(seeds) > MOST_SEEDS:
        raise FedskewError(
            f"{len(seeds):,} seeds are more than a group holds: give at most {MOST_SEEDS:,} at a time"
        )
    applied = numbers_of(algorithms, grid or {})
    members = []
    for skew, seed, algorithm in product(skews or [""], seeds, algorithms):
        for numbers in combinations_of(applied[algorithm]):
            name = name_of_member(algorithm, numbers, skew, seed)
            chosen = {**values, **_with_numbers(algorithm, numbers, values), "seed": seed}
            if skew:
                chosen["skew"] = skew
            members.append(Member(name, algorithm, chosen, numbers, skew))
    _refuse_doubles(members)
    return members


def _refuse_doubles(members: Sequence[Member]) -> None:
    """Raise an error for a run that is given twice, also in another spelling."""
    names = Counter(member.name for member in members)
    for name, count in names.items():
        if count > 1:
            raise FedskewError(
                f"{name} is given twice: give every algorithm, number, skew and seed once"
            )
    known: dict[str, Member] = {}
    for member in members:
        experiment = member.experiment()
        check_choices(experiment)
        same = known.setdefault(repr(_in_short(experiment)), member)
        if same is not member:
            raise FedskewError(
                f"{same.label} is given twice, also as {member.label}: give every algorithm, number, skew and seed once"
            )


def _in_short(experiment: Experiment) -> Experiment:
    """Return an experiment that is the same in all spellings of its method and skew."""
    skew = experiment.skew
    if skew != AUTO:
        skew = brief("skew", skew)
    return replace(experiment, algorithm=brief("algorithm", experiment.algorithm), skew=skew)


def numbers_of(algorithms: Sequence[str], grid: Grid) -> dict[str, Grid]:
    """Return which numbers of the grid apply to every method; a name that applies to none is an error."""
    own: dict[str, set[str]] = {}
    for algorithm in algorithms:
        own[algorithm] = set[str]().union(*_numeric_options(algorithm))
    known = set(GRID_SETTINGS).union(*own.values())
    for name in grid:
        if name not in known:
            raise unknown(
                f"number of {' or '.join(algorithms)} or of its training in grid", name, known
            )
    applied: dict[str, Grid] = {}
    for algorithm, names in own.items():
        applied[algorithm] = {}
        for name, numbers in grid.items():
            if name in names or name in GRID_SETTINGS:
                applied[algorithm][name] = numbers
    return applied


def _numeric_options(algorithm: str) -> list[set[str]]:
    """Return the names of the numeric options of every part of a method, such as ``share`` and ``topk.share``.

    An option that several parts have is listed only with the name of its part.
    """
    parts = parts_of(methods.choose(algorithm), methods.kind)
    named = []
    for part in parts:
        options = methods.home(part).options(part.name).values()
        named.append({option.name for option in options if option.numeric})
    times = Counter(name for names in named for name in names)
    options_of_parts = []
    for part, names in zip(parts, named, strict=True):
        plain = {name for name in names if times[name] == 1}
        options_of_parts.append(plain | {f"{part.name}.{name}" for name in names})
    return options_of_parts


def _with_numbers(
    algorithm: str, numbers: Mapping[str, float], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the method and the settings with these numbers."""
    parts = parts_of(methods.choose(algorithm), methods.kind)
    options = _numeric_options(algorithm)
    settings: dict[str, Any] = {}
    for name, number in numbers.items():
        at = _part_with(name, options)
        if at is None:
            if name in values:
                raise FedskewError(f"{name} is given twice: in grid, and as a setting")
            settings[name] = _plain(number)
        else:
            option = name.rpartition(".")[2]
            if option in parts[at].options:
                raise FedskewError(f"{name} is given twice: in grid, and as {algorithm}")
            parts[at] = Choice(parts[at].name, {**parts[at].options, option: _plain(number)})
    return {**settings, "algorithm": spell("algorithm", str(compose(parts)))}


def _part_with(name: str, options: Sequence[set[str]]) -> int | None:
    """Return the first part of a method that has such an option; None for a setting."""
    for place, known in enumerate(options):
        if name in known:
            return place
    return None


def _plain(number: float) -> int | float:
    if number.is_integer() and abs(number) < _EXACT:
        return int(number)
    return number
