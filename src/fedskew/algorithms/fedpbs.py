"""FedPBS: only clients with small batches or unsteady losses are pulled back to the weights they were given."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from fedskew.algorithms.base import Algorithm, Orders, Probe, Report, Roster, Tree, View, algorithms, pull_to
from fedskew.algorithms.fedbs import soft_weights
from fedskew.registry import AtLeastOne, NonNegative, Share
from fedskew.streams import Floats, Ints

ROUNDING = 1e-6  # clients with the same rows differ in the last bits of their variances; they stay on one side of a quantile


@algorithms.register("fedpbs")
@dataclass(frozen=True)
class FedPBS(Algorithm):
    """Proximal-balanced scaling (paper 000, Algorithm 4): plain SGD for stable clients, FedProx for the vulnerable.

    Before it trains, each client of the round measures the variance ``V_q`` of its losses on one batch. It is stable if
    ``|B_q| >= B_th`` and ``V_q <= V_th`` (line 10); the others add ``mu_q (w - w_t)`` to their gradients (eqs. 13-14), so the
    penalty is ``mu_q/2 ||w - w_t||^2``, half of what eq. 12 prints. On equal machines, nobody vulnerable is FedAvg and
    everybody FedProx, both with ``weights=uniform``.

    Readings, where the paper says nothing or two things: batch sizes follow the fleet,
    ``|B_q| = clip(round(B capacity_q), b_min, min(B, N_q))`` with ``B`` the setting ``batch_size``; thresholds are numbers, or
    quantiles of the round, by default the median of ``V`` and no condition on batches; ``V_q`` is of losses (Algorithm 4,
    Table 1) or of gradients (section 4, eq. 8); weights are uniform (Algorithm 4, line 18) or soft (section 4, eq. 11).

    Args:
        mu: strength of the pull back to the global weights, for vulnerable clients
        mu_rule: the same for all of them (constant), or mu (1 - |B_q|/B), more for smaller batches (batch)
        variance: of the losses (loss) or the gradients (gradient) of the rows of one batch
        v_th: variance above which a client is vulnerable, none for the quantile v_quantile
        v_quantile: quantile of the round's variances that serves as v_th
        b_th: batch size below which a client is vulnerable, none for the quantile b_quantile
        b_quantile: quantile of the round's batch sizes that serves as b_th, 0 for no condition
        b_min: smallest batch of a slow client, if it has as many rows
        weights: every client counts alike (uniform), or less the more it varies (soft)
        tau: how much less, with weights=soft; none for 1 / mean variance

    >>> roster = Roster(0, sizes=np.array([99, 99, 5]), batch_size=64, capacity=lambda some: np.array([1.0, 0.5, 1.0])[some])
    >>> orders = FedPBS(b_th=32).orders(roster, np.arange(3), {"loss_variance": np.array([0.2, 0.4, 0.1])}, count=3)
    >>> orders.batch.tolist(), orders.numbers["mu"].tolist()
    ([64, 32, 5], [0.0, 0.01, 0.01])
    """

    mu: Annotated[float, NonNegative] = 0.01
    mu_rule: Literal["constant", "batch"] = "constant"
    variance: Literal["loss", "gradient"] = "loss"
    v_th: Annotated[float | None, NonNegative] = None
    v_quantile: Annotated[float, Share] = 0.5
    b_th: Annotated[int | None, AtLeastOne] = None
    b_quantile: Annotated[float, Share] = 0.0
    b_min: Annotated[int, AtLeastOne] = 2
    weights: Literal["uniform", "soft"] = "uniform"
    tau: Annotated[float | None, NonNegative] = None

    def probe(self) -> tuple[Probe, ...]:
        """``V_q``."""
        return ("loss_variance" if self.variance == "loss" else "gradient_variance",)

    def orders(self, roster: Roster, chosen: Ints, probed: Mapping[str, Floats], count: int) -> Orders:
        """A batch size for each client, and whether it is pulled back."""
        (variance,) = (probed[name] for name in self.probe())
        most = np.minimum(roster.batch_size, roster.sizes[chosen])
        batch = np.clip(np.rint(roster.batch_size * roster.capacity(chosen)).astype(np.int64), self.b_min, most)
        vulnerable = self._vulnerable(batch, variance)
        share = batch / roster.batch_size if self.mu_rule == "batch" else 0.0
        numbers = {
            "batch_size": batch.astype(np.float64),
            "variance": variance,
            "vulnerable": vulnerable,
            "mu": vulnerable * self.mu * (1 - share),
        }
        if self.weights == "soft":
            numbers["beta"] = soft_weights(variance, self.tau)
        return replace(super().orders(roster, chosen, {}, count), batch=batch, numbers=numbers)

    def _vulnerable(self, batch: Ints, variance: Floats) -> Floats:
        """1 for those that fail line 10, else 0; whoever could not measure its variance fails, and moves no quantile."""
        known = np.isfinite(variance)
        v_th = _threshold(self.v_th, variance[known] * (1 + ROUNDING), self.v_quantile)
        b_th = _threshold(self.b_th, batch[known], self.b_quantile)
        return np.asarray(~((batch >= b_th) & (variance <= v_th)), dtype=np.float64)

    def pull(self, view: View) -> Tree:
        """Eq. 13; ``mu`` is 0 for stable clients."""
        return pull_to(view.start, dict.fromkeys(view.start, view.numbers["mu"]))

    def weigh(self, report: Report) -> Floats:
        """Line 18, or eq. 11."""
        return report.numbers["beta"] if self.weights == "soft" else np.ones(len(report.clients))


def _threshold(number: float | None, values: Floats | Ints, quantile: float) -> float:
    if number is not None:
        return number
    return float(np.quantile(values, quantile)) if len(values) else 0.0
