"""The synchronous topology: all clients hold the same weights, and their gradients are summed at every step."""

import numpy as np

from fedskew.algorithms.topologies import LabelAccess
from fedskew.batchnorm.exact import step_bytes
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
    with_several_clients,
)


class SynchronousSteps:
    """The steps and the cost of a synchronous round."""

    def prepare(self, schedule: SampleSchedule, context: RoundContext) -> SampleSchedule:
        """Return the schedule without steps of too few rows; with secure sums also without those of a single client."""
        schedule = with_rows(schedule, context.least)
        if context.job.secure:
            return with_several_clients(schedule)
        return schedule

    def cost(
        self,
        schedule: SampleSchedule,
        context: RoundContext,
        access: LabelAccess,
        present: Ints,
        sizes: ModelBytes,
    ) -> ScheduleCost:
        """Return the cost of exchanging weights and gradients at every step."""
        clients = context.trained_on.clients
        masked = None
        if context.job.secure:
            masked = clients
        up, down = step_bytes(context.job.model, context.job.scalar.dtype, masked)
        load = VisitBytes(down, up, request_bytes(access))
        return synchronous_cost(schedule, clients, context.participation.fleet, load)


def synchronous_cost(
    schedule: SampleSchedule, clients: int, fleet: Fleet, load: VisitBytes
) -> ScheduleCost:
    """Return the cost of synchronous steps: each takes as long as the slowest of its clients."""
    steps = np.repeat(np.arange(len(schedule.ends)), np.diff(schedule.ends, prepend=0))
    pairs, samples = np.unique(steps * clients + schedule.clients, return_counts=True)
    step, client = np.divmod(pairs, clients)
    machines = fleet.machines(client)
    computing = computing_seconds(machines, samples, np.ones_like(samples))
    taken = transfer_seconds(machines, load.down, load.up) + computing
    slowest = np.zeros(0)
    if len(step):
        slowest = np.maximum.reduceat(taken, np.flatnonzero(np.diff(step, prepend=-1)))
    kept = before(fleet.deadline, np.cumsum(slowest))
    samples_kept = 0
    if kept:
        samples_kept = int(schedule.ends[kept - 1])
    schedule = first_samples(schedule, samples_kept)
    in_time = step < kept
    client = client[in_time]
    taken = taken[in_time]
    computing = computing[in_time]
    if kept == len(slowest):
        duration = float(slowest.sum())
    else:
        duration = float(fleet.deadline or 0.0)
    visits = np.bincount(client, minlength=clients)
    requested = np.bincount(schedule.clients, minlength=clients)
    return ScheduleCost(
        schedule,
        duration,
        visits,
        per_client(client, taken, clients),
        per_client(client, computing, clients),
        2 * len(client),
        load.down * visits + load.request * requested,
        load.up * visits,
    )
