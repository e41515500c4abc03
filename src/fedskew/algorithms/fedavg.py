"""FedAvg: clients train separately, and the server takes the weighted mean of their weights."""

from dataclasses import dataclass

from fedskew.algorithms.contract import Algorithm, Weighting, Weights, algorithms


@algorithms.register("fedavg")
@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging (McMahan et al. 2017, Algorithm 1).

    ``w <- w + sum_k p_k (w_k - w)`` with ``p_k`` proportional to the client's rows, or equal for all.

    Args:
        weights: what a client counts by, its rows (size) or 1 (uniform); none for the setting of the run

    >>> FedAvg(weights="uniform").weighting.by
    'uniform'
    """

    weights: Weights | None = None

    @property
    def weighting(self) -> Weighting:
        """Return the weighting given by the option ``weights``, if any."""
        return Weighting(by=self.weights)
