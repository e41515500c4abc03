"""Fine-tuning: a client trains the model on its own rows for a while before it uses it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedskew.algorithms.adaptation import Adaptation
from fedskew.algorithms.contract import Algorithm, algorithms
from fedskew.core.errors import FedskewError
from fedskew.core.registry import NonNegative, Positive
from fedskew.models.layout import Layout


@dataclass(frozen=True)
class PartTraining(Algorithm):
    """Plain local training of the whole model, of its head alone, or of the layers before the head.

    Args:
        part: what is trained
    """

    part: Literal["all", "head", "body"] = "all"

    def trainable(self, layout: Layout, epoch: int, epochs: int) -> frozenset[str]:
        """Return the parameters of the part, in every epoch."""
        if self.part == "all":
            return layout.parameters
        if not layout.head:
            raise FedskewError(
                f"tune={self.part} needs a head, and the model has none: name its last layer 'head'"
            )
        if self.part == "head":
            return layout.parameters & layout.head
        return layout.parameters - layout.head


@algorithms.register("finetune")
@dataclass(frozen=True)
class FineTune(Algorithm):
    """Fine-tuning before use: the baseline of personalisation (Yu et al. 2020, "FT"; Cheng et al. 2021, FedAvg + FT).

    Training is that of the method it is added to, FedAvg when alone. Before a client uses the model it trains it on its
    own rows, with the plain loss and the run's local optimiser, begun afresh: that model is scored, predicts and is
    exported. Training never sees it, nothing of it is sent or kept, and every use begins from the model as it then is.
    ``tune_epochs = 0`` (or ``tune_steps = 0``) is the method without the addition.

    Where clients have models or parts of their own, those are tuned. The curve of the run is that of the method. What
    one use costs is in the summary, as ``adaptation_simulated_seconds``, and not on the clock of the rounds.

    Args:
        tune_epochs: passes over the client's rows
        tune_steps: local steps in place of passes, as many for every client; none for passes
        tune_lr: learning rate; none for that of the run, without its schedule
        tune: what is tuned: the whole model (all), its head, or the layers before it (body)

    >>> FineTune(tune_epochs=0).adaptation is None, FineTune(tune_steps=3).adaptation.steps
    (True, 3)
    """

    addition: ClassVar[bool] = True

    tune_epochs: Annotated[int, NonNegative] = 1
    tune_steps: Annotated[int | None, NonNegative] = None
    tune_lr: Annotated[float | None, Positive] = None
    tune: Literal["all", "head", "body"] = "all"

    @property
    def adaptation(self) -> Adaptation | None:
        """Return the training before use; None if there is none to do."""
        if super().adaptation is not None:
            raise FedskewError(
                f"algorithm {self.label()}: clients adapt the model in the method's own way before they use it: "
                "leave finetune out"
            )
        wanted = self.tune_epochs
        if self.tune_steps is not None:
            wanted = self.tune_steps
        if wanted == 0:
            return None
        return Adaptation(PartTraining(self.tune), self.tune_epochs, self.tune_steps, self.tune_lr)
