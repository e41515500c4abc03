"""What a walk costs in the world: which clients it visits, what is sent, and how long it takes."""

from dataclasses import dataclass, replace

import numpy as np

from fedskew.algorithms.base import Report
from fedskew.engine.aggregate import Arrived
from fedskew.engine.dispatch import Call
from fedskew.engine.job import Updates, Walked
from fedskew.engine.plan import Plan
from fedskew.fleet.base import Fleet
from fedskew.fleet.clock import Flags, Outcome, seconds
from fedskew.stratify.walk import Walk
from fedskew.streams import Floats, Ints

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
    busy: Floats  # seconds of each client
    transfers: int  # times that the model, or its gradient, went from one party to another
    bytes_down: int
    bytes_up: int

    @property
    def run_length(self) -> float:
        """Samples of a stay, on average."""
        return len(self.path.rows) / max(1, int(self.stays.sum()))


def chain(path: Walk, clients: int, fleet: Fleet, load: Load) -> Journey:
    """The model is passed on: one visit after the other. Clients that had nothing left were visited too."""
    at = path.clients[path.visits - 1]
    samples = np.diff(path.visits, prepend=0)
    taken = seconds(fleet.machines(at), samples, load.down, load.up)
    waits = seconds(fleet.machines(path.idle), np.zeros_like(path.idle), load.down, load.up).sum()
    kept = _before(fleet.deadline, waits + np.cumsum(taken))
    path, at, taken = _cut(path, int(path.visits[kept - 1]) if kept else 0), at[:kept], taken[:kept]
    visited = np.concatenate([at, path.idle])
    duration = float(waits + taken.sum()) if kept == len(samples) else float(fleet.deadline or 0.0)
    return Journey(
        path,
        duration,
        np.bincount(visited, minlength=clients),
        _per_client(at, taken, clients),
        len(visited),
        load.down * len(visited) + load.order * len(path.rows),
        load.up * len(visited),
    )


def lockstep(path: Walk, clients: int, fleet: Fleet, load: Load) -> Journey:
    """Gradients meet at every step: it lasts as long as the slowest of its clients takes."""
    steps = np.repeat(np.arange(len(path.ends)), np.diff(path.ends, prepend=0))
    pairs, samples = np.unique(steps * clients + path.clients, return_counts=True)
    step, who = np.divmod(pairs, clients)
    taken = seconds(fleet.machines(who), samples, load.down, load.up)
    slowest = np.maximum.reduceat(taken, np.flatnonzero(np.diff(step, prepend=-1))) if len(step) else np.zeros(0)
    kept = _before(fleet.deadline, np.cumsum(slowest))
    path = _cut(path, int(path.ends[kept - 1]) if kept else 0)
    there = step < kept
    who, taken = who[there], taken[there]
    duration = float(slowest.sum()) if kept == len(slowest) else float(fleet.deadline or 0.0)
    return Journey(
        path,
        duration,
        np.bincount(who, minlength=clients),
        _per_client(who, taken, clients),
        2 * len(who),
        load.down * len(who) + load.order * len(path.rows),
        load.up * len(who),
    )


def as_call(
    journey: Journey, walked: Walked, clients: Ints, lost: Flags, sizes: Ints, when: tuple[float, float], seed: int
) -> tuple[Call, list[Arrived]]:
    """The walk in the form in which rounds are recorded: a call of these clients, and what those that trained saw."""
    path, population = journey.path, len(journey.stays)
    samples = np.bincount(path.clients, minlength=population)
    step = np.repeat(np.arange(len(path.ends)), np.diff(path.ends, prepend=0))
    steps = np.bincount(np.unique(step * population + path.clients) % population, minlength=population)
    numbers = {"samples": samples, "visits": journey.stays, "steps": steps}
    some = {name: values[clients].astype(np.float64) for name, values in numbers.items()}
    plan = Plan(seed, 0, clients, sizes[clients], sizes[clients], np.ones_like(clients), numbers=some)
    outcome = Outcome(journey.busy[clients], np.ones_like(clients), lost, np.zeros_like(lost), journey.duration)
    began, sent = when
    call = Call(plan, outcome, began, sent, sent + journey.duration, journey.bytes_down, journey.bytes_up)
    trained = np.flatnonzero(samples)
    loss, right = (
        _per_client(path.clients, seen, population)[trained] / samples[trained] for seen in (walked.losses, walked.right)
    )
    report = Report(trained, sizes[trained], steps[trained], loss, right)
    return call, [Arrived(Updates(report, {}, {}, {}), report, samples[trained].astype(np.float64), 0)]


def _per_client(clients: Ints, values: Floats, population: int) -> Floats:
    """Their sum for each client."""
    result: Floats = np.bincount(clients, weights=values, minlength=population).astype(np.float64)
    return result


def at_least(path: Walk, least: int) -> Walk:
    """The path without steps of fewer rows: BatchNorm needs two."""
    sizes = np.diff(path.ends, prepend=0)
    if not len(sizes) or sizes.min() >= least:
        return path
    kept = np.repeat(sizes >= least, sizes)
    total = np.concatenate([[0], np.cumsum(kept)])
    visits = np.unique(total[path.visits])
    ends = total[path.ends[sizes >= least]]
    return replace(path, rows=path.rows[kept], clients=path.clients[kept], ends=ends, visits=visits[visits > 0])


def _before(deadline: float | None, clock: Floats) -> int:
    """How many of these moments come before the deadline."""
    return len(clock) if deadline is None else int(np.searchsorted(clock, deadline, side="right"))


def _cut(path: Walk, samples: int) -> Walk:
    """The first so many samples."""
    ends, visits = (values[values <= samples] for values in (path.ends, path.visits))
    return replace(path, rows=path.rows[:samples], clients=path.clients[:samples], ends=ends, visits=visits)
