"""Nights in adjacent time zones: a window per client and day that is computed and never stored."""

from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Ints, Stream
from fedskew.fleet.availability import DAY, Members

HOUR = 3600
_GOLDEN = 0.6180339887498949  # of a circle: multiples of it are spread evenly


@dataclass(frozen=True)
class Scrambled:
    """The numbers 0 … count - 1 in another order, ``(step * place + shift) mod count``, which is not written out.

    >>> order = Scrambled(5, step=2, shift=1)
    >>> order[np.arange(5)].tolist(), order.place(np.array([1, 3, 0, 2, 4])).tolist()
    ([1, 3, 0, 2, 4], [0, 1, 2, 3, 4])
    """

    count: int
    step: int
    shift: int

    @classmethod
    def draw(cls, count: int, seed: int) -> "Scrambled":
        """Return an order in which neighbours are far from each other."""
        step = max(1, int(_GOLDEN * count))
        while gcd(step, count) != 1:
            step += 1
        return cls(count, step, int(Stream(seed, "fleet order").uniform(1)[0] * count))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, places: Ints) -> Ints:
        """Return the numbers at these places."""
        return np.asarray((self.step * places + self.shift) % self.count)

    def place(self, numbers: Ints) -> Ints:
        """Return the places of these numbers."""
        back = pow(self.step, -1, self.count)
        return np.asarray((numbers - self.shift) % self.count * back % self.count)


@dataclass(frozen=True)
class Nights:
    """Windows of one length that open evenly over ``zones`` hours from the second ``first`` of the day on.

    Each zone has equally many clients. The window at place p opens at ``first + floor(p * zones * 3600 / clients)``.

    >>> nights = Nights(Scrambled(4, 1, 0), zones=2, first=22 * HOUR, length=2 * HOUR)
    >>> (nights.openings(np.arange(4)) / HOUR).tolist(), nights.members(22.75 * HOUR, np.arange(0)).numbers().tolist()
    ([22.0, 22.5, 23.0, 23.5], [0, 1])
    """

    order: Scrambled
    zones: int
    first: int
    length: int

    @property
    def width(self) -> int:
        """Return the seconds from the first opening of a day to the end of the last zone."""
        return self.zones * HOUR

    def openings(self, clients: Ints) -> Ints:
        """Return the seconds of the day at which the windows of these clients open."""
        after = self.order.place(clients) * self.width // len(self.order)
        return np.asarray((self.first + after) % DAY)

    def open(self, clock: float) -> NDArray[np.bool_]:
        """Return which windows are open at this second, of all clients."""
        openings = self.openings(np.arange(len(self.order)))
        return np.asarray((clock % DAY - openings) % DAY < self.length)

    def members(self, clock: float, busy: Ints) -> Members:
        """Return the clients whose windows are open at this second, without the ``busy`` ones."""
        clients = len(self.order)
        now = (int(clock % DAY) - self.first) % DAY
        if now >= self.length:
            first = self._opened_by(now - self.length)
            count = self._opened_by(now) - first
        else:
            first = self._opened_by(now - self.length + DAY)
            count = clients - first + self._opened_by(now)
        left_out = busy
        if len(busy):
            left_out = (self.order.place(busy) - first) % clients
        # Members goes by the places of a circle; the order has a number at each of them
        return Members(self.order, first, count, left_out[left_out < count])

    def next_open(self, clock: float) -> float:
        """Return the first second from ``clock`` on at which some window is open."""
        now = int(clock % DAY)
        for ahead in self._times_of_change(now):
            then = clock
            if ahead:
                then = clock - clock % DAY + now + ahead
            if len(self.members(then, self._nobody)):
                return then
        raise AssertionError("every window opens once a day")

    def _times_of_change(self, now: int) -> list[int]:
        """Return in how many seconds somebody's window may open: now, or when the next window does."""
        since = (now - self.first) % DAY
        ahead = [0, (DAY - since) % DAY or DAY]
        opened = self._opened_by(since)
        if opened < len(self.order):
            ahead.append(opened * self.width // len(self.order) - since)
        return sorted(ahead)

    def _opened_by(self, after: int) -> int:
        """Return how many windows open in the first so many seconds after ``first``, the last included."""
        return min(len(self.order), -(-(after + 1) * len(self.order) // self.width))

    @cached_property
    def _nobody(self) -> Ints:
        return np.zeros(0, dtype=np.int64)
