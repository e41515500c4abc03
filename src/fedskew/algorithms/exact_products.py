"""What FLoRA and FedEx-LoRA have in common: the server adds exact means of products to the fixed weights."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedskew.aggregation.mean import Aggregator
from fedskew.algorithms.contract import Algorithm, Cohort, Requirement
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.algorithms.lora import LoRA
from fedskew.algorithms.topologies import Parallel
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors, Tree
from fedskew.models.low_rank import OFFSET, A, AdapterLayout, B, adapters_of

_OFFSETS = "offset"  # of the server state


@dataclass(frozen=True)
class ExactProducts(LoRA):
    """LoRA whose server knows the factors of every client, and adds what their means lack to the fixed weights.

    Clients send A and B. They receive the adapted weights as a whole, which are more bytes than the factors: sending
    stacked factors instead would grow with the number of clients, and a client that missed a round would lack them.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if reason := self._clash():
            raise FedskewError(
                f"algorithm {self.label()}: {reason}, and the server adds products of factors that all clients have "
                "trained from the same ones: use lora or ffa-lora"
            )

    def _clash(self) -> str | None:
        """Return what of the whole composition does not go with an exact mean of products, or None."""
        if type(self.topology(0)) is not Parallel:
            return "the rounds are not those of clients that train separately from one model"
        if type(self.aggregator) is not Aggregator:
            return "a rule other than the mean combines the updates"
        if self.personal_method is not None or self.no_shared_model:
            return "clients have models of their own"
        for part in self.parts:
            if not issubclass(part, LoRA) and part.server_update is not Algorithm.server_update:
                return f"the server of {part.label()} does not average"
        return None

    @property
    def adapters(self) -> AdapterLayout:
        """Return adapters of fixed weights to which the server adds."""
        return replace(super().adapters, offset=True)

    @property
    def requires(self) -> frozenset[Requirement]:
        """Return what the method requires, and the updates of single clients."""
        return super().requires | {"single_updates"}

    def init_server_state(self, weights: InitialWeights) -> Tree:
        """Return the method's server state, and nothing added to the fixed weights."""
        offsets: Tensors = {}
        for prefix in adapters_of(weights):
            offsets[prefix + OFFSET] = torch.zeros_like(weights[prefix + B] @ weights[prefix + A])
        return {**super().init_server_state(weights), _OFFSETS: offsets}

    def server_update(
        self, weights: Tensors, server_state: Tree, mean: Tree, cohort: Cohort
    ) -> tuple[Tensors, Tree]:
        """Return the mean of all weights but the adapters, which the method makes new, and the offsets."""
        moved, server_state = super().server_update(weights, server_state, mean, cohort)
        moved = dict(moved)
        offsets = dict(server_state[_OFFSETS])
        scale = self.adapters.alpha / self.adapters.rank
        for place, prefix in enumerate(adapters_of(weights)):
            product = mean_product(weights, cohort, prefix)
            a, b = self.new_factors(moved[prefix + A], moved[prefix + B], cohort, place)
            moved[prefix + A], moved[prefix + B] = a, b
            offsets[prefix + OFFSET] = offsets[prefix + OFFSET] + scale * (product - b @ a)
        return {**moved, **offsets}, {**server_state, _OFFSETS: offsets}

    def new_factors(
        self, a: Tensor, b: Tensor, cohort: Cohort, place: int
    ) -> tuple[Tensor, Tensor]:
        """Return the factors that clients train next, from their means; ``place`` is the number of the adapter."""
        raise NotImplementedError


def mean_product(weights: Tensors, cohort: Cohort, prefix: str) -> Tensor:
    """Return the weighted mean of the clients' products, as a product of their factors put side by side."""
    delta = cohort.updates["delta"]
    a = weights[prefix + A] + delta[prefix + A]
    b = weights[prefix + B] + delta[prefix + B]
    shares = torch.from_numpy(cohort.weights / cohort.weights.sum()).to(b)
    beside = (shares[:, None, None] * b).movedim(0, 1).flatten(1)
    return beside @ a.flatten(0, 1)
