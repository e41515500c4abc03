"""Participation: which clients a round invites, how they train, and the simulated outcome on their machines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from fedskew.algorithms.contract import Algorithm
from fedskew.algorithms.selection import RECORDS, ClientPool, TrainConfig
from fedskew.core.config import Settings
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.plan import Plan
from fedskew.fleet.availability import Members
from fedskew.fleet.clock import (
    FORWARD_COST,
    DropOuts,
    Flags,
    Meeting,
    Outcome,
    Work,
    computing_seconds,
    drop_out,
    simulate_round,
    transfer_seconds,
)
from fedskew.fleet.machines import Fleet
from fedskew.topology.records import AvailablePool, Records
from fedskew.topology.told_profiles import ToldProfiles

NUMBER = 8  # bytes of a number that is sent alone
# Share of the deadline after which a client that has not finished its probe does not train.
PROBE_SHARE = 0.5

# What clients measured, one number each; masked if a client did not answer
Probed: TypeAlias = Mapping[str, Floats]
Prober: TypeAlias = Callable[[Plan], Probed]


@dataclass(frozen=True)
class Traffic:
    """Bytes that one client receives before training and sends after it, and its exchanges during training.

    ``meeting`` is None for a model without BatchNorm, whose clients exchange nothing. ``neighbours`` returns with how
    many others clients of a graph exchange so many bytes each; None where it is the server. With ``one_pass`` clients
    go through their rows once for a gradient, and do not train. ``ranked`` returns what each client receives and sends
    where they have adapters of different ranks; ``down`` and ``up`` are those of the largest.
    """

    down: int
    up: int
    meeting: Callable[[Plan], Meeting] | None
    neighbours: Callable[[Ints], Ints] | None = None
    one_pass: bool = False
    ranked: Callable[[Ints], tuple[Ints, Ints]] | None = None

    def per_client(self, clients: Ints) -> tuple[Ints, Ints]:
        """Return the bytes that each of these clients receives and sends."""
        if self.ranked is not None:
            return self.ranked(clients)
        partners = np.ones_like(clients)
        if self.neighbours is not None:
            partners = self.neighbours(clients)
        return self.down * partners, self.up * partners


@dataclass(frozen=True)
class Measured:
    """Clients that measured a probe before training, one entry each, with the time it took and whether it was late."""

    clients: Ints
    sizes: Ints
    seconds: Floats
    late: Flags
    down: Ints  # bytes that each of them received
    up: int  # bytes that each of them sent


@dataclass(frozen=True)
class Assignment:
    """Clients that were invited to train: their plan, the outcome of each, and when the server continued."""

    plan: Plan  # with the epochs that they had time for
    outcome: Outcome
    began: float  # on the virtual clock
    sent: float  # when the first message was sent
    ended: float
    bytes_down: Ints  # of each client of the plan, its probe included
    bytes_up: Ints  # likewise, without the updates
    measured: Measured | None = None
    # Bytes beside the assignment: clients report their profiles, and get totals of them back
    others_up: int = 0
    others_down: int = 0

    def arrived(self) -> Plan:
        """Return the plan of the clients whose updates arrived in time."""
        arrived = self.outcome.arrived
        if arrived.all():
            return self.plan
        return self.plan.only(np.flatnonzero(arrived))

    def without(self, silent: Ints) -> "Assignment":
        """Return the assignment with these clients dropped out."""
        if not len(silent):
            return self
        dropped = self.outcome.dropped | np.isin(self.plan.clients, silent)
        return replace(self, outcome=replace(self.outcome, dropped=dropped))

    def only_measured(self) -> Measured | None:
        """Return the clients that measured and do not train, or None if no client measured."""
        if self.measured is None:
            return None
        rest = ~np.isin(self.measured.clients, self.plan.clients)
        arrays = {}
        for name in ("clients", "sizes", "seconds", "late", "down"):
            arrays[name] = getattr(self.measured, name)[rest]
        return replace(self.measured, **arrays)


@dataclass(frozen=True)
class _Selected:
    """The clients that were selected for a round, as positions in the pool of those that are ``free``."""

    round: int
    sent: float  # when the first message was sent, on the virtual clock
    free: "Members | Ints | None"  # None: all clients
    pool: ClientPool
    chosen: Ints


@dataclass(frozen=True)
class _Profiled:
    """The pool of the clients that may be selected, with their profiles, and what it cost to have these told."""

    free: "Members | Ints | None"
    pool: ClientPool
    seconds: float = 0.0
    down: int = 0
    up: int = 0


@dataclass(frozen=True)
class _Probing:
    """Who trains after a probe and what they measured; without a probe all that were selected."""

    chosen: Ints
    probed: Probed = field(default_factory=dict)
    measured: Measured | None = None
    waited: float = 0.0  # seconds that the server waited


class Participation:
    """The server's records about its clients, and the virtual clock.

    ``models_compared`` is under how many models every client finds its loss before it trains.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        settings: Settings,
        fed: Federation,
        trained_on: Partition,
        fleet: Fleet,
        least: int,
        models_compared: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.settings = settings
        self.fleet = fleet
        self.least = least
        self.models_compared = models_compared
        self.sizes, self.clock = trained_on.sizes, 0.0
        self.records = Records(trained_on.clients)
        # Rows that are pooled in one place are available at any time
        self._varying_availability = fleet.windows is not None and trained_on.clients == fed.clients
        self.selection = algorithm.client_selection
        # Names of random streams ("disclose", "walk", "finish") are older than the words of the code: other names would
        # give other numbers.
        distinct = trained_on.distinct
        told = self.selection.client_profile(
            lambda: distinct.counts(fed.train.y, len(fed.data.classes)),
            Stream(settings.seed, "disclose"),
        )
        self.profile = {name: trained_on.of_everyone(values) for name, values in told.items()}
        self.told: ToldProfiles | None = None
        if self.selection.telling and self.selection.telling.in_rounds:
            self.told = ToldProfiles(self.selection.telling, trained_on.clients)
        features = len(self.selection.learns_from)
        self.lessons = np.zeros((1 + features, 2 + features))

    def pool(self, round: int, members: Members | None) -> ClientPool:
        """Return the clients that may be selected: all, or the given ones."""
        settings = self.settings
        everyone = ClientPool(
            round,
            self.sizes,
            settings.sampling,
            settings.batch_size,
            settings.epochs,
            self.profile,
            **self.records.arrays,
            capacity=self.fleet.capacity,
            lessons=self.lessons,
            all_clients=self.records.standing,
        )
        if members is None:
            return everyone
        return AvailablePool(everyone, members)

    def free(self, clock: float, busy: Ints) -> Members | None:
        """Return the clients that can be selected at that time; None means all of them."""
        if self._varying_availability:
            return self.fleet.available(clock, busy)
        if len(busy):
            return Members(None, 0, len(self.sizes), busy)
        return None

    def invite(
        self,
        round: int,
        count: int,
        probe: Prober,
        traffic: Traffic,
        turn: tuple[int, ...],
        busy: Ints,
    ) -> Assignment | None:
        """Invite up to ``count`` clients that are not ``busy`` to train; returns None if no client is free.

        ``turn`` numbers the invitations of a run. If no client is busy and none is available, the server waits until
        one is. Only ``record_outcome`` changes the records.
        """
        clock = self.clock
        if self._varying_availability and not len(busy):
            clock = self.fleet.next_available(clock)
        free = self.free(clock, busy)
        pool = self.pool(round, free)
        if len(pool) == 0:
            return None
        profiled = self._profiled(round, free, pool, turn)
        pool = profiled.pool
        sent = clock + profiled.seconds
        stream = Stream(self.settings.seed, "select", *turn)
        chosen = self.selection.select(pool, min(count, len(pool)), stream)
        selected = _Selected(round, sent, profiled.free, pool, chosen)
        probing = _Probing(chosen)
        if self.selection.probe:
            probing = self._probe(selected, probe, traffic)
        config = self.selection.configure_training(pool, probing.chosen, probing.probed, count)
        assignment = self._assignment(selected, config, probing, traffic)
        return replace(assignment, others_up=profiled.up, others_down=profiled.down)

    def _profiled(
        self, round: int, free: Members | None, pool: ClientPool, turn: tuple[int, ...]
    ) -> _Profiled:
        """Let clients tell their profiles: all of them before the first round, or those whose turn it is."""
        if self.told:
            return self._told_now(self.told, round, free, pool, turn)
        if turn == (0,) and self.profile:
            size = NUMBER * len(self.profile)
            return _Profiled(free, pool, self._slowest_to_report(size), 0, size * len(self.sizes))
        return _Profiled(free, pool)

    def _told_now(
        self,
        profiles: ToldProfiles,
        round: int,
        free: Members | None,
        pool: ClientPool,
        turn: tuple[int, ...],
    ) -> _Profiled:
        """Draw candidates, and let those tell their profiles whose turn it is."""
        telling = profiles.telling
        if telling.candidates is not None and telling.candidates < len(pool):
            stream = Stream(self.settings.seed, "candidates", *turn)
            places = np.sort(stream.sample(len(pool), telling.candidates))
        else:
            places = np.arange(len(pool))
        clients = _numbers(places, free)
        pool = pool.at(places)
        if telling.refresh is not None:  # totals are those of the clients that are there
            pool = replace(pool, all_clients=None)
        due = np.flatnonzero(profiles.due(clients, round))
        seconds = 0.0
        down = 0
        up = 0
        if len(due):
            tellers = clients[due]
            told = self.selection.tell(
                pool, due, tellers, profiles.times(tellers), self.settings.seed
            )
            profiles.keep(tellers, round, told)
            totals = NUMBER * telling.totals
            one_up = np.full(len(clients), totals)
            one_up[due] += NUMBER * len(telling.parts)
            one_down = np.full(len(clients), totals)
            machines = self.fleet.machines(clients)
            involved = one_up > 0
            seconds = float(transfer_seconds(machines, one_down, one_up)[involved].max())
            up = int(one_up.sum())
            down = int(one_down.sum())
        return _Profiled(clients, replace(pool, profile=profiles.of(clients)), seconds, down, up)

    def _probe(self, selected: _Selected, probe: Prober, traffic: Traffic) -> _Probing:
        """Let the selected clients measure; those that are late or do not answer do not train."""
        selection = self.selection
        chosen = selected.chosen
        rows = selection.probe_rows(selected.pool, chosen)
        config = TrainConfig(chosen, rows, np.ones_like(chosen))
        plan = replace(self._plan(selected.round, selected.free, config), purpose="probe")
        measured, waited = self._measure(plan, traffic)
        in_time = np.flatnonzero(~measured.late)
        probed: Probed = {str(name): np.zeros(0) for name in selection.probe}
        if len(in_time):
            probed = probe(plan.only(in_time))
        # A client that does not answer does not train either; one that measures NaN has answered.
        silent = np.any([np.ma.getmaskarray(values) for values in probed.values()], axis=0)
        late = measured.late.copy()
        late[in_time[silent]] = True
        answers = {}
        for name, values in probed.items():
            answers[name] = np.ma.getdata(values)[~silent]
        measured = replace(measured, late=late)
        return _Probing(chosen[in_time][~silent], answers, measured, waited)

    def _assignment(
        self, selected: _Selected, config: TrainConfig, probing: _Probing, traffic: Traffic
    ) -> Assignment:
        """Return what clients are to do, and its simulated outcome."""
        plan = self._plan(selected.round, selected.free, config)
        work = self._work(plan)
        if traffic.one_pass:
            # An engine runs at least one step
            plan = replace(plan, epochs=np.ones_like(plan.epochs), most_steps=1)
            work = Work(_times(plan.sizes, 1.0), _times(plan.steps_per_epoch, 1.0))
        measured = probing.measured
        received, sent = traffic.per_client(plan.clients)
        down = np.full_like(plan.clients, NUMBER * len(config.numbers))
        probe_down = np.zeros_like(down)
        probe_up = 0
        if measured:  # the model was sent with the probe
            probe_down = received
            probe_up = measured.up
        else:
            down += received
        machines = self.fleet.machines(plan.clients)
        transfer = transfer_seconds(machines, down, sent)
        meeting = None
        if traffic.meeting:
            meeting = traffic.meeting(plan)
            transfer += meeting.seconds(machines)
        drop_outs = DropOuts.draw(machines, plan.clients, self.settings.seed, selected.round)
        outcome = simulate_round(
            self.fleet,
            machines,
            work,
            plan.epochs,
            transfer,
            drop_outs,
            probing.waited,
        )
        exchanged = np.zeros_like(plan.clients)
        if meeting:
            exchanged = np.where(outcome.arrived, meeting.steps * meeting.bytes, 0)
        if outcome.epochs is not plan.epochs:
            plan = replace(plan, epochs=outcome.epochs)
        return Assignment(
            plan,
            outcome,
            self.clock,
            selected.sent,
            selected.sent + outcome.duration,
            probe_down + down + exchanged,
            probe_up + exchanged,
            measured,
        )

    def _slowest_to_report(self, profile_bytes: int) -> float:
        """Return the seconds until every client has sent a message of this size."""
        return self.fleet.most(lambda machines: transfer_seconds(machines, 0, profile_bytes))

    def _measure(self, plan: Plan, traffic: Traffic) -> tuple[Measured, float]:
        """Return the cost of measuring for the clients of a plan, and how long the server waits for them."""
        machines = self.fleet.machines(plan.clients)
        wanted = self.selection.probe
        cost = FORWARD_COST
        if "gradient_variance" in wanted:
            cost = 1.0
        rows = _times(plan.batch, cost)
        steps = -(-plan.batch // self.settings.batch_size)
        answers = NUMBER * len(wanted)
        received, _ = traffic.per_client(plan.clients)
        transfer = transfer_seconds(machines, received, answers)
        seconds = transfer + computing_seconds(machines, rows, steps)
        limit = np.inf
        if self.fleet.deadline is not None:
            limit = PROBE_SHARE * self.fleet.deadline
        late = seconds > limit
        waited = float(seconds.max())
        if late.any():
            waited = limit
        return Measured(plan.clients, plan.sizes, seconds, late, received, answers), waited

    def _work(self, plan: Plan) -> Work:
        """Return the work of the clients of a plan; a personal model is trained on the same rows in addition."""
        algorithm = self.algorithm
        models = 1
        if algorithm.personal_method:
            models = 2
        evaluations = len({"loss_before", "loss_after", "class_features"} & algorithm.requires)
        evaluations += self.models_compared
        passes = int("full_gradient" in algorithm.requires)
        rows = _times(plan.sizes, models - 1 + algorithm.cost_per_row)
        steps = _times(plan.steps_per_epoch, models)
        if not evaluations and not passes:
            return Work(rows, steps)
        return Work(
            rows,
            steps,
            _times(plan.sizes, FORWARD_COST * evaluations + passes),
            _times(-(-plan.sizes // plan.batch), evaluations + passes),
        )

    def gather(self, round: int, count: int) -> tuple[float, ClientPool, Ints, Flags]:
        """Return the start of a round with a sample schedule, the pool, its clients, and which of them drop out."""
        clock = self.clock
        if self._varying_availability:
            clock = self.fleet.next_available(clock)
        free = self.free(clock, np.zeros(0, dtype=np.int64))
        pool = self.pool(round, free)
        chosen = self.selection.select(
            pool, min(count, len(pool)), Stream(self.settings.seed, "select", round)
        )
        clients = np.sort(_numbers(chosen, free))
        lost = drop_out(self.fleet.machines(clients), clients, self.settings.seed, round)
        return clock, pool, clients, lost

    def _plan(self, round: int, free: "Members | Ints | None", config: TrainConfig) -> Plan:
        clients = _numbers(config.clients, free)
        sizes = self.sizes[clients]
        batch = np.maximum(config.batch_size, self.least)
        seed = self.settings.seed
        numbers = {
            **config.numbers,
            **self.selection.client_numbers(clients, len(self.sizes), round, seed),
        }
        return Plan.draw(seed, round, clients, sizes, batch, config.epochs, self.least, numbers)

    def record_outcome(self, ended: float, invited: Ints, valid: Ints, training: Floats) -> None:
        """Record a round: the training times of the ``invited`` clients, and which of them sent a ``valid`` update."""
        self.clock = ended
        self.records.add(invited, selected=1)
        if len(valid) < len(invited):
            completed = np.isin(invited, valid)
            invited = invited[completed]
            training = training[completed]
        self.records.add(invited, completed=1, seconds=training)

    def record_agreement(self, clients: Ints, agreement: Floats) -> None:
        """Record how similar the updates of these clients were to that of the round."""
        self.records.add(clients, agreement=agreement)

    def learn(self, numbers: Mapping[str, Floats], agreement: Floats) -> None:
        """Learn from a round how well updates agree with that of the round, by the numbers of their clients."""
        columns = [np.ones(len(agreement))]
        for name in self.selection.learns_from:
            columns.append(numbers[name])
        rows = np.column_stack(columns)
        self.lessons = self.lessons + rows.T @ np.column_stack([rows, agreement])

    def profile_privacy(self) -> dict[str, Any]:
        """Return what clients have spent for their profiles of the budget of the run, and how it was composed."""
        telling = self.selection.telling
        if telling is None or telling.epsilon is None:
            return {}
        times = np.ones(1, dtype=np.int64)
        if self.told:
            times = self.told.times(self.told.known())
        tellings = telling.most or 1
        parts = len(telling.parts)
        per_number = telling.epsilon / tellings / parts
        return {
            "profile_epsilon_budget": telling.epsilon,
            "profile_epsilon_spent_most": float(times.max() * telling.epsilon / tellings),
            "profile_epsilon_spent_mean": float(times.mean() * telling.epsilon / tellings),
            "profile_epsilon_composition": f"basic: {tellings} tellings x {parts} parts "
            f"({', '.join(telling.parts)}) x {per_number:g}",
        }

    def record_missed(self, clients: Ints) -> None:
        """Record clients that were selected and did not measure in time."""
        self.records.add(clients, selected=1)

    def state(self) -> Tensors:
        """Return all that changes over rounds, for clients that were ever selected; profiles are recomputed."""
        known = self.records.known()
        state = {"clients": torch.from_numpy(known)}
        for name, values in self.records.arrays.items():
            state[name] = torch.from_numpy(values[known])
        state["clock"] = torch.tensor([self.clock], dtype=torch.float64)
        if self.told:
            state |= self.told.state()
        if self.selection.learns_from:
            state["lessons"] = torch.from_numpy(self.lessons)
        return state

    def restore(self, state: Tensors) -> None:
        """Restore what ``state`` returned."""
        known = state["clients"].cpu().numpy()
        self.records = Records(len(self.sizes))
        self.records.add(known, **{name: state[name].cpu().numpy() for name in RECORDS})
        self.clock = float(state["clock"])
        if self.told:
            self.told.restore(state)
        if self.selection.learns_from:
            self.lessons = state["lessons"].cpu().numpy()


def _numbers(positions: Ints, free: "Members | Ints | None") -> Ints:
    """Return the numbers of clients at positions of a pool: of the free clients, or of all."""
    if free is None:
        return positions
    return free[positions]


def _times(counts: Ints, factor: float) -> Floats:
    return counts.astype(np.float64) * factor
