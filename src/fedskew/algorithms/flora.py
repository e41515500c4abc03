"""FLoRA: the server adds the mean of the clients' products to the weights, and adapters begin anew every round."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedskew.algorithms.contract import Algorithm, Cohort, algorithms
from fedskew.algorithms.exact_products import ExactProducts
from fedskew.core.streams import substream
from fedskew.models.low_rank import fresh_a


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

    >>> FLoRA().adapters.offset
    True
    """

    addition: ClassVar[bool] = True

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
