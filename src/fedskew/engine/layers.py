"""Layers run for all clients of a stack at once, as batched operations with their own backward pass.

Activations are ``[client, row, ...]`` and weights ``[client, ...]``. A linear layer is a batched matrix product, a
convolution a grouped one. Layers without weights see the rows of all clients as one batch. Any other layer is one of
``fedskew.engine.vmapped``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedskew.core.trees import Tensors
from fedskew.engine.device import Precision
from fedskew.kernels import available
from fedskew.kernels.geometry import Geometry

aten = torch.ops.aten


class Run:
    """One forward and backward pass."""

    def __init__(self, values: Tensors | None = None, real: Tensor | None = None) -> None:
        self.values = values or {}
        self.real = real
        self.moved: Tensors = {}
        self.features: Tensor | None = None
        self.of_features: Tensor | None = None
        self.grads: Tensors = {}
        self.saved: dict[Layer, Any] = {}  # what layers keep from the forward to the backward pass
        self.learns = True  # whether there will be a backward pass
        self.precision: Precision = "float32"

    def low(self, value: Tensor) -> Tensor:
        """Return a tensor in the precision of products."""
        if self.precision == "bf16":
            return value.to(torch.bfloat16)
        return value

    def add(self, name: str, grad: Tensor) -> None:
        """Add a gradient; a weight that is used in two places gets two."""
        grad = grad.to(self.values[name].dtype)
        if name in self.grads:
            self.grads[name] = self.grads[name] + grad
        else:
            self.grads[name] = grad


class Layer:
    """A layer of the stacked form."""

    def forward(self, x: Tensor, run: Run) -> Tensor:
        """Return its outputs, and keep in ``run.saved`` what ``backward`` needs."""
        raise NotImplementedError

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        """Add the gradients of its weights to ``run``, and return that of its input where it is ``wanted``."""
        raise NotImplementedError


class Weights:
    """Where a layer finds a weight: the stacked one by its name, or the model's own if that is frozen."""

    def __init__(self, module: nn.Module, names: dict[int, str], trained: frozenset[str]) -> None:
        self._own = dict(module.named_parameters(recurse=False))
        self._names: dict[str, str] = {}
        self.trained: set[str] = set()
        for name, value in self._own.items():
            full = names[id(value)]
            self._names[name] = full
            if full in trained:
                self.trained.add(name)

    def get(self, name: str, run: Run, clients: int) -> Tensor | None:
        """Return a weight of all clients, or None if the layer has none of that name."""
        if name not in self._own:
            return None
        stacked = run.values.get(self._names[name])
        if stacked is None:
            return self._own[name].expand(clients, *self._own[name].shape)
        return stacked

    def add(self, name: str, grad: Tensor, run: Run) -> None:
        """Add the gradient of a weight."""
        run.add(self._names[name], grad)


