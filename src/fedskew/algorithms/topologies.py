"""How a round moves the model, as a method declares it; ``fedskew.topology`` executes the declaration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.aggregation.mean import Aggregator
from fedskew.algorithms.selection import ClientPool
from fedskew.core.streams import Stream
from fedskew.sample_schedules.holdings import Holdings
from fedskew.sample_schedules.sample_schedule import SampleSchedule

Links: TypeAlias = NDArray[np.bool_]
LabelAccess: TypeAlias = Literal["none", "counts", "shares"]


@dataclass(frozen=True)
class Parallel:
    """Clients train copies of the model separately, and the server aggregates their updates when all have arrived."""


@dataclass(frozen=True)
class EdgeServers(Parallel):
    """Every client has an edge server, which aggregates in every round; the cloud aggregates the edges' models.

    Args:
        edges: how many edge servers there are
        every: after how many rounds the cloud aggregates
        by: how clients come to their edges: order, network, labels, or a file with a client and its edge per line
        nearer: how many times faster a client's line to its edge is than the fleet's
        mbit: bandwidth between an edge and the cloud in Mbit/s, both ways
        latency: seconds until a message between them arrives
        rule: how the cloud combines the changes of the edges' models
    """

    edges: int
    every: int
    by: str
    nearer: float
    mbit: float
    latency: float
    rule: Aggregator


@dataclass(frozen=True)
class Buffered:
    """Clients train separately, and the server aggregates as soon as ``buffer_size`` updates have arrived.

    The other clients go on training.
    """

    buffer_size: int


@dataclass(frozen=True)
class Graph:
    """Clients train separately and exchange models with their neighbours on a graph, without a server.

    Args:
        links: returns who exchanges models with whom in a round among so many clients, as a symmetric matrix; the
            stream is that of the server in this round
    """

    links: Callable[[int, Stream], Links]


@dataclass(frozen=True)
class Scheduled:
    """One model is trained on the samples of all clients in the order of a schedule.

    Args:
        schedule_samples: returns the samples of a round, their clients and the ends of the optimiser steps
        label_access: what the server learns about labels: nothing, how many of each there are, or every client's share
            of each. With ``secure`` the holdings have placeholders instead of labels, and the server learns just
            that
        check_labels: raises an error for holdings that the method cannot schedule; called once, before the first round
        counts_labels: whether the schedule needs to know how often each label occurs
        lr_scale: learning rate, as a multiple of the run's setting; None for 1 / batch_size
        secure: the parties agree on placeholders for labels before the first round, and synchronous steps have secure
            sums
        round_totals: with ``secure``, the multiple to which clients round their rows of each label
    """

    schedule_samples: Callable[[Holdings, ClientPool, Stream], SampleSchedule]
    label_access: LabelAccess = "none"
    check_labels: Callable[[Holdings], None] = lambda holdings: None
    counts_labels: bool = False
    lr_scale: float | None = 1.0
    secure: bool = False
    round_totals: int = 1


@dataclass(frozen=True)
class Sequential(Scheduled):
    """The model is passed from client to client; with ``single_samples`` every optimiser step has one sample."""

    single_samples: bool = False


@dataclass(frozen=True)
class Synchronous(Scheduled):
    """All clients hold the same weights, and their gradients are summed at every step."""


Topology: TypeAlias = Parallel | Buffered | Graph | Sequential | Synchronous


def hides_labels(topology: Topology) -> bool:
    """Return whether the server schedules placeholders for labels, and gets sums over the clients of a step alone."""
    return isinstance(topology, Scheduled) and topology.secure
