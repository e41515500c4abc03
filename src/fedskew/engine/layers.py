"""Layers run for all clients of a stack at once, as batched operations with their own backward pass.

Activations are ``[client, row, ...]`` and weights ``[client, ...]``. A linear layer is a batched matrix product, a
convolution a grouped one. Layers without weights see the rows of all clients as one batch. Any other layer runs under
``torch.func.vmap`` and is differentiated by autograd.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedskew.batchnorm.masked import Mask, MaskedBatchNorm
from fedskew.core.trees import Tensors
from fedskew.engine.device import Precision
from fedskew.engine.features import Tap
from fedskew.kernels import available
from fedskew.kernels.geometry import Geometry

aten = torch.ops.aten

# These never write to their input
NORMS = (MaskedBatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class Run:
    """One forward and backward pass."""

    def __init__(self, values: Tensors | None = None, real: Tensor | None = None) -> None:
        self.values, self.real = values or {}, real
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
        self._names = {name: names[id(value)] for name, value in self._own.items()}
        self.trained = {name for name, full in self._names.items() if full in trained}

    def get(self, name: str, run: Run, clients: int) -> Tensor | None:
        """Return a weight of all clients, or None if the layer has none of that name."""
        if name not in self._own:
            return None
        found = run.values.get(self._names[name])
        if found is None:
            return self._own[name].expand(clients, *self._own[name].shape)
        return found

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
        return below if below is None or run.of_features is None else below + run.of_features


class Linear(Layer):
    """A linear layer, and the ReLU that follows it."""

    relu = False

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def forward(self, x: Tensor, run: Run) -> Tensor:
        weight, bias = (self.weights.get(name, run, len(x)) for name in ("weight", "bias"))
        assert weight is not None
        flat = run.low(x).flatten(1, -2)
        weight = run.low(weight)
        if bias is None:
            bias = None
        else:
            bias = run.low(bias)
        # Outputs lie in memory as [client, output, row]: the product and all that is summed over outputs are faster so.
        inputs = flat.mT
        if (
            self.relu
            and bias is not None
            and x.is_cuda
            and x.dtype == torch.float32
            and available()
        ):
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
            else:
                y = y
        run.saved[self] = x.shape, flat, weight, y.mT
        if x.dim() == 3:
            return y.mT
        return y.mT.reshape(*x.shape[:-1], y.shape[1])

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
        return below if len(shape) == 3 else below.reshape(shape)


class Conv(Layer):
    """A convolution in one or two dimensions as one grouped convolution: ``[row, client * channel, ...]``."""

    def __init__(self, module: Any, weights: Weights) -> None:
        self.weights = weights
        self.geometry = (list(module.stride), list(module.padding), list(module.dilation))
        self.groups = module.groups

    def forward(self, x: Tensor, run: Run) -> Tensor:
        clients, rows = x.shape[:2]
        weight, bias = (self.weights.get(name, run, clients) for name in ("weight", "bias"))
        assert weight is not None
        flat = run.low(x).transpose(0, 1).reshape(rows, -1, *x.shape[3:])
        weight = run.low(weight).flatten(0, 1)
        run.saved[self] = flat, weight
        if bias is None:
            flat_bias = None
        else:
            flat_bias = run.low(bias).flatten()
        y: Tensor = aten.convolution(
            flat,
            weight,
            flat_bias,
            *self.geometry,
            False,
            [0] * (x.dim() - 3),
            clients * self.groups,
        )
        return y.view(rows, clients, -1, *y.shape[2:]).transpose(0, 1)

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
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


class Relu(Layer):
    """ReLU; in place where its input is the fresh output of the layer before it."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place

    def forward(self, x: Tensor, run: Run) -> Tensor:
        y = run.saved[self] = x.relu_() if self.in_place else x.relu()
        return y

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        found: Tensor = aten.threshold_backward(d, run.saved[self], 0)
        return found


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
        stride = module.stride if module.stride is not None else module.kernel_size
        sizes = (module.kernel_size, stride, module.padding, module.dilation)
        self.geometry = tuple(
            [size, size] if isinstance(size, int) else list(size) for size in sizes
        )
        self.ceil = module.ceil_mode
        self.halves = (*self.geometry, self.ceil) == ([2, 2], [2, 2], [0, 0], [1, 1], False)

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
    """A layer without weights: the rows of all clients are one batch, and autograd goes backward."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.copies = module, getattr(module, "inplace", False)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        flat, swapped = _merged(x)
        if not run.learns:
            return _divided(self.module(flat.clone() if self.copies else flat), x, swapped)
        with torch.enable_grad():
            leaf = flat.detach().requires_grad_()
            y = self.module(leaf.clone() if self.copies else leaf)
        run.saved[self] = leaf, y, swapped
        return _divided(y.detach(), x, swapped)

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        leaf, y, swapped = run.saved[self]
        (below,) = torch.autograd.grad(y, leaf, _merged_like(d, swapped))
        return _divided(below, d, swapped)


class Vmapped(Layer):
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
        self.first, self.writes = first, not isinstance(module, NORMS)
        self.module, self.mask = module, mask
        inside = head is not None and any(part is head for part in module.modules())
        self.tap = Tap(module, head) if inside and head is not None else None
        self.names = {name: names[id(value)] for name, value in module.named_parameters()}
        self.buffers = {name: names[id(value)] for name, value in module.named_buffers()}
        self.trained = trained

    def forward(self, x: Tensor, run: Run) -> Tensor:
        named = {**self.names, **self.buffers}
        if run.precision == "bf16":
            x = x.float().contiguous()  # vmap knows no BatchNorm of rows whose channels lie last
        given = {name: full for name, full in named.items() if full in run.values}
        with torch.set_grad_enabled(run.learns):
            leaves = []
            for full in given.values():
                leaves.append(
                    run.values[full].detach().requires_grad_()
                    if full in self.trained
                    else run.values[full]
                )
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
            if inputs.requires_grad and self.writes:
                given_inputs = inputs.clone()
            else:
                given_inputs = inputs
            y, *rest = run_all(given_inputs, real, *leaves)
        inside = None
        if self.tap:
            inside, *rest = rest
            run.features = inside.detach()
        trained = {}
        for full, leaf in zip(given.values(), leaves, strict=True):
            if full in self.trained:
                trained[full] = leaf
        run.saved[self] = inputs, trained, y, inside
        for full, value in zip(self.buffers.values(), rest, strict=True):
            run.values[full] = run.moved[full] = value.detach()
        return y.detach()

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
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


WEIGHTLESS = (Relu, Flatten, MaxPool, Rowwise)


class Chain(Layer):
    """Layers one after the other; those in front of the first weights need no gradient of their input."""

    def __init__(self, layers: list[Layer], first: bool) -> None:
        self.layers = layers
        trains = (not isinstance(layer, WEIGHTLESS) for layer in layers)
        self.lowest = next((i for i, one in enumerate(trains) if one), len(layers)) if first else -1

    def forward(self, x: Tensor, run: Run) -> Tensor:
        for layer in self.layers:
            x = layer.forward(x, run)
        return x

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        below: Tensor | None = d
        for i in range(len(self.layers) - 1, max(self.lowest, 0) - 1, -1):
            assert below is not None
            below = self.layers[i].backward(below, run, wanted or i > self.lowest)
        return below if wanted else None


class ConvBlock(Layer):
    """A convolution in two dimensions with the pooling and the ReLU that follow it: one kernel on a GPU."""

    def __init__(self, conv: Conv, pool: MaxPool | None, relu: bool, module: nn.Conv2d) -> None:
        self.conv, self.pool = conv, pool
        self.plain = Chain(
            [conv, *([pool] if pool else []), *([Relu(in_place=True)] if relu else [])], first=False
        )
        kernel, stride, padding, dilation = (
            (int(pair[0]), int(pair[1])) for pair in (module.kernel_size, *conv.geometry)
        )
        self.geometry = Geometry(kernel, stride, padding, dilation, pool is not None, relu)

    def forward(self, x: Tensor, run: Run) -> Tensor:
        if not _fused(x, self.conv.groups):
            return self.plain.forward(x, run)
        from fedskew.kernels import conv_kernels as kernels

        weight, bias = (self.conv.weights.get(name, run, len(x)) for name in ("weight", "bias"))
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
        return kernels.input_gradient(d, place, weight, x.shape, geometry, run.precision).permute(
            0, 1, 4, 2, 3
        )


class Residual(Layer):
    """The block ``after(shortcut(x) + body(x))``."""

    def __init__(self, body: Layer, shortcut: Layer | None, after: Layer | None) -> None:
        self.body, self.shortcut, self.after = body, shortcut, after

    def forward(self, x: Tensor, run: Run) -> Tensor:
        if self.shortcut:
            beside = self.shortcut.forward(x, run)
        else:
            beside = x
        total = beside + self.body.forward(x, run)
        if self.after:
            return self.after.forward(total, run)
        return total

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        if self.after:
            found = self.after.backward(d, run, wanted=True)
            assert found is not None
            d = found
        body = self.body.backward(d, run, wanted)
        beside = self.shortcut.backward(d, run, wanted) if self.shortcut else d
        return body + beside if wanted and body is not None and beside is not None else None


def _fused(x: Tensor, groups: int) -> bool:
    """Return whether a convolution of these images runs in the kernels for a GPU."""
    return x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and groups == 1 and available()


def _alone(
    function: Callable[..., tuple[Tensor, ...]], *stacks: Tensor | None
) -> tuple[Tensor, ...]:
    """Return what ``vmap`` would for a stack of one client, from plain tensors."""
    return tuple(
        found.unsqueeze(0)
        for found in function(*(None if one is None else one[0] for one in stacks))
    )


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
