"""The rows of the table of clients: what each client of a round computed, received and sent."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from fedskew.core.streams import Ints
from fedskew.topology.collector import Arrived
from fedskew.topology.participation import Assignment

Row: TypeAlias = dict[str, Any]


def client_rows(
    assignment: Assignment, arrived: list[Arrived], shares: Mapping[int, float], extra: list[str], reported: int
) -> list[Row]:
    """Return one row for each client that took part in a round, also for those whose update did not arrive.

    ``extra`` names the numbers that are reported with an update, and ``reported`` is their size in bytes.
    """
    rows: dict[int, Row] = {}
    plan, outcome = assignment.plan, assignment.outcome
    empty: Row = {"weight": 0.0, "local_loss": None, "local_accuracy": None} | dict.fromkeys(extra)
    if rest := assignment.only_measured():
        nothing = np.zeros_like(rest.clients)
        measured_columns: dict[str, Any] = {
            "rows": rest.sizes,
            "steps": nothing,
            "seconds": rest.seconds,
            "training_seconds": nothing.astype(np.float64),
            "dropped": nothing,
            "late": rest.late.astype(np.int64),
            "bytes_down": nothing + rest.down,
            "bytes_up": nothing + rest.up,
        }
        rows |= _rows(rest.clients, measured_columns, empty | dict.fromkeys(plan.numbers))
    sent: dict[str, Any] = {
        "rows": plan.sizes,
        "steps": plan.steps,
        "seconds": outcome.seconds,
        "training_seconds": outcome.training,
        "dropped": outcome.dropped.astype(np.int64),
        "late": outcome.late.astype(np.int64),
        "bytes_down": assignment.bytes_down,
        "bytes_up": assignment.bytes_up,
    }
    rows |= _rows(plan.clients, sent, empty)
    for i, client in enumerate(plan.clients.tolist()):
        rows[client] |= {name: values[i].item() for name, values in plan.numbers.items()}
    for stack in arrived:
        report = stack.report
        back = {"local_loss": report.loss, "local_accuracy": report.accuracy, **report.numbers}
        for i, client in enumerate(report.clients.tolist()):
            rows[client] |= {name: values[i].item() for name, values in back.items()}
            rows[client]["weight"] = shares.get(client, 0.0)
            rows[client]["bytes_up"] += stack.bytes + reported
    return [rows[client] for client in sorted(rows)]


def _rows(clients: Ints, columns: Mapping[str, Any], empty: Row) -> dict[int, Row]:
    plain = {name: values.tolist() for name, values in columns.items()}
    return {
        client: {"client": client} | {name: values[i] for name, values in plain.items()} | empty
        for i, client in enumerate(clients.tolist())
    }
