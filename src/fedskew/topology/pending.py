"""Clients that train while the server continues: when the update of each arrives, and what it holds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch

from fedskew.algorithms.contract import Report
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, rows_of
from fedskew.engine.job import Updates
from fedskew.engine.plan import Plan
from fedskew.fleet.clock import Outcome
from fedskew.topology.participation import Assignment, Participation

# (invitations so far, how many clients, busy ones)
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
        plan = Plan.together([client.plan for client in self.clients])
        outcome = joined([client.outcome for client in self.clients])
        arrays = {}
        for name in ("clients", "sizes", "batch", "epochs"):
            arrays[name] = getattr(plan, name)
        for name in ("seconds", "training", "dropped", "late"):
            arrays[name] = getattr(outcome, name)
        for name in ("bytes_down", "bytes_up"):
            arrays[name] = np.concatenate([getattr(client, name) for client in self.clients])
        arrays |= {f"number/{name}": values for name, values in plan.numbers.items()}
        arrays["round"] = np.array([client.plan.round for client in self.clients])
        arrays["arrives_at"] = np.array([client.arrives_at for client in self.clients])
        flat = {}
        for name, values in arrays.items():
            flat[name] = torch.from_numpy(np.ascontiguousarray(values))
        answers = [_flat(client.update) for client in self.clients if client.update]
        if answers:
            names = answers[0]
        else:
            names = {}
        return flat | {
            f"answers/{name}": torch.cat([answer[name] for answer in answers]) for name in names
        }

    def restore(self, state: Tensors, plan: Plan, device: torch.device) -> None:
        """Restore what ``state`` returned; ``plan`` has the seed and the rules that all plans of the run share."""
        self.clients = []
        if not state:
            return
        arrays = {
            name: value.cpu().numpy()
            for name, value in state.items()
            if not name.startswith("answers/")
        }
        answers = {
            name.removeprefix("answers/"): v.to(device)
            for name, v in state.items()
            if name.startswith("answers/")
        }
        done = 0
        for i, round in enumerate(arrays["round"].tolist()):
            one = {name: values[i : i + 1] for name, values in arrays.items()}
            numbers = {
                name.removeprefix("number/"): value
                for name, value in one.items()
                if name.startswith("number/")
            }
            clients, sizes, batch, epochs = (
                one[name] for name in ("clients", "sizes", "batch", "epochs")
            )
            outcome = Outcome(
                one["seconds"], one["training"], one["epochs"], one["dropped"], one["late"], 0.0
            )
            mine = replace(
                plan,
                round=round,
                clients=clients,
                sizes=sizes,
                batch=batch,
                epochs=epochs,
                numbers=numbers,
            )
            client = PendingClient(
                mine, outcome, float(one["arrives_at"][0]), one["bytes_down"], one["bytes_up"]
            )
            if client.answers:
                update = {name: value[done : done + 1] for name, value in answers.items()}
                client = replace(client, update=_update(update, client.plan))
                done += 1
            self.clients.append(client)


def _pending(assignment: Assignment, deadline: float | None) -> list[PendingClient]:
    """Return a pending client for each client of an assignment; a late one is given up at the deadline."""
    outcome = assignment.outcome
    if deadline is None:
        limit = np.inf
    else:
        limit = deadline
    result: list[PendingClient] = []
    for i in range(len(assignment.plan.clients)):
        result.append(
            PendingClient(
                assignment.plan.only(np.array([i])),
                _some(outcome, i),
                assignment.sent + min(float(outcome.seconds[i]), limit),
                assignment.bytes_down[i : i + 1],
                assignment.bytes_up[i : i + 1],
            )
        )
    return result


def _some(outcome: Outcome, i: int) -> Outcome:
    at = slice(i, i + 1)
    return Outcome(
        outcome.seconds[at],
        outcome.training[at],
        outcome.epochs[at],
        outcome.dropped[at],
        outcome.late[at],
        0.0,
    )


def joined(outcomes: list[Outcome]) -> Outcome:
    """Return several outcomes concatenated into one."""
    names = ("seconds", "training", "epochs", "dropped", "late")
    arrays = {}
    for name in names:
        arrays[name] = np.concatenate([getattr(outcome, name) for outcome in outcomes])
    return Outcome(**arrays, duration=0.0)


def each(updates: Updates) -> list[Updates]:
    """Return stacked updates one by one, each as a copy."""

    def one(tree: Tree, i: int) -> Tree:
        result: Tree = {}
        for part, ts in rows_of(tree, slice(i, i + 1)).items():
            result[part] = {name: value.clone() for name, value in ts.items()}
        return result

    report = updates.report
    found = []
    for i in range(len(report.clients)):
        at = slice(i, i + 1)
        numbers = {name: values[at] for name, values in report.numbers.items()}
        mine = Report(
            report.clients[at],
            report.sizes[at],
            report.steps[at],
            report.loss[at],
            report.accuracy[at],
            numbers,
        )
        buffers = one({"": updates.buffers}, i)[""]
        found.append(Updates(mine, one(updates.payload, i), buffers, one(updates.kept, i)))
    return found


def _flat(update: Updates) -> Tensors:
    report = {
        "loss": update.report.loss,
        "accuracy": update.report.accuracy,
        **update.report.numbers,
    }
    trees = {"payload": update.payload, "kept": update.kept, "buffers": {"": update.buffers}}
    return {f"report/{name}/": torch.from_numpy(values) for name, values in report.items()} | {
        f"{group}/{part}/{name}": value
        for group, tree in trees.items()
        for part, ts in tree.items()
        for name, value in ts.items()
    }


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
