"""The map: what follows from the results of the atlas. Values in, values out; nothing is run or written."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from statistics import fmean, median
from typing import Literal, TypeAlias

import numpy as np

from fedskew.atlas.cell_results import CellResult, RunRow
from fedskew.atlas.protocol import Cell, Protocol
from fedskew.runs.goals import Goal
from fedskew.study.judge import Contrast, Interval, Rules, judge_cell
from fedskew.study.judging import ALONE, CONTROL

BOUNDS = ("central", ALONE)  # drawn beside the methods, and not judged
Budget: TypeAlias = Literal["rounds", "bytes", "time"]
BUDGETS: Mapping[Budget, str] = {
    "rounds": "score",
    "bytes": "score_at_bytes",
    "time": "score_at_time",
}
_FALSE_DISCOVERIES = 0.05  # share that is tolerated over the whole map
_NO_VARIANCE = 1e-12  # of a mean gain, below which a cell would outweigh all others


@dataclass(frozen=True)
class Square:
    """A method in a cell: its contrast with FedAvg, how often it failed, and the learning rate that was chosen."""

    cell: Cell
    goal: Goal
    method: str
    contrast: Contrast
    failed: int
    runs: int
    lr: float
    score: float

    @property
    def gain(self) -> float:
        """Return the mean difference to FedAvg."""
        return self.contrast.mean or 0.0

    @property
    def interval(self) -> Interval | None:
        """Return its interval, which holds together with those of the other methods of the cell."""
        return self.contrast.interval

    @property
    def p_value(self) -> float:
        """Return the two-sided p-value of its paired t test."""
        from scipy.special import stdtr

        blocks = self.contrast.blocks
        if blocks < 2 or not self.contrast.deviation:
            return 1.0
        t = abs(self.gain) / (self.contrast.deviation / math.sqrt(blocks))
        return float(2 * stdtr(blocks - 1, -t))


@dataclass(frozen=True)
class Overall:
    """A method over all cells of one goal, with cells as a random effect.

    Args:
        method: as it is written in the protocol
        goal: what the models are for
        cells: how many it was judged in
        mean: its mean gain
        interval: of that mean, by the spread of the cells
        spread: the standard deviation of its true gains between cells
        counts: how often it is better, equal, worse and undecided
    """

    method: str
    goal: Goal
    cells: int
    mean: float
    interval: Interval
    spread: float
    counts: Mapping[str, int]


@dataclass(frozen=True)
class AtlasMap:
    """The results of the studies that have ended, as a map.

    Args:
        protocol: cells and methods
        results: of the studies, by name
        added: those of a further method, with the FedAvg that it is compared with
    """

    protocol: Protocol
    results: Mapping[str, CellResult]
    added: Mapping[str, CellResult] = field(default_factory=dict)

    @property
    def squares(self) -> list[Square]:
        """Return every method in every cell, at equal rounds."""
        return self.squares_at("rounds")

    def squares_at(self, budget: Budget) -> list[Square]:
        """Return every method in every cell: at equal rounds, or within FedAvg's bytes or simulated time."""
        return self._by_budget[budget]

    @cached_property
    def _by_budget(self) -> dict[Budget, list[Square]]:
        """Return the squares for each budget."""
        by_budget: dict[Budget, list[Square]] = {}
        for budget in BUDGETS:
            found: list[Square] = []
            for study in self.protocol.studies:
                for results in (self.results, self.added):
                    if study.name in results:
                        found += _squares(study.cell, results[study.name], budget)
            by_budget[budget] = found
        return by_budget

    def square(self, cell: str, goal: Goal, method: str) -> Square | None:
        """Return one method in one cell; None where it is not judged."""
        for square in self.squares:
            if (square.cell.name, square.goal, square.method) == (cell, goal, method):
                return square
        return None

    def methods(self, goal: Goal) -> list[str]:
        """Return the methods that are judged for a goal, in the order of the protocol."""
        judged = {square.method for square in self.squares if square.goal == goal}
        return [entry.algorithm for entry in self.protocol.methods if entry.algorithm in judged]

    def title_of(self, method: str) -> str:
        """Return what tables call a method."""
        for entry in self.protocol.methods:
            if entry.algorithm == method:
                return entry.title
        return method

    def cells(self, goal: Goal) -> list[Cell]:
        """Return the cells that have ended for a goal."""
        return [cell for cell in self.protocol.cells if f"{cell.name}-{goal}" in self.results]

    def measured(self, cell: Cell, goal: Goal) -> Mapping[str, float]:
        """Return what was measured of the clients of a cell."""
        return self.results[f"{cell.name}-{goal}"].measured

    def rows_of(self, cell: Cell, goal: Goal, method: str) -> Sequence[RunRow]:
        """Return the runs among which a method and its FedAvg are."""
        name = f"{cell.name}-{goal}"
        if name in self.added and method in self.added[name].chosen:
            return self.added[name].rows
        return self.results[name].rows

    def bound_gain(self, cell: Cell, goal: Goal, bound: str) -> float | None:
        """Return by how much a bound scores above FedAvg, as a mean over the blocks."""
        scores = _scores(self.results[f"{cell.name}-{goal}"], "rounds")
        mine = scores.get(bound, {})
        control = scores.get(CONTROL, {})
        differences = [mine[block] - control[block] for block in mine if block in control]
        if not differences:
            return None
        return fmean(differences)

    def overall(self, goal: Goal, budget: Budget = "rounds") -> list[Overall]:
        """Return every method over all cells of a goal, the best first."""
        found = []
        by_method: dict[str, list[Square]] = {}
        for square in self.squares_at(budget):
            if square.goal == goal:
                by_method.setdefault(square.method, []).append(square)
        for method, squares in by_method.items():
            if len(squares) > 1:
                found.append(_overall(method, goal, squares))
        return sorted(found, key=lambda one: -one.mean)

    @cached_property
    def discoveries(self) -> set[tuple[str, Goal, str]]:
        """Return the squares that differ from 0 with at most 5 % false ones among them (Benjamini and Hochberg)."""
        ordered = sorted(self.squares, key=lambda square: square.p_value)
        kept = discovered([square.p_value for square in ordered])
        return {(one.cell.name, one.goal, one.method) for one in ordered[:kept]}

    @property
    def smallest_visible(self) -> float | None:
        """Return the median of the smallest differences that could have been seen."""
        widths = []
        for square in self.squares:
            if square.interval is not None:
                widths.append(square.interval.half_width)
        if not widths:
            return None
        return median(widths)

    @property
    def runs(self) -> dict[str, int]:
        """Return how many runs chose, and how many were judged; and how many of all failed."""
        counts = {"choose": 0, "judge": 0, "diverged": 0, "collapsed": 0}
        for result in self.results.values():
            for row in result.rows:
                counts[row.purpose] += 1
                if row.fate != "done":
                    counts[row.fate] += 1
        return counts

    @property
    def seconds(self) -> float:
        """Return the seconds that all runs took."""
        return math.fsum(result.seconds for result in self.results.values())


