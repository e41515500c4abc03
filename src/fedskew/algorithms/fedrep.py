"""FedRep and LG-FedAvg: a shared representation with local heads, and local representations with a shared head."""

from dataclasses import dataclass

from fedskew.algorithms.contract import algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.fedper import FedPer
from fedskew.models.layout import Layout


@algorithms.register("fedrep")
@dataclass(frozen=True)
class FedRep(FedPer):
    """Shared representation, local heads, trained one after the other (Collins et al. 2021, Algorithm 1).

    The head stays with its client. In the last local epoch of a round the client trains the layers before the head,
    in all epochs before it the head alone; with one epoch it trains both, as FedPer does. The paper takes many steps
    of the head and one epoch of the representation.

    >>> from fedskew.models.build import build
    >>> from fedskew.models.layout import layout
    >>> sorted(FedRep().trainable(layout(build("mlp:hidden=4", (3,), 2, seed=0)), epoch=0, epochs=2))
    ['head.bias', 'head.weight']
    """

    def trainable(self, layout: Layout, epoch: int, epochs: int) -> frozenset[str]:
        """Return the head in all epochs but the last, and the other layers in the last."""
        if epochs == 1:
            return layout.parameters
        if epoch == epochs - 1:
            return layout.parameters - layout.head
        return layout.parameters & layout.head


@algorithms.register("lg-fedavg")
@dataclass(frozen=True)
class LGFedAvg(FedAvg):
    """Local representations, shared head (Liang et al. 2020, Algorithm 1): FedAvg of the head alone.

    The layers before the head, their buffers included, stay with their client; the clients' own models are the result.

    >>> from fedskew.models.build import build
    >>> from fedskew.models.layout import layout
    >>> sorted(LGFedAvg().local_names(layout(build("mlp:hidden=4", (3,), 2, seed=0))))
    ['features.1.bias', 'features.1.weight']
    """

    def local_names(self, layout: Layout) -> frozenset[str]:
        """Return everything but the head."""
        head = FedPer().local_names(layout)  # refuses a model without one
        return (layout.parameters | layout.buffers) - head
