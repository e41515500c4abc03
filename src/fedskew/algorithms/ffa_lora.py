"""FFA-LoRA: of every adapter the random A is frozen, so that the mean of B is the mean of the products."""

from dataclasses import dataclass, replace

from fedskew.algorithms.contract import algorithms
from fedskew.algorithms.lora import LoRA
from fedskew.models.low_rank import AdapterLayout


@algorithms.register("ffa-lora")
@dataclass(frozen=True)
class FFALoRA(LoRA):
    """LoRA with A frozen at its random start, the same at all clients (Sun et al. 2024, "FFA-LoRA").

    A weight is ``W0 + (alpha / rank) B A`` as in ``lora``, and only B is trained and sent: half the bytes where a layer
    has as many outputs as inputs. As ``mean(B_k) A = mean(B_k A)``, the server's model is the mean of the clients',
    under any weights of clients, robust rule or noise on B. That is why the paper takes it for differential
    privacy (``+ dp``): the noise enters linearly, and not as a product of two noises.

    >>> FFALoRA().adapters.trains_a
    False
    """

    @property
    def adapters(self) -> AdapterLayout:
        """Return adapters of which B is trained."""
        return replace(super().adapters, trains_a=False)
