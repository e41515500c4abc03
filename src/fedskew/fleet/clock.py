"""The virtual clock: how long a round would take in the world, and whose answers come. Time is computed, never slept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.fleet.base import Fleet, Machines, shares
from fedskew.streams import Floats, Ints

Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """What came of the clients that were sent to work: one entry for each; it arrived, was lost or is late.

    ``seconds`` run until the server has the answer, also a late one; for a client that vanished, until then. ``epochs`` are
    those that it had time for: fewer than asked only with ``partial``, and 0 where not one fits.
    """

    seconds: Floats
    epochs: Ints
    dropped: Flags
    late: Flags
    duration: float  # how long the server waited

    @property
    def arrived(self) -> Flags:
        """Whose answers the server can use."""
        return ~(self.dropped | self.late)


def seconds(machines: Machines, rows: Ints, bytes_down: int, bytes_up: int) -> Floats:
    """How long each client takes: receive, train so many rows, send.

    >>> one = Machines(*(np.array([value]) for value in (100.0, 8.0, 2.0, 0.05, 0.0)))
    >>> seconds(one, np.array([300]), 1_000_000, 500_000)  # two messages, 300 rows, 8 Mbit down, 4 Mbit up
    array([6.1])
    """
    lines = 8e-6 * bytes_down / machines.down + 8e-6 * bytes_up / machines.up
    return 2 * machines.latency + rows / machines.rows_per_second + lines


def play(
    fleet: Fleet, clients: Ints, rows_per_epoch: Ints, epochs: Ints, bytes_down: int, bytes_up: int, seed: int, round: int
) -> Outcome:
    """One round of these clients on the clock; the bytes are those of one client.

    A client vanishes with its machine's chance after a random part of its time, and the server notices at once. Both are drawn
    for the client and the round alone, whoever else is chosen. Who has neither answered nor vanished by the deadline is late;
    the round then lasts exactly until the deadline, else until the last answer or loss.
    """
    machines = fleet.machines(clients)

    def taken(epochs: Ints) -> Floats:
        return seconds(machines, rows_per_epoch * epochs, bytes_down, bytes_up)

    limit = np.inf if fleet.deadline is None else fleet.deadline
    if fleet.partial:
        epochs = _fitting(epochs, lambda tried: taken(tried) <= limit)
    vanishes = vanish(machines, clients, seed, round)
    time = taken(np.maximum(epochs, 1)) * np.where(vanishes, shares(seed, "dropout", round, clients, 1), 1.0)
    late = time > limit
    duration = limit if late.any() else time.max(initial=0.0)
    return Outcome(time, epochs, vanishes & ~late, late, float(duration))


def vanish(machines: Machines, clients: Ints, seed: int, round: int) -> Flags:
    """Who of these clients vanishes in the round, each with its machine's chance."""
    return shares(seed, "dropout", round, clients, 0) < machines.dropout


def _fitting(asked: Ints, fits: Callable[[Ints], Flags]) -> Ints:
    """The most epochs, up to those asked, that fit. Tried, not divided: a rounded quotient may be one too many."""
    epochs = asked.copy()
    while (too_many := ~fits(epochs) & (epochs > 0)).any():
        epochs -= too_many
    return epochs
