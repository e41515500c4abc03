"""One step of the clients of a stack: their gradients, what the method makes of them, and the optimiser's move."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedskew.algorithms.contract import TRAINED, overridden
from fedskew.core.trees import Tensors, Tree, copied, leaves, rows_of, tensors_of
from fedskew.engine.job import OPTIMIZER, Job, parts, prefixed
from fedskew.engine.optimizer import state_of
from fedskew.engine.shapes import Block, Names
from fedskew.engine.stack_hooks import RoundState, Seen, StackHooks
from fedskew.engine.stacked_model import StackedModel

_OWN_STATE = "own_state."  # prefix of the optimiser's state of tensors that stay with their client


class StackStep:
    """Takes steps of the first clients of a stack, in place.

    Args:
        job: the job
        layers: the stacked form of its model
        hooks: the hooks of its method
        own_lr: whether every client has a learning rate of its own
    """

    def __init__(self, job: Job, layers: StackedModel, hooks: StackHooks, own_lr: bool) -> None:
        self.job = job
        self.layers = layers
        self.hooks = hooks
        self.own_lr = own_lr
        self.changes_objective = overridden(job.algorithm, "objective")
        self.corrects = overridden(job.algorithm, "correct_gradients")
        self.masks: dict[tuple[tuple[Names, ...], str], Tensor] = {}

    def take(
        self,
        state: RoundState,
        block: Block,
        x: Tensor,
        y: Tensor,
        real: Tensor | None,
        second: tuple[Tensor, ...] = (),
    ) -> Tensor:
        """Take one step of the active clients, and return the outputs before it; ``second`` is a second batch.

        A client's loss depends on its own slice of the stacked weights alone, so the gradient of the sum of all losses
        is the stack of their gradients.
        """
        now = _active(state, block)
        params = now["params"]
        buffers = now["buffers"]
        inputs = x
        if self.changes_objective or self.corrects:
            # A model may write to its input, and hooks run other models on the same rows.
            inputs = x.clone()
        logits = self.layers.forward({**params, **buffers}, inputs, real)
        seen = Seen(logits, self.layers.features, x, y, real, buffers, *second)
        grads, of_own = self._gradients(state, params, logits, seen)
        if self.corrects:
            grads = self.hooks.correct_gradients(grads, params, state, seen)
        moving = []
        if block.partial:
            moving = tensors_of(now)
        before = [value.clone() for value in moving]
        _assign(buffers, self.layers.moved)
        self._move(state, now, _corrected(state, grads, params, block.active), block)
        if of_own:
            self._move_own(state, now, of_own)
        if real is not None:
            alive = real[:, 0] > 0
            for value, old in zip(moving, before, strict=False):
                value.copy_(torch.where(_beside(alive, value), value, old))
        return logits

    def _gradients(
        self, state: RoundState, params: Tensors, logits: Tensor, seen: Seen
    ) -> tuple[Tensors, Tensors]:
        """Return the gradients of all parameters, and of tensors of the client state that are trained.

        Those of parameters that nothing depends on are 0.
        """
        of_own: Tensors = {}
        share = None
        if seen.real is not None:
            share = seen.real / seen.real.sum(1, keepdim=True).clamp_min(1)
        if self.changes_objective:
            found, of_own = self._gradients_of_objective(state, params, logits, seen, share)
        elif share is None:
            found = self.layers.backward(self.job.task.slopes(logits, seen.y, 1 / seen.y.shape[1]))
        else:
            found = self.layers.backward(self.job.task.slopes(logits, seen.y, share))
        grads = {}
        for name, value in params.items():
            if name in found:
                grads[name] = found[name]
            else:
                grads[name] = torch.zeros_like(value)
        return grads, of_own

    def _gradients_of_objective(
        self, state: RoundState, params: Tensors, logits: Tensor, seen: Seen, share: Tensor | None
    ) -> tuple[Tensors, Tensors]:
        """Return the gradients of what the method minimises: through outputs and features, and direct ones."""
        with torch.enable_grad():
            logits = logits.detach().requires_grad_()
            ends = [logits]
            inside = seen.features
            if inside is not None:
                inside = inside.detach().requires_grad_()
                ends.append(inside)
            weights = leaves(params)
            own = leaves(rows_of({"": state.own}, slice(len(seen.y)))[""])
            if own:
                state = replace(state, client_state={**state.client_state, TRAINED: own})
            losses = self.job.task.losses(logits, seen.y, "none")
            if share is None:
                loss = losses.mean(1)
            else:
                loss = (losses * share).sum(1)
            total = self.hooks.objective(
                loss, weights, state, seen._replace(logits=logits, features=inside)
            )
            inputs = [*ends, *weights.values(), *own.values()]
            found = list(torch.autograd.grad(total.sum(), inputs, allow_unused=True))
        of_own = _direct(own, found[len(ends) + len(weights) :])
        slopes = found.pop(0)
        if slopes is None:
            slopes = torch.zeros_like(logits)
        of_features = None
        if inside is not None:
            of_features = found.pop(0)
        grads = self.layers.backward(slopes, of_features)
        for name, direct in zip(weights, found, strict=False):
            if direct is None:
                continue
            if name in grads:
                grads[name] = grads[name] + direct
            else:
                grads[name] = direct
        return grads, of_own

    def _move_own(self, state: RoundState, now: Tree, grads: Tensors) -> None:
        """Take an optimiser step with the tensors of the client state that are trained."""
        own = now[TRAINED]
        lr = state.lr
        if self.own_lr:
            lr = lr[: len(next(iter(own.values())))]
        self.job.optimizer.step_(own, grads, parts(now, _OWN_STATE), lr, stacked=True)

    def _move(self, state: RoundState, now: Tree, grads: Tensors, block: Block) -> None:
        """Take an optimiser step with the parameters that each client trains in its epoch."""
        params = now["params"]
        optimizer_state = parts(now, OPTIMIZER)
        lr = state.lr
        if self.own_lr:
            lr = lr[: block.active]
        if block.trained is None:
            self.job.optimizer.step_(params, grads, optimizer_state, lr, stacked=True)
            return
        anybody: Names = frozenset().union(*block.trained)
        params = {name: value for name, value in params.items() if name in anybody}
        if not params:
            return
        optimizer_state = state_of(anybody, optimizer_state, state.params)
        moving = {"": params, **optimizer_state}
        before: Tree = {}
        if len(block.trained) > 1:
            before = copied(moving)
        self.job.optimizer.step_(params, grads, optimizer_state, lr, stacked=True)
        # Clients that do not train a parameter in their epoch get it back.
        for part, tensors in before.items():
            for name, old in tensors.items():
                if name in params:
                    value = moving[part][name]
                    trains = _beside(self._mask(block.trained, name), value)
                    value.copy_(torch.where(trains, value, old))

    def _mask(self, trained: tuple[Names, ...], name: str) -> Tensor:
        """Return which clients train a parameter; kept, because a captured step must find it on the GPU."""
        known = (trained, name)
        if known not in self.masks:
            self.masks[known] = torch.tensor(
                [name in names for names in trained], device=self.job.y.device
            )
        return self.masks[known]


def _direct(tensors: Tensors, found: Sequence[Tensor | None]) -> Tensors:
    """Return gradients by name; those of tensors that nothing depends on are 0."""
    grads: Tensors = {}
    for (name, value), grad in zip(tensors.items(), found, strict=True):
        if grad is None:
            grad = torch.zeros_like(value)
        grads[name] = grad
    return grads


def _active(state: RoundState, block: Block) -> Tree:
    """Return what a step changes: parameters, buffers and the optimiser's state of the active clients."""
    every: Tree = {
        "params": state.params,
        "buffers": state.buffers,
        **prefixed(state.optimizer_state, OPTIMIZER),
        **prefixed(state.own_state, _OWN_STATE),
    }
    if state.own:
        every[TRAINED] = state.own
    if block.active == len(state.packed):
        return every
    return rows_of(every, slice(block.active))


def _corrected(state: RoundState, grads: Tensors, params: Tensors, active: int) -> Tensors:
    """Return gradients with each client's linear correction, in scratch memory: a gradient may be a view."""
    scale = state.correction.get("scale", {})
    offset = state.correction.get("offset", {})
    corrected = {}
    for name, grad in grads.items():
        if name in scale:
            numbers = _beside(scale[name][:active], grad)
            grad = torch.addcmul(grad, params[name], numbers, out=state.scratch[name][:active])
        if name in offset:
            grad = torch.add(grad, offset[name][:active], out=state.scratch[name][:active])
        corrected[name] = grad
    return corrected


def _beside(numbers: Tensor, value: Tensor) -> Tensor:
    """Return one number for each client with as many axes as ``value``."""
    return numbers.view(-1, *(1,) * (value.dim() - 1))


def _assign(buffers: Tensors, moved: Tensors) -> None:
    """Copy the buffers that a forward pass has changed; others are the same memory as before."""
    for name, value in moved.items():
        # A copy onto itself is an error where an axis has size 1: the strides differ
        if value.data_ptr() != buffers[name].data_ptr():
            buffers[name].copy_(value)
