"""FedPBS: only clients with small batches or a large variance get a proximal term."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from fedskew.algorithms.contract import Algorithm, Report, View, Weighting, algorithms, proximal
from fedskew.algorithms.fedbs import SOFT, Importance, least, soft_weights, sur
from fedskew.algorithms.selection import ClientPool, Probe, Selection, TrainConfig
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, NonNegative, Share
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tree

ROUNDING = (
    # Clients with the same rows differ in the last bits of their variances; they stay on one side of a quantile
    1e-6
)


@algorithms.register("fedpbs")
@dataclass(frozen=True)
class FedPBS(Algorithm):
    """Proximal-balanced scaling (FedPBS, section 4): plain SGD for stable clients, FedProx for vulnerable ones.

    The paper describes two algorithms. In both, the server first gives each client a batch size, and the client
    measures a variance on one batch of that size (lines 8-9); vulnerable clients add ``mu_q (w - w_t)`` to their
    gradients (eqs. 13-14), so the penalty is ``mu_q/2 ||w - w_t||^2``, half of what eq. 12 prints.

    ``variant=algorithm4`` is Algorithm 4: the clients of the round are drawn, ``V_q`` is the variance of their
    losses, a client is stable if ``|B_q| >= B_th`` and ``V_q <= V_th`` (line 10), and all clients have equal weight
    (line 18). On equal machines, it is FedAvg if no client is vulnerable and FedProx if all are, both with
    ``weights=uniform``.

    ``variant=section4`` is the text before it: every client measures the variance ``Var_q`` of its gradients (eq. 8),
    the ``B`` of lowest SUR score train (eqs. 9-10; ``B`` is the setting ``per_round``), as in FedBS; of these, the
    low-batch clients ``{q : Var_q > delta}`` are vulnerable whatever their batch, and the mean has the
    weights ``softmax(-tau Var_q)`` (eq. 11).

    Readings, where the paper is silent or contradicts itself: batch sizes follow the fleet, ``|B_q| = clip(round(B
    capacity_q), b_min, min(B, N_q))`` with ``B`` the setting ``batch_size``. ``B_th`` is half of that setting (the
    abstract and Fig. 2: the proximal term is for small batches). ``V_th`` and section 4's ``delta`` are one option: a
    number or a quantile of those that train, by default their median. ``mu_q``, "typically dependent on batch size or
    data heterogeneity", is constant, or grows from ``mu`` by one of two rules; a vulnerable client never gets less
    than ``mu``. That section 4 ranks the clients is read as Algorithm 3's choice of them.

    Args:
        mu: strength of the proximal term, for vulnerable clients
        variant: the listing (algorithm4), or the text before it, with FedBS's choice of clients and weights (section4)
        mu_rule: the same for all of them (constant), mu (2 - |B_q|/B), more for smaller batches (batch), or mu
            V_q/V_th, at least mu, more for larger variances (heterogeneity)
        mu_cap: with mu_rule=heterogeneity the upper bound, as a multiple of mu; used for clients above a V_th of 0 or
            without a measured variance
        variance: of the losses (loss) or the gradients (gradient) of the rows of one batch, none for the variant's:
            loss in algorithm4, gradient in section4
        v_th: variance above which a client is vulnerable, none for the quantile v_quantile
        v_quantile: quantile of the round's variances that serves as v_th
        b_th: batch size below which a client is vulnerable; without it and b_quantile, half of the setting batch_size
        b_quantile: quantile of the round's batch sizes that serves as b_th, 0 for no condition
        b_min: smallest batch of a slow client, if it has as many rows
        work: a client with a smaller batch takes all of the epochs, and so more steps (epochs), or as many whole epochs
            as come closest to the steps that it would take with the setting batch_size, at least one (steps)
        weights: equal for all clients (uniform), or smaller for a larger variance (soft), none for the variant's:
            uniform in algorithm4, soft in section4
        tau: with weights=soft, how fast weights fall with the variance; none for 1 / mean variance
        importance: in section4, the alpha_q of eq. 9, as in fedbs: 1 for all (equal), or a client's rows over the mean
            (size)

    >>> speed = np.array([1.0, 0.5, 1.0])
    >>> pool = ClientPool(0, sizes=np.array([99, 99, 5]), batch_size=64, capacity=lambda some: speed[some])
    >>> FedPBS().client_selection.probe_rows(pool, np.arange(3)).tolist()
    [64, 32, 5]
    >>> varies = {"loss_variance": np.array([0.2, 0.4, 0.1])}
    >>> config = FedPBS().client_selection.configure_training(pool, np.arange(3), varies, count=3)
    >>> config.batch_size.tolist(), config.numbers["mu"].tolist()
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
    work: Literal["epochs", "steps"] = "epochs"
    weights: Literal["uniform", "soft"] | None = None
    tau: Annotated[float | None, NonNegative] = None
    importance: Importance = "equal"

    def __post_init__(self) -> None:
        super().__post_init__()
        twice = self.b_th is not None and self.b_quantile is not None
        no_batches = "section 4 uses variances only, leave it out or use variant=algorithm4"
        for name, meaningless, why in (
            (
                "variance",
                self.section4 and self.variance == "loss",
                "section 4 is about gradients (eq. 8), leave it out",
            ),
            (
                "weights",
                self.section4 and self.weights == "uniform",
                "section 4 has the weights of eq. 11, use tau=0 for equal ones",
            ),
            ("b_th", self.section4 and self.b_th is not None, no_batches),
            ("b_quantile", self.section4 and self.b_quantile is not None, no_batches),
            (
                "b_quantile",
                twice,
                f"b_th={self.b_th} is the threshold already, give one of the two",
            ),
            (
                "importance",
                not self.section4 and self.importance != "equal",
                "Algorithm 4 has no ranking, leave it out",
            ),
            (
                "tau",
                self.tau is not None and not self.soft,
                "all clients have equal weights, add weights=soft or leave it out",
            ),
        ):
            if meaningless:
                raise FedskewError(
                    f"algorithm fedpbs: {name}={getattr(self, name)} with variant={self.variant}: {why}"
                )

    @property
    def section4(self) -> bool:
        """Return whether ``variant`` is section4."""
        return self.variant == "section4"

    @property
    def soft(self) -> bool:
        """Return whether eq. 11 gives the weights."""
        if self.weights is None:
            return self.section4
        return self.weights == "soft"

    @property
    def weighting(self) -> Weighting:
        """Return the method's own weighting, which overrides the setting of the run."""
        return Weighting(name=SOFT if self.soft else "uniform")

    @property
    def client_selection(self) -> "Screening":
        """Return the selection in which clients measure a variance and get a batch size and a coefficient."""
        return Screening(self)

    def linear_correction(self, view: View) -> Tree:
        """Return the gradient of the proximal term (eq. 13); ``mu`` is 0 for stable clients."""
        return proximal(view.start, dict.fromkeys(view.start, view.numbers["mu"]))

    def weight(self, report: Report) -> Floats:
        """Return equal weights (line 18), or those of eq. 11."""
        if self.soft:
            return report.numbers["beta"]
        return np.ones(len(report.clients))


