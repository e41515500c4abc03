"""FedPer: the layers before the head are shared, the head stays with each client."""

from dataclasses import dataclass

from fedskew.algorithms.contract import algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.errors import FedskewError
from fedskew.models.layout import Layout


@algorithms.register("fedper")
@dataclass(frozen=True)
class FedPer(FedAvg):
    """FedAvg of all layers but the head, which stays with its client (Arivazhagan et al. 2019, Algorithms 1-2).

    The paper keeps the last one to four blocks; here it is the head, its case of one personal layer. The global model
    keeps its initial head, so the clients' own models are the result.

    >>> from fedskew.models.build import build
    >>> from fedskew.models.layout import layout
    >>> sorted(FedPer().local_names(layout(build("mlp:hidden=4", (3,), 2, seed=0))))
    ['head.bias', 'head.weight']
    """

    def local_names(self, layout: Layout) -> frozenset[str]:
        """Return the tensors of the head."""
        if not layout.head:
            raise FedskewError(
                "fedper keeps the head, but the model has none: name its last layer 'head'"
            )
        return layout.head
