"""FedBABU: clients train the layers before a head that never changes, and tune the model before they use it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedskew.algorithms.adaptation import Adaptation
from fedskew.algorithms.contract import algorithms
from fedskew.algorithms.fedavg import FedAvg
from fedskew.algorithms.finetune import PartTraining
from fedskew.core.errors import FedskewError
from fedskew.core.registry import NonNegative, Positive
from fedskew.models.layout import Layout


@algorithms.register("fedbabu")
@dataclass(frozen=True)
class FedBABU(FedAvg):
    """Body aggregation and body update (Oh, Kim and Yun 2022, Algorithm 1).

    In local training the head keeps its random initial values, the same for all clients, and the layers before it (the
    body) are trained and averaged. Before a client uses the model it tunes it on its own rows for some epochs, by
    default head and body together, as in the paper's personalised results. ``tune_epochs = 0`` leaves the shared model
    as it is, with its random head.

    Readings: the tuning uses the run's local optimiser, begun afresh, and its learning rate without the schedule. The
    head is sent along with the body, though it does not change: its bytes are counted, which the paper saves.

    Args:
        tune_epochs: passes over the client's rows before the model is used
        tune_lr: learning rate of these; none for that of the run, without its schedule
        tune: what is tuned: the whole model (all), its head, or the body

    >>> from fedskew.models.build import build
    >>> from fedskew.models.layout import layout
    >>> sorted(FedBABU().trainable(layout(build("mlp:hidden=4", (3,), 2, seed=0)), epoch=0, epochs=1))
    ['features.1.bias', 'features.1.weight']
    """

    tune_epochs: Annotated[int, NonNegative] = 5
    tune_lr: Annotated[float | None, Positive] = None
    tune: Literal["all", "head", "body"] = "all"

    def local_names(self, layout: Layout) -> frozenset[str]:
        """Return no name; a model without layers before its head is refused."""
        if layout.head and not layout.parameters - layout.head:
            raise FedskewError(
                "fedbabu trains the layers before the head, and the model has none: use one such as mlp"
            )
        return super().local_names(layout)

    def trainable(self, layout: Layout, epoch: int, epochs: int) -> frozenset[str]:
        """Return the body."""
        return PartTraining("body").trainable(layout, epoch, epochs)

    @property
    def adaptation(self) -> Adaptation | None:
        """Return the tuning before use; None if there is none to do."""
        if self.tune_epochs == 0:
            return None
        return Adaptation(PartTraining(self.tune), self.tune_epochs, lr=self.tune_lr)