class Head(Layer):
    """The head of the model, whose inputs are the features."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer

    def forward(self, x: Tensor, run: Run) -> Tensor:
        run.features = x
        return self.layer.forward(x, run)

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        below = self.layer.backward(d, run, wanted)
        if below is None or run.of_features is None:
            return below
        return below + run.of_features


class Linear(Layer):
    """A linear layer, and the ReLU that follows it."""

    relu = False

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def forward(self, x: Tensor, run: Run) -> Tensor:
        weight = self.weights.get("weight", run, len(x))
        bias = self.weights.get("bias", run, len(x))
        assert weight is not None
        flat = run.low(x).flatten(1, -2)
        weight = run.low(weight)
        if bias is not None:
            bias = run.low(bias)
        # Outputs lie in memory as [client, output, row]: the product and all that is summed over outputs are faster so.
        inputs = flat.mT
        if bias is not None and self._fused_relu(x):
            from fedskew.kernels.loss_kernels import bias_relu_

            y = torch.bmm(weight, inputs)
            bias_relu_(y, bias)
        else:
            if bias is None:
                y = torch.bmm(weight, inputs)
            else:
                y = torch.baddbmm(bias.unsqueeze(2), weight, inputs)
            if self.relu:
                y = y.relu_()
        run.saved[self] = x.shape, flat, weight, y.mT
        if x.dim() == 3:
            return y.mT
        return y.mT.reshape(*x.shape[:-1], y.shape[1])

    def _fused_relu(self, x: Tensor) -> bool:
        """Return whether bias and ReLU are one kernel for these inputs."""
        return self.relu and x.is_cuda and x.dtype == torch.float32 and available()

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
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
        if len(shape) == 3:
            return below
        return below.reshape(shape)


class Conv(Layer):
    """A convolution in one or two dimensions as one grouped convolution: ``[row, client * channel, ...]``."""

    def __init__(self, module: Any, weights: Weights) -> None:
        self.weights = weights
        self.geometry = (list(module.stride), list(module.padding), list(module.dilation))
        self.groups = module.groups

    def forward(self, x: Tensor, run: Run) -> Tensor:
        clients, rows = x.shape[:2]
        weight = self.weights.get("weight", run, clients)
        bias = self.weights.get("bias", run, clients)
        assert weight is not None
        flat = run.low(x).transpose(0, 1).reshape(rows, -1, *x.shape[3:])
        weight = run.low(weight).flatten(0, 1)
        run.saved[self] = flat, weight
        if bias is not None:
            bias = run.low(bias).flatten()
        y: Tensor = aten.convolution(
            flat,
            weight,
            bias,
            *self.geometry,
            False,
            [0] * (x.dim() - 3),
            clients * self.groups,
        )
        return y.view(rows, clients, -1, *y.shape[2:]).transpose(0, 1)

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        clients, rows = d.shape[:2]
        flat = d.transpose(0, 1).reshape(rows, -1, *d.shape[3:])
        x, weight = run.saved[self]
        trained = self.weights.trained
        mask = [wanted, "weight" in trained, "bias" in trained]
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
        if "weight" in trained:
            self.weights.add("weight", of_weight.view(clients, -1, *weight.shape[1:]), run)
        if "bias" in trained:
            self.weights.add("bias", of_bias.view(clients, -1), run)
        if not wanted:
            return None
        of_input: Tensor = below.view(rows, clients, -1, *below.shape[2:])
        return of_input.transpose(0, 1)


class Relu(Layer):
    """ReLU; in place where its input is the fresh output of the layer before it."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place

    def forward(self, x: Tensor, run: Run) -> Tensor:
        if self.in_place:
            y = x.relu_()
        else:
            y = x.relu()
        run.saved[self] = y
        return y

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        below: Tensor = aten.threshold_backward(d, run.saved[self], 0)
        return below


class Flatten(Layer):
    """All axes of a row as one."""

    def forward(self, x: Tensor, run: Run) -> Tensor:
        run.saved[self] = x.shape
        return x.flatten(2)

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        return d.reshape(run.saved[self])


class MaxPool(Layer):
    """Max-pooling in two dimensions."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        kernel = _pair(module.kernel_size)
        stride = kernel
        if module.stride is not None:
            stride = _pair(module.stride)
        self.geometry = (kernel, stride, _pair(module.padding), _pair(module.dilation))
        self.ceil = module.ceil_mode
        self.halves = self.geometry == ([2, 2], [2, 2], [0, 0], [1, 1]) and not self.ceil

    def forward(self, x: Tensor, run: Run) -> Tensor:
        flat, swapped = _merged(x)
        y, chosen = aten.max_pool2d_with_indices(flat, *self.geometry, self.ceil)
        run.saved[self] = flat, chosen, swapped
        return _divided(y, x, swapped)

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        x, chosen, swapped = run.saved[self]
        flat = _merged_like(d, swapped)
        below = aten.max_pool2d_with_indices_backward(flat, x, *self.geometry, self.ceil, chosen)
        return _divided(below, d, swapped)


class Rowwise(Layer):
    """A layer without weights of the clients' own: their rows are one batch, and autograd goes backward."""

    # Whether nothing below has weights that are trained, so that no gradient goes through it
    lowest = False

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.in_place = getattr(module, "inplace", False)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        flat, swapped = _merged(x)
        if self.lowest or not run.learns:
            return _divided(self._outputs(flat), x, swapped)
        with torch.enable_grad():
            leaf = flat.detach().requires_grad_()
            y = self._outputs(leaf)
        run.saved[self] = leaf, y, swapped
        return _divided(y.detach(), x, swapped)

    def _outputs(self, flat: Tensor) -> Tensor:
        """Return the outputs of the module, which may write to a copy of its input only."""
        if self.in_place:
            flat = flat.clone()
        y: Tensor = self.module(flat)
        return y

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        leaf, y, swapped = run.saved[self]
        (below,) = torch.autograd.grad(y, leaf, _merged_like(d, swapped))
        return _divided(below, d, swapped)


WEIGHTLESS = (Relu, Flatten, MaxPool, Rowwise)


