"""A model run for all clients of a stack at once: known layers as batched operations with their own backward pass.

Activations are ``[client, row, ...]`` and weights ``[client, ...]``. A linear layer is a batched matrix product, a
convolution a grouped one. Layers without weights see the rows of all clients as one batch. Any other layer, and a
model with a forward pass of its own, runs under ``torch.func.vmap`` and is differentiated by autograd, so every model
has a stacked form.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.dropout import _DropoutNd

from fedskew.batchnorm.masked import Mask, MaskedBatchNorm, maskable
from fedskew.core.trees import Tensors
from fedskew.engine.device import Precision
from fedskew.engine.features import Tap
from fedskew.kernels import available
from fedskew.kernels.geometry import Geometry
from fedskew.models.blocks import Factor, GlobalMax, GlobalMean, Residual
from fedskew.models.layout import head_module
from fedskew.models.network import Network

aten = torch.ops.aten

# Layers that treat every row alone and have neither weights nor a state.
_ROWWISE = (
    nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.ELU, nn.SELU,
    nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ReLU6, nn.Softplus, nn.Hardtanh, nn.Hardswish,
    nn.ReLU, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, Factor, GlobalMax, GlobalMean,
)  # fmt: skip

_NORMS = (MaskedBatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # these never write to their input


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
        self.precision, self.training = precision, training
        self.model, self.mask = maskable(model)
        self.model.train(training)
        head = head_module(self.model) if features else None
        builder = _Builder(self.model, frozenset(trained), self.mask, head)
        self._root = builder.layer(self.model, first=True)
        self.draws = builder.draws  # whether layers may draw random numbers
        self._run = _Run()

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
        self._run = _Run(dict(values), real)
        self._run.precision, self._run.learns = self.precision, self.training
        y = self._root.forward(x, self._run)
        if not self.training:
            self._run.saved = {}
        return y.float() if self.precision == "bf16" else y

    @torch.no_grad()
    def backward(self, slopes: Tensor, of_features: Tensor | None = None) -> Tensors:
        """Return the gradients of the trained parameters from those of the outputs, and of the features if given."""
        self._run.of_features = of_features
        self._root.backward(slopes, self._run, wanted=False)
        grads, self._run.saved, self._run.grads = self._run.grads, {}, {}
        return grads


class _Run:
    """One forward and backward pass."""

    def __init__(self, values: Tensors | None = None, real: Tensor | None = None) -> None:
        self.values, self.real = values or {}, real
        self.moved: Tensors = {}
        self.features: Tensor | None = None
        self.of_features: Tensor | None = None
        self.grads: Tensors = {}
        self.saved: dict[_Layer, Any] = {}  # what layers keep from the forward to the backward pass
        self.learns = True  # whether there will be a backward pass
        self.precision: Precision = "float32"

    def low(self, value: Tensor) -> Tensor:
        """Return a tensor in the precision of products."""
        return value.to(torch.bfloat16) if self.precision == "bf16" else value

    def add(self, name: str, grad: Tensor) -> None:
        """Add a gradient; a weight that is used in two places gets two."""
        grad = grad.to(self.values[name].dtype)
        self.grads[name] = self.grads[name] + grad if name in self.grads else grad


class _Layer:
    """A layer of the stacked form; ``backward`` returns the gradient of its input where that is ``wanted``."""

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        raise NotImplementedError

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        raise NotImplementedError


class _Weights:
    """Where a layer finds a weight: the stacked one by its name, or the model's own if that is frozen."""

    def __init__(self, module: nn.Module, names: dict[int, str], trained: frozenset[str]) -> None:
        self._own = dict(module.named_parameters(recurse=False))
        self._names = {name: names[id(value)] for name, value in self._own.items()}
        self.trained = {name for name, full in self._names.items() if full in trained}

    def get(self, name: str, run: _Run, clients: int) -> Tensor | None:
        if name not in self._own:
            return None
        found = run.values.get(self._names[name])
        return self._own[name].expand(clients, *self._own[name].shape) if found is None else found

    def add(self, name: str, grad: Tensor, run: _Run) -> None:
        run.add(self._names[name], grad)


class _Head(_Layer):
    """The head of the model, whose inputs are the features."""

    def __init__(self, layer: _Layer) -> None:
        self.layer = layer

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        run.features = x
        return self.layer.forward(x, run)

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        below = self.layer.backward(d, run, wanted)
        return below if below is None or run.of_features is None else below + run.of_features


