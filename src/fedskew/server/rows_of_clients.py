"""Rows of clients, on which the models that clients use are scored: which clients, and the mean over them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors
from fedskew.data.partition import Partition
from fedskew.server.evaluated_rows import EvaluatedRows, Found, OwnModel, Score

FINAL_TESTED = 200  # clients whose own models are evaluated on the whole test set
FINAL_CLIENTS = 10_000  # clients evaluated on their own rows


def scored_clients(clients: int, seed: int) -> Ints:
    """Return the clients whose models are scored on their own rows: all, or a random 10,000 where there are more."""
    if clients <= FINAL_CLIENTS:
        return np.arange(clients)
    return np.sort(Stream(seed, "final").sample(clients, FINAL_CLIENTS))


def at_even_steps(clients: int) -> slice:
    """Return which of so many clients have the metrics that need all predictions at once: up to 200 at even steps."""
    return slice(None, None, max(1, -(-clients // FINAL_TESTED)))  # rounded up


def mean_over_clients(values: Floats) -> float:
    """Return the unweighted mean of the finite numbers; NaN if there are none.

    >>> mean_over_clients(np.array([0.5, np.nan, 1.0]))
    0.75
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan")
    return float(known.mean())


@dataclass(frozen=True)
class ClientRows:
    """Rows of clients, with the clients whose models are scored on them.

    Args:
        rows: the rows of all clients
        split: which of them each client has
        clients: whose models are scored, in order
    """

    rows: EvaluatedRows
    split: Partition
    clients: Ints

    def used(self, state: Tensors | None, own: OwnModel | None) -> dict[str, Floats]:
        """Return loss and row metric of the model that each client uses, on its rows."""
        pieces = [self.split.of(int(client)) for client in self.clients]
        if own:
            scores = self.rows.of_own_models(own, self.clients, pieces)
        else:
            assert state is not None
            scores = self.rows.of_clients(state, pieces)
        columns = {"loss": scores[0]}
        if self.rows.task.row_metric is not None:
            columns[self.rows.task.row_metric] = scores[1]
        return columns

    def mean(
        self,
        state: Tensors | None,
        own: OwnModel | None,
        metric: str,
        known: Mapping[str, Floats] | None = None,
    ) -> Score:
        """Return the unweighted means over the clients with such rows of the loss and of a metric.

        ``known`` is what ``used`` would return, where that was found already. A metric that needs all predictions of a
        client at once is the mean over up to 200 clients at even steps, as in the table after the last round.
        """
        if known is None:
            known = self.used(state, own)
        score = {"loss": mean_over_clients(known["loss"])}
        if metric in known:
            score[metric] = mean_over_clients(known[metric])
        else:
            score[metric] = mean_over_clients(self._each(state, own, metric))
        return score

    def _each(self, state: Tensors | None, own: OwnModel | None, metric: str) -> Floats:
        """Return a metric of the models of clients at even steps; NaN for those without rows."""
        values = []
        clients = self.clients[at_even_steps(len(self.clients))].tolist()
        for found in self.found(state, own, clients):
            values.append(self.rows.task.measured(*found.arrays(), [metric])[metric])
        return np.array(values, dtype=np.float64)

    def found(
        self, state: Tensors | None, own: OwnModel | None, clients: Sequence[int]
    ) -> Iterator[Found]:
        """Yield what the model that each of these clients uses makes of its rows."""
        if own is None:
            assert state is not None
            yield from self.rows.found_each(state, list(map(self.split.of, clients)))
            return
        for client in clients:
            yield self.rows.found(own(client), self.split.of(client))
