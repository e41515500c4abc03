"""Stratify in a share of the rounds: synchronous steps of the label schedule there, separate training between."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedskew.algorithms.contract import algorithms
from fedskew.algorithms.selection import selects_itself
from fedskew.algorithms.stratify import Stratified
from fedskew.algorithms.topologies import Parallel, Topology
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Share


@algorithms.register("stratify-rounds")
@dataclass(frozen=True)
class StratifyRounds(Stratified):
    """Stratify's schedule at a fraction of its traffic, for any method in which clients train separately.

    Stratify (batch-data learning) keeps label skew from doing harm, and its paper names the traffic as its limit: every
    step exchanges weights and gradients. Here only some rounds are such an epoch of synchronous steps on batches of
    the label schedule; in the others clients train separately, as the method says that this is added to, FedAvg when
    alone. The first round is one of the schedule. It is a method of fedskew's own, and in none of the papers.

    A synchronous epoch is as long as ``per_label`` says, so the traffic has two measures: how many rounds have
    synchronous steps, and how many steps these are. Momentum and other states of the optimiser begin afresh in every
    round. Without momentum, ``share=1`` is stratify-batch, and ``share=0`` is the method alone.

    Args:
        share: share of the rounds with synchronous steps, spread evenly: 1 for all, 0.25 for every fourth, 0 for none
        until: round after which there are no more of them, none for all rounds
        selection: how the client for a label is drawn: uniformly from its holders, or by their shares of its samples
            (weighted)
        frequency: every label equally often (uniform), or as often as it has samples, up to cap (proportional)
        per_label: how often a label is in a synchronous round with uniform frequency; when left out, as often as the
            rarest label has samples
        cap: how often at most with proportional frequency
        reuse: a client's samples of a label come again within an epoch, in a new order, once all were used
        secure: not possible here: separate updates go to the server as they are
        round_totals: likewise, only with secure

    >>> rounds = [type(StratifyRounds(share=0.5).topology(round)).__name__ for round in range(4)]
    >>> rounds, type(StratifyRounds(share=1, until=2).topology(2)).__name__
    (['Synchronous', 'Parallel', 'Synchronous', 'Parallel'], 'Parallel')
    """

    addition: ClassVar[bool] = True
    mixes_rounds: ClassVar[bool] = True

    share: Annotated[float, Share] = 0.25
    until: Annotated[int | None, AtLeastOne] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = None
        if self.secure:
            reason = "secure=true hides labels, which separate updates tell: leave it out"
        elif type(self._separate(0)) is not Parallel:
            reason = "it is for methods in which clients train separately and all are waited for"
        elif selects_itself(self.client_selection):
            reason = "it is for methods that select clients as the settings say"
        if reason:
            raise FedskewError(f"algorithm {self.label()}: {reason}")

    def topology(self, round: int) -> Topology:
        """Return synchronous steps in a share of the rounds, the method's own rounds between."""
        if self._is_synchronous(round):
            return self._synchronous()
        return self._separate(round)

    def _is_synchronous(self, round: int) -> bool:
        if self.until is not None and round >= self.until:
            return False
        return math.ceil((round + 1) * self.share) > math.ceil(round * self.share)

    def _separate(self, round: int) -> Topology:
        return super().topology(round)
