"""The contract of adaptation: what a client does with a model on its own rows before it uses it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedskew.algorithms.contract import Algorithm


@dataclass(frozen=True)
class Adaptation:
    """Local training of the model that a client is about to use, each time from what ``client_model`` returns.

    The client trains on its training rows, with the run's batch size and a fresh state of the run's local optimiser, or
    with plain gradient steps. Nothing of it is sent or kept.

    Args:
        method: how the model is trained; it has no client state, and receives the global ``weights``
        epochs: passes over the client's rows
        steps: local steps in place of passes, as many for every client
        lr: learning rate; None for that of the run, without its schedule
        plain: whether steps are plain, without the momentum, weight decay and clipping of the run
    """

    method: "Algorithm"
    epochs: int = 1
    steps: int | None = None
    lr: float | None = None
    plain: bool = False
