"""What the map predicts for clients that were measured: gains of methods from the nearest cells, and their test."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeAlias

from fedskew.runs.goals import Goal
from fedskew.study.judge import HALF_A_POINT, Interval
from fedskew.study.judging import CONTROL

NEIGHBOURS = 5
_NAMED = 3  # cells in a sentence
_FAR = 1.0  # a distance beyond which the map has nothing like these clients
_VIEWS = ("labels", "features", "features_given_label", "labels_given_features")
# One unit of each part of the distance: a distance between clients of .25, a Gini of .5, ten times as many
_UNIT_OF_A_VIEW = 0.25
_UNIT_OF_THE_GINI = 0.5
Vector: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class Gain:
    """What a method gained in a cell."""

    mean: float
    verdict: str
    lr: float


@dataclass(frozen=True)
class Place:
    """A cell as predictions see it: what was measured there, and what each method gained.

    Args:
        cell: its name
        title: what it is called
        family: its data set
        goal: what the models are for
        measured: of its clients
        control_lr: the learning rate that was chosen for FedAvg
        gains: by method
        by_trials: the method with the best mean on validation rows, over the choosing seeds
    """

    cell: str
    title: str
    family: str
    goal: Goal
    measured: Vector
    control_lr: float
    gains: Mapping[str, Gain]
    by_trials: str = CONTROL


@dataclass(frozen=True)
class Prediction:
    """The gain over FedAvg that the nearest cells let expect of a method.

    Args:
        method: as it is written in the protocol
        mean: of the gains in the nearest cells
        interval: in which the gain in a further cell like them lies with 95 %
        verdicts: in these cells, the nearest first
    """

    method: str
    mean: float
    interval: Interval
    verdicts: tuple[str, ...]

    @property
    def is_ruled_out(self) -> bool:
        """Return whether it was no better than FedAvg in any of these cells."""
        return all(verdict in ("worse", "equal") for verdict in self.verdicts)


@dataclass(frozen=True)
class Nearest:
    """The cells nearest to some clients, how far they are, and what they predict."""

    places: Sequence[Place]
    distances: Sequence[float]
    predictions: Sequence[Prediction]

    @property
    def names(self) -> list[str]:
        """Return the names of the cells."""
        return [place.cell for place in self.places]

    @property
    def is_far(self) -> bool:
        """Return whether the map has no cell like these clients."""
        return not self.distances or self.distances[0] > _FAR

    @property
    def best(self) -> str:
        """Return the method to expect most of: FedAvg unless another's predicted gain is above half a point."""
        if self.is_far or not self.predictions:
            return CONTROL
        first = max(self.predictions, key=lambda one: one.mean)
        if first.mean > HALF_A_POINT:
            return first.method
        return CONTROL

    @property
    def says(self) -> str:
        """Return in a sentence what the nearest cells speak for."""
        if self.is_far:
            return "The atlas has no cell like these clients."
        cells = "; ".join(place.title for place in self.places[:_NAMED])
        helps = [one for one in self.predictions if one.mean > HALF_A_POINT]
        if not helps:
            return f"In the nearest cells ({cells}), no method gains half a point over FedAvg."
        first = helps[0]
        better = first.verdicts.count("better")
        low, high = 100 * first.interval.low, 100 * first.interval.high
        return (
            f"In the nearest cells ({cells}), {first.method} gains {100 * first.mean:+.1f} points over FedAvg on "
            f"average ({low:+.1f} to {high:+.1f}), and is better in {better} of {len(first.verdicts)}."
        )


def coordinates(measured: Vector) -> dict[str, float]:
    """Return where clients lie on the map: by distances beyond chance, the Gini of sizes, clients and rows per client.

    >>> coordinates({"clients": 10.0, "rows": 1000.0, "size_gini": 0.0, "labels": 0.6, "labels_by_chance": 0.1})
    {'clients': 1.0, 'rows_per_client': 2.0, 'size_gini': 0.0, 'labels': 2.0}
    """
    found = {
        "clients": math.log10(measured["clients"]),
        "rows_per_client": math.log10(measured["rows"] / measured["clients"]),
        "size_gini": measured["size_gini"] / _UNIT_OF_THE_GINI,
    }
    for view in _VIEWS:
        if view in measured:
            beyond = max(measured[view] - measured[f"{view}_by_chance"], 0.0)
            found[view] = beyond / _UNIT_OF_A_VIEW
    return found


