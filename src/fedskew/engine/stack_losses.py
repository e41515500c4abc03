"""What stacked clients find on all of their rows in evaluation mode: losses, their gradients, and features by class."""

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors
from fedskew.engine.device import differentiable_attention
from fedskew.engine.features import Tap, class_sums
from fedskew.engine.job import CANDIDATES, Job, candidates_of
from fedskew.engine.lstm import vmappable
from fedskew.engine.plan import Plan
from fedskew.engine.stack_hooks import RoundState


@torch.no_grad()
def mean_losses(job: Job, plan: Plan, state: RoundState) -> Floats:
    """Return the loss of every client's model on all of its rows, in evaluation mode."""
    pieces = list(_losses(job, plan, {**state.params, **state.buffers}))
    return torch.stack(pieces).sum(0).cpu().numpy() / plan.sizes


@torch.no_grad()
def candidate_losses(job: Job, plan: Plan, state: RoundState, joint: bool) -> Floats:
    """Return that loss of the weights that every client received, and of each model that came with them.

    The loss of a model that has diverged, NaN, is infinite, so that nobody chooses it. ``joint`` says that the clients
    belong to several runs, whose broadcasts are stacked.
    """
    each_has_its_own = joint or CANDIDATES not in state.server
    candidates = candidates_of(state.server, state.answer)
    losses = [mean_losses(job, plan, state)]
    assert state.candidate_losses is not None
    for i in range(state.candidate_losses.shape[1] - 1):
        params = dict(state.params)
        for name, value in candidates.items():
            if each_has_its_own:
                params[name] = value[:, i]
            else:
                params[name] = value[i].expand_as(params[name])
        losses.append(mean_losses(job, plan, replace(state, params=params)))
    found = np.stack(losses, 1)
    return np.where(np.isnan(found), np.inf, found)


def add_full_gradient(job: Job, plan: Plan, state: RoundState) -> None:
    """Add the gradient of that loss, at every client's weights, to ``state.full_gradient``."""
    params = {}
    for name, value in state.params.items():
        params[name] = value.detach().requires_grad_()
    with differentiable_attention():
        for losses in _losses(job, plan, {**params, **state.buffers}):
            loss = (losses / torch.from_numpy(plan.sizes).to(losses)).sum()
            grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
            for total, grad in zip(state.full_gradient.values(), grads, strict=True):
                total += grad


@torch.no_grad()
def add_class_features(job: Job, plan: Plan, state: RoundState) -> None:
    """Add the sums of every client's features by class, over all of its rows, to ``state.class_features``."""
    model = vmappable(copy.deepcopy(job.model).eval())
    tap = Tap(model)

    def sums(tensors: Tensors, x: Tensor, y: Tensor, real: Tensor) -> Tensors:
        functional_call(model, tensors, (x,))
        return class_sums(tap.features, y, job.classes, real)

    for total in state.class_features.values():
        total.zero_()
    tensors = _first({**state.params, **state.buffers}, len(plan.sizes))
    for rows, real in _all_rows(job, plan):
        found = vmap(sums)(tensors, job.x[rows], job.y[rows], real)
        for name, value in found.items():
            state.class_features[name][: len(value)] += value


def _first(stacks: Tensors, count: int) -> Tensors:
    """Return the first clients of a stack."""
    return {name: value[:count] for name, value in stacks.items()}


def _all_rows(job: Job, plan: Plan) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield some rows ``[client, slot]`` of each client, a batch at a time, until all are used, and which are real."""
    sizes = plan.sizes
    width = int(plan.batch.max())
    for first in range(0, int(sizes.max()), width):
        positions = np.arange(first, first + width)
        real = positions < sizes[:, None]
        rows = job.rows(plan.places, np.where(real, positions, 0))
        yield rows, torch.from_numpy(real).to(rows.device)


def _losses(job: Job, plan: Plan, stacks: Tensors) -> Iterator[Tensor]:
    """Yield the sum of each client's losses over some of its rows, a batch at a time, until it has used all."""
    model = vmappable(copy.deepcopy(job.model).eval())
    tensors = _first(stacks, len(plan.sizes))

    def losses(tensors: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return job.task.losses(functional_call(model, tensors, (x,)), y, "none")

    for rows, real in _all_rows(job, plan):
        each = vmap(losses)(tensors, job.x[rows], job.y[rows])
        yield (each.double() * real).sum(1)
