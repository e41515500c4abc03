"""Clients that train while the server continues: when the update of each arrives, and what it holds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fedskew.algorithms.contract import Report
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, rows_of
from fedskew.engine.job import Updates
from fedskew.engine.plan import Plan
from fedskew.fleet.clock import Outcome
from fedskew.topology.participation import Assignment, Participation
from fedskew.topology.run_state import group_of

_NUMBER, _ANSWERS = "number", "answers"  # groups of names in a checkpoint

# Invites clients; takes the number of invitations so far, how many clients to invite, and those that are busy
Invite: TypeAlias = Callable[[int, int, Ints], Assignment | None]


@dataclass(frozen=True, eq=False)
class PendingClient:
    """One training client: its plan, outcome and time of arrival, and its update once that is computed."""

    plan: Plan
    outcome: Outcome
    arrives_at: float
    bytes_down: Ints
    bytes_up: Ints
    update: Updates | None = None

    @cached_property
    def number(self) -> int:
        """Return the number of the client."""
        return int(self.plan.clients[0])

    @cached_property
    def answers(self) -> bool:
        """Return whether its update arrives."""
        return bool(self.outcome.arrived[0])

    def dropped(self) -> "PendingClient":
        """Return the client as one that did not answer."""
        return replace(self, outcome=replace(self.outcome, dropped=np.ones(1, dtype=bool)))


class PendingClients:
    """The clients that currently train, at most ``room``; a client is invited at most once on the same weights."""

    def __init__(self, participation: Participation, room: int) -> None:
        self.participation, self.room = participation, room
        self.clients: list[PendingClient] = []

    def collect(self, wanted: int, invite: Invite) -> tuple[list[PendingClient], list[Assignment]]:
        """Advance the clock until ``wanted`` updates have arrived; returns the clients that are done, and assignments.

        Clients that dropped out or are late are among them. Whenever a client is done, another one is invited. If none
        can be invited and none is pending, the server continues with fewer updates.
        """
        arrived: list[PendingClient] = []
        assignments: list[Assignment] = []
        while sum(client.answers for client in arrived) < wanted:
            busy = np.array([client.number for client in (*arrived, *self.clients)], dtype=np.int64)
            room = self.room - len(self.clients)
            if room and (assignment := invite(len(assignments), room, busy)):
                assignments.append(assignment)
                self.clients += _pending(assignment, self.participation.fleet.deadline)
            if not self.clients:
                break
            first = min(self.clients, key=lambda client: (client.arrives_at, client.number))
            self.clients.remove(first)
            arrived.append(first)
            self.participation.clock = first.arrives_at
        return arrived, assignments

    def state(self) -> Tensors:
        """Return the pending clients as flat named tensors; their updates have been computed by then."""
        if not self.clients:
            return {}
        flat: Tensors = {}
        for name, values in self._arrays().items():
            flat[name] = torch.from_numpy(np.ascontiguousarray(values))
        answers = [_flat(client.update) for client in self.clients if client.update]
        if not answers:
            return flat
        for name in answers[0]:
            flat[f"{_ANSWERS}/{name}"] = torch.cat([answer[name] for answer in answers])
        return flat

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Return what is known of the pending clients beside their updates, an entry for each."""
        plan = Plan.together([client.plan for client in self.clients])
        outcome = joined([client.outcome for client in self.clients])
        arrays: dict[str, NDArray[Any]] = {
            "clients": plan.clients,
            "sizes": plan.sizes,
            "batch": plan.batch,
            "epochs": plan.epochs,
            "seconds": outcome.seconds,
            "training": outcome.training,
            "dropped": outcome.dropped,
            "late": outcome.late,
            "bytes_down": np.concatenate([client.bytes_down for client in self.clients]),
            "bytes_up": np.concatenate([client.bytes_up for client in self.clients]),
        }
        for name, values in plan.numbers.items():
            arrays[f"{_NUMBER}/{name}"] = values
        arrays["round"] = np.array([client.plan.round for client in self.clients])
        arrays["arrives_at"] = np.array([client.arrives_at for client in self.clients])
        return arrays

    def restore(self, state: Tensors, plan: Plan, device: torch.device) -> None:
        """Restore what ``state`` returned; ``plan`` has the seed and the rules that all plans of the run share."""
        self.clients = []
        if not state:
            return
        answers: Tensors = {}
        for name, value in group_of(state, _ANSWERS).items():
            answers[name] = value.to(device)
        arrays = {}
        for name, value in state.items():
            if not name.startswith(f"{_ANSWERS}/"):
                arrays[name] = value.cpu().numpy()
        done = 0
        for i in range(len(arrays["round"])):
            client = _restored({name: values[i : i + 1] for name, values in arrays.items()}, plan)
            if client.answers:
                update = {name: value[done : done + 1] for name, value in answers.items()}
                client = replace(client, update=_update(update, client.plan))
                done += 1
            self.clients.append(client)


