"""Availability of clients: each has one window per day, the same every day."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Ints

DAY = 86_400


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

    def next_open(self, clock: float) -> float:
        """Return the first second from ``clock`` on at which some window is open."""
        if self.open(clock).any():
            return clock
        now = clock % DAY
        ahead = np.where(self.start > now, self.start, self.start + DAY)
        return clock - now + int(ahead.min())