def _squares(cell: Cell, result: CellResult, budget: Budget) -> list[Square]:
    """Return the methods of one cell for one goal."""
    scores = _scores(result, budget)
    judged = {}
    for method, blocks in scores.items():
        if method not in BOUNDS:
            judged[method] = blocks
    rules = Rules(result.zone, result.row, 1, CONTROL)
    squares = []
    for contrast in judge_cell(judged, rules, cell.name):
        mine = [row for row in result.judged if row.method == contrast.method]
        squares.append(
            Square(
                cell=cell,
                goal=result.goal,
                method=contrast.method,
                contrast=contrast,
                failed=sum(row.fate != "done" for row in mine),
                runs=len(mine),
                lr=result.chosen[contrast.method],
                score=fmean(scores[contrast.method].values()),
            )
        )
    return squares


def _scores(result: CellResult, budget: Budget) -> dict[str, dict[Hashable, float]]:
    """Return the scores of every method by block; a method without one is left out."""
    scores: dict[str, dict[Hashable, float]] = {}
    for row in result.judged:
        score = getattr(row, BUDGETS[budget])
        if score is not None:
            scores.setdefault(row.method, {})[row.seed] = score
    return scores


def _overall(method: str, goal: Goal, squares: Sequence[Square]) -> Overall:
    """Return the mean gain over cells: a random effect per cell, with the interval of Knapp and Hartung (2003)."""
    from scipy.special import stdtrit

    gains, variances = [], []
    counts = {"better": 0, "equal": 0, "worse": 0, "undecided": 0}
    for square in squares:
        gains.append(square.gain)
        variances.append(max(square.contrast.deviation**2 / square.contrast.blocks, _NO_VARIANCE))
        counts[square.contrast.verdict] += 1
    between = between_variance(gains, variances)
    weights = 1 / (np.array(variances) + between)
    mean = float(np.average(gains, weights=weights))
    freedom = len(gains) - 1
    variance = np.average((np.array(gains) - mean) ** 2, weights=weights) / freedom
    half = float(stdtrit(freedom, 0.975) * np.sqrt(variance))
    interval = Interval(mean - half, mean + half)
    return Overall(method, goal, len(gains), mean, interval, math.sqrt(between), counts)


