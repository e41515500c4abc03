"""LoRA: low-rank adapters are trained in place of the model, and their factors are averaged apart (FedIT)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedskew.algorithms.contract import Algorithm, algorithms
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Positive
from fedskew.models.low_rank import AdapterLayout


@algorithms.register("lora")
@dataclass(frozen=True)
class LoRA(Algorithm):
    """Low-rank adapters (Hu et al. 2022, eq. 3), averaged factor by factor (FedIT: Zhang et al. 2024).

    In the layers of ``target``, a weight becomes ``W0 + (alpha / rank) B A`` with A of shape rank x inputs and B of
    shape outputs x rank; a convolution's weight counts as a matrix, outputs by all else, and an attention's projections
    of queries, keys and values as one. At first A is random and B is 0. All else is frozen, biases and normalisation
    included, but for the head; BatchNorm stays in evaluation mode. Only what is trained is sent and stored for clients.

    The server averages A and B like any weights, with the method that this is added to. The mean of the products is
    another matrix: ``mean(B A) - mean(B) mean(A)`` is the covariance of the factors over the clients. Where it
    matters, take ``ffa-lora``, ``fedex-lora`` or ``flora``.

    ``predict``, ``export`` and the file of the model have plain weights, the products added to W0.

    Args:
        rank: of each product; at most the smaller side of the layer's weight
        alpha: the product counts alpha / rank times
        target: which layers: all, linear, conv, attention (with the linear layers in modules named so), or ends of
            layer names such as q_proj+v_proj
        head: whether the head is trained as it is, without an adapter

    >>> LoRA(rank=4, alpha=8).adapters.target
    ('all',)
    """

    addition: ClassVar[bool] = True
    read_by_part: ClassVar[frozenset[str]] = frozenset({"rank", "alpha", "target", "head"})

    rank: Annotated[int, AtLeastOne] = 8
    alpha: Annotated[float, Positive] = 16.0
    target: tuple[str, ...] = ("all",)
    head: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(issubclass(part, LoRA) for part in self.parts) > 1:
            raise FedskewError(
                f"algorithm {self.label()}: both put adapters into the model: keep one"
            )
        if not self.adapters.target or "" in self.adapters.target:
            raise FedskewError(
                f"algorithm {self.label()}: target is empty: use all, linear, conv, attention, or ends of layer names"
            )

    @property
    def adapters(self) -> AdapterLayout:
        """Return adapters of which both factors are trained."""
        part = next(part for part in self.parts or (type(self),) if issubclass(part, LoRA))
        own = self.own(part)
        return AdapterLayout(own.rank, own.alpha, own.target, own.head)
