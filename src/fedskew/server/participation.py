"""Who works in a round, how, and what becomes of them: the roster, the probe, the orders and the fleet's verdict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch

from fedskew.algorithms.contract import Algorithm, Roster, overridden
from fedskew.core.config import Settings
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.plan import Plan
from fedskew.fleet.clock import LOOK, Flags, Meeting, Outcome, Work, computing_seconds, line_seconds, play, vanish
from fedskew.fleet.machines import Fleet

NUMBER = 8  # bytes of a number that is sent alone
PROBE_SHARE = 0.5  # of the deadline: who has not measured by then gets no orders, so that there is time left to train

_HISTORY = ("selected", "completed", "spent", "agreed")

Prober: TypeAlias = Callable[[Plan], Mapping[str, Floats]]


@dataclass(frozen=True)
class Traffic:
    """Bytes that one client gets before its training and sends after it, and whom it meets in between."""

    down: int
    up: int
    meeting: Callable[[Plan], Meeting]


@dataclass(frozen=True)
class Measured:
    """Clients that measured something before the training, one entry each: until when, and whose answer came too late."""

    clients: Ints
    sizes: Ints
    seconds: Floats
    late: Flags
    down: int  # bytes that each of them got
    up: int  # and sent


@dataclass(frozen=True)
class Call:
    """Clients that were sent to work: their plan, what became of each, and when the server went on."""

    plan: Plan  # with the epochs that they had time for
    outcome: Outcome
    began: float  # on the virtual clock
    sent: float  # when the first message went out
    ended: float
    bytes_down: Ints  # of each client of the plan, what it got while it measured included
    bytes_up: Ints  # likewise; the updates come on top
    measured: Measured | None = None
    others_down: int = 0  # what clients got and sent that the call is not about: before the first round all tell something
    others_up: int = 0

    def arrived(self) -> Plan:
        """The plan of those whose answers came in time."""
        return self.plan.only(np.flatnonzero(self.outcome.arrived))

    def only_measured(self) -> Measured | None:
        """Those that measured and were not sent to train."""
        if self.measured is None:
            return None
        rest = ~np.isin(self.measured.clients, self.plan.clients)
        arrays = {name: getattr(self.measured, name)[rest] for name in ("clients", "sizes", "seconds", "late")}
        return replace(self.measured, **arrays)


class Dispatcher:
    """What the server knows of its clients, and the virtual clock."""

    def __init__(
        self, algorithm: Algorithm, settings: Settings, fed: Federation, trained_on: Partition, fleet: Fleet, least: int
    ) -> None:
        self.algorithm, self.settings, self.fleet, self.least = algorithm, settings, fleet, least
        self.sizes, self.clock = trained_on.sizes, 0.0
        self.selected, self.completed = (np.zeros(trained_on.clients, dtype=np.int64) for _ in range(2))
        self.spent, self.agreed = np.zeros(trained_on.clients), np.zeros(trained_on.clients)
        self._come_and_go = trained_on.clients == fed.clients  # pooled rows are always there
        self.told: Mapping[str, Floats] = {}
        if overridden(algorithm, "disclose"):
            classes = len(fed.data.classes)
            owner = np.repeat(np.arange(trained_on.clients), trained_on.sizes)
            cell = owner * classes + fed.train.y[trained_on.rows]
            counts = np.bincount(cell, minlength=trained_on.clients * classes).reshape(-1, classes)
            self.told = algorithm.disclose(counts, Stream(settings.seed, "disclose"))

    def roster(self, round: int, free: Ints | None) -> Roster:
        """The clients that may be chosen: all, or those at ``free``."""
        settings = self.settings
        told, arrays = self.told, (self.sizes, self.selected, self.completed, self.spent, self.agreed)
        if free is not None:
            told = {name: values[free] for name, values in told.items()}
            arrays = tuple(values[free] for values in arrays)  # type: ignore[assignment]
        sizes, selected, completed, spent, agreed = arrays
        return Roster(
            round, sizes, settings.sampling, settings.batch_size, settings.epochs, told, selected, completed, spent, agreed,
            lambda positions: self.fleet.capacity(positions if free is None else free[positions]),
        )  # fmt: skip

    def free(self, clock: float, busy: Ints) -> Ints | None:
        """Who can be chosen at that time; None means everybody."""
        mask = self.fleet.available(clock) if self._come_and_go else None
        if mask is None and not len(busy):
            return None
        here = np.ones(len(self.sizes), dtype=bool) if mask is None else mask.copy()
        here[busy] = False
        return np.flatnonzero(here)

    def call(self, round: int, count: int, probe: Prober, traffic: Traffic, turn: tuple[int, ...], busy: Ints) -> Call | None:
        """Send up to ``count`` clients to work, ``busy`` ones never; None when nobody is free.

        ``turn`` numbers the calls of a run. Where nobody is busy and nobody is there, the server waits until somebody is.
        Changes nothing: ``went`` does.
        """
        algorithm, clock = self.algorithm, self.clock
        if self._come_and_go and not len(busy):
            clock = self.fleet.next_available(clock)
        free = self.free(clock, busy)
        population = len(self.sizes) if free is None else len(free)
        if population == 0:
            return None
        first = turn == (0,)
        told = NUMBER * len(self.told) if first else 0
        sent = clock + (self._slowest_to_tell(told) if told else 0.0)
        roster = self.roster(round, free)
        chosen = algorithm.select(roster, min(count, population), Stream(self.settings.seed, "select", *turn))
        measured, probed, waited = None, {}, 0.0
        if algorithm.probe():
            rows = algorithm.probe_rows(roster, chosen)
            plan = replace(self._plan(round, free, roster, chosen, rows, np.ones_like(chosen)), purpose="probe")
            measured, waited = self._measure(plan, traffic)
            in_time = np.flatnonzero(~measured.late)
            chosen, probed = chosen[in_time], dict(probe(plan.only(in_time))) if len(in_time) else _nothing(algorithm)
        orders = algorithm.orders(roster, chosen, probed, count)
        plan = self._plan(round, free, roster, orders.members, orders.batch, orders.epochs, orders.numbers)
        down = NUMBER * len(orders.numbers) + (0 if measured else traffic.down)  # who measured has the model already
        machines, meeting = self.fleet.machines(plan.clients), traffic.meeting(plan)
        line = line_seconds(machines, down, traffic.up) + meeting.seconds(machines)
        outcome = play(self.fleet, plan.clients, self._work(plan), plan.epochs, line, self.settings.seed, round, waited)
        between = np.where(outcome.arrived, meeting.steps * meeting.bytes, 0)
        before = (measured.down, measured.up) if measured else (0, 0)
        return Call(
            replace(plan, epochs=outcome.epochs), outcome, self.clock, sent, sent + outcome.duration,
            before[0] + down + between, before[1] + between, measured, others_up=told * len(self.sizes),
        )  # fmt: skip

    def _slowest_to_tell(self, told: int) -> float:
        """Until everybody has told of itself so many bytes."""
        return float(line_seconds(self.fleet.machines(np.arange(len(self.sizes))), 0, told).max())

    def _measure(self, plan: Plan, traffic: Traffic) -> tuple[Measured, float]:
        """What measuring costs the clients of a plan, and how long the server waits for it."""
        machines, wanted = self.fleet.machines(plan.clients), self.algorithm.probe()
        rows = _times(plan.batch, 1.0 if "gradient_variance" in wanted else LOOK)
        steps = -(-plan.batch // self.settings.batch_size)
        answers = NUMBER * len(wanted)
        time = line_seconds(machines, traffic.down, answers) + computing_seconds(machines, rows, steps)
        limit = np.inf if self.fleet.deadline is None else PROBE_SHARE * self.fleet.deadline
        late = time > limit
        waited = limit if late.any() else float(time.max())
        return Measured(plan.clients, plan.sizes, time, late, traffic.down, answers), waited

    def _work(self, plan: Plan) -> Work:
        """What the clients of a plan compute: an own model is trained on the same rows once more, other models look at them."""
        algorithm = self.algorithm
        models = 2 if algorithm.personal() else 1
        looked, passes = (2 if algorithm.measures_fall else 0), int(algorithm.needs_full_gradient())
        return Work(
            _times(plan.sizes, models + LOOK * algorithm.looks),
            _times(plan.steps_per_epoch, models),
            _times(plan.sizes, LOOK * looked + passes),
            _times(-(-plan.sizes // plan.batch), looked + passes),
        )

    def gather(self, round: int, count: int) -> tuple[float, Roster, Ints, Flags]:
        """For a round in which the model walks: when it begins, the roster, who takes part, and who of them vanishes."""
        clock = self.fleet.next_available(self.clock) if self._come_and_go else self.clock
        free = self.free(clock, np.zeros(0, dtype=np.int64))
        roster = self.roster(round, free)
        chosen = self.algorithm.select(roster, min(count, len(roster.sizes)), Stream(self.settings.seed, "select", round))
        clients = np.sort(chosen if free is None else free[chosen])
        return clock, roster, clients, vanish(self.fleet.machines(clients), clients, self.settings.seed, round)

    def _plan(
        self, round: int, free: Ints | None, roster: Roster, members: Ints, batch: Ints, epochs: Ints,
        numbers: Mapping[str, Floats] | None = None,
    ) -> Plan:  # fmt: skip
        clients = members if free is None else free[members]
        sizes = roster.sizes[members]
        enough = np.maximum(batch, self.least)
        return Plan.draw(self.settings.seed, round, clients, sizes, enough, epochs, self.least, numbers)

    def went(self, call: Call, sound: Ints, agreement: Mapping[int, float] | None = None) -> None:
        """Note how a call went: ``sound`` clients came back with something that could be used, in such agreement."""
        self.clock = call.ended
        self.selected[call.plan.clients] += 1
        if rest := call.only_measured():
            self.selected[rest.clients[rest.late]] += 1
        completed = np.isin(call.plan.clients, sound)
        self.completed[call.plan.clients[completed]] += 1
        self.spent[call.plan.clients[completed]] += call.outcome.training[completed]
        for client, value in (agreement or {}).items():
            self.agreed[client] += value

    def state(self) -> Tensors:
        """All that changes over rounds, of clients that were ever chosen; what they told of themselves is drawn again."""
        known = np.flatnonzero(self.selected)
        arrays = {"clients": known} | {name: getattr(self, name)[known] for name in _HISTORY}
        return {name: torch.from_numpy(array) for name, array in arrays.items()} | {
            "clock": torch.tensor([self.clock], dtype=torch.float64)
        }

    def restore(self, state: Tensors) -> None:
        """The inverse of ``state``."""
        known = state["clients"].cpu().numpy()
        for name in _HISTORY:
            getattr(self, name)[:] = 0
            getattr(self, name)[known] = state[name].cpu().numpy()
        self.clock = float(state["clock"])


def _times(counts: Ints, factor: float) -> Floats:
    return counts.astype(np.float64) * factor


def _nothing(algorithm: Algorithm) -> dict[str, Floats]:
    """What was measured where nobody was in time."""
    return {name: np.zeros(0) for name in algorithm.probe()}
