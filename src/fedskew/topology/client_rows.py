"""The rows of the table of clients: what each client of a round computed, received and sent."""

from typing import Any

import numpy as np

from fedskew.topology.client_table import ClientTable, Column, Numbers
from fedskew.topology.collector import Arrived, Combined
from fedskew.topology.participation import Assignment


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
    plan = assignment.plan
    outcome = assignment.outcome
    rest = assignment.only_measured()
    clients = np.sort(
        plan.clients if rest is None else np.concatenate([plan.clients, rest.clients])
    )
    count = len(clients)
    trained = clients.searchsorted(plan.clients)
    if rest is None:
        missed = None
    else:
        missed = clients.searchsorted(rest.clients)

    def both(values: Numbers, of_rest: Any) -> Numbers:
        """Return numbers of the clients that trained, and of those that only measured."""
        whole = np.empty(count, dtype=values.dtype)
        whole[trained] = values
        if missed is not None:
            whole[missed] = of_rest
        return whole

    shares = np.zeros(count)
    bytes_up = both(assignment.bytes_up, rest and rest.up)
    if combined:
        shares[clients.searchsorted(combined.clients)] = combined.shares
    places = [clients.searchsorted(stack.report.clients) for stack in arrived]
    for place, stack in zip(places, arrived, strict=True):
        bytes_up[place] += stack.bytes + reported
    numbers = {
        "rows": both(plan.sizes, rest and rest.sizes),
        "steps": both(plan.steps, 0),
        "seconds": both(outcome.seconds, rest and rest.seconds),
        "training_seconds": both(outcome.training, 0),
        "dropped": both(outcome.dropped, False).astype(np.int64),
        "late": both(outcome.late, rest and rest.late).astype(np.int64),
        "bytes_down": both(assignment.bytes_down, rest and rest.down),
        "bytes_up": bytes_up,
        "weight": shares,
    }
    if places:
        answered = np.concatenate(places)
    else:
        answered = np.zeros(0, dtype=np.int64)
    back = []
    for s in arrived:
        back.append(
            {"local_loss": s.report.loss, "local_accuracy": s.report.accuracy, **s.report.numbers}
        )

    def reports(name: str) -> Column:
        return Column.at(
            answered, np.concatenate([np.zeros(0), *(stack[name] for stack in back)]), count
        )

    columns = {"client": Column(clients)} | {
        name: Column(values) for name, values in numbers.items()
    }
    columns |= {name: reports(name) for name in ("local_loss", "local_accuracy", *extra)}
    return ClientTable(
        columns | {name: Column.at(trained, values, count) for name, values in plan.numbers.items()}
    )
