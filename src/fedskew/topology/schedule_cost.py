"""What a walk costs in the world: which clients it visits, what is sent, and how long it takes."""

from dataclasses import dataclass, replace

import numpy as np

from fedskew.algorithms.contract import Report
from fedskew.core.streams import Floats, Ints
from fedskew.engine.job import Walked
from fedskew.engine.plan import Plan
from fedskew.fleet.clock import Flags, Outcome, computing_seconds, line_seconds
from fedskew.fleet.machines import Fleet
from fedskew.server.collector import Arrived
from fedskew.server.participation import Call
from fedskew.topology.sample_schedule import Walk

NOWHERE = Walk(*(np.zeros(0, dtype=np.int64),) * 4)  # where everybody is lost


@dataclass(frozen=True)
class Load:
    """Bytes of one message each way: the model and whatever else a client gets or sends with it; and of one label's order."""

    down: int
    up: int
    order: int


@dataclass(frozen=True)
class Journey:
    """A walk as far as the deadline let it go. A stay is one client's part in it: a visit, or its share of one batch."""

    path: Walk
    duration: float
    stays: Ints  # of each client
    busy: Floats  # seconds of each client, on its line and computing
    computing: Floats  # those of them in which it computes
    transfers: int  # times that the model, or its gradient, went from one party to another
    bytes_down: Ints  # of each client
    bytes_up: Ints

    @property
    def run_length(self) -> float:
        """Samples of a stay, on average."""
        return len(self.path.rows) / max(1, int(self.stays.sum()))


def chain(path: Walk, clients: int, fleet: Fleet, load: Load) -> Journey:
    """The model is passed on: one visit after the other. Clients that had nothing left were visited too."""
    at = path.clients[path.visits - 1]
    samples = np.diff(path.visits, prepend=0)
    steps = np.diff(np.searchsorted(path.ends, path.visits, side="right"), prepend=0)
    machines = fleet.machines(at)
    computing = computing_seconds(machines, samples, steps)
    taken = line_seconds(machines, load.down, load.up) + computing
    in_vain = line_seconds(fleet.machines(path.idle), load.down, load.up)
    waits = in_vain.sum()
    kept = _before(fleet.deadline, waits + np.cumsum(taken))
    path = _cut(path, int(path.visits[kept - 1]) if kept else 0)
    at, taken, computing = at[:kept], taken[:kept], computing[:kept]
    visited = np.concatenate([at, path.idle])
    duration = float(waits + taken.sum()) if kept == len(samples) else float(fleet.deadline or 0.0)
    stays, ordered = (np.bincount(who, minlength=clients) for who in (visited, path.clients))
    return Journey(
        path,
        duration,
        stays,
        _per_client(visited, np.concatenate([taken, in_vain]), clients),
        _per_client(at, computing, clients),
        len(visited),
        load.down * stays + load.order * ordered,
        load.up * stays,
    )


def lockstep(path: Walk, clients: int, fleet: Fleet, load: Load) -> Journey:
    """Gradients meet at every step: it lasts as long as the slowest of its clients takes."""
    steps = np.repeat(np.arange(len(path.ends)), np.diff(path.ends, prepend=0))
    pairs, samples = np.unique(steps * clients + path.clients, return_counts=True)
    step, who = np.divmod(pairs, clients)
    machines = fleet.machines(who)
    computing = computing_seconds(machines, samples, np.ones_like(samples))
    taken = line_seconds(machines, load.down, load.up) + computing
    slowest = np.maximum.reduceat(taken, np.flatnonzero(np.diff(step, prepend=-1))) if len(step) else np.zeros(0)
    kept = _before(fleet.deadline, np.cumsum(slowest))
    path = _cut(path, int(path.ends[kept - 1]) if kept else 0)
    there = step < kept
    who, taken, computing = who[there], taken[there], computing[there]
    duration = float(slowest.sum()) if kept == len(slowest) else float(fleet.deadline or 0.0)
    stays, ordered = (np.bincount(some, minlength=clients) for some in (who, path.clients))
    return Journey(
        path,
        duration,
        stays,
        _per_client(who, taken, clients),
        _per_client(who, computing, clients),
        2 * len(who),
        load.down * stays + load.order * ordered,
        load.up * stays,
    )


