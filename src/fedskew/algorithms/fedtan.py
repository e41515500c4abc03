"""FedTAN: clients train separately, but BatchNorm normalises with statistics that they share."""

from dataclasses import dataclass
from typing import Literal

from fedskew.algorithms.contract import algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.batchnorm.policy import BatchNormPolicy


@algorithms.register("fedtan")
@dataclass(frozen=True)
class FedTAN(FedAvg):
    """FedAvg with common BatchNorm statistics (Wang, Shi and Chang 2023; the baseline with BatchNorm of Stratify).

    At every BatchNorm layer of a local step the clients that still train send their batch means, get the mean of these
    means, send their variances around it and get the mean of these; backward, the gradients of the two are averaged
    likewise. Running statistics follow the common statistics. Without BatchNorm, or with one client per round, it is
    FedAvg.

    All clients have the same weight, whatever their batch sizes. Where batches are equally large, that is BatchNorm
    on the pooled batch; where they are not, only sums over all rows are (as in Stratify, section III-E). The variance
    is the one around the common mean, as in the authors' code: variances around each client's own mean would ignore
    that the means differ. In that code statistics are common at the first local step of a round only, and Stratify
    compares with it: the default. ``steps=all`` shares them at every step, as Stratify describes it. A client whose
    numbers are not finite is left out of the means. This exchange is counted in the traffic of a round, but not in
    its simulated time.

    Args:
        steps: local steps of a round at which statistics are common: only the first, as in the authors' code, or all

    >>> [FedTAN(steps=steps).batchnorm.shares_statistics(step) for steps in ("first", "all") for step in (0, 1)]
    [True, False, True, True]
    """

    steps: Literal["first", "all"] = "first"

    @property
    def batchnorm(self) -> BatchNormPolicy:
        """Return the policy that shares statistics at the first local step of a round, or at every step."""
        return BatchNormPolicy(shared="always" if self.steps == "all" else "first")