class Chain(Layer):
    """Layers one after the other; those in front of the first weights need no gradient of their input."""

    def __init__(self, layers: list[Layer], first: bool) -> None:
        self.layers = layers
        # The first layer with weights, below which no gradient is needed.
        self.lowest = -1
        if first:
            self.lowest = _weightless_ahead(layers)
        for layer in layers[: max(self.lowest, 0)]:
            if isinstance(layer, Rowwise):
                layer.lowest = True

    def forward(self, x: Tensor, run: Run) -> Tensor:
        for layer in self.layers:
            x = layer.forward(x, run)
        return x

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        below: Tensor | None = d
        for i in range(len(self.layers) - 1, max(self.lowest, 0) - 1, -1):
            assert below is not None
            below = self.layers[i].backward(below, run, wanted or i > self.lowest)
        if not wanted:
            return None
        return below


class ConvBlock(Layer):
    """A convolution in two dimensions with the pooling and the ReLU that follow it: one kernel on a GPU."""

    def __init__(self, conv: Conv, pool: MaxPool | None, relu: bool, module: nn.Conv2d) -> None:
        self.conv = conv
        self.pool = pool
        layers: list[Layer] = [conv]
        if pool:
            layers.append(pool)
        if relu:
            layers.append(Relu(in_place=True))
        self.plain = Chain(layers, first=False)
        stride, padding, dilation = conv.geometry
        self.geometry = Geometry(
            kernel=_height_and_width(module.kernel_size),
            stride=_height_and_width(stride),
            padding=_height_and_width(padding),
            dilation=_height_and_width(dilation),
            pool=pool is not None,
            relu=relu,
        )

    def forward(self, x: Tensor, run: Run) -> Tensor:
        if not _fused(x, self.conv.groups):
            return self.plain.forward(x, run)
        from fedskew.kernels import conv_kernels as kernels

        weight = self.conv.weights.get("weight", run, len(x))
        bias = self.conv.weights.get("bias", run, len(x))
        assert weight is not None
        last = run.low(x).permute(0, 1, 3, 4, 2).contiguous()
        weight = run.low(weight)
        y, place = kernels.forward(last, weight, bias, self.geometry, run.precision)
        run.saved[self] = last, weight, y, place
        return y.permute(0, 1, 4, 2, 3)

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
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
        below = kernels.input_gradient(d, place, weight, x.shape, geometry, run.precision)
        return below.permute(0, 1, 4, 2, 3)


class Residual(Layer):
    """The block ``after(shortcut(x) + body(x))``."""

    def __init__(self, body: Layer, shortcut: Layer | None, after: Layer | None) -> None:
        self.body = body
        self.shortcut = shortcut
        self.after = after

    def forward(self, x: Tensor, run: Run) -> Tensor:
        beside = x
        if self.shortcut:
            beside = self.shortcut.forward(x, run)
        total = beside + self.body.forward(x, run)
        if self.after:
            return self.after.forward(total, run)
        return total

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        if self.after:
            below = self.after.backward(d, run, wanted=True)
            assert below is not None
            d = below
        body = self.body.backward(d, run, wanted)
        beside: Tensor | None = d
        if self.shortcut:
            beside = self.shortcut.backward(d, run, wanted)
        if not wanted or body is None or beside is None:
            return None
        return body + beside


def _weightless_ahead(layers: list[Layer]) -> int:
    """Return how many layers without weights come before the first one with weights."""
    count = 0
    for layer in layers:
        if not isinstance(layer, WEIGHTLESS):
            break
        count += 1
    return count


def _height_and_width(pair: Sequence[int]) -> tuple[int, int]:
    height, width = pair
    return int(height), int(width)


def _pair(size: int | tuple[int, int]) -> list[int]:
    """Return a size of a module in two dimensions, which may be given as one number for both."""
    if isinstance(size, int):
        return [size, size]
    return list(size)


def _fused(x: Tensor, groups: int) -> bool:
    """Return whether a convolution of these images runs in the kernels for a GPU."""
    return x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and groups == 1 and available()


def _merged(x: Tensor) -> tuple[Tensor, bool]:
    """Return the rows of all clients on one axis without copying if possible, and whether rows come before clients."""
    swapped = not x.is_contiguous() and x.transpose(0, 1).is_contiguous()
    return _merged_like(x, swapped), swapped


def _merged_like(x: Tensor, swapped: bool) -> Tensor:
    rows = x
    if swapped:
        rows = x.transpose(0, 1)
    return rows.reshape(-1, *x.shape[2:])


def _divided(flat: Tensor, like: Tensor, swapped: bool) -> Tensor:
    """Return merged rows with the first two axes of ``like``."""
    clients, rows = like.shape[:2]
    if swapped:
        return flat.view(rows, clients, *flat.shape[1:]).transpose(0, 1)
    return flat.view(clients, rows, *flat.shape[1:])
