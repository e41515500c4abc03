"""Calibration of a run's model: a new head from the class statistics of all clients, with its scores and its cost."""

import numpy as np

from fedskew.core.trees import Tensors, Tree, size_in_bytes
from fedskew.fleet.clock import FORWARD_COST, computing_seconds, transfer_seconds
from fedskew.server.calibration import new_head
from fedskew.server.clients import Clients
from fedskew.server.evaluated_rows import Score
from fedskew.server.scorer import Scorer
from fedskew.topology.client_table import Row
from fedskew.topology.context import RoundContext
from fedskew.topology.run_state import RunState


class HeadCalibration:
    """Replaces the head after the last round, and scores a copy with a new head in between, if the method asks."""

    def __init__(
        self, context: RoundContext, state: RunState, clients: Clients, scorer: Scorer
    ) -> None:
        self.context = context
        self.state = state
        self.clients = clients
        self.scorer = scorer
        self.calibrator = context.algorithm.calibrator

    def finish(self) -> Row:
        """Replace the head after the last round; returns the scores and the cost, or nothing without a calibrator."""
        if not self.calibrator:
            return {}
        head, row, cost = self._calibrated()
        self.state.params = {**self.state.params, **head}
        for name, value in _columns(self.scorer.all_scores()).items():
            row.setdefault(name, value)
        if self.calibrator.every:
            # The last round has calibrated as well, and its row includes the cost
            cost = dict.fromkeys(cost, 0)
        for name, value in cost.items():
            row[f"calibration_{name}"] = value
        return row

    def add_to(self, row: Row) -> None:
        """Add the scores of a copy of the model with a new head to the row of a round, if the method calibrates."""
        if not self.calibrator or self.calibrator.every is None:
            return
        evaluator = self.scorer.evaluator
        for part in evaluator.parts(self.scorer.has_common_model, False, False):
            for name in evaluator.names:
                row[f"calibrated_{part}_{name}"] = None
        round = self.state.round
        last = round == self.context.settings.rounds
        if round % self.calibrator.every and not last:
            return
        _, scores, cost = self._calibrated()
        row |= scores
        for name, value in cost.items():
            row[name] += value
        row["clock"] += cost["simulated_seconds"]
        self.context.participation.clock = row["clock"]

    def _calibrated(self) -> tuple[Tensors, Row, Row]:
        """Return a new head, the scores of the model with it, and the cost of collecting all clients' statistics."""
        statistics = self.clients.statistics()
        head = new_head(self.context.job, self.state.model(), statistics, self.state.round)
        row: Row = {}
        common = self.scorer.common()
        if common:
            row = _columns(self.scorer.evaluator.scores({**common, **head}))
        return head, row, self._cost(statistics)

    def _cost(self, statistics: Tree) -> Row:
        """Return the bytes and the simulated seconds of one pass over the rows of all clients."""
        context = self.context
        leaving = self.state.leaving(context.job.local_names)
        down = size_in_bytes({"weights": leaving})
        up = size_in_bytes(statistics)
        sizes = context.trained_on.sizes
        machines = context.participation.fleet.machines(np.arange(len(sizes)))
        steps = -(-sizes // context.settings.batch_size)
        work = computing_seconds(machines, sizes.astype(np.float64) * FORWARD_COST, steps)
        seconds = transfer_seconds(machines, down, up) + work
        return {
            "bytes_down": len(sizes) * down,
            "bytes_up": len(sizes) * up,
            "simulated_seconds": float(seconds.max()),
        }


def _columns(scores: dict[str, Score]) -> Row:
    """Return scores as the columns of a calibrated model."""
    row: Row = {}
    for part, score in scores.items():
        for name, value in score.items():
            row[f"calibrated_{part}_{name}"] = value
    return row
