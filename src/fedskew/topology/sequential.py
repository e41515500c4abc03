"""The sequential topology: one model is passed from client to client."""

from dataclasses import replace

import numpy as np

from fedskew.algorithms.topologies import LabelAccess
from fedskew.core.streams import Ints
from fedskew.fleet.clock import computing_seconds, transfer_seconds
from fedskew.fleet.machines import Fleet
from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.topology.context import RoundContext
from fedskew.topology.schedule_cost import (
    ModelBytes,
    ScheduleCost,
    VisitBytes,
    before,
    first_samples,
    per_client,
    request_bytes,
    with_rows,
)


class SequentialSteps:
    """The steps and the cost of a sequential round."""

    def prepare(self, schedule: SampleSchedule, context: RoundContext) -> SampleSchedule:
        """Return the schedule without steps of too few rows."""
        return with_rows(schedule, context.least)

    def cost(
        self,
        schedule: SampleSchedule,
        context: RoundContext,
        access: LabelAccess,
        present: Ints,
        sizes: ModelBytes,
    ) -> ScheduleCost:
        """Return the cost of passing the model on, and at the end to all clients if the server schedules by label."""
        fleet = context.participation.fleet
        load = VisitBytes(sizes.travels, sizes.travels, request_bytes(access))
        cost = sequential_cost(schedule, context.trained_on.clients, fleet, load)
        if access == "none":
            return cost
        return with_broadcast(cost, present, fleet, sizes.model)


def sequential_cost(
    schedule: SampleSchedule, clients: int, fleet: Fleet, load: VisitBytes
) -> ScheduleCost:
    """Return the cost of consecutive visits, including visits to clients that had no samples left."""
    at = schedule.clients[schedule.visits - 1]
    samples = np.diff(schedule.visits, prepend=0)
    steps = np.diff(np.searchsorted(schedule.ends, schedule.visits, side="right"), prepend=0)
    machines = fleet.machines(at)
    computing = computing_seconds(machines, samples, steps)
    taken = transfer_seconds(machines, load.down, load.up) + computing
    idle_seconds = transfer_seconds(fleet.machines(schedule.idle), load.down, load.up)
    waits = idle_seconds.sum()
    kept = before(fleet.deadline, waits + np.cumsum(taken))
    samples_kept = 0
    if kept:
        samples_kept = int(schedule.visits[kept - 1])
    schedule = first_samples(schedule, samples_kept)
    at = at[:kept]
    taken = taken[:kept]
    computing = computing[:kept]
    visited = np.concatenate([at, schedule.idle])
    if kept == len(samples):
        duration = float(waits + taken.sum())
    else:
        duration = float(fleet.deadline or 0.0)
    visits = np.bincount(visited, minlength=clients)
    requested = np.bincount(schedule.clients, minlength=clients)
    return ScheduleCost(
        schedule,
        duration,
        visits,
        per_client(visited, np.concatenate([taken, idle_seconds]), clients),
        per_client(at, computing, clients),
        len(visited),
        load.down * visits + load.request * requested,
        load.up * visits,
    )


def with_broadcast(cost: ScheduleCost, present: Ints, fleet: Fleet, size: int) -> ScheduleCost:
    """Return the cost with the final model sent to all present clients at once (Stratify, Fig. 1, step a7).

    That happens after the schedule, and adds to the time of a deadline that ended it.
    """
    if not len(cost.schedule.rows):
        return cost
    machines = fleet.machines(present)
    seconds = machines.latency + 8e-6 * size / machines.down
    received = np.zeros_like(cost.bytes_down)
    received[present] = size
    return replace(
        cost,
        duration=cost.duration + float(seconds.max()),
        transfers=cost.transfers + len(present),
        bytes_down=cost.bytes_down + received,
    )