class _Linear(_Layer):
    """A linear layer, and the ReLU that follows it."""

    relu = False

    def __init__(self, weights: _Weights) -> None:
        self.weights = weights

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        weight, bias = (self.weights.get(name, run, len(x)) for name in ("weight", "bias"))
        assert weight is not None
        flat, weight = run.low(x).flatten(1, -2), run.low(weight)
        bias = None if bias is None else run.low(bias)
        # Outputs lie in memory as [client, output, row]: the product and all that is summed over outputs are faster so.
        inputs = flat.mT
        if self.relu and bias is not None and x.is_cuda and x.dtype == torch.float32 and available():
            from fedskew.kernels.loss_kernels import bias_relu_

            y = torch.bmm(weight, inputs)
            bias_relu_(y, bias)
        else:
            y = torch.bmm(weight, inputs) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, inputs)
            y = y.relu_() if self.relu else y
        run.saved[self] = x.shape, flat, weight, y.mT
        return y.mT if x.dim() == 3 else y.mT.reshape(*x.shape[:-1], y.shape[1])

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        d = run.low(d).flatten(1, -2)
        shape, x, weight, y = run.saved[self]
        if self.relu:
            d = aten.threshold_backward(d, y, 0)
        if "weight" in self.weights.trained:
            self.weights.add("weight", torch.bmm(d.mT, x), run)
        if "bias" in self.weights.trained:
            self.weights.add("bias", d.sum(1), run)
        if not wanted:
            return None
        below = torch.bmm(weight.mT, d.mT).mT  # laid out like the outputs of the layer below
        return below if len(shape) == 3 else below.reshape(shape)


class _Conv(_Layer):
    """A convolution in one or two dimensions as one grouped convolution: ``[row, client * channel, ...]``."""

    def __init__(self, module: Any, weights: _Weights) -> None:
        self.weights = weights
        self.geometry = (list(module.stride), list(module.padding), list(module.dilation))
        self.groups = module.groups

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        clients, rows = x.shape[:2]
        weight, bias = (self.weights.get(name, run, clients) for name in ("weight", "bias"))
        assert weight is not None
        flat, weight = run.low(x).transpose(0, 1).reshape(rows, -1, *x.shape[3:]), run.low(weight).flatten(0, 1)
        run.saved[self] = flat, weight
        flat_bias = None if bias is None else run.low(bias).flatten()
        y: Tensor = aten.convolution(
            flat, weight, flat_bias, *self.geometry, False, [0] * (x.dim() - 3), clients * self.groups
        )
        return y.view(rows, clients, -1, *y.shape[2:]).transpose(0, 1)

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        clients, rows = d.shape[:2]
        flat, (x, weight) = d.transpose(0, 1).reshape(rows, -1, *d.shape[3:]), run.saved[self]
        mask = [wanted, "weight" in self.weights.trained, "bias" in self.weights.trained]
        below, of_weight, of_bias = aten.convolution_backward(
            flat.to(x.dtype),
            x,
            weight,
            [len(weight)],
            *self.geometry,
            False,
            [0] * (d.dim() - 3),
            clients * self.groups,
            mask,
        )
        if mask[1]:
            self.weights.add("weight", of_weight.view(clients, -1, *weight.shape[1:]), run)
        if mask[2]:
            self.weights.add("bias", of_bias.view(clients, -1), run)
        return below.view(rows, clients, -1, *below.shape[2:]).transpose(0, 1) if wanted else None


class _Relu(_Layer):
    """ReLU; in place where its input is the fresh output of the layer before it."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        y = run.saved[self] = x.relu_() if self.in_place else x.relu()
        return y

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        found: Tensor = aten.threshold_backward(d, run.saved[self], 0)
        return found


class _Flatten(_Layer):
    """All axes of a row as one."""

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        run.saved[self] = x.shape
        return x.flatten(2)

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        return d.reshape(run.saved[self])


class _MaxPool(_Layer):
    """Max-pooling in two dimensions."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        stride = module.stride if module.stride is not None else module.kernel_size
        sizes = (module.kernel_size, stride, module.padding, module.dilation)
        self.geometry = tuple([size, size] if isinstance(size, int) else list(size) for size in sizes)
        self.ceil = module.ceil_mode
        self.halves = (*self.geometry, self.ceil) == ([2, 2], [2, 2], [0, 0], [1, 1], False)

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        flat, swapped = _merged(x)
        y, chosen = aten.max_pool2d_with_indices(flat, *self.geometry, self.ceil)
        run.saved[self] = flat, chosen, swapped
        return _divided(y, x, swapped)

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        x, chosen, swapped = run.saved[self]
        flat = _merged_like(d, swapped)
        below = aten.max_pool2d_with_indices_backward(flat, x, *self.geometry, self.ceil, chosen)
        return _divided(below, d, swapped)


