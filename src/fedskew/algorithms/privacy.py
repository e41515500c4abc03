"""Client-level differential privacy as an addition to a method: ``fedavg + dp:noise=1.0,clip=0.5``."""

import logging
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from fedskew.aggregation.mean import Aggregator
from fedskew.aggregation.rules import ClippedUpdates, SampledUpdates
from fedskew.algorithms.contract import (
    Algorithm,
    Cohort,
    Report,
    Requirement,
    Weighting,
    algorithms,
)
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.algorithms.selection import PoissonSelection, Selection, selects_itself
from fedskew.algorithms.topologies import Parallel
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Bounds, NonNegative, Positive
from fedskew.core.streams import Floats, substream
from fedskew.core.trees import Tensors, Tree

_PART = "dp"  # of the server state


@algorithms.register("dp")
@dataclass(frozen=True)
class DifferentialPrivacy(Algorithm):
    """Client-level differential privacy: clipped updates, summed, with Gaussian noise (DP-FedAvg; McMahan et al. 2018).

    Each update is clipped to the L2 norm ``clip`` over all parameters that are sent; the server adds the updates, all
    with weight 1, adds Gaussian noise of standard deviation ``noise * clip`` to every coordinate of the sum, and
    divides by the expected number of clients, ``per_round``. The number in a round differs: every client is in it with
    probability ``per_round / clients`` and independently of the others (Poisson sampling), as the accounting assumes;
    if there is none, the server adds noise alone. Clients that drop out or are late count as zeros, which only lowers
    their probability to be in a round.

    The table of rounds has a column ``dp_epsilon``: all rounds so far together are (epsilon, delta)-differentially
    private for adding or removing one client with all its rows, by the Rényi accountant of ``dp-accounting``
    (``pip install fedskew[dp]``). It is infinite with noise 0. Who holds the updates before the noise, and the tables
    of clients of a run, are outside the guarantee.

    Args:
        noise: standard deviation of the noise in units of the clip
        clip: largest L2 norm of a client's update
        delta: the probability for which epsilon need not hold; below 1 / clients

    >>> DifferentialPrivacy(clip=2).aggregator.norm
    2.0
    """

    addition: ClassVar[bool] = True

    noise: Annotated[float, NonNegative] = 1.0
    clip: Annotated[float, Positive] = 1.0
    delta: Annotated[float, Bounds(0, 1, above=True, below=True)] = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if reason := self._leak():
            raise FedskewError(
                f"algorithm {self.label()}: {reason}, which dp does not cover: leave one of them out"
            )

    def check_clients(self, clients: int) -> None:
        """Raise an error for a delta with which handing out one client's rows would count as private."""
        super().check_clients(clients)
        if self.delta >= 1 / clients:
            raise FedskewError(
                f"algorithm {self.label()}: delta={self.delta:g} with {clients} clients: publishing all rows of one "
                f"random client would be private by that measure; choose delta below 1 / clients = {1 / clients:g}"
            )

    def _leak(self) -> str | None:
        """Return what of the whole composition would break the guarantee, or None."""
        reports = {
            "loss_before",
            "loss_after",
            "update_agreement",
            "update_distance",
        } & super().requires
        if type(self.topology(0)) is not Parallel:
            return "the rounds are not those of clients that are sampled anew and train separately"
        if not _only_clips(self.aggregator):
            return "a rule other than the sum combines the updates"
        if selects_itself(self.client_selection):
            return "clients are selected by what they report or have done"
        if super().weight.__func__ not in (Algorithm.weight, FedAvg.weight):  # type: ignore[attr-defined]
            return "clients have weights of the method's own"
        if reports:
            return f"clients report {', '.join(sorted(reports))} beside their updates"
        if "pooled_rows" in super().requires:
            return "all rows are in one place"
        if self.batchnorm.shared != "never":
            return "clients share statistics of BatchNorm"
        if self.calibrator:
            return "clients send class statistics after the last round"
        return None

    @property
    def requires(self) -> frozenset[Requirement]:
        """Return what the method requires, and that clients send nothing but a clipped update."""
        return super().requires | {"private_updates", "secret_noise"}

    @property
    def client_selection(self) -> Selection:
        """Return Poisson sampling."""
        return PoissonSelection(super().client_selection)

    @property
    def aggregator(self) -> Aggregator:
        """Return the rule that clips the updates of however many clients there are."""
        return SampledUpdates(super().aggregator, self.clip)

    @property
    def weighting(self) -> Weighting:
        """Return that all clients count alike."""
        return Weighting(by="uniform", paper="uniform")

    def weight(self, report: Report) -> Floats:
        """Return 1 for every client, whatever its rows."""
        return np.ones(len(report.clients))

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return the method's server state, and no rounds so far."""
        _accounting()  # raises an error where it is not installed
        return {**super().init_server_state(weights), _PART: _spent(0, 0.0)}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the method's update with the noisy sum of updates, divided by the expected number of clients."""
        count = len(cohort.weights)
        scale = self.noise * self.clip
        delta: Tensors = {}
        for place, name in enumerate(sorted(mean["delta"])):
            value = mean["delta"][name]
            drawn = substream(cohort.stream, place).generator().standard_normal(tuple(value.shape))
            noise = torch.from_numpy(np.asarray(scale * drawn)).to(value)
            delta[name] = (value * count + noise) / cohort.expected
        noisy = {"delta": {name: delta[name] for name in mean["delta"]}}
        # The real number of clients, and their mean without noise, are not for the method.
        known = replace(cohort, weights=np.ones(cohort.expected), mean=noisy)
        rest = {}
        for part, tensors in server_state.items():
            if part != _PART:
                rest[part] = tensors
        moved, state = super().server_update(weights, rest, noisy, known)
        rounds = int(server_state[_PART]["rounds"]) + 1
        return moved, {**state, _PART: _spent(rounds, cohort.expected / cohort.total)}

    def metrics(self, server_state: Tree) -> dict[str, float]:
        """Return the epsilon of all rounds so far."""
        spent = server_state[_PART]
        found = epsilon(self.noise, float(spent["chance"]), int(spent["rounds"]), self.delta)
        return {**super().metrics(server_state), "dp_epsilon": found}


@lru_cache(maxsize=1024)
def epsilon(noise: float, chance: float, rounds: int, delta: float) -> float:
    """Return the epsilon of so many rounds of the Gaussian mechanism, each client taking part with this chance."""
    if noise == 0:
        return math.inf
    accounting = _accounting()
    spent = accounting.rdp.RdpAccountant(
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    event = accounting.PoissonSampledDpEvent(chance, accounting.GaussianDpEvent(noise))
    log = logging.getLogger("absl")
    # Orders that it leaves out, a warning each, only make epsilon larger
    before, log.disabled = log.disabled, True
    try:
        return float(spent.compose(event, rounds).get_epsilon(delta))
    finally:
        log.disabled = before


def _accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise FedskewError(
            "dp needs dp-accounting for epsilon: pip install 'fedskew[dp]'"
        ) from None
    return dp_accounting


def _spent(rounds: int, chance: float) -> Tensors:
    numbers = {"rounds": float(rounds), "chance": chance}
    result: Tensors = {}
    for name, value in numbers.items():
        result[name] = torch.tensor(value, dtype=torch.float64)
    return result


def _only_clips(aggregator: Aggregator) -> bool:
    while isinstance(aggregator, ClippedUpdates):
        aggregator = aggregator.then
    return type(aggregator) is Aggregator
