"""What is known of a run while it goes on: its rounds, its scores, what was lost and sent, and the time left."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedskew.cli.console.readable_values import duration, headline, in_units, metric_value

if TYPE_CHECKING:
    from fedskew.runs.folder import Row

LOSSES = {  # why an update was lost
    "dropped": "dropped out",
    "late": "missed the deadline",
    "excluded": "NaN or infinite",
}
_RECENT = 50  # rounds, from whose duration the time left is estimated


class Progress:
    """What is known of a run while it goes on."""

    def __init__(
        self,
        name: str,
        rounds: int,
        clock: "Callable[[], float]" = time.monotonic,
        simulated: bool = True,
    ) -> None:
        self.name = name
        self.rounds = rounds
        self.round = 0
        self.clock = clock
        self.ends: deque[float] = deque(maxlen=_RECENT)  # when the recent rounds ended
        self.updates = self.lost = self.sent = 0
        self.row: Row = {}
        # All scores so far of the global model and of personal models, by title
        self.scores: dict[str, list[float]] = {}
        self.metric = ""
        self.simulated = simulated  # and no run on machines whose time is real

    def begin(self, rows: "Sequence[Row]") -> None:
        """Count the earlier rounds of a resumed run."""
        for row in rows:
            self._count(row)
        self.ends.append(self.clock())

    def add(self, row: "Row", rounds: int) -> None:
        """Count a round that has just ended."""
        self.rounds = rounds
        self._count(row)
        self.ends.append(self.clock())

    def _count(self, row: "Row") -> None:
        self.row = row
        self.round = row["round"]
        self.updates += row["clients"]
        self.lost += sum(row[reason] for reason in LOSSES)
        self.sent += row["bytes_down"] + row["bytes_up"]
        for part, title in (("test", "test {}"), ("own_test", "personal models")):
            metric, value = headline(row, part)
            if value is not None:
                self.scores.setdefault(title.format(metric), []).append(value)
                self.metric = metric

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds left, if rounds go on as the recent ones did; None before the first has ended."""
        if len(self.ends) < 2:
            return None
        each_round = (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)
        since_last_round = self.clock() - self.ends[-1]
        return max(0.0, each_round * (self.rounds - self.round) - since_last_round)

    @property
    def left(self) -> list[str]:
        """Return the time left; nothing after the last round."""
        if self.round < self.rounds:
            return [f"{duration(self.seconds_left)} left"]
        return []

    @property
    def score(self) -> list[str]:
        """Return the metric after the last evaluation; empty before the first."""
        scores = []
        for title, values in self.scores.items():
            scores.append(f"{title} {metric_value(self.metric, values[-1])}")
        return scores

    @property
    def curve(self) -> list[float]:
        """Return the metric of all evaluations."""
        return next(iter(self.scores.values()), [])

    @property
    def details(self) -> list[str]:
        """Return the local loss of the last round, and what was lost, sent and simulated so far."""
        from fedskew.core.units import SIZES, TIMES

        if not self.row:
            return []
        words = []
        if self.row["local_loss"] is None:
            words.append("no updates")
        else:
            words.append(f"local loss {self.row['local_loss']:.3f}")
        if self.lost:
            words.append(f"{self.lost:,} of {self.updates:,} lost")
        if self.sent:
            words.append(f"{in_units(self.sent, SIZES)} sent")
        if self.simulated and self.row["clock"]:
            words.append(f"{in_units(self.row['clock'], TIMES)} simulated")
        return words
