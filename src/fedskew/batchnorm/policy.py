"""The BatchNorm policy of a method: which tensors stay with their client, and when clients share statistics."""

from dataclasses import dataclass
from typing import Literal

from fedskew.models.layout import Layout


@dataclass(frozen=True)
class BatchNormPolicy:
    """The treatment of BatchNorm; by default it is aggregated like all other parameters.

    Args:
        local: what stays with its client: nothing, everything (FedBN), or only the running statistics (SiloBN)
        frozen: whether the global BatchNorm stays as initialised; clients start every round from it and do not send
            theirs
        shared: at which local steps of a round the clients normalise with shared statistics (FedTAN)
    """

    local: Literal["nothing", "everything", "statistics"] = "nothing"
    frozen: bool = False
    shared: Literal["never", "first", "always"] = "never"

    def local_names(self, layout: Layout) -> frozenset[str]:
        """Return the tensors that never leave their client."""
        if self.local == "nothing":
            return frozenset()
        if self.local == "everything":
            return layout.batch_norm
        return layout.batch_norm & layout.buffers

    def frozen_names(self, layout: Layout) -> frozenset[str]:
        """Return the tensors that the server never changes."""
        if self.frozen:
            return layout.batch_norm
        return frozenset()

    def shares_statistics(self, step: int) -> bool:
        """Return whether clients share statistics at this local step.

        >>> [BatchNormPolicy(shared=when).shares_statistics(step) for when in ("first", "always") for step in (0, 1)]
        [True, False, True, True]
        """
        return self.shared == "always" or (self.shared == "first" and step == 0)