def broadcast(journey: Journey, there: Ints, fleet: Fleet, size: int) -> Journey:
    """The journey, and then its model to all who are there, at once (Stratify, Fig. 1, step a7).

    That is after the walk, and comes on top of a deadline that has ended it.
    """
    if not len(journey.path.rows):
        return journey
    machines, got = fleet.machines(there), np.zeros_like(journey.bytes_down)
    got[there] = size
    return replace(
        journey,
        duration=journey.duration + float((machines.latency + 8e-6 * size / machines.down).max()),
        transfers=journey.transfers + len(there),
        bytes_down=journey.bytes_down + got,
    )


def as_call(
    journey: Journey, walked: Walked, clients: Ints, lost: Flags, sizes: Ints, when: tuple[float, float], seed: int
) -> tuple[Call, Arrived, Floats]:
    """The walk as rounds are recorded: a call of its clients, what those that trained saw, and their shares of the samples."""
    path, population = journey.path, len(journey.stays)
    samples = np.bincount(path.clients, minlength=population)
    step = np.repeat(np.arange(len(path.ends)), np.diff(path.ends, prepend=0))
    steps = np.bincount(np.unique(step * population + path.clients) % population, minlength=population)
    numbers = {"samples": samples, "visits": journey.stays, "steps": steps}
    some = {name: values[clients].astype(np.float64) for name, values in numbers.items()}
    plan = Plan(seed, 0, clients, sizes[clients], sizes[clients], np.ones_like(clients), numbers=some)
    time = (journey.busy[clients], journey.computing[clients])
    outcome = Outcome(*time, np.ones_like(clients), lost, np.zeros_like(lost), journey.duration)
    began, sent = when
    sent_bytes = (journey.bytes_down[clients], journey.bytes_up[clients])
    call = Call(plan, outcome, began, sent, sent + journey.duration, *sent_bytes)
    trained = np.flatnonzero(samples)
    loss, right = (
        _per_client(path.clients, seen, population)[trained] / samples[trained] for seen in (walked.losses, walked.right)
    )
    report = Report(trained, sizes[trained], steps[trained], loss, right)
    return call, Arrived(report, trained, {}, 0), samples[trained] / max(1, len(path.rows))


def _per_client(clients: Ints, values: Floats, population: int) -> Floats:
    """Their sum for each client."""
    result: Floats = np.bincount(clients, weights=values, minlength=population).astype(np.float64)
    return result


def at_least(path: Walk, least: int) -> Walk:
    """The path without steps of fewer rows: BatchNorm needs two."""
    return _only(path, np.diff(path.ends, prepend=0) >= least)


def of_several(path: Walk) -> Walk:
    """The path without steps of one client alone: a sum over it would be its own numbers."""
    first = np.concatenate([[0], path.ends[:-1]]).astype(np.int64)
    if not len(path.ends):
        return path
    least, most = (reduce.reduceat(path.clients, first) for reduce in (np.minimum, np.maximum))
    return _only(path, least < most)


def _only(path: Walk, steps: Flags) -> Walk:
    """The path with these steps alone."""
    if steps.all():
        return path
    kept = np.repeat(steps, np.diff(path.ends, prepend=0))
    total = np.concatenate([[0], np.cumsum(kept)])
    visits = np.unique(total[path.visits])
    return replace(
        path, rows=path.rows[kept], clients=path.clients[kept], ends=total[path.ends[steps]], visits=visits[visits > 0]
    )


def _before(deadline: float | None, clock: Floats) -> int:
    """How many of these moments come before the deadline."""
    return len(clock) if deadline is None else int(np.searchsorted(clock, deadline, side="right"))


def _cut(path: Walk, samples: int) -> Walk:
    """The first so many samples."""
    ends, visits = (values[values <= samples] for values in (path.ends, path.visits))
    return replace(path, rows=path.rows[:samples], clients=path.clients[:samples], ends=ends, visits=visits)