def _restored(saved: dict[str, NDArray[Any]], plan: Plan) -> PendingClient:
    """Return a pending client from arrays of one entry each, without its update."""
    numbers = {}
    for name, value in saved.items():
        if name.startswith(f"{_NUMBER}/"):
            numbers[name.removeprefix(f"{_NUMBER}/")] = value
    plan_of_client = replace(
        plan,
        round=int(saved["round"][0]),
        clients=saved["clients"],
        sizes=saved["sizes"],
        batch=saved["batch"],
        epochs=saved["epochs"],
        numbers=numbers,
    )
    outcome = Outcome(
        saved["seconds"],
        saved["training"],
        saved["epochs"],
        saved["dropped"],
        saved["late"],
        duration=0.0,
    )
    arrives_at = float(saved["arrives_at"][0])
    return PendingClient(
        plan_of_client, outcome, arrives_at, saved["bytes_down"], saved["bytes_up"]
    )


def _pending(assignment: Assignment, deadline: float | None) -> list[PendingClient]:
    """Return a pending client for each client of an assignment; a late one is given up at the deadline."""
    outcome = assignment.outcome
    limit = np.inf
    if deadline is not None:
        limit = deadline
    pending: list[PendingClient] = []
    for i in range(len(assignment.plan.clients)):
        pending.append(
            PendingClient(
                assignment.plan.only(np.array([i])),
                _outcome_of(outcome, i),
                assignment.sent + min(float(outcome.seconds[i]), limit),
                assignment.bytes_down[i : i + 1],
                assignment.bytes_up[i : i + 1],
            )
        )
    return pending


def _outcome_of(outcome: Outcome, i: int) -> Outcome:
    """Return the outcome of a single client."""
    at = slice(i, i + 1)
    return Outcome(
        outcome.seconds[at],
        outcome.training[at],
        outcome.epochs[at],
        outcome.dropped[at],
        outcome.late[at],
        duration=0.0,
    )


def joined(outcomes: list[Outcome]) -> Outcome:
    """Return several outcomes concatenated into one."""
    arrays = {}
    for name in ("seconds", "training", "epochs", "dropped", "late"):
        arrays[name] = np.concatenate([getattr(outcome, name) for outcome in outcomes])
    return Outcome(**arrays, duration=0.0)


def each(updates: Updates) -> list[Updates]:
    """Return stacked updates one by one, each as a copy."""
    report = updates.report
    single_updates = []
    for i in range(len(report.clients)):
        at = slice(i, i + 1)
        numbers = {name: values[at] for name, values in report.numbers.items()}
        report_of_client = Report(
            report.clients[at],
            report.sizes[at],
            report.steps[at],
            report.loss[at],
            report.accuracy[at],
            numbers,
        )
        payload = _copied(updates.payload, at)
        buffers = _copied({"": updates.buffers}, at)[""]
        kept = _copied(updates.kept, at)
        single_updates.append(Updates(report_of_client, payload, buffers, kept))
    return single_updates


def _copied(tree: Tree, at: slice) -> Tree:
    """Return a copy of some rows of a tree."""
    copied: Tree = {}
    for part, tensors in rows_of(tree, at).items():
        copied[part] = {name: value.clone() for name, value in tensors.items()}
    return copied


def _flat(update: Updates) -> Tensors:
    """Return an update as flat named tensors, ``GROUP/PART/NAME``."""
    report = update.report
    numbers = {"loss": report.loss, "accuracy": report.accuracy, **report.numbers}
    flat: Tensors = {}
    for name, values in numbers.items():
        flat[f"report/{name}/"] = torch.from_numpy(values)
    trees = {"payload": update.payload, "kept": update.kept, "buffers": {"": update.buffers}}
    for group, tree in trees.items():
        for part, tensors in tree.items():
            for name, value in tensors.items():
                flat[f"{group}/{part}/{name}"] = value
    return flat


def _update(flat: Tensors, plan: Plan) -> Updates:
    """Return the update that ``_flat`` flattened."""
    trees: dict[str, Tree] = {"report": {}, "payload": {}, "kept": {}, "buffers": {"": {}}}
    for path, value in flat.items():
        group, part, name = path.split("/", 2)
        trees[group].setdefault(part, {})[name] = value
    numbers = {part: value[""].cpu().numpy() for part, value in trees["report"].items()}
    loss = numbers.pop("loss")
    accuracy = numbers.pop("accuracy")
    report = Report(plan.clients, plan.sizes, plan.steps, loss, accuracy, numbers)
    return Updates(report, trees["payload"], trees["buffers"][""], trees["kept"])
