"""FedAvg: everybody trains apart, the server takes the weighted mean."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedskew.algorithms.base import Algorithm, Report, algorithms
from fedskew.streams import Floats


@algorithms.register("fedavg")
@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging (McMahan et al. 2017, Algorithm 1).

    ``w <- w + sum_k p_k (w_k - w)`` with ``p_k`` proportional to the client's rows, or equal for all.

    Args:
        weights: a client counts by its number of rows (size) or like any other (uniform)

    >>> import numpy as np
    >>> report = Report(np.arange(2), sizes=np.array([30, 10]), steps=np.ones(2), loss=np.ones(2), accuracy=np.ones(2))
    >>> FedAvg().weigh(report).tolist(), FedAvg(weights="uniform").weigh(report).tolist()
    ([30.0, 10.0], [1.0, 1.0])
    """

    weights: Literal["size", "uniform"] = "size"

    def weigh(self, report: Report) -> Floats:
        """By size, or equal."""
        return np.ones(len(report.sizes)) if self.weights == "uniform" else report.sizes.astype(np.float64)
