"""Fed-SB: a small matrix is trained between two factors that the first gradient of all clients gives."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from fedskew.algorithms.contract import algorithms, overridden
from fedskew.algorithms.lora import LoRA
from fedskew.algorithms.topologies import Parallel
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Positive
from fedskew.models.low_rank import AdapterLayout


@algorithms.register("fed-sb")
@dataclass(frozen=True)
class FedSB(LoRA):
    """LoRA-SB with averaging (Singhal et al. 2025, "Fed-SB"; Ponkshe et al. 2024, "LoRA-SB").

    A weight is ``W0 + (alpha / rank) B R A``, and only R, of shape rank x rank, is trained and sent, with the head.
    As ``mean(B R_k A) = B mean(R_k) A``, the server's model is the mean of the clients', and noise on R enters it
    linearly (``+ dp``).

    The first round finds B and A, the same for all clients, and does not train. Clients send the gradient of the whole
    weights on all their rows; the server takes the mean, and the change that the local optimiser would make in its
    first step of training W0 at the run's ``lr``, without weight decay: ``-lr`` times the gradient in SGD, ``-lr``
    times its sign in Adam, as in the papers. Of its singular value decomposition, B and A are the first singular
    vectors, and R begins as the values, divided by ``alpha / rank``: the model after the round is W0 plus the nearest
    change of that rank.
    Then every client receives B and A once.

    The additions of a method act on the first gradients too: ``+ dp`` clips and noises them, and epsilon counts the
    round. In the published code of the paper, gradients without noise give B and A, outside the guarantee.
    The paper has ``alpha`` equal to ``rank``, as is the default, and estimates the gradient on few rows. Its code takes
    a smaller first step: ``lr`` divided by the number of steps, or of those of the warm-up.

    Args:
        rank: of R; at most the smaller side of the layer's weight
        alpha: the product counts alpha / rank times; none for rank

    >>> FedSB(rank=4).adapters.alpha, FedSB(rank=4, alpha=8).adapters.alpha
    (4.0, 8.0)
    """

    addition: ClassVar[bool] = True

    rank: Annotated[int, AtLeastOne] = 16
    alpha: Annotated[float | None, Positive] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        if reason := self._clash():
            raise FedskewError(
                f"algorithm {self.label()}: {reason}, and fed-sb finds its factors in a first round of all clients' "
                "gradients of one model: use lora or ffa-lora"
            )

    def _clash(self) -> str | None:
        """Return what of the whole composition does not go with factors that a first round finds, or None."""
        if type(self.topology(0)) is not Parallel or self.mixes_rounds:
            return "the rounds are not those of clients that train separately from one model"
        if "pooled_rows" in self.requires:
            return "all rows are in one place"
        if self.personal_method is not None or self.no_shared_model:
            return "clients have models of their own"
        if overridden(self, "client_model") or overridden(self, "answer"):
            return "clients have models of their own"
        return None

    @property
    def adapters(self) -> AdapterLayout:
        """Return adapters of which R is trained."""
        layout = replace(super().adapters, trains_r=True)
        if self.own(FedSB).alpha is None:
            return replace(layout, alpha=float(layout.rank))
        return layout
