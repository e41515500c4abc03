"""FedSA-LoRA: clients share A, and keep B for themselves."""

from dataclasses import dataclass

from fedskew.algorithms.contract import algorithms
from fedskew.algorithms.lora import LoRA
from fedskew.models.layout import Layout
from fedskew.models.low_rank import B


@algorithms.register("fedsa-lora")
@dataclass(frozen=True)
class FedSALoRA(LoRA):
    """LoRA of which only A is shared (Guo et al. 2025, "FedSA-LoRA").

    Both factors of ``W0 + (alpha / rank) B A`` are trained, A is averaged, and every client keeps its B: in the paper's
    measurements the A of clients are alike and their B differ. A client's model has the shared A and its own B; there
    is no model for all. The head is shared.

    >>> FedSALoRA().adapters.trains_a
    True
    """

    def local_names(self, layout: Layout) -> frozenset[str]:
        """Return what the method keeps with its clients, and every B."""
        own = {name for name in layout.parameters if name.rpartition(".")[2] == B}
        return super().local_names(layout) | own
