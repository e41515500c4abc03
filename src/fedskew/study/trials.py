"""Short trials of methods on the training rows of a federation, paired over seeds, within a time budget."""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.core.errors import DivergedError
from fedskew.core.streams import Floats
from fedskew.data.federation import Federation
from fedskew.models.build import ModelSpec
from fedskew.runs.execute import starting
from fedskew.runs.run import Run
from fedskew.runs.runner import Watch
from fedskew.skew.partitioning import client_holdout
from fedskew.study.side_by_side import side_by_side

# Share of every client's training rows that trials are scored on, drawn anew with every seed; test rows are never used
HELD_OUT = 0.25
FEWEST_ROUNDS = 5
_PLANNED = 0.6  # share of the budget that is planned for: a round of another method may take longer


@dataclass(frozen=True)
class Scores:
    """What a method scored with every seed.

    ``everywhere`` is on the rows of all clients, of the shared model: None where clients share no whole one.
    ``own`` is on each client's own rows, of the model that it ends up with: seed x client, NaN where it has no rows.
    ``halfway`` is ``everywhere`` after half of the rounds.
    """

    everywhere: Floats | None
    own: Floats
    halfway: Floats | None
    bytes_a_round: float
    seconds: float

    @property
    def mean_own(self) -> Floats:
        """Return the mean over the clients that have a score, for every seed; NaN where none has."""
        known = np.isfinite(self.own)
        with np.errstate(invalid="ignore"):
            found: Floats = np.where(known, self.own, 0).sum(1) / known.sum(1)
        return found


class Trials:
    """Runs trials on the same rows, with the same seeds and as many rounds, until the time is up.

    Args:
        fed: the federation; its test rows are not used
        model: as for ``train``
        settings: of the training; ``rounds`` is the most, the budget may allow fewer
        seeds: how many; each has its own held-out rows, initial weights and batches
        seconds: the budget
        metric: the metric of the task that counts
    """

    def __init__(
        self,
        fed: Federation,
        model: ModelSpec,
        settings: Settings,
        seeds: int,
        seconds: float,
        metric: str,
    ) -> None:
        self.model = model
        self.settings = settings
        self.metric = metric
        self.feds = []
        for number in range(seeds):
            self.feds.append(_without_test_rows(fed, settings.seed + number))
        self.deadline = time.monotonic() + seconds
        self.rounds = settings.rounds

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self.deadline - time.monotonic()

    def plan(self, trials: int) -> None:
        """Choose as many rounds as the budget allows for so many trials, from the time of a short one."""
        took = {}
        for rounds in (1, 2, 6):  # the first one warms up
            began = time.monotonic()
            self._run("fedavg", rounds, {})
            took[rounds] = time.monotonic() - began
        per_round = max((took[6] - took[2]) / 4, 1e-6)
        overhead = max(took[2] - 2 * per_round, 0.0)
        most = (_PLANNED * self.left / trials - overhead) / per_round
        self.rounds = min(max(int(most), FEWEST_ROUNDS), self.settings.rounds)

    def score(self, method: str, **changed: Any) -> Scores | None:
        """Return the scores of a method; None if a run diverged or the time was up before the last round."""
        began = time.monotonic()
        ended = []
        for run in self._run(method, self.rounds, changed):
            if isinstance(run, Run) and run.summary["rounds"] == self.rounds:
                ended.append(run)
        if len(ended) < len(self.feds):
            return None
        halfway, everywhere = None, None
        if ended[0].server.has_common_model:
            halfway, everywhere = np.transpose([self._everywhere(run) for run in ended])
        own = []
        sent = []
        for run in ended:
            own.append([row[self.metric] for row in run.tables["final"]])
            sent.append(run.summary["bytes_up"] + run.summary["bytes_down"])
        return Scores(
            everywhere,
            np.array(own, dtype=np.float64),
            halfway,
            bytes_a_round=float(np.mean(sent)) / self.rounds,
            seconds=time.monotonic() - began,
        )

    def _everywhere(self, run: Run) -> tuple[float, float]:
        """Return the metric on the rows of all clients, after half of the rounds and at the end."""
        column = f"test_{self.metric}"
        scored = []
        for row in run.tables["rounds"]:
            if row.get(column) is not None:
                scored.append(row[column])
        return float(scored[0]), float(scored[-1])

    def _run(
        self, method: str, rounds: int, changed: Mapping[str, Any]
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
            for number, fed in enumerate(self.feds):
                seeded = replace(settings, seed=settings.seed + number)
                runs.append(
                    starting(fed, self.model, resolve(method), seeded, False, Watch(time_is_up))
                )
            return side_by_side(runs)


def _without_test_rows(fed: Federation, seed: int) -> Federation:
    """Return the federation with some training rows of every client held out, in place of the test rows."""
    partition, held_out = client_holdout(fed.partition, fed.train, HELD_OUT, seed)
    data = replace(fed.data, test=fed.train.take(held_out.rows), validation=None, recipe={})
    return Federation(data, partition, held_out, {}, fed.treated)
