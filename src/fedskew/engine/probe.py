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
from fedskew.engine.job import LOCAL, Job, Start
from fedskew.engine.plan import Plan


class StackedProbe:
    """Clients of a round on the first batch of their plan, in evaluation mode, ``width`` rows of each at a time."""

    def __init__(self, job: Job, start: Start, members: Ints, plan: Plan, width: int) -> None:
        self.job, self.start, self.width = job, start, width
        positions, counts = plan.first()
        self.rows = job.rows(plan.clients, positions)
        real = torch.from_numpy(np.arange(positions.shape[1]) < counts[:, None]).to(
            job.y.device, torch.float64
        )
        self.share = real / real.sum(1, keepdim=True)
        self.model = copy.deepcopy(job.model).eval()
        self.kept = rows_of({"local": start.kept.get(LOCAL, {})}, torch.from_numpy(members))[
            "local"
        ]
        everything = {**start.params, **start.buffers}
        self.shared = {name: value for name, value in everything.items() if name not in self.kept}

    @torch.no_grad()
    def measure(self, what: tuple[Probe, ...]) -> dict[str, Tensor]:
        """Return one number for each client and each measurement."""
        found: dict[str, Tensor] = {}
        if set(what) - {"gradient_variance"}:
            losses = self._losses()
            found["loss"] = (self.share * losses).sum(1)
            found["loss_variance"] = (self.share * (losses - found["loss"][:, None]).square()).sum(
                1
            )
        if "gradient_variance" in what:
            found["gradient_variance"] = self._gradient_variance()
        return {name: found[name] for name in what}

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield inputs, labels and shares of a few rows of every client; the share of a padded row is 0."""
        for rows, share in zip(
            *(torch.split(part, self.width, 1) for part in (self.rows, self.share)), strict=True
        ):
            yield self.job.x[rows], self.job.y[rows], share.to(self.job.x)

    def _losses(self) -> Tensor:
        def losses(kept: Tensors, x: Tensor, y: Tensor) -> Tensor:
            logits = functional_call(self.model, {**self.shared, **kept}, (x,))
            return self.job.task.losses(logits, y, "none")

        if self.kept:
            each = [vmap(losses)(self.kept, x, y) for x, y, _ in self._pieces()]
        else:  # one model for all is one large batch
            each = [
                losses({}, x.flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])
                for x, y, _ in self._pieces()
            ]
        return torch.cat(each, 1).double()

    def _gradient_variance(self) -> Tensor:
        """Return ``mean_i ||g_i - mean g||^2``; for clients in several pieces, the mean takes a separate pass."""

        def mean_loss(
            weights: Tensors, fixed: Tensors, x: Tensor, y: Tensor, share: Tensor
        ) -> Tensor:
            outputs = functional_call(self.model, {**fixed, **weights}, (x,))
            return share @ self.job.task.losses(outputs, y, "none")

        def parts(kept: Tensors) -> tuple[Tensors, Tensors]:
            everything = {**self.shared, **kept}
            return {n: everything[n] for n in self.start.params}, {
                n: everything[n] for n in self.start.buffers
            }

        def mean(kept: Tensors, x: Tensor, y: Tensor, share: Tensor) -> Tensors:
            found: Tensors = grad(mean_loss)(*parts(kept), x, y, share)
            return found

        def spread(
            kept: Tensors, mean: Tensors | None, x: Tensor, y: Tensor, share: Tensor
        ) -> Tensor:
            row_by_row = vmap(grad(mean_loss), in_dims=(None, None, 0, 0, None))
            each = row_by_row(*parts(kept), x[:, None], y[:, None], share.new_ones(1))
            flat = {name: value.flatten(1) for name, value in each.items()}
            centre = {}
            for name, rows in flat.items():
                if mean is None:
                    centre[name] = share @ rows
                else:
                    centre[name] = mean[name].flatten()
            return torch.stack(
                [share @ (rows - centre[name]).square().sum(1) for name, rows in flat.items()]
            ).sum()

        centre = None
        if self.width < self.rows.shape[1]:
            centre = reduce(_added, (vmap(mean)(self.kept, *piece) for piece in self._pieces()))
        dims = (0, None if centre is None else 0, 0, 0, 0)
        squares = (
            vmap(spread, in_dims=dims)(self.kept, centre, *piece).double()
            for piece in self._pieces()
        )
        return reduce(torch.add, squares)


def _added(left: Tensors, right: Tensors) -> Tensors:
    return {name: value + right[name] for name, value in left.items()}
