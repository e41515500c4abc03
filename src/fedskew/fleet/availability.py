"""Availability of clients: each has one window per day, the same every day."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Ints

DAY = 86_400


class Circle(Protocol):
    """The numbers of clients by their places in a circle."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: Ints, /) -> "Ints | NDArray[np.int32]":
        """Return the numbers at these places."""
        ...


class Members:
    """Some clients as a list that is not written out: neighbours in a circle of clients, without those left out.

    ``circle`` is None for all clients in the order of their numbers; ``left_out`` are places among the neighbours.

    >>> evening = Members(np.array([7, 5, 3, 9]), first=2, count=3, left_out=np.array([1]))
    >>> len(evening), evening[np.arange(2)].tolist()
    (2, [3, 7])
    """

    def __init__(self, circle: Circle | None, first: int, count: int, left_out: Ints) -> None:
        self.circle, self.first, self.count = circle, first, count
        self._shifts = np.sort(left_out) - np.arange(len(left_out))

    def __len__(self) -> int:
        return self.count - len(self._shifts)

    def __getitem__(self, positions: Ints) -> Ints:
        """Return the numbers of the clients at these positions in the list."""
        places = positions + self._shifts.searchsorted(positions, side="right")
        if self.circle is None:
            return np.asarray(places)
        return np.asarray(self.circle[(self.first + places) % len(self.circle)], dtype=np.int64)

    def numbers(self) -> Ints:
        """Return the numbers of all these clients."""
        return self[np.arange(len(self))]


@dataclass(frozen=True)
class Windows:
    """One window per client: the second of the day at which it opens, and its length; it may run past midnight.

    Whole seconds, so that the moment at which a window opens is a float without rounding, however late the clock.

    >>> night = Windows(start=np.array([79_200]), length=np.array([8 * 3600]))  # 22:00 to 6:00
    >>> [bool(night.open(hour * 3600.0)[0]) for hour in (21, 22, 29, 30)]
    [False, True, True, False]
    """

    start: Ints
    length: Ints

    def open(self, clock: float) -> NDArray[np.bool_]:
        """Return which windows are open at this second."""
        since = (clock % DAY - self.start) % DAY
        return np.asarray(since < self.length)

    def members(self, clock: float, busy: Ints) -> Members:
        """Return the clients whose windows are open at this second, without the ``busy`` ones.

        Where all windows have the same length, those that are open opened one after the other: they are neighbours in
        the order of opening, and are found without looking at all clients.
        """
        length = self._common_length
        if length is None:
            here = self.open(clock)
            here[busy] = False
            return Members(np.flatnonzero(here), 0, int(here.sum()), np.zeros(0, dtype=np.int64))
        clients = len(self.start)
        now = int(clock % DAY)
        first, end = (self._opened_by(second) for second in ((now - length) % DAY, now))
        if now >= length:
            count = end - first
        else:
            count = clients - first + end
        if len(busy):
            left_out = (self._place[busy] - first) % clients
        else:
            left_out = busy
        return Members(self._by_opening, first, count, left_out[left_out < count])

    def next_open(self, clock: float) -> float:
        """Return the first second from ``clock`` on at which some window is open."""
        begins, ends = self._covered
        now = clock % DAY
        last = int(np.searchsorted(begins, now, side="right")) - 1
        if now < ends[last]:
            return clock
        if last + 1 < len(begins):
            ahead = begins[last + 1]
        else:
            ahead = begins[0] + 2 * DAY
        return clock - now + int(ahead)

    def _opened_by(self, second: int) -> int:
        """Return how many windows open up to this second of the day."""
        return int(self._openings.searchsorted(self._openings.dtype.type(second), side="right"))

    @cached_property
    def _common_length(self) -> int | None:
        length = int(self.length[0])
        if (self.length == length).all():
            return length
        return None

    @cached_property
    def _by_opening(self) -> NDArray[np.int32]:
        """Return the clients in the order in which their windows open."""
        low = self.start.astype(np.uint16)
        high = (self.start >> 16).astype(np.uint8)
        return np.lexsort((low, high)).astype(np.int32)  # 8- and 16-bit keys sort faster

    @cached_property
    def _openings(self) -> NDArray[np.int32]:
        return self.start.astype(np.int32)[self._by_opening]

    @cached_property
    def _place(self) -> Ints:
        """Return the place of each client in that order."""
        place = np.empty(len(self.start), dtype=np.int64)
        place[self._by_opening] = np.arange(len(place))
        return place

    @cached_property
    def _covered(self) -> tuple[Ints, Ints]:
        """Return when times at which some window is open begin and end, in seconds of today, yesterday's included.

        Windows of yesterday may still be open past midnight.
        """
        order = self._by_opening
        ends = self.start[order] + self.length[order]
        begins, ends = (np.concatenate([times - DAY, times]) for times in (self.start[order], ends))
        ends = np.maximum.accumulate(ends)
        new = np.flatnonzero(begins[1:] > ends[:-1]) + 1
        return begins[np.concatenate([[0], new])], ends[np.concatenate([new - 1, [-1]])]
