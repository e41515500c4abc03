"""Rounds of two kinds in one run: one model on a sample schedule in some, clients that train separately in others."""

from dataclasses import replace

import numpy as np

from fedskew.algorithms.topologies import Scheduled
from fedskew.core.trees import Tensors
from fedskew.topology.client_table import ClientTable, Column
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.parallel import ParallelRounds
from fedskew.topology.payload import reported
from fedskew.topology.scheduled_rounds import ScheduledRounds

# What only rounds with a schedule tell, of clients and of the round
_OF_CLIENTS = ("samples", "visits")
_OF_ROUNDS = ("transfers", "run_length", "returned")


class MixedRounds:
    """Rounds of the kind that the method's topology has; both have the same columns, with gaps in what one lacks."""

    def __init__(self, scheduled: ScheduledRounds, parallel: ParallelRounds) -> None:
        self.scheduled = scheduled
        self.parallel = parallel

    def checkpoint(self) -> Tensors:
        """Return what both kinds keep between rounds."""
        return {**self.parallel.checkpoint(), **self.scheduled.checkpoint()}

    def restore(self, saved: Tensors) -> None:
        """Restore what ``checkpoint`` returned."""
        self.scheduled.restore(saved)

    def run(self, lr: float) -> RoundOutcome:
        """Run one round and return its outcome."""
        context = self.scheduled.context
        topology = context.algorithm.topology(self.scheduled.state.round)
        if isinstance(topology, Scheduled):
            outcome = self.scheduled.run(lr)
        else:
            outcome = self.parallel.run(lr)
        columns = dict(outcome.client_rows.columns)
        for name in (*_OF_CLIENTS, *reported(context.algorithm)):
            # In the same place of both kinds
            columns[name] = columns.pop(name, _gap(len(outcome.client_rows)))
        metrics = {name: outcome.metrics.get(name) for name in _OF_ROUNDS}
        return replace(outcome, client_rows=ClientTable(columns), metrics=metrics)


def _gap(count: int) -> Column:
    """Return a column without any number."""
    return Column.at(np.zeros(0, dtype=np.int64), np.zeros(0), count)
