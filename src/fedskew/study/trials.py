"""Short trials of methods on the training rows of a federation, paired over seeds, within a time budget.

A trial is a run in memory. Each seed sets rows of every client aside anew: some that methods are judged by, and some
that learning rates are chosen by. The test rows of the federation are never used.
"""

import time
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.core.errors import DivergedError
from fedskew.data.federation import Federation
from fedskew.models.build import ModelSpec
from fedskew.runs.execute import starting
from fedskew.runs.folder import Row
from fedskew.runs.goals import Goal
from fedskew.runs.run import Run
from fedskew.runs.runner import Watch
from fedskew.skew.partitioning import client_holdout
from fedskew.study.choose import Chosen, Try, choose
from fedskew.study.run_curves import Columns
from fedskew.study.run_scores import collapse_of, fails_on_validation, score_of, validation_of
from fedskew.study.side_by_side import side_by_side

HELD_OUT = 0.25  # share of every client's training rows that methods are judged by
TO_CHOOSE_BY = 0.2  # share of what is left that learning rates are chosen by
CHOOSE_SEEDS = 3  # seeds by which a learning rate is chosen; methods are judged by others
FEWEST_ROUNDS = 5
_PLANNED = 0.7  # share of the budget that is planned for: later rounds may take longer
_OTHER_SEEDS = 1_000  # how far these are from the seeds that methods are judged by
Fate: TypeAlias = Literal["judged", "diverged", "cut by time", "refused", "ruled out"]


@dataclass(frozen=True)
class Trial:
    """A run in memory, as far as it is scored."""

    run: Run
    metric: str
    sign: int

    @property
    def summary(self) -> Row:
        """Return its summary."""
        return self.run.summary

    @cached_property
    def rounds(self) -> Columns:
        """Return its table of rounds by columns."""
        rows = self.run.tables["rounds"]
        columns = {}
        for name in rows[0]:
            columns[name] = [row.get(name) for row in rows]
        return columns

    @property
    def final_rows(self) -> Sequence[Row]:
        """Return one row per client about its model at the end."""
        return self.run.tables["final"]

    @property
    def bytes_a_round(self) -> float:
        """Return what is sent in a round, both ways."""
        sent = self.summary["bytes_up"] + self.summary["bytes_down"]
        return float(sent / self.summary["rounds"])


@dataclass(frozen=True)
class Tried:
    """What became of a method: its trials, if they came to their end, and how its learning rate was chosen.

    Args:
        method: the method
        fate: judged, or why it is not
        trials: by seed; empty unless they are judged
        chosen: its learning rates, where several were tried
        seconds: what it took
    """

    method: str
    fate: Fate
    trials: Mapping[int, Trial]
    chosen: Chosen | None = None
    seconds: float = 0.0

    def scores(self, goal: Goal) -> dict[Hashable, float]:
        """Return the score of every seed; empty where clients share no whole model, for the goal shared."""
        scores: dict[Hashable, float] = {}
        for seed, trial in self.trials.items():
            score = score_of(trial, goal, "last")
            if score is not None:
                scores[seed] = score
        return scores

    def collapsed(self, goal: Goal) -> int:
        """Return how many of its trials collapsed."""
        return sum(bool(collapse_of(trial, goal)) for trial in self.trials.values())

    @property
    def bytes_a_round(self) -> float:
        """Return what is sent in a round, both ways, on average."""
        return float(np.mean([trial.bytes_a_round for trial in self.trials.values()]))

    def rise(self, goal: Goal) -> float:
        """Return by how much the validation score improved in the second half of the rounds, on average."""
        rises = []
        for trial in self.trials.values():
            column = f"validation_{trial.metric}"
            if goal == "own":
                column = f"client_validation_{trial.metric}"
            known = [score for score in trial.rounds.get(column, []) if score is not None]
            if len(known) > 1:
                rises.append(trial.sign * (known[-1] - known[0]))
        if not rises:
            return 0.0
        return float(np.mean(rises))


