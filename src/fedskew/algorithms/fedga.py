"""FedGA: clients whose own loss falls faster weigh more."""

from dataclasses import dataclass

import numpy as np

from fedskew.algorithms.contract import Algorithm, Report, Weighting, algorithms
from fedskew.core.streams import Floats

# Of a fall: where no client's loss falls, the weights are those of FedAvg and not all 0
LEAST = 1e-9


@algorithms.register("fedga")
@dataclass(frozen=True)
class FedGA(Algorithm):
    """Greedy aggregation (section 2 of the FedPBS paper, in words only): ``p_q ~ n_q max(1 - after_q / before_q, 0)``.

    ``before`` and ``after`` are the mean losses of a client on all its rows, before and after its local training.
    This is a reading: the paper says that clients are weighed by "their estimated contribution to global
    convergence", preferring those whose updates converge faster, and prints no formula. A fall counts as at least
    1e-9, so that a round in which no client's loss falls is FedAvg's.

    >>> numbers = {"loss_before": np.array([2.0, 2.0, 1.0]), "loss_after": np.array([1.0, 1.5, 3.0])}
    >>> report = Report(np.arange(3), np.array([10, 40, 10]), np.ones(3), np.ones(3), np.ones(3), numbers)
    >>> FedGA().weight(report).round(6).tolist()
    [5.0, 10.0, 0.0]
    """

    requires = frozenset({"loss_before", "loss_after"})
    weighting = Weighting(name="{base} x fall of the loss")

    def weight(self, report: Report) -> Floats:
        """Return rows times relative fall of the loss."""
        before = report.numbers["loss_before"]
        after = report.numbers["loss_after"]
        known = np.isfinite(before) & np.isfinite(after) & (before > 0)
        remains = np.divide(after, before, out=np.ones(len(before)), where=known)
        return np.asarray(report.base * np.maximum(1 - remains, LEAST))