class _Rowwise(_Layer):
    """A layer without weights: the rows of all clients are one batch, and autograd goes backward."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.copies = module, getattr(module, "inplace", False)

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        flat, swapped = _merged(x)
        if not run.learns:
            return _divided(self.module(flat.clone() if self.copies else flat), x, swapped)
        with torch.enable_grad():
            leaf = flat.detach().requires_grad_()
            y = self.module(leaf.clone() if self.copies else leaf)
        run.saved[self] = leaf, y, swapped
        return _divided(y.detach(), x, swapped)

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        leaf, y, swapped = run.saved[self]
        (below,) = torch.autograd.grad(y, leaf, _merged_like(d, swapped))
        return _divided(below, d, swapped)


class _Vmapped(_Layer):
    """Any module under ``vmap``: normalisation, layers that are not known, or a whole model."""

    def __init__(
        self,
        module: nn.Module,
        names: dict[int, str],
        trained: frozenset[str],
        mask: Mask,
        head: nn.Module | None,
        first: bool,
    ) -> None:
        self.first, self.writes = first, not isinstance(module, _NORMS)
        self.module, self.mask = module, mask
        inside = head is not None and any(part is head for part in module.modules())
        self.tap = Tap(module, head) if inside and head is not None else None
        self.names = {name: names[id(value)] for name, value in module.named_parameters()}
        self.buffers = {name: names[id(value)] for name, value in module.named_buffers()}
        self.trained = trained

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        named = {**self.names, **self.buffers}
        if run.precision == "bf16":
            x = x.float()
        given = {name: full for name, full in named.items() if full in run.values}
        with torch.set_grad_enabled(run.learns):
            leaves = [
                run.values[full].detach().requires_grad_() if full in self.trained else run.values[full]
                for full in given.values()
            ]
            inputs = x.detach()
            if x.is_floating_point() and not self.first and run.learns:
                inputs.requires_grad_()
            real = run.real

            def one_client(x: Tensor, real: Tensor | None, *values: Tensor) -> tuple[Tensor, ...]:
                everything = dict(zip(given, values, strict=True))
                self.mask.rows = real
                outputs = functional_call(self.module, everything, (x,))
                extra = (self.tap.features,) if self.tap else ()
                # functional_call leaves reassigned buffers in its dictionary.
                return outputs, *extra, *(everything[name] for name in self.buffers)

            run_all: Callable[..., tuple[Tensor, ...]] = partial(_alone, one_client)
            if len(x) > 1:
                dims = (0, None if real is None else 0, *(0 for _ in leaves))
                run_all = vmap(one_client, in_dims=dims, randomness="different")
            given_inputs = inputs.clone() if inputs.requires_grad and self.writes else inputs
            y, *rest = run_all(given_inputs, real, *leaves)
        inside = None
        if self.tap:
            inside, *rest = rest
            run.features = inside.detach()
        trained = {full: leaf for full, leaf in zip(given.values(), leaves, strict=True) if full in self.trained}
        run.saved[self] = inputs, trained, y, inside
        for full, value in zip(self.buffers.values(), rest, strict=True):
            run.values[full] = run.moved[full] = value.detach()
        return y.detach()

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        x, trained, y, inside = run.saved[self]
        outputs, slopes = [y], [d.to(y.dtype)]
        if inside is not None and run.of_features is not None:
            outputs.append(inside)
            slopes.append(run.of_features.to(inside.dtype))
        leaves = [*trained.values(), *([x] if wanted else [])]
        if not leaves:
            return None
        found = torch.autograd.grad(outputs, leaves, slopes, materialize_grads=True)
        for name, grad in zip(trained, found, strict=False):
            run.add(name, grad)
        return found[-1] if wanted else None


_WEIGHTLESS = (_Relu, _Flatten, _MaxPool, _Rowwise)


class _Chain(_Layer):
    """Layers one after the other; those in front of the first weights need no gradient of their input."""

    def __init__(self, layers: list[_Layer], first: bool) -> None:
        self.layers = layers
        trains = (not isinstance(layer, _WEIGHTLESS) for layer in layers)
        self.lowest = next((i for i, one in enumerate(trains) if one), len(layers)) if first else -1

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        for layer in self.layers:
            x = layer.forward(x, run)
        return x

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        below: Tensor | None = d
        for i in range(len(self.layers) - 1, max(self.lowest, 0) - 1, -1):
            assert below is not None
            below = self.layers[i].backward(below, run, wanted or i > self.lowest)
        return below if wanted else None


class _ConvBlock(_Layer):
    """A convolution in two dimensions with the pooling and the ReLU that follow it: one kernel on a GPU."""

    def __init__(self, conv: _Conv, pool: _MaxPool | None, relu: bool, module: nn.Conv2d) -> None:
        self.conv, self.pool = conv, pool
        self.plain = _Chain([conv, *([pool] if pool else []), *([_Relu(in_place=True)] if relu else [])], first=False)
        kernel, stride, padding, dilation = (
            (int(pair[0]), int(pair[1])) for pair in (module.kernel_size, *conv.geometry)
        )
        self.geometry = Geometry(kernel, stride, padding, dilation, pool is not None, relu)

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        if not _fused(x, self.conv.groups):
            return self.plain.forward(x, run)
        from fedskew.kernels import conv_kernels as kernels

        weight, bias = (self.conv.weights.get(name, run, len(x)) for name in ("weight", "bias"))
        assert weight is not None
        last, weight = run.low(x).permute(0, 1, 3, 4, 2).contiguous(), run.low(weight)
        y, place = kernels.forward(last, weight, bias, self.geometry, run.precision)
        run.saved[self] = last, weight, y, place
        return y.permute(0, 1, 4, 2, 3)

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        if self not in run.saved:
            return self.plain.backward(d, run, wanted)
        from fedskew.kernels import conv_kernels as kernels

        x, weight, y, place = run.saved[self]
        geometry = self.geometry
        d = run.low(d).permute(0, 1, 3, 4, 2).contiguous()
        if geometry.relu and not geometry.pool:
            d = aten.threshold_backward(d, y, 0)
        weights = self.conv.weights
        of_weight, of_bias = kernels.weight_gradient(
            x, d, place, weight, "bias" in weights.trained, geometry, run.precision
        )
        if "weight" in weights.trained:
            weights.add("weight", of_weight, run)
        if of_bias is not None:
            weights.add("bias", of_bias, run)
        if not wanted:
            return None
        return kernels.input_gradient(d, place, weight, x.shape, geometry, run.precision).permute(0, 1, 4, 2, 3)


class _Residual(_Layer):
    """The block ``after(shortcut(x) + body(x))``."""

    def __init__(self, body: _Layer, shortcut: _Layer | None, after: _Layer | None) -> None:
        self.body, self.shortcut, self.after = body, shortcut, after

    def forward(self, x: Tensor, run: _Run) -> Tensor:
        beside = self.shortcut.forward(x, run) if self.shortcut else x
        total = beside + self.body.forward(x, run)
        return self.after.forward(total, run) if self.after else total

    def backward(self, d: Tensor, run: _Run, wanted: bool) -> Tensor | None:
        if self.after:
            found = self.after.backward(d, run, wanted=True)
            assert found is not None
            d = found
        body = self.body.backward(d, run, wanted)
        beside = self.shortcut.backward(d, run, wanted) if self.shortcut else d
        return body + beside if wanted and body is not None and beside is not None else None


class _Builder:
    """Makes the layers of the stacked form from the modules of a model."""

    def __init__(self, model: nn.Module, trained: frozenset[str], mask: Mask, head: nn.Module | None) -> None:
        self.trained, self.mask, self.head = trained, mask, head
        # A tensor that has two names goes by the first.
        self.names: dict[int, str] = {}
        tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        for name, value in tensors:
            self.names.setdefault(id(value), name)
        self.draws = False
        self.hooked = any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())

    def layer(self, module: nn.Module, first: bool = False, fresh: bool = False) -> _Layer:
        """Return the stacked form of a module; ``fresh`` says that its input may be overwritten."""
        found = None if self.hooked else self._known(module, first, fresh)
        self.draws |= isinstance(module, _DropoutNd) or (found is None and not isinstance(module, _NORMS))
        if found is None:
            return _Vmapped(module, self.names, self.trained, self.mask, self.head, first)
        return _Head(found) if module is self.head else found

    def _known(self, module: nn.Module, first: bool, fresh: bool) -> _Layer | None:
        """Return the form of a module with a known forward pass; a derived class may have another."""
        kind: Any = type(module)
        if kind is nn.Sequential or kind is Network:
            return self._chain(module, first)
        if isinstance(module, Residual) and kind is Residual:
            around = (
                None if type(part) is nn.Identity else self.layer(part) for part in (module.shortcut, module.after)
            )
            return _Residual(self.layer(module.body), *around)
        if kind is nn.Linear:
            return _Linear(_Weights(module, self.names, self.trained))
        if kind in (nn.Conv1d, nn.Conv2d) and module.padding_mode == "zeros" and isinstance(module.padding, tuple):
            return _Conv(module, _Weights(module, self.names, self.trained))
        if kind is nn.ReLU:
            return _Relu(fresh)
        if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1):
            return _Flatten()
        if isinstance(module, nn.MaxPool2d) and kind is nn.MaxPool2d and not module.return_indices:
            return _MaxPool(module)
        whole_rows = kind in _ROWWISE and getattr(module, "start_dim", 1) > 0 and getattr(module, "dim", 1) > 0
        return _Rowwise(module) if whole_rows else None

    def _chain(self, module: nn.Module, first: bool) -> _Layer:
        """Return layers one after the other, with nested ones in place.

        ReLU and max-pooling can change places, for the same numbers: the ReLU then sees fewer of them.
        """
        flat = self._leaves(module)
        for i in range(len(flat) - 1):
            if type(flat[i]) is nn.ReLU and type(flat[i + 1]) is nn.MaxPool2d:
                flat[i], flat[i + 1] = flat[i + 1], flat[i]
        layers: list[_Layer] = []
        while flat:
            module = flat.pop(0)
            fresh = bool(layers) and isinstance(layers[-1], _Linear | _ConvBlock | _MaxPool)
            lowest = first and all(isinstance(layer, _WEIGHTLESS) for layer in layers)
            layer = self.layer(module, lowest, fresh)
            if isinstance(layer, _Conv) and isinstance(module, nn.Conv2d):
                layer = self._block(layer, module, flat)
            elif isinstance(layer, _Linear) and flat and type(flat[0]) is nn.ReLU:
                layer.relu = bool(flat.pop(0))
            layers.append(layer)
        return _Chain(layers, first)

    def _block(self, conv: _Conv, module: nn.Conv2d, after: list[nn.Module]) -> _Layer:
        """Return a convolution together with the pooling and the ReLU after it, which are taken from the list."""
        pool = None
        if after and isinstance(found := self._known(after[0], False, False), _MaxPool) and found.halves:
            pool = found
            after.pop(0)
        relu = bool(after) and type(after[0]) is nn.ReLU
        if relu:
            after.pop(0)
        return _ConvBlock(conv, pool, relu, module)

    def _leaves(self, module: nn.Module, inside: bool = False) -> list[nn.Module]:
        """Return the modules of nested sequences, in order; the head stays whole."""
        parts: Iterable[nn.Module] = ()
        if type(module) is nn.Sequential:
            parts = module
        elif type(module) is Network:
            parts = (module.features, module.head)
        if not parts or (inside and module is self.head):
            return [module]
        return [leaf for part in parts for leaf in self._leaves(part, inside=True)]


def _fused(x: Tensor, groups: int) -> bool:
    """Return whether a convolution of these images runs in the kernels for a GPU."""
    return x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and groups == 1 and available()


def _alone(function: Callable[..., tuple[Tensor, ...]], *stacks: Tensor | None) -> tuple[Tensor, ...]:
    """Return what ``vmap`` would for a stack of one client, from plain tensors."""
    return tuple(found.unsqueeze(0) for found in function(*(None if one is None else one[0] for one in stacks)))


def _merged(x: Tensor) -> tuple[Tensor, bool]:
    """Return the rows of all clients on one axis without copying if possible, and whether rows come before clients."""
    swapped = not x.is_contiguous() and x.transpose(0, 1).is_contiguous()
    return _merged_like(x, swapped), swapped


def _merged_like(x: Tensor, swapped: bool) -> Tensor:
    return (x.transpose(0, 1) if swapped else x).reshape(-1, *x.shape[2:])


def _divided(flat: Tensor, like: Tensor, swapped: bool) -> Tensor:
    """Return merged rows with the first two axes of ``like``."""
    clients, rows = like.shape[:2]
    if swapped:
        return flat.view(rows, clients, *flat.shape[1:]).transpose(0, 1)
    return flat.view(clients, rows, *flat.shape[1:])