@dataclass(frozen=True)
class Screening(Selection):
    """Gives each client a batch size, and decides which clients are vulnerable; ``method`` holds the options."""

    method: FedPBS

    @property
    def probe(self) -> tuple[Probe, ...]:  # type: ignore[override]
        """Return the measured variance: ``V_q`` of the losses, or ``Var_q`` of the gradients (eq. 8)."""
        of = self.method.variance or ("gradient" if self.method.section4 else "loss")
        return ("gradient_variance" if of == "gradient" else "loss_variance",)

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        """Return the clients of the round (line 5); in section 4 all clients, as all measure a variance."""
        if self.method.section4:
            return np.arange(len(pool.sizes))
        return super().select(pool, count, stream)

    def probe_rows(self, pool: ClientPool, chosen: Ints) -> Ints:
        """Return ``|B_q|``: the variance is that of the client's own mini-batch."""
        most = np.minimum(pool.batch_size, pool.sizes[chosen])
        wanted = np.rint(pool.batch_size * pool.capacity(chosen)).astype(np.int64)
        return np.clip(wanted, self.method.b_min, most)

    def configure_training(
        self, pool: ClientPool, chosen: Ints, probed: Mapping[str, Floats], count: int
    ) -> TrainConfig:
        """Return batch sizes and coefficients; in section 4 for the ``count`` clients with the lowest scores."""
        method = self.method
        (variance,) = (probed[name] for name in self.probe)
        if method.section4:
            trains = least(sur(variance, pool.sizes[chosen], method.importance), count)
            chosen = chosen[trains]
            variance = variance[trains]
        batch = self.probe_rows(pool, chosen)
        v_th = _threshold(method.v_th, variance, method.v_quantile)
        steady = variance <= v_th * (1 if method.v_th is not None else 1 + ROUNDING)
        stable = steady & self._large(batch, variance, pool)
        numbers = {
            "batch_size": batch.astype(np.float64),
            "variance": variance,
            "vulnerable": np.where(stable, 0.0, 1.0),
            "mu": np.where(
                stable, 0.0, method.mu * self._growth(batch / pool.batch_size, variance, v_th)
            ),
        }
        if method.soft:
            numbers["beta"] = soft_weights(variance, method.tau)
        config = super().configure_training(pool, chosen, {}, count)
        epochs = config.epochs
        if method.work == "steps":
            epochs = _epochs_of_nominal_steps(pool, pool.sizes[chosen], batch)
        return replace(config, batch_size=batch, epochs=epochs, numbers=numbers)

    def _large(self, batch: Ints, variance: Floats, pool: ClientPool) -> npt.NDArray[np.bool_]:
        """Return which clients have a large enough batch."""
        method = self.method
        if method.section4:
            return np.full(len(batch), True)
        b_th = pool.batch_size / 2
        if method.b_th is not None or method.b_quantile is not None:
            b_th = _threshold(
                method.b_th,
                np.where(np.isfinite(variance), batch, np.nan),
                method.b_quantile or 0.0,
            )
        return np.asarray(batch >= b_th)

    def _growth(self, share: Floats, variance: Floats, v_th: float) -> Floats:
        """Return ``mu_q / mu`` of vulnerable clients, at least 1."""
        if self.method.mu_rule == "batch":
            return 2 - share
        if self.method.mu_rule == "constant":
            return np.ones(len(share))
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(variance <= v_th, 1.0, variance / v_th)
        return np.asarray(np.minimum(np.nan_to_num(times, nan=np.inf), self.method.mu_cap))


def _epochs_of_nominal_steps(pool: ClientPool, rows: Ints, batch: Ints) -> Ints:
    """Return the whole epochs in ``batch`` that come closest to the steps of all epochs in the nominal batch.

    >>> pool = ClientPool(0, sizes=np.array([640]), batch_size=64, epochs=20)
    >>> _epochs_of_nominal_steps(pool, pool.sizes, np.array([16])).tolist()
    [5]
    """
    nominal = -(-rows // pool.batch_size) * pool.epochs
    epochs = np.rint(nominal / -(-rows // batch)).astype(np.int64)
    return np.maximum(epochs, 1)


def _threshold(number: float | None, values: Floats, quantile: float) -> float:
    """Return the option ``v_th``, or else the quantile of the measured variances."""
    if number is not None:
        return number
    known = values[np.isfinite(values)]
    if len(known):
        return float(np.quantile(known, quantile))
    return 0.0
