"""Clients at work while the server goes on: who is in the air, who lands when, and what they bring."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch

from fedskew.algorithms.contract import Report
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, rows_of
from fedskew.engine.job import Updates
from fedskew.engine.plan import Plan
from fedskew.fleet.clock import Outcome
from fedskew.server.participation import Call, Dispatcher

Launch: TypeAlias = Callable[[int, int, Ints], Call | None]  # (calls so far, how many clients, who cannot) -> those sent


@dataclass(frozen=True)
class Flight:
    """One client at work: its plan, what becomes of it, when that shows on the clock, and its answer once it is computed."""

    plan: Plan
    outcome: Outcome
    lands: float
    bytes_down: Ints
    bytes_up: Ints
    update: Updates | None = None

    @property
    def client(self) -> int:
        """Its number."""
        return int(self.plan.clients[0])

    @property
    def answers(self) -> bool:
        """Whether it comes back."""
        return bool(self.outcome.arrived[0])


class Air:
    """The clients at work, at most ``room`` of them. A client is sent at most once on the same weights."""

    def __init__(self, dispatcher: Dispatcher, room: int) -> None:
        self.dispatcher, self.room = dispatcher, room
        self.flights: list[Flight] = []

    def collect(self, wanted: int, launch: Launch) -> tuple[list[Flight], list[Call]]:
        """Move the clock on until ``wanted`` answers are there; returns all that landed, the lost ones too, and the calls.

        Whenever somebody lands, somebody else is sent. Where nobody can be sent and nobody is left in the air, the server goes
        on with fewer answers.
        """
        landed: list[Flight] = []
        calls: list[Call] = []
        while sum(flight.answers for flight in landed) < wanted:
            tired = [flight.client for flight in landed] + [flight.client for flight in self.flights]
            if len(self.flights) < self.room and (
                call := launch(len(calls), self.room - len(self.flights), np.array(tired, dtype=np.int64))
            ):
                calls.append(call)
                self.flights += _flights(call, self.dispatcher.fleet.deadline)
            if not self.flights:
                break
            first = min(self.flights, key=lambda flight: (flight.lands, flight.client))
            self.flights.remove(first)
            landed.append(first)
            self.dispatcher.clock = first.lands
        return landed, calls

    def state(self) -> Tensors:
        """The flights as flat named tensors; the answers of those that come back are computed by now."""
        if not self.flights:
            return {}
        plan, outcome = (
            Plan.together([flight.plan for flight in self.flights]),
            joined([flight.outcome for flight in self.flights]),
        )
        arrays = {name: getattr(plan, name) for name in ("clients", "sizes", "batch", "epochs")}
        arrays |= {name: getattr(outcome, name) for name in ("seconds", "training", "dropped", "late")}
        for name in ("bytes_down", "bytes_up"):
            arrays[name] = np.concatenate([getattr(flight, name) for flight in self.flights])
        arrays |= {f"number/{name}": values for name, values in plan.numbers.items()}
        arrays["round"] = np.array([flight.plan.round for flight in self.flights])
        arrays["lands"] = np.array([flight.lands for flight in self.flights])
        flat = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
        answers = [_flat(flight.update) for flight in self.flights if flight.update]
        names = answers[0] if answers else {}
        return flat | {f"answers/{name}": torch.cat([answer[name] for answer in answers]) for name in names}

    def restore(self, state: Tensors, plan: Plan, device: torch.device) -> None:
        """The inverse of ``state``; ``plan`` has the seed and the rules that all plans of the run share."""
        self.flights = []
        if not state:
            return
        arrays = {name: value.cpu().numpy() for name, value in state.items() if not name.startswith("answers/")}
        answers = {name.removeprefix("answers/"): v.to(device) for name, v in state.items() if name.startswith("answers/")}
        landed = 0
        for i, round in enumerate(arrays["round"].tolist()):
            one = {name: values[i : i + 1] for name, values in arrays.items()}
            numbers = {name.removeprefix("number/"): value for name, value in one.items() if name.startswith("number/")}
            clients, sizes, batch, epochs = (one[name] for name in ("clients", "sizes", "batch", "epochs"))
            outcome = Outcome(one["seconds"], one["training"], one["epochs"], one["dropped"], one["late"], 0.0)
            mine = replace(plan, round=round, clients=clients, sizes=sizes, batch=batch, epochs=epochs, numbers=numbers)
            flight = Flight(mine, outcome, float(one["lands"][0]), one["bytes_down"], one["bytes_up"])
            if flight.answers:
                flight = replace(
                    flight, update=_update({name: v[landed : landed + 1] for name, v in answers.items()}, flight.plan)
                )
                landed += 1
            self.flights.append(flight)


def _flights(call: Call, deadline: float | None) -> list[Flight]:
    """One flight for each client of a call. A late one is given up at the deadline."""
    outcome, limit = call.outcome, np.inf if deadline is None else deadline
    return [
        Flight(
            call.plan.only(np.array([i])),
            _some(outcome, i),
            call.sent + min(float(outcome.seconds[i]), limit),
            call.bytes_down[i : i + 1],
            call.bytes_up[i : i + 1],
        )
        for i in range(len(call.plan.clients))
    ]


def _some(outcome: Outcome, i: int) -> Outcome:
    at = slice(i, i + 1)
    return Outcome(outcome.seconds[at], outcome.training[at], outcome.epochs[at], outcome.dropped[at], outcome.late[at], 0.0)


def joined(outcomes: list[Outcome]) -> Outcome:
    """Several outcomes as one."""
    names = ("seconds", "training", "epochs", "dropped", "late")
    arrays = {name: np.concatenate([getattr(outcome, name) for outcome in outcomes]) for name in names}
    return Outcome(**arrays, duration=0.0)


def each(updates: Updates) -> list[Updates]:
    """Stacked updates one by one, each in memory of its own."""

    def one(tree: Tree, i: int) -> Tree:
        return {
            part: {name: value.clone() for name, value in ts.items()} for part, ts in rows_of(tree, slice(i, i + 1)).items()
        }

    report = updates.report
    found = []
    for i in range(len(report.clients)):
        at = slice(i, i + 1)
        numbers = {name: values[at] for name, values in report.numbers.items()}
        mine = Report(report.clients[at], report.sizes[at], report.steps[at], report.loss[at], report.accuracy[at], numbers)
        buffers = one({"": updates.buffers}, i)[""]
        found.append(Updates(mine, one(updates.payload, i), buffers, one(updates.own, i)))
    return found


def _flat(update: Updates) -> Tensors:
    report = {"loss": update.report.loss, "accuracy": update.report.accuracy, **update.report.numbers}
    trees = {"payload": update.payload, "own": update.own, "buffers": {"": update.buffers}}
    return {f"report/{name}/": torch.from_numpy(values) for name, values in report.items()} | {
        f"{group}/{part}/{name}": value
        for group, tree in trees.items()
        for part, ts in tree.items()
        for name, value in ts.items()
    }


def _update(flat: Tensors, plan: Plan) -> Updates:
    """The inverse of ``_flat``."""
    trees: dict[str, Tree] = {"report": {}, "payload": {}, "own": {}, "buffers": {"": {}}}
    for path, value in flat.items():
        group, part, name = path.split("/", 2)
        trees[group].setdefault(part, {})[name] = value
    numbers = {part: value[""].cpu().numpy() for part, value in trees["report"].items()}
    loss, accuracy = numbers.pop("loss"), numbers.pop("accuracy")
    report = Report(plan.clients, plan.sizes, plan.steps, loss, accuracy, numbers)
    return Updates(report, trees["payload"], trees["buffers"][""], trees["own"])
