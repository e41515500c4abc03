"""The measurements of stacked clients before they are configured: losses, and the variance of per-row gradients."""

import copy
from collections.abc import Iterator
from functools import reduce

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedskew.algorithms.selection import Probe
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, rows_of
from fedskew.engine.job import LOCAL, RECEIVED, Job, Start
from fedskew.engine.lstm import vmappable
from fedskew.engine.plan import Plan


class StackedProbe:
    """Clients of a round on the first batch of their plan, in evaluation mode, ``width`` rows of each at a time."""

    def __init__(self, job: Job, start: Start, members: Ints, plan: Plan, width: int) -> None:
        self.job = job
        self.start = start
        self.width = width
        positions, counts = plan.first()
        self.rows = job.rows(plan.clients, positions)
        slots = np.arange(positions.shape[1])
        real = torch.from_numpy(slots < counts[:, None]).to(job.y.device, torch.float64)
        self.share = real / real.sum(1, keepdim=True)
        self.model = vmappable(copy.deepcopy(job.model).eval())
        own = {"": {**start.kept.get(RECEIVED, {}), **start.kept.get(LOCAL, {})}}
        self.kept = rows_of(own, torch.from_numpy(members))[""]
        everything = {**start.params, **start.buffers}
        self.shared = {name: value for name, value in everything.items() if name not in self.kept}

    @torch.no_grad()
    def measure(self, what: tuple[Probe, ...]) -> dict[str, Tensor]:
        """Return one number for each client and each measurement."""
        found: dict[str, Tensor] = {}
        if set(what) - {"gradient_variance"}:
            losses = self._losses()
            mean = (self.share * losses).sum(1)
            found["loss"] = mean
            found["loss_variance"] = (self.share * (losses - mean[:, None]).square()).sum(1)
        if "gradient_variance" in what:
            found["gradient_variance"] = self._gradient_variance()
        return {name: found[name] for name in what}

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield inputs, labels and shares of a few rows of every client; the share of a padded row is 0."""
        some_rows = torch.split(self.rows, self.width, 1)
        shares = torch.split(self.share, self.width, 1)
        for rows, share in zip(some_rows, shares, strict=True):
            yield self.job.x[rows], self.job.y[rows], share.to(self.job.scalar)

    def _losses(self) -> Tensor:
        def losses(kept: Tensors, x: Tensor, y: Tensor) -> Tensor:
            logits = functional_call(self.model, {**self.shared, **kept}, (x,))
            return self.job.task.losses(logits, y, "none")

        each = []
        for x, y, _ in self._pieces():
            if self.kept:
                found = vmap(losses)(self.kept, x, y)
            else:  # one model for all is one large batch
                found = losses({}, x.flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])
            each.append(found)
        return torch.cat(each, 1).double()

    def _gradient_variance(self) -> Tensor:
        """Return ``mean_i ||g_i - mean g||^2``; for clients in several pieces, the mean takes a separate pass."""
        mean: Tensors | None = None
        mean_axis = None
        if self.width < self.rows.shape[1]:
            means = (vmap(self._mean_gradient)(self.kept, *piece) for piece in self._pieces())
            mean = reduce(_added, means)
            mean_axis = 0
        run_all = vmap(self._spread, in_dims=(0, mean_axis, 0, 0, 0))
        squares = (run_all(self.kept, mean, *piece).double() for piece in self._pieces())
        return reduce(torch.add, squares)

    # What follows is for one client, and is called inside ``vmap``.

    def _mean_loss(
        self, weights: Tensors, fixed: Tensors, x: Tensor, y: Tensor, share: Tensor
    ) -> Tensor:
        outputs = functional_call(self.model, {**fixed, **weights}, (x,))
        return share @ self.job.task.losses(outputs, y, "none")

    def _weights_and_buffers(self, kept: Tensors) -> tuple[Tensors, Tensors]:
        everything = {**self.shared, **kept}
        weights = {name: everything[name] for name in self.start.params}
        buffers = {name: everything[name] for name in self.start.buffers}
        return weights, buffers

    def _mean_gradient(self, kept: Tensors, x: Tensor, y: Tensor, share: Tensor) -> Tensors:
        weights, buffers = self._weights_and_buffers(kept)
        mean: Tensors = grad(self._mean_loss)(weights, buffers, x, y, share)
        return mean

    def _spread(
        self, kept: Tensors, mean: Tensors | None, x: Tensor, y: Tensor, share: Tensor
    ) -> Tensor:
        """Return the mean squared distance of the rows' gradients from ``mean``, or from their own without one."""
        weights, buffers = self._weights_and_buffers(kept)
        row_by_row = vmap(grad(self._mean_loss), in_dims=(None, None, 0, 0, None))
        each = row_by_row(weights, buffers, x[:, None], y[:, None], share.new_ones(1))
        distances = []
        for name, value in each.items():
            rows = value.flatten(1)
            if mean is None:
                centre = share @ rows
            else:
                centre = mean[name].flatten()
            distances.append(share @ (rows - centre).square().sum(1))
        return torch.stack(distances).sum()


def _added(left: Tensors, right: Tensors) -> Tensors:
    return {name: value + right[name] for name, value in left.items()}