def distance(one: Vector, other: Vector) -> float:
    """Return the distance of two sets of clients: the root of the mean squared difference of what both have."""
    mine, theirs = coordinates(one), coordinates(other)
    squares = [(mine[name] - theirs[name]) ** 2 for name in mine if name in theirs]
    return math.sqrt(fmean(squares))


def nearest(
    places: Sequence[Place], goal: Goal, measured: Vector, without_family: str = ""
) -> Nearest:
    """Return the nearest cells for a goal, and what they predict; ``without_family`` leaves a data set out."""
    known = []
    for place in places:
        if place.goal == goal and place.family != without_family:
            known.append((distance(measured, place.measured), place))
    known.sort(key=lambda pair: pair[0])
    distances = []
    chosen = []
    for far, place in known[:NEIGHBOURS]:
        distances.append(far)
        chosen.append(place)
    return Nearest(chosen, distances, _predictions(chosen))


def _predictions(places: Sequence[Place]) -> list[Prediction]:
    """Return the predictions for all methods that most of the cells have judged."""
    methods = dict.fromkeys(method for place in places for method in place.gains)
    found = []
    for method in methods:
        gains = [place.gains[method] for place in places if method in place.gains]
        if 2 * len(gains) > len(places) and len(gains) > 1:
            found.append(_prediction(method, gains))
    return sorted(found, key=lambda one: -one.mean)


def _prediction(method: str, gains: Sequence[Gain]) -> Prediction:
    """Return the mean gain, and the interval of a further cell by Student's t."""
    from scipy.special import stdtrit

    means = [gain.mean for gain in gains]
    mean = fmean(means)
    spread = stdev(means) * math.sqrt(1 + 1 / len(means))
    half = float(stdtrit(len(means) - 1, 0.975)) * spread
    verdicts = tuple(gain.verdict for gain in gains)
    return Prediction(method, mean, Interval(mean - half, mean + half), verdicts)


# -- the test of the predictions ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Regret:
    """How much score a rule loses against the best method of each cell, as a mean over the cells.

    Args:
        rule: how a method was chosen
        mean: over the cells
        worst: in any cell
        right: in how many cells it lost no more than half a point
        cells: how many there are
    """

    rule: str
    mean: float
    worst: float
    right: int
    cells: int


def regrets(places: Sequence[Place], goal: Goal) -> list[Regret]:
    """Return the regret of always taking one method, and of the map without the cells of the same data set."""
    mine = [place for place in places if place.goal == goal]
    methods = dict.fromkeys(method for place in mine for method in place.gains)
    rules = {f"always {CONTROL}": [CONTROL] * len(mine)}
    for method in methods:
        rules[f"always {method}"] = [method] * len(mine)
    predicted = []
    for place in mine:
        predicted.append(nearest(places, goal, place.measured, place.family).best)
    rules["the map, without the data set"] = predicted
    rules["trials alone, on validation rows"] = [place.by_trials for place in mine]
    return [_regret(rule, mine, choices) for rule, choices in rules.items()]


def _regret(rule: str, places: Sequence[Place], choices: Sequence[str]) -> Regret:
    """Return the regret of a rule; where a method was not judged, FedAvg takes its place."""
    lost = []
    for place, choice in zip(places, choices, strict=True):
        gains = {CONTROL: 0.0}
        for method, gain in place.gains.items():
            gains[method] = gain.mean
        lost.append(max(gains.values()) - gains.get(choice, 0.0))
    right = sum(one <= HALF_A_POINT for one in lost)
    return Regret(rule, fmean(lost), max(lost), right, len(lost))
