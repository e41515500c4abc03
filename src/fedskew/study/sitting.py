"""What one sitting of a study may do: for how long, and which share of the runs."""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedskew.core.errors import FedskewError

Run = TypeVar("Run")
MOST_SHARDS = 10_000
_MOST_SECONDS = 366 * 86400.0
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Shard:
    """One of ``count`` shares of a study; ``number`` is its number from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def of(cls, given: Any) -> "Shard":
        """Return the shard of a text such as ``2/8``; None is the whole study.

        >>> Shard.of("2/8")
        Shard(number=2, count=8)
        """
        if given is None:
            return cls()
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", str(given))
        if match:
            number, count = int(match[1]), int(match[2])
            if 1 <= number <= count <= MOST_SHARDS:
                return cls(number, count)
        raise FedskewError(
            f"shard={given}: give the number of a share and how many there are, such as 2/8 (1/8 to 8/8, at most "
            f"{MOST_SHARDS:,})"
        )

    def share_of(self, runs: Sequence[Run]) -> list[Run]:
        """Return what falls to this shard: things are dealt to the shards in turn."""
        return list(runs[self.number - 1 :: self.count])

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def seconds_of(budget: Any) -> float | None:
    """Return a budget in seconds: a number of them, or a text such as ``90s``, ``9m`` or ``1.5h``; None has no end.

    >>> seconds_of("9m"), seconds_of("1.5h"), seconds_of(30)
    (540.0, 5400.0, 30.0)
    """
    if budget is None:
        return None
    match = re.fullmatch(r"\s*([0-9.]+)\s*([smhd]?)\s*", str(budget))
    if match:
        try:
            seconds = float(match[1]) * _SECONDS[match[2] or "s"]
        except ValueError:
            seconds = math.nan
        if 0 < seconds <= _MOST_SECONDS and not isinstance(budget, bool):
            return seconds
    raise FedskewError(f"budget={budget}: give a time of up to a year, such as 90s, 9m or 1.5h")


@dataclass(frozen=True)
class Sitting:
    """How far a study is carried this time.

    Args:
        shard: which share of the runs
        ends_at: when the time is up, by the monotonic clock; None if it never is
    """

    shard: Shard = Shard()
    ends_at: float | None = None

    @classmethod
    def of(cls, budget: Any = None, shard: Any = None) -> "Sitting":
        """Return the sitting that begins now, with this budget and this shard."""
        seconds = seconds_of(budget)
        ends_at = None
        if seconds is not None:
            ends_at = time.monotonic() + seconds
        return cls(Shard.of(shard), ends_at)

    @property
    def is_limited(self) -> bool:
        """Return whether it may leave runs for another sitting."""
        return self.ends_at is not None or self.shard.count > 1

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds that are left, at least 0; None without a budget."""
        if self.ends_at is None:
            return None
        return max(0.0, self.ends_at - time.monotonic())


WHOLE = Sitting()  # all runs, however long they take
