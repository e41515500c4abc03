"""The norm test: as many clients in a round as keep the variance of their mean update below a bound."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedskew.algorithms.contract import Algorithm, Cohort, View, algorithms
from fedskew.algorithms.fedexp import squared_norm
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.algorithms.selection import Selection, SelectionAround
from fedskew.algorithms.topologies import Parallel
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Bounds
from fedskew.core.trees import Tensors, Tree

_PART = "norm_test"  # of the server state
_SQUARE = "update_square"  # the part of a payload with the squared norm of the update


@algorithms.register("norm-test")
@dataclass(frozen=True)
class NormTest(Algorithm):
    """The number of clients follows the measured variance of their updates (after Byrd, Chin, Nocedal and Wu 2012).

    FedPBS names such a number as future work, without a formula. This rule takes the norm test of sample sizes, with
    clients in place of samples. The mean update of m of N clients, drawn without replacement, has the variance ``(v /
    m) (1 - m / N)``, v being that of one client. It points in the direction of the mean over all clients where its
    deviation is small beside its length, ``(v / m) (1 - m / N) <= bound^2 ||d||^2``. So the next round has ``m = 1 /
    (bound^2 ||d||^2 / v + 1 / N)`` clients, rounded up: at least ``fewest``, at most the setting ``per_round``. Early
    updates agree, and few clients are enough; near the optimum they contradict each other, and more are needed.

    Both numbers come from the updates of the last round: ``v = c (sum_k p_k ||d_k||^2 - ||d||^2)`` with ``c = m q / (1
    - q)`` and ``q = sum_k p_k^2``, which is the sample variance where clients count equally. Each client sends one
    number beside its update. The first round has ``fewest`` clients; a round with a single update leaves the number as
    it is. ``rounds.csv`` has ``clients_next`` and ``deviation``, the root of the left side over ``||d||``.

    Args:
        bound: largest standard deviation of the mean update, as a multiple of its length
        fewest: least number of clients in a round

    >>> v, square = torch.tensor(8.0), torch.tensor(4.0)
    >>> NormTest(bound=1, fewest=2).clients_needed(v, square, torch.tensor(6.0))  # 1 / (4 / 8 + 1 / 6) = 1.5
    tensor(2.)
    >>> NormTest(bound=0.1).clients_needed(v, square, torch.tensor(6.0))  # 1 / (0.04 / 8 + 1 / 6) = 5.8
    tensor(6.)
    """

    addition: ClassVar[bool] = True
    read_by_part: ClassVar[frozenset[str]] = frozenset({"bound", "fewest"})

    bound: Annotated[float, Bounds(0.001, 1000)] = 0.5
    fewest: Annotated[int, AtLeastOne] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = None
        if type(self.topology(0)) is not Parallel or self.mixes_rounds:
            reason = "it counts clients that train apart for a server that waits for all of them"
        elif self.aggregator.needs_all:
            reason = "it is about the mean of updates, and a rule takes something else"
        if reason:
            raise FedskewError(f"algorithm {self.label()}: norm-test has no meaning here: {reason}")
        if self.own(NormTest).fewest < 2:
            raise FedskewError(
                f"algorithm {self.label()}: fewest={self.own(NormTest).fewest}: one update has no variance, use at "
                "least 2"
            )

    @property
    def client_selection(self) -> Selection:
        """Return the selection of as many clients as the server has found to be enough."""
        return WantedClients(super().client_selection)

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return the number of the first round, and how many clients there are."""
        known = {
            "clients": torch.tensor(weights.clients, dtype=torch.float64),
            "next": torch.tensor(self.own(NormTest).fewest, dtype=torch.float64),
            "deviation": torch.zeros((), dtype=torch.float64),
        }
        return {**super().init_server_state(weights), _PART: known}

    def payload(self, view: View) -> Tree:
        """Return what the method sends, and the squared norm of the update."""
        sent = super().payload(view)
        changes = [value for name, value in sent["delta"].items() if name in view.sent]
        return {**sent, _SQUARE: {"": squared_norm(changes)}}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the method's new weights and state, and how many clients the next round needs."""
        known = server_state[_PART]
        moved, state = super().server_update(weights, server_state, mean, cohort)
        if len(cohort.weights) > 1:
            known = {**known, **self._measured(mean, cohort, known["clients"])}
        return moved, {**state, _PART: known}

    def _measured(self, mean: Tree, cohort: Cohort, clients: Tensor) -> Tensors:
        """Return the number of the next round, and the deviation of the mean of this one."""
        count = len(cohort.weights)
        shares = cohort.weights / cohort.weights.sum()
        square_of_shares = float((shares**2).sum())
        square = squared_norm(list(mean["delta"].values())).cpu().double()
        apart = mean[_SQUARE][""].cpu().double() - square
        correction = count * square_of_shares / (1 - square_of_shares)
        variance = correction * apart.clamp_min(0)
        of_mean = variance / count * (1 - count / clients)
        tiny = torch.finfo(torch.float64).tiny
        return {
            "next": self.clients_needed(variance, square, clients),
            "deviation": (of_mean / square.clamp_min(tiny)).sqrt(),
        }

    def clients_needed(self, variance: Tensor, square: Tensor, clients: Tensor) -> Tensor:
        """Return how many of so many clients are needed, for the variance of an update and the mean's squared norm."""
        mine = self.own(NormTest)
        tiny = torch.finfo(variance.dtype).tiny  # where all updates are equal
        signal = mine.bound**2 * square / variance.clamp_min(tiny)
        # Rounded up, but for what floating point adds to a whole number
        needed = (1 / (signal + 1 / clients) - 1e-6).ceil()
        return needed.clamp_min(mine.fewest)

    def metrics(self, server_state: Tree) -> dict[str, float]:
        """Return the number of the next round, and the deviation of the mean of this one."""
        known = server_state[_PART]
        return {
            **super().metrics(server_state),
            "clients_next": float(known["next"]),
            "deviation": float(known["deviation"]),
        }


class WantedClients(SelectionAround):
    """Selects as many clients as the server state says."""

    def clients_wanted(self, server_state: Tree, most: int) -> int:
        """Return the number in the server state, at most that of the settings."""
        inside = self.inner.clients_wanted(server_state, most)
        return min(inside, int(server_state[_PART]["next"]))
