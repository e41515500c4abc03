"""Layers of any kind, run for all clients of a stack under ``torch.func.vmap`` and differentiated by autograd."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedskew.batchnorm.masked import Mask, MaskedBatchNorm
from fedskew.core.trees import Tensors
from fedskew.engine.features import Tap
from fedskew.engine.layers import Layer, Run
from fedskew.engine.lstm import VmappedLSTM

# These never write to their input
NORMS = (MaskedBatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


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
        self.first = first
        self.writes = not isinstance(module, NORMS)
        self.module = module
        self.mask = mask
        self.tap: Tap | None = None
        if head is not None and any(part is head for part in module.modules()):
            self.tap = Tap(module, head)
        self.names = {name: names[id(value)] for name, value in module.named_parameters()}
        self.buffers = {name: names[id(value)] for name, value in module.named_buffers()}
        self.trained = trained
        self.lstms = [part for part in module.modules() if isinstance(part, VmappedLSTM)]

    def forward(self, x: Tensor, run: Run) -> Tensor:
        """Return the module's outputs, and keep the leaves of its graph for the backward pass."""
        if run.precision == "bf16":
            x = x.float().contiguous()  # vmap knows no BatchNorm of rows whose channels lie last
        with torch.set_grad_enabled(run.learns):
            leaves = self._leaves(run)
            inputs = x.detach()
            if x.is_floating_point() and not self.first and run.learns:
                inputs.requires_grad_()
            given = inputs
            if inputs.requires_grad and self.writes:
                given = inputs.clone()
            y, *rest = self._outputs(given, run.real, leaves)
        inside = None
        if self.tap:
            inside, *rest = rest
            run.features = inside.detach()
        trained = {}
        for name, leaf in leaves.items():
            full = self._full_name(name)
            if full in self.trained:
                trained[full] = leaf
        run.saved[self] = inputs, trained, y, inside
        for full, value in zip(self.buffers.values(), rest, strict=True):
            run.values[full] = run.moved[full] = value.detach()
        return y.detach()

    def _full_name(self, name: str) -> str:
        """Return the model's name of one of the module's tensors."""
        if name in self.names:
            return self.names[name]
        return self.buffers[name]

    def _leaves(self, run: Run) -> Tensors:
        """Return the stacked tensors of the module by its own names; those that are trained get gradients."""
        leaves = {}
        for name in (*self.names, *self.buffers):
            full = self._full_name(name)
            if full in run.values:
                value = run.values[full]
                if full in self.trained:
                    value = value.detach().requires_grad_()
                leaves[name] = value
        return leaves

    def _outputs(self, x: Tensor, real: Tensor | None, leaves: Tensors) -> tuple[Tensor, ...]:
        """Return the outputs of all clients, the features if the head is inside, and the buffers after it."""

        def one_client(x: Tensor, real: Tensor | None, *values: Tensor) -> tuple[Tensor, ...]:
            everything = dict(zip(leaves, values, strict=True))
            self.mask.rows = real
            found = [functional_call(self.module, everything, (x,))]
            if self.tap:
                found.append(self.tap.features)
            # functional_call leaves reassigned buffers in its dictionary.
            for name in self.buffers:
                found.append(everything[name])
            return tuple(found)

        run_all: Callable[..., tuple[Tensor, ...]]
        if len(x) > 1:
            real_axis = None
            if real is not None:
                real_axis = 0
            in_dims = (0, real_axis, *[0] * len(leaves))
            run_all = vmap(one_client, in_dims=in_dims, randomness="different")
        else:
            run_all = partial(_alone, one_client)
        for lstm in self.lstms:
            lstm.alone = len(x) == 1 and not x.is_cuda
        outputs = run_all(x, real, *leaves.values())
        for lstm in self.lstms:
            lstm.alone = False  # hooks run the same module under vmap
        return outputs

    def backward(self, d: Tensor, run: Run, wanted: bool) -> Tensor | None:
        """Add the gradients of the module's weights to ``run``, and return that of its input where it is wanted."""
        x, trained, y, inside = run.saved[self]
        outputs = [y]
        slopes = [d.to(y.dtype)]
        # Features below which nothing is trained have no gradient
        if inside is not None and inside.requires_grad and run.of_features is not None:
            outputs.append(inside)
            slopes.append(run.of_features.to(inside.dtype))
        leaves = list(trained.values())
        if wanted:
            leaves.append(x)
        if not leaves:
            return None
        grads = torch.autograd.grad(outputs, leaves, slopes, materialize_grads=True)
        for name, grad in zip(trained, grads, strict=False):
            run.add(name, grad)
        if not wanted:
            return None
        return grads[-1]


def _alone(
    function: Callable[..., tuple[Tensor, ...]], *stacks: Tensor | None
) -> tuple[Tensor, ...]:
    """Return what ``vmap`` would for a stack of one client, from plain tensors."""
    only: list[Tensor | None] = []
    for stack in stacks:
        if stack is None:
            only.append(None)
        else:
            only.append(stack[0])
    return tuple(found.unsqueeze(0) for found in function(*only))
