"""FedPBS: only clients with small batches or unsteady losses are pulled back to the weights they were given."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from fedskew.algorithms.contract import Algorithm, Orders, Probe, Report, Roster, View, algorithms, pull_to
from fedskew.algorithms.fedbs import SOFT, Importance, soft_weights, steadiest, sur
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, NonNegative, Share
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tree

ROUNDING = 1e-6  # clients with the same rows differ in the last bits of their variances; they stay on one side of a quantile


@algorithms.register("fedpbs")
@dataclass(frozen=True)
class FedPBS(Algorithm):
    """Proximal-balanced scaling (FedPBS, section 4): plain SGD for stable clients, FedProx for the vulnerable.

    The paper describes two algorithms. In both, the server first gives each client a batch size, and the client
    measures on one batch of so many rows how much they vary (lines 8-9); the vulnerable add ``mu_q (w - w_t)`` to their
    gradients (eqs. 13-14), so the penalty is ``mu_q/2 ||w - w_t||^2``, half of what eq. 12 prints.

    ``variant=algorithm4`` is Algorithm 4: the clients of the round are drawn, ``V_q`` is the variance of their losses, a
    client is stable if ``|B_q| >= B_th`` and ``V_q <= V_th`` (line 10), and everybody counts alike (line 18). On equal
    machines, nobody vulnerable is FedAvg and everybody FedProx, both with ``weights=uniform``.

    ``variant=section4`` is the text before it: every client measures the variance ``Var_q`` of its gradients (eq. 8), the
    ``B`` of least SUR score train (eqs. 9-10; ``B`` is the setting ``per_round``), as in FedBS; of these, the low-batch
    clients ``{q : Var_q > delta}`` are vulnerable whatever their batch, and the mean is soft, with the weights
    ``softmax(-tau Var_q)`` (eq. 11).

    Readings, where the paper says nothing or two things: batch sizes follow the fleet,
    ``|B_q| = clip(round(B capacity_q), b_min, min(B, N_q))`` with ``B`` the setting ``batch_size``. ``B_th`` is half of
    that setting (the abstract and Fig. 2: the proximal term is for small batches). ``V_th`` and section 4's ``delta`` are
    one option: a number or a quantile of those that train, by default their median. ``mu_q``, "typically dependent on
    batch size or data heterogeneity", is constant, or grows from ``mu`` by one of two rules; a vulnerable client never gets
    less than ``mu``. That section 4 ranks the clients is read as Algorithm 3's choice of them.

    Args:
        mu: strength of the pull back to the global weights, for vulnerable clients
        variant: the listing (algorithm4), or the text before it, with FedBS's choice of clients and weights (section4)
        mu_rule: the same for all of them (constant), mu (2 - |B_q|/B), more for smaller batches (batch), or mu V_q/V_th,
            at least mu, more for larger variances (heterogeneity)
        mu_cap: with mu_rule=heterogeneity the most, as a multiple of mu; for who varies where V_th is 0 or cannot measure
        variance: of the losses (loss) or the gradients (gradient) of the rows of one batch, none for the variant's:
            loss in algorithm4, gradient in section4
        v_th: variance above which a client is vulnerable, none for the quantile v_quantile
        v_quantile: quantile of the round's variances that serves as v_th
        b_th: batch size below which a client is vulnerable; without it and b_quantile, half of the setting batch_size
        b_quantile: quantile of the round's batch sizes that serves as b_th, 0 for no condition
        b_min: smallest batch of a slow client, if it has as many rows
        weights: every client counts alike (uniform), or less the more it varies (soft), none for the variant's: uniform in
            algorithm4, soft in section4
        tau: how much less, with weights=soft; none for 1 / mean variance
        importance: in section4, the alpha_q of eq. 9, as in fedbs: 1 for all (equal), or a client's rows over the mean (size)

    >>> roster = Roster(0, sizes=np.array([99, 99, 5]), batch_size=64, capacity=lambda some: np.array([1.0, 0.5, 1.0])[some])
    >>> FedPBS().probe_rows(roster, np.arange(3)).tolist()
    [64, 32, 5]
    >>> orders = FedPBS().orders(roster, np.arange(3), {"loss_variance": np.array([0.2, 0.4, 0.1])}, count=3)
    >>> orders.batch.tolist(), orders.numbers["mu"].tolist()
    ([64, 32, 5], [0.0, 0.01, 0.01])
    """

    mu: Annotated[float, NonNegative] = 0.01
    variant: Literal["algorithm4", "section4"] = "algorithm4"
    mu_rule: Literal["constant", "batch", "heterogeneity"] = "constant"
    mu_cap: Annotated[float, AtLeastOne] = 10.0
    variance: Literal["loss", "gradient"] | None = None
    v_th: Annotated[float | None, NonNegative] = None
    v_quantile: Annotated[float, Share] = 0.5
    b_th: Annotated[int | None, AtLeastOne] = None
    b_quantile: Annotated[float | None, Share] = None
    b_min: Annotated[int, AtLeastOne] = 2
    weights: Literal["uniform", "soft"] | None = None
    tau: Annotated[float | None, NonNegative] = None
    importance: Importance = "equal"

    def __post_init__(self) -> None:
        super().__post_init__()
        twice = self.b_th is not None and self.b_quantile is not None
        no_batches = "section 4 looks at variances only, leave it out or use variant=algorithm4"
        for name, meaningless, why in (
            ("variance", self.section4 and self.variance == "loss", "section 4 is about gradients (eq. 8), leave it out"),
            ("weights", self.section4 and self.weights == "uniform", "section 4 weighs softly (eq. 11), tau=0 for alike"),
            ("b_th", self.section4 and self.b_th is not None, no_batches),
            ("b_quantile", self.section4 and self.b_quantile is not None, no_batches),
            ("b_quantile", twice, f"b_th={self.b_th} is the threshold already, give one of the two"),
            ("importance", not self.section4 and self.importance != "equal", "Algorithm 4 ranks nobody, leave it out"),
            ("tau", self.tau is not None and not self.soft, "all clients count alike, add weights=soft or leave it out"),
        ):
            if meaningless:
                raise FedskewError(f"algorithm fedpbs: {name}={getattr(self, name)} with variant={self.variant}: {why}")

    @property
    def section4(self) -> bool:
        """Whether it is the second of the two algorithms."""
        return self.variant == "section4"

    @property
    def soft(self) -> bool:
        """Whether eq. 11 gives the weights."""
        return self.section4 if self.weights is None else self.weights == "soft"

    @property
    def weighs_by(self) -> str:  # type: ignore[override]
        """What tables say of the weights, which are the method's own whatever the setting of the run."""
        return SOFT if self.soft else "uniform"

    def select(self, roster: Roster, count: int, stream: Stream) -> Ints:
        """Line 5; in section 4 everybody, as who trains is decided when all have measured."""
        return np.arange(len(roster.sizes)) if self.section4 else super().select(roster, count, stream)

    def probe(self) -> tuple[Probe, ...]:
        """``V_q``, or ``Var_q`` of eq. 8."""
        of = self.variance or ("gradient" if self.section4 else "loss")
        return ("gradient_variance" if of == "gradient" else "loss_variance",)

    def probe_rows(self, roster: Roster, chosen: Ints) -> Ints:
        """``|B_q|``: the variance is that of the client's own mini-batch."""
        most = np.minimum(roster.batch_size, roster.sizes[chosen])
        return np.clip(np.rint(roster.batch_size * roster.capacity(chosen)).astype(np.int64), self.b_min, most)

    def orders(self, roster: Roster, chosen: Ints, probed: Mapping[str, Floats], count: int) -> Orders:
        """A batch size for each client, and whether it is pulled back; in section 4 for the ``count`` steadiest."""
        (variance,) = (probed[name] for name in self.probe())
        if self.section4:
            trains = steadiest(sur(variance, roster.sizes[chosen], self.importance), count)
            chosen, variance = chosen[trains], variance[trains]
        batch = self.probe_rows(roster, chosen)
        v_th = _threshold(self.v_th, variance, self.v_quantile)
        stable = (variance <= v_th * (1 if self.v_th is not None else 1 + ROUNDING)) & self._large(batch, variance, roster)
        numbers = {
            "batch_size": batch.astype(np.float64),
            "variance": variance,
            "vulnerable": np.where(stable, 0.0, 1.0),
            "mu": np.where(stable, 0.0, self.mu * self._growth(batch / roster.batch_size, variance, v_th)),
        }
        if self.soft:
            numbers["beta"] = soft_weights(variance, self.tau)
        return replace(super().orders(roster, chosen, {}, count), batch=batch, numbers=numbers)

    def _large(self, batch: Ints, variance: Floats, roster: Roster) -> npt.NDArray[np.bool_]:
        """Who passes the test of batch sizes."""
        if self.section4:
            return np.full(len(batch), True)
        b_th = roster.batch_size / 2
        if self.b_th is not None or self.b_quantile is not None:
            b_th = _threshold(self.b_th, np.where(np.isfinite(variance), batch, np.nan), self.b_quantile or 0.0)
        return np.asarray(batch >= b_th)

    def _growth(self, share: Floats, variance: Floats, v_th: float) -> Floats:
        """``mu_q / mu`` of vulnerable clients, at least 1."""
        if self.mu_rule == "batch":
            return 2 - share
        if self.mu_rule == "constant":
            return np.ones(len(share))
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(variance <= v_th, 1.0, variance / v_th)
        return np.asarray(np.minimum(np.nan_to_num(times, nan=np.inf), self.mu_cap))

    def pull(self, view: View) -> Tree:
        """Eq. 13; ``mu`` is 0 for stable clients."""
        return pull_to(view.start, dict.fromkeys(view.start, view.numbers["mu"]))

    def weigh(self, report: Report) -> Floats:
        """Line 18, or eq. 11."""
        return report.numbers["beta"] if self.soft else np.ones(len(report.clients))


def _threshold(number: float | None, values: Floats, quantile: float) -> float:
    """The number, or the quantile of what could be measured; whoever could not moves none, and is never stable."""
    if number is not None:
        return number
    known = values[np.isfinite(values)]
    return float(np.quantile(known, quantile)) if len(known) else 0.0
