"""The cost of a sample schedule: the clients it visits, its traffic, and its time on the fleet's machines."""

from dataclasses import dataclass, replace

import numpy as np

from fedskew.algorithms.topologies import LabelAccess
from fedskew.core.streams import Floats, Ints
from fedskew.fleet.clock import Flags
from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.topology.participation import NUMBER

NO_SAMPLES = SampleSchedule(*(np.zeros(0, dtype=np.int64),) * 4)  # if all clients drop out


@dataclass(frozen=True)
class ModelBytes:
    """The size of the model alone, and of the model with what travels from client to client with it."""

    model: int
    travels: int


@dataclass(frozen=True)
class VisitBytes:
    """The bytes of a visit: ``down`` to the client and ``up`` from it, with the model, and of a label ``request``."""

    down: int
    up: int
    request: int


@dataclass(frozen=True)
class ScheduleCost:
    """A schedule up to the deadline, and its cost.

    A visit is one client's part in it: consecutive samples at that client, or its share of a batch.

    Args:
        schedule: the samples before the deadline
        duration: simulated seconds
        visits: number of visits to each client
        busy: seconds of each client, transferring and computing
        computing: seconds of each client, computing only
        transfers: how often the model or its gradient was sent
        bytes_down: bytes received by each client; bytes_up likewise for bytes sent
    """

    schedule: SampleSchedule
    duration: float
    visits: Ints
    busy: Floats
    computing: Floats
    transfers: int
    bytes_down: Ints
    bytes_up: Ints

    @property
    def run_length(self) -> float:
        """Return the mean number of samples of a visit."""
        return len(self.schedule.rows) / max(1, int(self.visits.sum()))


def per_client(clients: Ints, values: Floats, population: int) -> Floats:
    """Return the sum of the values of each client."""
    result: Floats = np.bincount(clients, weights=values, minlength=population).astype(np.float64)
    return result


def with_rows(schedule: SampleSchedule, least: int) -> SampleSchedule:
    """Return the schedule without steps of fewer than ``least`` rows; BatchNorm needs two."""
    return _only(schedule, np.diff(schedule.ends, prepend=0) >= least)


def with_several_clients(schedule: SampleSchedule) -> SampleSchedule:
    """Return the schedule without steps of a single client, whose sum would reveal its own numbers."""
    if not len(schedule.ends):
        return schedule
    first_samples_of_steps = np.concatenate([[0], schedule.ends[:-1]]).astype(np.int64)
    lowest = np.minimum.reduceat(schedule.clients, first_samples_of_steps)
    highest = np.maximum.reduceat(schedule.clients, first_samples_of_steps)
    return _only(schedule, lowest < highest)  # two numbers of clients differ


def _only(schedule: SampleSchedule, steps: Flags) -> SampleSchedule:
    """Return the schedule with only these steps."""
    if steps.all():
        return schedule
    kept = np.repeat(steps, np.diff(schedule.ends, prepend=0))
    total = np.concatenate([[0], np.cumsum(kept)])
    visits = np.unique(total[schedule.visits])
    return replace(
        schedule,
        rows=schedule.rows[kept],
        clients=schedule.clients[kept],
        ends=total[schedule.ends[steps]],
        visits=visits[visits > 0],
    )


def before(deadline: float | None, clock: Floats) -> int:
    """Return how many of these times are before the deadline."""
    if deadline is None:
        return len(clock)
    return int(np.searchsorted(clock, deadline, side="right"))


def first_samples(schedule: SampleSchedule, samples: int) -> SampleSchedule:
    """Return the schedule with only its first samples."""
    return replace(
        schedule,
        rows=schedule.rows[:samples],
        clients=schedule.clients[:samples],
        ends=schedule.ends[schedule.ends <= samples],
        visits=schedule.visits[schedule.visits <= samples],
    )


def request_bytes(access: LabelAccess) -> int:
    """Return the size of a request for one sample, which names a label if the server schedules by them."""
    if access == "none":
        return 0
    return NUMBER
