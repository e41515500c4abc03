"""The losses of stacked clients on all of their rows, in evaluation mode, and the gradients of these."""

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors
from fedskew.engine.job import Job
from fedskew.engine.plan import Plan
from fedskew.engine.stack_hooks import RoundState


@torch.no_grad()
def mean_losses(job: Job, plan: Plan, state: RoundState) -> Floats:
    """Return the loss of every client's model on all of its rows, in evaluation mode."""
    pieces = list(_losses(job, plan, {**state.params, **state.buffers}))
    return torch.stack(pieces).sum(0).cpu().numpy() / plan.sizes


def add_full_gradient(job: Job, plan: Plan, state: RoundState) -> None:
    """Add the gradient of that loss, at every client's weights, to ``state.full_gradient``."""
    params = {}
    for name, value in state.params.items():
        params[name] = value.detach().requires_grad_()
    for losses in _losses(job, plan, {**params, **state.buffers}):
        loss = (losses / torch.from_numpy(plan.sizes).to(losses)).sum()
        grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
        for total, grad in zip(state.full_gradient.values(), grads, strict=True):
            total += grad


def _losses(job: Job, plan: Plan, stacks: Tensors) -> Iterator[Tensor]:
    """Yield the sum of each client's losses over some of its rows, a batch at a time, until it has used all."""
    model = copy.deepcopy(job.model).eval()
    sizes = plan.sizes
    width = int(plan.batch.max())
    tensors = {name: value[: len(sizes)] for name, value in stacks.items()}

    def losses(tensors: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return job.task.losses(functional_call(model, tensors, (x,)), y, "none")

    for first in range(0, int(sizes.max()), width):
        positions = np.arange(first, first + width)
        real = positions < sizes[:, None]
        rows = job.rows(plan.places, np.where(real, positions, 0))
        each = vmap(losses)(tensors, job.x[rows], job.y[rows])
        yield (each.double() * torch.from_numpy(real).to(each.device)).sum(1)
