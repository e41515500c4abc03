"""The virtual clock: the simulated duration of a round, and which updates arrive in time."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Floats, Ints
from fedskew.fleet.machines import Fleet, Machines, shares

Flags: TypeAlias = NDArray[np.bool_]


FORWARD_COST = 1 / 3  # cost of a forward pass of a row, relative to training on it


@dataclass(frozen=True)
class Work:
    """The work of some clients in a round, in training rows and steps: in every epoch, and once beside all epochs."""

    rows: Floats
    steps: Floats
    rows_once: Floats | float = 0.0
    steps_once: Floats | float = 0.0

    def seconds(self, machines: Machines, epochs: Ints) -> Floats:
        """Return the seconds that the work takes with so many epochs."""
        return computing_seconds(
            machines, self.rows_once + epochs * self.rows, self.steps_once + epochs * self.steps
        )


@dataclass(frozen=True)
class Meeting:
    """Messages that clients exchange with each other, through the server, during some of their steps.

    Args:
        steps: number of such steps of each client
        trips: messages each way at such a step
        bytes: size of these messages together, each way
    """

    steps: Ints
    trips: int
    bytes: int

    def seconds(self, machines: Machines) -> Floats:
        """Return how long each client is delayed: at every message all wait for the slowest connection."""
        one = 2 * self.trips * machines.latency + 8e-6 * self.bytes * (
            1 / machines.down + 1 / machines.up
        )
        return self.steps.astype(np.float64) * float(one.max(initial=0.0))


@dataclass(frozen=True)
class DropOuts:
    """Which clients of a round drop out, and after which part of their time; the part of all others is 1."""

    dropped: Flags
    part: Floats

    @classmethod
    def draw(cls, machines: Machines, clients: Ints, seed: int, round: int) -> "DropOuts":
        """Draw them; what happens to a client depends on it and the round alone, not on the other clients."""
        dropped = drop_out(machines, clients, seed, round)
        part = np.ones(len(clients))
        if dropped.any():
            part = np.where(dropped, shares(seed, "dropout", round, clients, 1), 1.0)
        return cls(dropped, part)


@dataclass(frozen=True)
class Outcome:
    """The outcome of the clients of a round, one entry each: its update arrived, was lost or is late.

    ``seconds`` are those from the start of the round until the server has the update, also a late one, or until the
    client drops out; ``training`` is the part in which it computes. ``epochs`` are those that it had time for: fewer
    than asked only with ``partial``, and 0 where not one fits.
    """

    seconds: Floats
    training: Floats
    epochs: Ints
    dropped: Flags
    late: Flags
    duration: float  # how long the server waited

    @property
    def arrived(self) -> Flags:
        """Return which updates the server can use."""
        return ~(self.dropped | self.late)


def computing_seconds(machines: Machines, rows: Floats | Ints, steps: Floats | Ints) -> Floats:
    """Return the computing time of each client: every row costs time, and so does every step.

    >>> one = Machines(*(np.array([value]) for value in (100.0, 0.01, 8.0, 2.0, 0.05, 0.0)))
    >>> [computing_seconds(one, np.array([300]), np.array([steps])).tolist() for steps in (10, 100)]
    [[3.1], [4.0]]
    """
    return np.asarray(rows / machines.rows_per_second + steps * machines.seconds_per_step)


def transfer_seconds(
    machines: Machines, bytes_down: "int | Ints", bytes_up: "int | Ints"
) -> Floats:
    """Return the communication time of each client: one message each way.

    >>> one = Machines(*(np.array([value]) for value in (100.0, 0.01, 8.0, 2.0, 0.05, 0.0)))
    >>> transfer_seconds(one, 1_000_000, 500_000)  # two messages, 8 Mbit down, 4 Mbit up
    array([3.1])
    """
    return 2 * machines.latency + 8e-6 * bytes_down / machines.down + 8e-6 * bytes_up / machines.up


def simulate_round(
    fleet: Fleet,
    machines: Machines,
    work: Work,
    epochs: Ints,
    transfer: Floats,
    drop_outs: DropOuts,
    waited: float = 0.0,
) -> Outcome:
    """Return the outcome of one round on the clients' ``machines``.

    ``transfer`` are the communication times, ``waited`` is the time before.

    The server notices at once when a client drops out. A client that has neither answered nor dropped out by the
    deadline is late; the round then lasts exactly until the deadline, else until the last update or drop-out. Where
    enough have answered, the others are late too.
    """
    limit = np.inf
    if fleet.deadline is not None:
        limit = fleet.deadline
    if fleet.partial:
        epochs = _fitting(
            epochs, lambda tried: waited + transfer + work.seconds(machines, tried) <= limit
        )
    training = work.seconds(machines, np.maximum(epochs, 1))
    time = waited + drop_outs.part * (transfer + training)
    limit = min(limit, _enough_by(fleet, time[~drop_outs.dropped], len(time)))
    late = time > limit
    duration = time.max(initial=waited)
    if late.any():
        duration = limit
    dropped = drop_outs.dropped & ~late
    return Outcome(time, drop_outs.part * training, epochs, dropped, late, float(duration))


def _enough_by(fleet: Fleet, answered: Floats, invited: int) -> float:
    """Return when enough of so many invited clients have answered; infinite if they never are."""
    needed = ceil(fleet.enough * invited - 1e-9)  # 0.1 * 30 is a little more than 3
    if fleet.enough == 1 or len(answered) < needed:
        return np.inf
    return float(np.partition(answered, needed - 1)[needed - 1])


def drop_out(machines: Machines, clients: Ints, seed: int, round: int) -> Flags:
    """Return which of these clients drop out in the round, each with its machine's probability."""
    if not machines.dropout.any():
        return np.zeros(len(clients), dtype=bool)
    return shares(seed, "dropout", round, clients, 0) < machines.dropout


def _fitting(asked: Ints, fits: Callable[[Ints], Flags]) -> Ints:
    """Return the most epochs, up to those asked, that fit; each is tried, since a rounded quotient may be too large."""
    epochs = asked.copy()
    while (too_many := ~fits(epochs) & (epochs > 0)).any():
        epochs -= too_many
    return epochs
