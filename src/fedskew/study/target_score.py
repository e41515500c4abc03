"""A score that runs are to reach."""

import math
from dataclasses import dataclass

from fedskew.core.errors import FedskewError


@dataclass(frozen=True)
class Target:
    """A score to reach; without a metric, it is a score in the metric that methods are compared by."""

    value: float
    metric: str | None = None

    def __str__(self) -> str:
        if self.metric:
            return f"{self.metric}={self.value!r}"
        return repr(self.value)

    @staticmethod
    def of(given: "str | float | Target") -> "Target":
        """Return the target of a number, or of a text such as ``0.9`` or ``accuracy=0.9``.

        >>> Target.of("balanced-accuracy=0.9")
        Target(value=0.9, metric='balanced_accuracy')
        """
        if isinstance(given, Target):
            return given
        metric, _, number = str(given).rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise FedskewError(
                f"target {given!r} is not a number such as 0.9, or a metric with one: accuracy=0.9"
            )
        return Target(value, metric.strip().replace("-", "_") or None)
