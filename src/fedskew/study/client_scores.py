"""How the clients of a run score at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedskew.core.streams import Floats
from fedskew.runs.folder import Row

LISTED = 10  # clients that are named as left behind


@dataclass(frozen=True)
class ClientScores:
    """One row per client about its model at the end.

    ``decides`` is the metric that methods are compared by; ``sign`` is -1 where low values of it are good.
    """

    rows: Sequence[Row]
    decides: str
    sign: int

    @cached_property
    def metric(self) -> str | None:
        """Return the metric that is shown: the one that decides where clients have it, or the loss."""
        for name in (self.decides, "accuracy", "loss"):
            if self._scored(name):
                return name
        return None

    def _scored(self, metric: str) -> list[Row]:
        scored = []
        for row in self.rows:
            if row.get(metric) is not None and np.isfinite(row[metric]):
                scored.append(row)
        return scored

    def values(self) -> Floats:
        """Return the metric of every client that has one."""
        metric = str(self.metric)
        return np.array([row[metric] for row in self._scored(metric)], np.float64)

    def left_behind(self) -> list[Row]:
        """Return the quarter of the clients with the worst metric, at most ten, the worst first."""
        metric = str(self.metric)
        low_is_good = metric == "loss" or (metric == self.decides and self.sign < 0)
        ordered = sorted(self._scored(metric), key=lambda row: row[metric], reverse=low_is_good)
        quarter = -(-len(ordered) // 4)  # rounded up
        return ordered[: min(quarter, LISTED)]
