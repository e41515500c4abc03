"""Who works in a round, how, and what becomes of them: the roster, the probe, the orders and the fleet's verdict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch

from fedskew.algorithms.base import Algorithm, Roster, Tensors, overridden
from fedskew.config import Settings
from fedskew.engine.plan import Plan
from fedskew.fleet.base import Fleet
from fedskew.fleet.clock import Flags, Outcome, play, seconds, vanish
from fedskew.skew.federation import Federation
from fedskew.skew.partition import Partition
from fedskew.streams import Floats, Ints, Stream

NUMBER = 8  # bytes of a number that is sent alone

Prober: TypeAlias = Callable[[Plan], Mapping[str, Floats]]


@dataclass(frozen=True)
class Call:
    """Clients that were sent to work: their plan, what became of each, and when the server went on."""

    plan: Plan  # with the epochs that they had time for
    outcome: Outcome
    began: float  # on the virtual clock
    sent: float  # when they got their orders
    ended: float
    bytes_down: int
    bytes_up: int  # of what was sent before the training; the updates come on top

    def arrived(self) -> Plan:
        """The plan of those whose answers came in time."""
        return self.plan.only(np.flatnonzero(self.outcome.arrived))


class Dispatcher:
    """What the server knows of its clients, and the virtual clock."""

    def __init__(
        self, algorithm: Algorithm, settings: Settings, fed: Federation, trained_on: Partition, fleet: Fleet, least: int
    ) -> None:
        self.algorithm, self.settings, self.fleet, self.least = algorithm, settings, fleet, least
        self.sizes, self.clock = trained_on.sizes, 0.0
        self.selected, self.completed = (np.zeros(trained_on.clients, dtype=np.int64) for _ in range(2))
        self.spent = np.zeros(trained_on.clients)
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
        told, arrays = self.told, (self.sizes, self.selected, self.completed, self.spent)
        if free is not None:
            told = {name: values[free] for name, values in told.items()}
            arrays = tuple(values[free] for values in arrays)  # type: ignore[assignment]
        sizes, selected, completed, spent = arrays
        return Roster(
            round, sizes, settings.sampling, settings.batch_size, settings.epochs, told, selected, completed, spent,
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

    def call(
        self, round: int, count: int, probe: Prober, bytes_down: int, bytes_up: int, turn: tuple[int, ...], busy: Ints
    ) -> Call | None:
        """Send up to ``count`` clients to work, ``busy`` ones never; None when nobody is free.

        ``turn`` numbers the calls of a run; ``bytes_down`` and ``bytes_up`` are one client's share of the model's traffic.
        Where nobody is busy and nobody is there, the server waits until somebody is. Changes nothing: ``went`` does.
        """
        algorithm, clock = self.algorithm, self.clock
        if self._come_and_go and not len(busy):
            clock = self.fleet.next_available(clock)
        free = self.free(clock, busy)
        population = len(self.sizes) if free is None else len(free)
        if population == 0:
            return None
        roster = self.roster(round, free)
        chosen = algorithm.select(roster, min(count, population), Stream(self.settings.seed, "select", *turn))
        answers, probed, waited = len(algorithm.probe()), {}, 0.0
        if answers:
            batch = np.full(len(chosen), roster.batch_size)
            plan = replace(self._plan(round, free, roster, chosen, batch, np.ones_like(chosen)), purpose="probe")
            probed = dict(probe(plan))
            waited = float(seconds(self.fleet.machines(plan.clients), plan.batch, bytes_down, NUMBER * answers).max())
        orders = algorithm.orders(roster, chosen, probed, count)
        plan = self._plan(round, free, roster, orders.members, orders.batch, orders.epochs, orders.numbers)
        down = NUMBER * len(orders.numbers) + (0 if answers else bytes_down)  # who was probed has the model already
        rows = plan.sizes * (2 if algorithm.personal() else 1)  # a model of its own is trained on the same rows once more
        outcome = play(self.fleet, plan.clients, rows, plan.epochs, down, bytes_up, self.settings.seed, round)
        told = NUMBER * len(self.told) * len(self.sizes) if turn == (0,) else 0
        sent = clock + waited
        all_down = (bytes_down * len(chosen) if answers else 0) + down * len(plan.clients)
        plan = replace(plan, epochs=outcome.epochs)
        return Call(plan, outcome, self.clock, sent, sent + outcome.duration, all_down, NUMBER * answers * len(chosen) + told)

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

    def went(self, call: Call, sound: Ints) -> None:
        """Note how a call went; ``sound`` are the clients that came back with something that could be used."""
        self.clock = call.ended
        self.selected[call.plan.clients] += 1
        completed = np.isin(call.plan.clients, sound)
        self.completed[call.plan.clients[completed]] += 1
        self.spent[call.plan.clients[completed]] += call.outcome.seconds[completed]

    def state(self) -> Tensors:
        """All that changes over rounds, of clients that were ever chosen; what they told of themselves is drawn again."""
        known = np.flatnonzero(self.selected)
        arrays = {"clients": known} | {name: getattr(self, name)[known] for name in ("selected", "completed", "spent")}
        return {name: torch.from_numpy(array) for name, array in arrays.items()} | {
            "clock": torch.tensor([self.clock], dtype=torch.float64)
        }

    def restore(self, state: Tensors) -> None:
        """The inverse of ``state``."""
        known = state["clients"].cpu().numpy()
        for name in ("selected", "completed", "spent"):
            getattr(self, name)[:] = 0
            getattr(self, name)[known] = state[name].cpu().numpy()
        self.clock = float(state["clock"])