def between_variance(gains: Sequence[float], variances: Sequence[float]) -> float:
    """Return the variance of the true gains between cells, by the estimate of DerSimonian and Laird (1986).

    >>> between_variance([1.0, 3.0], [1.0, 1.0]), between_variance([1.0, 1.0], [1.0, 1.0])
    (1.0, 0.0)
    """
    weights = 1 / np.array(variances)
    mean = np.average(gains, weights=weights)
    around = (weights * (np.array(gains) - mean) ** 2).sum()
    scale = weights.sum() - (weights**2).sum() / weights.sum()
    return max(0.0, float((around - (len(gains) - 1)) / scale))


def discovered(ordered: Sequence[float]) -> int:
    """Return how many of these p-values, the smallest first, are discoveries (Benjamini and Hochberg 1995).

    >>> discovered([0.001, 0.04, 0.045, 0.2]), discovered([0.02, 0.03, 0.035, 0.04])
    (1, 4)
    """
    kept = 0
    for place, p_value in enumerate(ordered, start=1):
        if p_value <= _FALSE_DISCOVERIES * place / len(ordered):
            kept = place
    return kept


# -- what tuning does --------------------------------------------------------------------------------------------------


def best_of(rows: Sequence[RunRow], method: str, tries: int) -> float | None:
    """Return the score that a method has if so many of its learning rates are tried, as a mean over all such choices.

    A rate is chosen by its mean on validation rows, and its score is that on test rows, both of the choosing seeds. A
    rate at which a run failed is a try that is never chosen; choices of such rates alone are left out.
    """
    rates = set()
    failed = set()
    validation: dict[float, list[float]] = {}
    test: dict[float, list[float]] = {}
    for row in rows:
        if row.method != method or row.purpose != "choose":
            continue
        rates.add(row.lr)
        if row.fate == "done" and row.validation is not None and row.score is not None:
            validation.setdefault(row.lr, []).append(row.validation)
            test.setdefault(row.lr, []).append(row.score)
        else:
            failed.add(row.lr)
    scores = []
    for tried in combinations(sorted(rates), tries):
        whole = [rate for rate in tried if rate not in failed]
        if whole:
            best = max(whole, key=lambda rate: fmean(validation[rate]))
            scores.append(fmean(test[best]))
    if not scores:
        return None
    return fmean(scores)


def tuning_curve(found: AtlasMap, goal: Goal, method: str) -> list[float]:
    """Return the mean gain of a method with 1, 2, ... tries over FedAvg with as many, over all cells that have both."""
    curve = []
    for tries in range(1, len(found.protocol.lr) + 1):
        gains = []
        for cell in found.cells(goal):
            rows = found.rows_of(cell, goal, method)
            mine = best_of(rows, method, tries)
            control = best_of(rows, CONTROL, tries)
            if mine is not None and control is not None:
                gains.append(mine - control)
        if gains:
            curve.append(fmean(gains))
    return curve
