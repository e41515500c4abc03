"""FedAvg: everybody trains apart, the server takes the weighted mean."""

from dataclasses import dataclass

from fedskew.algorithms.contract import Algorithm, Weights, algorithms


@algorithms.register("fedavg")
@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging (McMahan et al. 2017, Algorithm 1).

    ``w <- w + sum_k p_k (w_k - w)`` with ``p_k`` proportional to the client's rows, or equal for all.

    Args:
        weights: what a client counts by, its rows (size) or 1 (uniform); none for the setting of the run

    >>> FedAvg().counts_by("size"), FedAvg(weights="uniform").counts_by("size")
    ('size', 'uniform')
    """

    weights: Weights | None = None

    def counts_by(self, setting: Weights) -> Weights:
        """The method's own choice, if it has one."""
        return self.weights or setting
