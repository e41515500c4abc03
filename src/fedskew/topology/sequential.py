"""The sequential topology: one model is passed from client to client."""

from dataclasses import replace

import numpy as np

from fedskew.algorithms.topologies import LabelAccess
from fedskew.core.streams import Ints
from fedskew.core.trees import Tree, size_in_bytes
from fedskew.fleet.clock import computing_seconds, line_seconds
from fedskew.fleet.machines import Fleet
from fedskew.schedules.sample_schedule import SampleSchedule
from fedskew.topology.outcome import RoundServer
from fedskew.topology.participation import NUMBER
from fedskew.topology.schedule_cost import ScheduleCost, VisitBytes, before, first_samples, per_client, with_rows


class SequentialSteps:
    """How a sequential round prepares its schedule, and what it costs."""

    def prepare(self, schedule: SampleSchedule, server: RoundServer) -> SampleSchedule:
        """Return the schedule without steps of too few rows."""
        return with_rows(schedule, server.least)

    def cost(
        self, schedule: SampleSchedule, server: RoundServer, access: LabelAccess, present: Ints, state: Tree
    ) -> ScheduleCost:
        """Return what passing the model on costs; a server that schedules by label sends it to all clients at the end."""
        fleet, model = server.participation.fleet, size_in_bytes({"model": server.state()})
        travels = model + (size_in_bytes(state) if "optimizer_state" in server.algorithm.requires else 0)
        load = VisitBytes(travels, travels, 0 if access == "none" else NUMBER)
        cost = sequential_cost(schedule, server.trained_on.clients, fleet, load)
        return cost if access == "none" else with_broadcast(cost, present, fleet, model)


def sequential_cost(schedule: SampleSchedule, clients: int, fleet: Fleet, load: VisitBytes) -> ScheduleCost:
    """Return the cost of one visit after the other. Clients that had nothing left were visited too."""
    at = schedule.clients[schedule.visits - 1]
    samples = np.diff(schedule.visits, prepend=0)
    steps = np.diff(np.searchsorted(schedule.ends, schedule.visits, side="right"), prepend=0)
    machines = fleet.machines(at)
    computing = computing_seconds(machines, samples, steps)
    taken = line_seconds(machines, load.down, load.up) + computing
    in_vain = line_seconds(fleet.machines(schedule.idle), load.down, load.up)
    waits = in_vain.sum()
    kept = before(fleet.deadline, waits + np.cumsum(taken))
    schedule = first_samples(schedule, int(schedule.visits[kept - 1]) if kept else 0)
    at, taken, computing = at[:kept], taken[:kept], computing[:kept]
    visited = np.concatenate([at, schedule.idle])
    duration = float(waits + taken.sum()) if kept == len(samples) else float(fleet.deadline or 0.0)
    visits, requested = (np.bincount(who, minlength=clients) for who in (visited, schedule.clients))
    return ScheduleCost(
        schedule,
        duration,
        visits,
        per_client(visited, np.concatenate([taken, in_vain]), clients),
        per_client(at, computing, clients),
        len(visited),
        load.down * visits + load.request * requested,
        load.up * visits,
    )


def with_broadcast(cost: ScheduleCost, present: Ints, fleet: Fleet, size: int) -> ScheduleCost:
    """Return the cost with the final model sent to all present clients at once (Stratify, Fig. 1, step a7).

    That is after the schedule, and comes on top of a deadline that has ended it.
    """
    if not len(cost.schedule.rows):
        return cost
    machines, got = fleet.machines(present), np.zeros_like(cost.bytes_down)
    got[present] = size
    return replace(
        cost,
        duration=cost.duration + float((machines.latency + 8e-6 * size / machines.down).max()),
        transfers=cost.transfers + len(present),
        bytes_down=cost.bytes_down + got,
    )
