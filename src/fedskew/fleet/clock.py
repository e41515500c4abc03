"""The virtual clock: how long a round would take in the world, and whose answers come. Time is computed, never slept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Floats, Ints
from fedskew.fleet.machines import Fleet, Machines, shares

Flags: TypeAlias = NDArray[np.bool_]


LOOK = 1 / 3  # of a training row: what a row costs that only goes forward through the model, without a gradient


@dataclass(frozen=True)
class Work:
    """What some clients compute in a round, in training rows and steps: in every epoch, and once beside all epochs."""

    rows: Floats
    steps: Floats
    rows_once: Floats
    steps_once: Floats

    def seconds(self, machines: Machines, epochs: Ints) -> Floats:
        """How long that takes with so many epochs."""
        return computing_seconds(machines, self.rows_once + epochs * self.rows, self.steps_once + epochs * self.steps)


@dataclass(frozen=True)
class Meeting:
    """What clients exchange with each other, by way of the server, in the midst of some of their steps.

    Args:
        steps: of each client, those at which they meet
        trips: messages each way at such a step
        bytes: of these messages together, each way
    """

    steps: Ints
    trips: int
    bytes: int

    def seconds(self, machines: Machines) -> Floats:
        """How long each client is held up: at every message all wait for the slowest line."""
        one = 2 * self.trips * machines.latency + 8e-6 * self.bytes * (1 / machines.down + 1 / machines.up)
        return self.steps.astype(np.float64) * float(one.max(initial=0.0))


@dataclass(frozen=True)
class Outcome:
    """What came of the clients that were sent to work: one entry for each; it arrived, was lost or is late.

    ``seconds`` run from the beginning of the round until the server has the answer, also a late one; for a client that
    vanished, until then. ``training`` are those of them in which it computes. ``epochs`` are those that it had time for: fewer
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
        """Whose answers the server can use."""
        return ~(self.dropped | self.late)


def computing_seconds(machines: Machines, rows: Floats | Ints, steps: Floats | Ints) -> Floats:
    """How long each client computes: every row costs time, and every step, however few rows it has.

    >>> one = Machines(*(np.array([value]) for value in (100.0, 0.01, 8.0, 2.0, 0.05, 0.0)))
    >>> computing_seconds(one, np.array([300]), np.array([10])), computing_seconds(one, np.array([300]), np.array([100]))
    (array([3.1]), array([4.]))
    """
    return np.asarray(rows / machines.rows_per_second + steps * machines.seconds_per_step)


def line_seconds(machines: Machines, bytes_down: "int | Ints", bytes_up: "int | Ints") -> Floats:
    """How long each client's line takes: a message each way.

    >>> one = Machines(*(np.array([value]) for value in (100.0, 0.01, 8.0, 2.0, 0.05, 0.0)))
    >>> line_seconds(one, 1_000_000, 500_000)  # two messages, 8 Mbit down, 4 Mbit up
    array([3.1])
    """
    return 2 * machines.latency + 8e-6 * bytes_down / machines.down + 8e-6 * bytes_up / machines.up


def play(
    fleet: Fleet, clients: Ints, work: Work, epochs: Ints, line: Floats, seed: int, round: int, waited: float = 0.0
) -> Outcome:
    """One round of these clients on the clock; ``line`` is how long their lines take, and ``waited`` what went before.

    A client vanishes with its machine's chance after a random part of its time, and the server notices at once. Both are drawn
    for the client and the round alone, whoever else is chosen. Who has neither answered nor vanished by the deadline is late;
    the round then lasts exactly until the deadline, else until the last answer or loss.
    """
    machines = fleet.machines(clients)
    limit = np.inf if fleet.deadline is None else fleet.deadline
    if fleet.partial:
        epochs = _fitting(epochs, lambda tried: waited + line + work.seconds(machines, tried) <= limit)
    training = work.seconds(machines, np.maximum(epochs, 1))
    vanishes = vanish(machines, clients, seed, round)
    part = np.where(vanishes, shares(seed, "dropout", round, clients, 1), 1.0)
    time = waited + part * (line + training)
    late = time > limit
    duration = limit if late.any() else time.max(initial=waited)
    return Outcome(time, part * training, epochs, vanishes & ~late, late, float(duration))


def vanish(machines: Machines, clients: Ints, seed: int, round: int) -> Flags:
    """Who of these clients vanishes in the round, each with its machine's chance."""
    return shares(seed, "dropout", round, clients, 0) < machines.dropout


def _fitting(asked: Ints, fits: Callable[[Ints], Flags]) -> Ints:
    """The most epochs, up to those asked, that fit. Tried, not divided: a rounded quotient may be one too many."""
    epochs = asked.copy()
    while (too_many := ~fits(epochs) & (epochs > 0)).any():
        epochs -= too_many
    return epochs
