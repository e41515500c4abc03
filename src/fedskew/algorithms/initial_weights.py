"""The weights with which a method sizes its state: those that clients send, and all others by their names."""

from collections.abc import Mapping

from torch import Tensor

from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors
from fedskew.models.low_rank import low_rank_names


class InitialWeights(dict[str, Tensor]):
    """The weights that clients send, as they are before the first round.

    It has these alone, so that a state made of all of them fits what is sent. A weight that never leaves its client
    can be looked up by its name: all are such in a personal method, and where every name is local.

    Args:
        sent: the weights that clients send
        others: those that they do not, as they are at first
        head: names of the tensors of the model's head
        clients: how many clients the run has; 0 where that is not known, as in the client state
    """

    def __init__(
        self,
        sent: Tensors,
        others: Mapping[str, Tensor],
        head: frozenset[str],
        clients: int = 0,
    ) -> None:
        super().__init__(sent)
        self.clients = clients
        self.others = others
        self.head = head

    def __missing__(self, name: str) -> Tensor:
        if name in self.others:
            return self.others[name]
        known = ", ".join(sorted({*self, *self.others}))
        raise FedskewError(f"the model has no weight {name!r} to make a state of: it has {known}")

    @property
    def any_tensor(self) -> Tensor:
        """Return one of the weights, for the precision and the device of a state."""
        return next(iter({**self, **self.others}.values()))

    @property
    def head_shape(self) -> tuple[int, int]:
        """Return the numbers of outputs and of inputs of the model's head, a linear layer."""
        for name in sorted(self.head - low_rank_names(self.head)):
            known = name in self or name in self.others
            if known and self[name].dim() == 2:
                outputs, inputs = self[name].shape
                return outputs, inputs
        raise FedskewError(
            "the method needs the features of the model's head, and the model has no linear one: "
            "name its last layer 'head'"
        )
