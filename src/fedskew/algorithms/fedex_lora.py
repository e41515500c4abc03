"""FedEx-LoRA: the factors are averaged apart, and the server adds to the weights what their product lacks."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedskew.algorithms.contract import Cohort, algorithms
from fedskew.algorithms.exact_products import ExactProducts


@algorithms.register("fedex-lora")
@dataclass(frozen=True)
class FedExLoRA(ExactProducts):
    """LoRA with the exact residual (Singhal et al. 2025, "FedEx-LoRA").

    Clients go on with the means of A and of B, as in ``lora``, and the server adds
    ``(alpha / rank) (sum_k p_k B_k A_k - mean(B) mean(A))`` to the fixed weights, so that the global model is the mean
    of the clients' models. Methods whose server does more than average are refused.

    >>> FedExLoRA().adapters.offset
    True
    """

    addition: ClassVar[bool] = True

    def new_factors(
        self, a: Tensor, b: Tensor, cohort: Cohort, place: int
    ) -> tuple[Tensor, Tensor]:
        """Return the means themselves."""
        return a, b
