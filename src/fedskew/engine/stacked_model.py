"""A model run for all clients of a stack at once: its modules as the layers of ``fedskew.engine.layers``.

A model with a forward pass of its own is one layer, so every model has a stacked form.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedskew.batchnorm.frozen import FrozenBatchNorm
from fedskew.batchnorm.masked import Mask, maskable
from fedskew.core.trees import Tensors
from fedskew.engine import layers as forms
from fedskew.engine.device import Precision
from fedskew.engine.lstm import vmappable
from fedskew.engine.vmapped import NORMS, Vmapped
from fedskew.models.blocks import Factor, GlobalMax, GlobalMean, Residual
from fedskew.models.layout import head_module
from fedskew.models.low_rank import AdaptedConv1d, AdaptedConv2d, AdaptedConv3d, AdaptedLinear
from fedskew.models.network import Network
from fedskew.models.recurrent import TokenStates
from fedskew.models.text_linear import MeanOfTokens
from fedskew.models.transformer import CausalTransformer

# Layers that treat every row alone and have neither weights nor a state.
_ROWWISE = (
    nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.ELU, nn.SELU,
    nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ReLU6, nn.Softplus, nn.Hardtanh, nn.Hardswish,
    nn.ReLU, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, Factor, GlobalMax, GlobalMean,
)  # fmt: skip
# Layers with weights that treat every row alone: where all are frozen, one batch has the rows of all clients
_FIXED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.GroupNorm, nn.LayerNorm, FrozenBatchNorm)


# Layers that have no form of their own, and draw no random numbers
_QUIET = (
    *NORMS, FrozenBatchNorm, AdaptedLinear, AdaptedConv1d, AdaptedConv2d, AdaptedConv3d,
    nn.Embedding, TokenStates, CausalTransformer, MeanOfTokens,
)  # fmt: skip


class StackedModel:
    """The stacked form of a model; ``forward`` remembers what ``backward`` needs.

    Args:
        model: the model of one client; it is copied
        trained: names of the parameters that get gradients
        features: whether the inputs of the model's head are kept at every forward pass
        precision: of the products in layers with weights; sums, weights and their gradients keep their own
        training: false for evaluation mode, which has no backward pass
    """

    def __init__(
        self,
        model: nn.Module,
        trained: Iterable[str],
        features: bool = False,
        precision: Precision = "float32",
        training: bool = True,
    ) -> None:
        self.precision = precision
        self.training = training
        self.model, self.mask = maskable(model)
        vmappable(self.model)
        self.model.train(training)
        head = None
        if features:
            head = head_module(self.model)
        builder = _Builder(self.model, frozenset(trained), self.mask, head)
        builder.shares_frozen = training and precision != "bf16"
        self._root = builder.layer(self.model, first=True)
        self.draws = builder.draws  # whether layers may draw random numbers
        self._run = forms.Run()

    @property
    def features(self) -> Tensor | None:
        """The inputs of the head at the last forward pass, if they are kept."""
        return self._run.features

    @property
    def moved(self) -> Tensors:
        """The buffers that the last forward pass changed."""
        return self._run.moved

    @torch.no_grad()
    def forward(self, values: Tensors, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the outputs of every client on its batch; ``values`` are stacked parameters and buffers by name.

        ``real`` says which rows of a padded batch count in the statistics of a normalisation.
        """
        self._run = forms.Run(dict(values), real)
        self._run.precision = self.precision
        self._run.learns = self.training
        y = self._root.forward(x, self._run)
        if not self.training:
            self._run.saved = {}
        if self.precision == "bf16":
            return y.float()
        return y

    @torch.no_grad()
    def backward(self, slopes: Tensor, of_features: Tensor | None = None) -> Tensors:
        """Return the gradients of the trained parameters from those of the outputs, and of the features if given."""
        self._run.of_features = of_features
        self._root.backward(slopes, self._run, wanted=False)
        grads = self._run.grads
        self._run.grads = {}
        self._run.saved = {}
        return grads