class Trials:
    """Runs trials on the same rows, with the same seeds and as many rounds, until the time is up.

    Args:
        fed: the federation; its test rows are not used
        model: as for ``train``
        settings: of the training; ``rounds`` is the most, the budget may allow fewer
        seeds: how many
        seconds: the budget
        metric: the metric of the task that counts
        sign: -1 where low values of it are good
    """

    def __init__(
        self,
        fed: Federation,
        model: ModelSpec,
        settings: Settings,
        seeds: int,
        seconds: float,
        metric: str,
        sign: int,
    ) -> None:
        self.fed = fed
        self.model = model
        self.settings = settings
        self.metric = metric
        self.sign = sign
        self.seeds = range(settings.seed, settings.seed + seeds)
        first = settings.seed + _OTHER_SEEDS
        self.choose_seeds = range(first, first + CHOOSE_SEEDS)
        self.deadline = time.monotonic() + seconds
        self.rounds = settings.rounds
        self._feds: dict[int, Federation] = {}

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self.deadline - time.monotonic()

    def fed_of(self, seed: int) -> Federation:
        """Return the federation with the rows that this seed sets aside."""
        if seed not in self._feds:
            self._feds[seed] = _without_test_rows(self.fed, seed)
        return self._feds[seed]

    def plan(self, methods: Sequence[str], rates: int) -> None:
        """Choose as many rounds as the budget allows for these methods and rates, from the time of short trials."""
        per_round, overhead = 0.0, 0.0
        for method in methods:
            took = {}
            for rounds in (1, 3):
                began = time.monotonic()
                self._run(method, rounds, self.seeds, {})
                took[rounds] = time.monotonic() - began
            of_method = max((took[3] - took[1]) / 2, 1e-6)
            per_round += of_method
            overhead += max(took[1] - of_method, 0.0)
        share = 1.0  # how often the seeds of a method are run
        if rates > 1:
            share += rates * len(self.choose_seeds) / len(self.seeds)
        most = (_PLANNED * self.left / share - overhead) / per_round
        self.rounds = min(max(int(most), FEWEST_ROUNDS), self.settings.rounds)

    def tried(self, method: str, rates: Sequence[float]) -> Tried:
        """Choose one of the learning rates for a method, and run it with all seeds."""
        began = time.monotonic()
        if self.left <= 0:
            return Tried(method, "cut by time", {})
        chosen = None
        lr = rates[0]
        if len(rates) > 1:
            chosen = self._choose(method, rates)
            if chosen is None:
                return Tried(method, "cut by time", {})
            lr = chosen.best.numbers["lr"]
        ended = self._run(method, self.rounds, self.seeds, {"lr": lr})
        trials = {}
        fate: Fate = "judged"
        for seed, run in zip(self.seeds, ended, strict=True):
            if isinstance(run, DivergedError):
                fate = "diverged"
            elif run.summary["rounds"] < self.rounds:
                fate = "cut by time"
            else:
                trials[seed] = Trial(run, self.metric, self.sign)
        if fate != "judged":
            trials = {}
        return Tried(method, fate, trials, chosen, time.monotonic() - began)

    def _choose(self, method: str, rates: Sequence[float]) -> Chosen | None:
        """Return the learning rate that is best on the validation rows of other seeds; None if the time is up."""
        tries = []
        for rate in rates:
            scores = []
            failed = 0
            for run in self._run(method, self.rounds, self.choose_seeds, {"lr": rate}):
                if isinstance(run, DivergedError):
                    failed += 1
                    continue
                if run.summary["rounds"] < self.rounds:
                    return None
                trial = Trial(run, self.metric, self.sign)
                goal = _goal_to_choose_by(trial)
                failed += fails_on_validation(trial, goal)
                score = validation_of(trial, goal, "last")
                if score is not None:
                    scores.append(score)
            tries.append(Try({"lr": rate}, scores, failed))
        return choose(tries, self.sign)

    def _run(
        self, method: str, rounds: int, seeds: Sequence[int], changed: Mapping[str, Any]
    ) -> "Sequence[Run | DivergedError]":
        """Train with every seed, side by side, until the time is up."""

        def time_is_up(*_: object) -> bool:
            return self.left < 0

        settings = replace(
            self.settings,
            rounds=rounds,
            eval_every=max(rounds // 2, 1),
            metric=self.metric,
            **changed,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # every trial would say the same of the same clients
            runs = []
            for seed in seeds:
                seeded = replace(settings, seed=seed)
                fed = self.fed_of(seed)
                runs.append(
                    starting(fed, self.model, resolve(method), seeded, False, Watch(time_is_up))
                )
            return side_by_side(runs)


def _goal_to_choose_by(trial: Trial) -> Goal:
    """Return the goal by which a learning rate is chosen: that of the shared model, if there is one."""
    if validation_of(trial, "shared", "last") is not None:
        return "shared"
    return "own"


def _without_test_rows(fed: Federation, seed: int) -> Federation:
    """Return the federation with some training rows of every client set aside, to judge by and to choose by."""
    partition, held_out = client_holdout(fed.partition, fed.train, HELD_OUT, seed)
    partition, to_choose_by = client_holdout(
        partition, fed.train, TO_CHOOSE_BY, seed, "client validation"
    )
    data = replace(
        fed.data,
        test=fed.train.take(held_out.rows),
        validation=fed.train.take(to_choose_by.rows),
        recipe={},
    )
    return Federation(data, partition, held_out, {}, fed.treated, client_validation=to_choose_by)
