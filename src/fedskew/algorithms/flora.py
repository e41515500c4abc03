"""FLoRA: the server adds the mean of the clients' products to the weights, and adapters begin anew every round."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.contract import Algorithm, Cohort, algorithms
from fedskew.algorithms.exact_products import ExactProducts
from fedskew.algorithms.selection import Selection, SelectionAround
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne
from fedskew.core.streams import Floats, Ints, substream
from fedskew.core.trees import Tensors, Tree
from fedskew.models.low_rank import A, AdapterLayout, B, adapters_of, fresh_a, within


@algorithms.register("flora")
@dataclass(frozen=True)
class FLoRA(ExactProducts):
    """LoRA by stacking (Wang et al. 2024, "FLoRA").

    The factors of the clients are put side by side, ``B = [p_1 B_1, ..., p_K B_K]`` and ``A = [A_1; ...; A_K]``, so
    that ``B A = sum_k p_k B_k A_k`` is the mean of the products without any cross term. ``(alpha / rank) B A`` is added
    to the weights, and the next round begins with a new random A and with B = 0. The global model is the mean of the
    clients' models.

    What a method keeps for single weights from round to round would be that of other adapters: such methods
    (SCAFFOLD, top-k) are refused, as are servers that do more than average.

    Stacked factors may have any number of rows, so that clients may have different ``ranks``. A client of rank r
    trains, sends and receives r rows of A, the first ones of the server's, and as many columns of B. All clients have
    the scale ``alpha / rank`` of the largest rank, as in the published code, where a client's alpha is twice its rank.

    Args:
        ranks: those of the clients, by their numbers and again from the start: 64+32+16+8, of which rank is the
            largest; without it all clients have rank

    >>> FLoRA().adapters.offset
    True
    >>> FLoRA(ranks=(8, 2)).adapters.ranks_of(np.arange(3)).tolist()
    [8, 2, 8]
    """

    addition: ClassVar[bool] = True

    ranks: Annotated[tuple[int, ...] | None, AtLeastOne] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ranks:
            return
        rank = self.adapters.rank
        if max(self.ranks) != rank:
            raise FedskewError(
                f"algorithm {self.label()}: rank={rank} is not the largest of ranks={self._written()}: "
                f"use rank={max(self.ranks)}"
            )
        if self.adaptation is not None:
            raise FedskewError(
                f"algorithm {self.label()}: clients adapt the model that they use with adapters of rank {rank}, and "
                f"ranks={self._written()} gives them others: leave ranks or the adaptation out"
            )

    def _written(self) -> str:
        return "+".join(map(str, self.ranks or ()))

    def check_clients(self, clients: int) -> None:
        """Raise an error for ranks that no client would have."""
        super().check_clients(clients)
        ranks = self.adapters.ranks
        if len(ranks) > clients:
            raise FedskewError(
                f"algorithm {self.label()}: ranks={self._written()} are those of {len(ranks)} clients, and there are "
                f"{clients}: leave some out"
            )

    @property
    def adapters(self) -> AdapterLayout:
        """Return adapters of fixed weights to which the server adds, with the ranks of clients."""
        return replace(super().adapters, ranks=self.ranks or ())

    @property
    def client_selection(self) -> Selection:
        """Return the method's selection, in which each client knows its rank where these differ."""
        inside = super().client_selection
        if not self.ranks:
            return inside
        return RankedSelection(inside, self.adapters)

    def _clash(self) -> str | None:
        for part in self.parts:
            if part.init_client_state is not Algorithm.init_client_state:
                return f"clients of {part.label()} keep a state of the adapters of earlier rounds"
        if "optimizer_state" in self.requires:
            return "clients keep the state of their optimiser, which is that of the adapters of earlier rounds"
        return super()._clash()

    def new_factors(
        self, a: Tensor, b: Tensor, cohort: Cohort, place: int
    ) -> tuple[Tensor, Tensor]:
        """Return a new random A, and 0."""
        return fresh_a(substream(cohort.stream, place), a), torch.zeros_like(b)

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the update of products, from the columns of B that each client has."""
        if self.ranks:
            ranks = self.adapters.ranks_of(cohort.clients)
            delta = dict(cohort.updates["delta"])
            for prefix in adapters_of(weights):
                has = within(ranks, weights[prefix + A])
                delta[prefix + B] = torch.where(has[:, None], delta[prefix + B], 0.0)
            cohort = replace(cohort, updates={**cohort.updates, "delta": delta})
        return super().server_update(weights, server_state, mean, cohort)


class RankedSelection(SelectionAround):
    """Tells every client the rank of its adapters."""

    def __init__(self, inner: Selection, adapters: AdapterLayout) -> None:
        super().__init__(inner)
        self.adapters = adapters

    def client_numbers(
        self, clients: Ints, population: int, round: int, seed: int
    ) -> dict[str, Floats]:
        """Return the ranks, in addition to what clients know otherwise."""
        ranks = self.adapters.ranks_of(clients).astype(np.float64)
        return {**self.inner.client_numbers(clients, population, round, seed), "rank": ranks}
