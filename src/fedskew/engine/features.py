"""The features of a batch: the input of a model's head, under any weights."""

from torch import Tensor, nn

from fedskew.models.layout import head_module


class Tap:
    """Stores the input of the head at every forward pass of a model."""

    features: Tensor

    def __init__(self, model: nn.Module, head: nn.Module | None = None) -> None:
        self._handle = (head or head_module(model)).register_forward_pre_hook(self._keep)

    def _keep(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.features = inputs[0]

    def remove(self) -> None:
        """Remove the hook from the model."""
        self._handle.remove()
