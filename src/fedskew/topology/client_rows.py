"""The rows of the table of clients: what each client of a round computed, received and sent."""

from typing import Any

import numpy as np

from fedskew.core.streams import Floats, Ints
from fedskew.topology.client_table import ClientTable, Column, Numbers
from fedskew.topology.collector import Arrived, Combined
from fedskew.topology.participation import Assignment, Measured


def client_rows(
    assignment: Assignment,
    arrived: list[Arrived],
    combined: Combined | None,
    extra: list[str],
    reported: int,
) -> ClientTable:
    """Return one row for each client that took part in a round, also for those whose update did not arrive.

    ``extra`` names the numbers that are reported with an update, and ``reported`` is their size in bytes.
    """
    places = _Places(assignment)
    columns = {"client": Column(places.clients)}
    for name, values in places.numbers(assignment).items():
        columns[name] = Column(values)
    bytes_up = columns["bytes_up"].values
    for stack in arrived:
        bytes_up[places.of(stack.report.clients)] += stack.bytes + reported
    shares = np.zeros(places.count)
    if combined:
        shares[places.of(combined.clients)] = combined.shares
    columns["weight"] = Column(shares)
    answered = [np.zeros(0, dtype=np.int64)]
    for stack in arrived:
        answered.append(places.of(stack.report.clients))
    for name in ("local_loss", "local_accuracy", *extra):
        values = _reported(arrived, name)
        columns[name] = Column.at(np.concatenate(answered), values, places.count)
    for name, values in assignment.plan.numbers.items():
        columns[name] = Column.at(places.trained, values, places.count)
    return ClientTable(columns)


class _Places:
    """The place of every client in the table: of those that trained, and of the rest, which only measured."""

    def __init__(self, assignment: Assignment) -> None:
        self.rest: Measured | None = assignment.only_measured()
        clients = assignment.plan.clients
        if self.rest is not None:
            clients = np.concatenate([clients, self.rest.clients])
        self.clients = np.sort(clients)
        self.count = len(clients)
        self.trained = self.of(assignment.plan.clients)

    def of(self, clients: Ints) -> Ints:
        """Return the rows of some clients."""
        return self.clients.searchsorted(clients)

    def numbers(self, assignment: Assignment) -> dict[str, Numbers]:
        """Return the numbers of all clients that the server knows, whether their updates arrived or not."""
        plan = assignment.plan
        outcome = assignment.outcome
        numbers: dict[str, Numbers] = {
            "rows": plan.sizes,
            "steps": plan.steps,
            "seconds": outcome.seconds,
            "training_seconds": outcome.training,
            "dropped": outcome.dropped,
            "late": outcome.late,
            "bytes_down": assignment.bytes_down,
            "bytes_up": assignment.bytes_up,
        }
        of_rest: dict[str, Any] = {}
        if self.rest is not None:
            of_rest = {
                "rows": self.rest.sizes,
                "seconds": self.rest.seconds,
                "late": self.rest.late,
                "bytes_down": self.rest.down,
                "bytes_up": self.rest.up,
            }
        whole = {}
        for name, values in numbers.items():
            whole[name] = self._placed(values, of_rest.get(name, 0))
        for name in ("dropped", "late"):
            whole[name] = whole[name].astype(np.int64)
        return whole

    def _placed(self, values: Numbers, of_rest: Any) -> Numbers:
        """Return numbers of the clients that trained, and of those that only measured, in the order of the rows."""
        whole = np.empty(self.count, dtype=values.dtype)
        whole[self.trained] = values
        if self.rest is not None:
            whole[self.of(self.rest.clients)] = of_rest
        return whole


def _reported(arrived: list[Arrived], name: str) -> Floats:
    """Return a number that clients reported with their updates, in the order of arrival."""
    values = [np.zeros(0)]
    for stack in arrived:
        report = stack.report
        if name == "local_loss":
            values.append(report.loss)
        elif name == "local_accuracy":
            values.append(report.accuracy)
        else:
            values.append(report.numbers[name])
    return np.concatenate(values)