class _Builder:
    """Makes the layers of the stacked form from the modules of a model."""

    def __init__(
        self, model: nn.Module, trained: frozenset[str], mask: Mask, head: nn.Module | None
    ) -> None:
        self.trained = trained
        self.mask = mask
        self.head = head
        # A tensor that has two names goes by the first.
        self.names: dict[int, str] = {}
        tensors = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        for name, value in tensors:
            self.names.setdefault(id(value), name)
        self.draws = False
        # Whether frozen layers see the rows of all clients as one batch
        self.shares_frozen = False
        self.hooked = any(
            part._forward_hooks or part._forward_pre_hooks for part in model.modules()
        )

    def layer(self, module: nn.Module, first: bool = False, fresh: bool = False) -> forms.Layer:
        """Return the stacked form of a module; ``fresh`` says that its input may be overwritten."""
        known = None
        if not self.hooked:
            known = self._known(module, first, fresh)
        if known is None:
            self.draws |= not isinstance(module, _QUIET)
            return Vmapped(module, self.names, self.trained, self.mask, self.head, first)
        self.draws |= isinstance(module, _DropoutNd)
        if module is self.head:
            return forms.Head(known)
        return known

    def _known(self, module: nn.Module, first: bool, fresh: bool) -> forms.Layer | None:
        """Return the form of a module with a known forward pass; a derived class may have another."""
        kind: Any = type(module)
        if self._is_frozen(module):
            return forms.Rowwise(module)
        if kind is nn.Sequential or kind is Network:
            return self._chain(module, first)
        if kind is Residual:
            return self._residual(module)
        if kind is nn.Linear:
            return forms.Linear(forms.Weights(module, self.names, self.trained))
        if kind in (nn.Conv1d, nn.Conv2d) and _pads_zeros(module):
            return forms.Conv(module, forms.Weights(module, self.names, self.trained))
        return _weightless(module, fresh)

    def _is_frozen(self, module: nn.Module) -> bool:
        """Return whether a layer, or a residual block, has weights of which none is trained."""
        if not self.shares_frozen or module is self.head:
            return False
        names = {self.names[id(value)] for value in module.parameters()}
        if not names or names & self.trained or list(module.buffers()):
            return False
        return all(_treats_rows_alone(part) for part in module.modules())

    def _residual(self, module: Any) -> forms.Layer:
        shortcut = after = None
        if type(module.shortcut) is not nn.Identity:
            shortcut = self.layer(module.shortcut)
        if type(module.after) is not nn.Identity:
            after = self.layer(module.after)
        return forms.Residual(self.layer(module.body), shortcut, after)

    def _chain(self, module: nn.Module, first: bool) -> forms.Layer:
        """Return layers one after the other, with nested ones in place.

        ReLU and max-pooling can change places, for the same numbers: the ReLU then sees fewer of them.
        """
        left = self._leaves(module)
        for i in range(len(left) - 1):
            if type(left[i]) is nn.ReLU and type(left[i + 1]) is nn.MaxPool2d:
                left[i], left[i + 1] = left[i + 1], left[i]
        layers: list[forms.Layer] = []
        lowest = first  # whether no layer with weights comes before
        fresh = False
        while left:
            module = left.pop(0)
            layer = self.layer(module, lowest, fresh)
            if isinstance(layer, forms.Conv) and isinstance(module, nn.Conv2d):
                layer = self._block(layer, module, left)
            elif isinstance(layer, forms.Linear):
                layer.relu = _take_relu(left)
            lowest = lowest and isinstance(layer, forms.WEIGHTLESS)
            fresh = isinstance(layer, forms.Linear | forms.ConvBlock | forms.MaxPool)
            layers.append(layer)
        return forms.Chain(layers, first)

    def _block(self, conv: forms.Conv, module: nn.Conv2d, after: list[nn.Module]) -> forms.Layer:
        """Return a convolution together with the pooling and the ReLU after it, which are taken from the list."""
        pool = None
        if after:
            following = self._known(after[0], False, False)
            if isinstance(following, forms.MaxPool) and following.halves:
                pool = following
                after.pop(0)
        return forms.ConvBlock(conv, pool, _take_relu(after), module)

    def _leaves(self, module: nn.Module, inside: bool = False) -> list[nn.Module]:
        """Return the modules of nested sequences, in order; the head stays whole."""
        parts: Iterable[nn.Module] = ()
        if type(module) is nn.Sequential:
            parts = module
        elif type(module) is Network:
            parts = (module.features, module.head)
        if not parts or (inside and module is self.head):
            return [module]
        leaves: list[nn.Module] = []
        for part in parts:
            leaves.extend(self._leaves(part, inside=True))
        return leaves


def _treats_rows_alone(module: nn.Module) -> bool:
    """Return whether a layer, or a block of such layers, answers every row by itself, and always alike."""
    kind: Any = type(module)
    if kind in (nn.Sequential, Residual) or kind in _FIXED:
        return True
    return not isinstance(module, _DropoutNd) and _weightless(module, False) is not None


def _pads_zeros(module: Any) -> bool:
    """Return whether a convolution pads with zeros, as many as its numbers say."""
    return module.padding_mode == "zeros" and isinstance(module.padding, tuple)


def _weightless(module: nn.Module, fresh: bool) -> forms.Layer | None:
    """Return the form of a module without weights that is known."""
    kind: Any = type(module)
    if kind is nn.ReLU:
        return forms.Relu(fresh)
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
        return forms.Flatten()
    if isinstance(module, nn.MaxPool2d) and kind is nn.MaxPool2d and not module.return_indices:
        return forms.MaxPool(module)
    if kind not in _ROWWISE:
        return None
    if getattr(module, "start_dim", 1) <= 0 or getattr(module, "dim", 1) <= 0:
        return None  # it would join the rows of a batch
    return forms.Rowwise(module)


def _take_relu(after: list[nn.Module]) -> bool:
    """Take a ReLU from the front of the list, and return whether there was one."""
    if not after or type(after[0]) is not nn.ReLU:
        return False
    after.pop(0)
    return True
