"""The lines of the table of clients: what everybody who did something in a round did, got, sent and came to."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedskew.core.streams import Ints
from fedskew.server.collector import Arrived
from fedskew.server.participation import Call

Row = dict[str, Any]


def client_lines(call: Call, arrived: list[Arrived], shares: Mapping[int, float], extra: list[str], reported: int) -> list[Row]:
    """One line for each client that did something, the lost ones too.

    ``extra`` names the numbers that come back with an update, and ``reported`` is what they take in bytes.
    """
    lines: dict[int, Row] = {}
    plan, outcome = call.plan, call.outcome
    empty: Row = {"weight": 0.0, "local_loss": None, "local_accuracy": None} | dict.fromkeys(extra)
    if rest := call.only_measured():
        nothing = np.zeros_like(rest.clients)
        looked: dict[str, Any] = {
            "rows": rest.sizes,
            "steps": nothing,
            "seconds": rest.seconds,
            "training_seconds": nothing.astype(np.float64),
            "dropped": nothing,
            "late": rest.late.astype(np.int64),
            "bytes_down": nothing + rest.down,
            "bytes_up": nothing + rest.up,
        }
        lines |= _lines(rest.clients, looked, empty | dict.fromkeys(plan.numbers))
    sent: dict[str, Any] = {
        "rows": plan.sizes,
        "steps": plan.steps,
        "seconds": outcome.seconds,
        "training_seconds": outcome.training,
        "dropped": outcome.dropped.astype(np.int64),
        "late": outcome.late.astype(np.int64),
        "bytes_down": call.bytes_down,
        "bytes_up": call.bytes_up,
    }
    lines |= _lines(plan.clients, sent, empty)
    for i, client in enumerate(plan.clients.tolist()):
        lines[client] |= {name: values[i].item() for name, values in plan.numbers.items()}
    for stack in arrived:
        report = stack.report
        back = {"local_loss": report.loss, "local_accuracy": report.accuracy, **report.numbers}
        for i, client in enumerate(report.clients.tolist()):
            lines[client] |= {name: values[i].item() for name, values in back.items()}
            lines[client]["weight"] = shares.get(client, 0.0)
            lines[client]["bytes_up"] += stack.bytes + reported
    return [lines[client] for client in sorted(lines)]


def _lines(clients: Ints, columns: Mapping[str, Any], empty: Row) -> dict[int, Row]:
    plain = {name: values.tolist() for name, values in columns.items()}
    return {
        client: {"client": client} | {name: values[i] for name, values in plain.items()} | empty
        for i, client in enumerate(clients.tolist())
    }
