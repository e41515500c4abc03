"""What a sample schedule costs: which clients it visits, what is sent, and how long it takes on the fleet's machines."""

from dataclasses import dataclass, replace

import numpy as np

from fedskew.core.streams import Floats, Ints
from fedskew.fleet.clock import Flags
from fedskew.schedules.sample_schedule import SampleSchedule

NO_SAMPLES = SampleSchedule(*(np.zeros(0, dtype=np.int64),) * 4)  # where all clients are lost


@dataclass(frozen=True)
class VisitBytes:
    """Bytes of one message each way: the model and whatever else a client gets or sends with it; and of one label's request."""

    down: int
    up: int
    request: int


@dataclass(frozen=True)
class ScheduleCost:
    """A schedule as far as the deadline lets it go. A visit is one client's part in it: a stay of the model, or a share of a batch.

    Args:
        schedule: the samples before the deadline
        duration: simulated seconds
        visits: of each client
        busy: seconds of each client, on its line and computing
        computing: those of them in which it computes
        transfers: how often the model, or its gradient, went from one party to another
        bytes_down: of each client, and likewise up
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
        """Samples of a visit, on average."""
        return len(self.schedule.rows) / max(1, int(self.visits.sum()))


def per_client(clients: Ints, values: Floats, population: int) -> Floats:
    """Return the sum of the values of each client."""
    result: Floats = np.bincount(clients, weights=values, minlength=population).astype(np.float64)
    return result


def with_rows(schedule: SampleSchedule, least: int) -> SampleSchedule:
    """Return the schedule without steps of fewer rows: BatchNorm needs two."""
    return _only(schedule, np.diff(schedule.ends, prepend=0) >= least)


def with_several_clients(schedule: SampleSchedule) -> SampleSchedule:
    """Return the schedule without steps of one client alone: a sum over it would be its own numbers."""
    first = np.concatenate([[0], schedule.ends[:-1]]).astype(np.int64)
    if not len(schedule.ends):
        return schedule
    least, most = (reduce.reduceat(schedule.clients, first) for reduce in (np.minimum, np.maximum))
    return _only(schedule, least < most)


def _only(schedule: SampleSchedule, steps: Flags) -> SampleSchedule:
    """Return the schedule with these steps alone."""
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
    """Return how many of these moments come before the deadline."""
    return len(clock) if deadline is None else int(np.searchsorted(clock, deadline, side="right"))


def first_samples(schedule: SampleSchedule, samples: int) -> SampleSchedule:
    """Return the first so many samples."""
    ends, visits = (values[values <= samples] for values in (schedule.ends, schedule.visits))
    return replace(schedule, rows=schedule.rows[:samples], clients=schedule.clients[:samples], ends=ends, visits=visits)
