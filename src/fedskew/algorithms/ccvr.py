"""CCVR: the head is trained again on virtual features of every class, after the last round or at intervals."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.calibrator import Calibrator
from fedskew.algorithms.contract import Algorithm, algorithms
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, NonNegative, Positive
from fedskew.core.streams import Stream
from fedskew.core.trees import Tensors, Tree

# (head, features, labels) -> mean loss
HeadLoss: TypeAlias = Callable[[Tensors, Tensor, Tensor], Tensor]


@algorithms.register("ccvr")
@dataclass(frozen=True)
class CCVR(Algorithm):
    """Classifier calibration with virtual representations (Luo et al. 2021, section 4, Algorithm 1).

    Training is that of the method it is added to, FedAvg when alone. After the last round every client sends, for
    each class c, how many rows it has, and the sum and the sum of outer products of their features z (the inputs of
    the head). Their totals give the mean and the covariance of all rows of the class, exactly as if these were in
    one place: ``mu_c = sum z / N_c`` and ``Sigma_c = (sum z z' - N_c mu_c mu_c') / (N_c - 1)``; the paper computes
    the same from the clients' own means and covariances. The server draws virtual features of each class from ``N(mu_c,
    Sigma_c)`` and goes on training the head, and it alone, on them.

    Training itself never uses the new head, so the curve of the run is that of the method without it. With ``every``
    a copy of the model gets a new head after so many rounds and is scored (``calibrated_*`` in the table of rounds):
    that is the curve of CCVR. Each time every client gets the model, runs it on all its rows and sends its sums; the
    clock and the bytes include this.

    Readings: as many features for every class, however rare; plain SGD from the head as it is. A ridge of 1e-8 of the
    mean square of the features keeps the covariance definite; a class with one row has no other spread, a class without
    rows gets no features. The ReLU and Tukey's transformation that the paper's runs put before the head would
    change the resulting model, and are left out. ``head_epochs = 0`` is the method without the addition.

    Args:
        features: virtual features drawn for each class
        head_epochs: passes over them
        head_lr: learning rate of the head
        head_batch: virtual features in a batch
        every: rounds between two calibrations of a copy that is scored, none for the last round alone

    >>> rows, labels = torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([1, 1])
    >>> sums = CCVR().calibrator.class_statistics(rows, labels, classes=2)["ccvr"]
    >>> sums["count"].tolist()
    [0.0, 2.0]
    >>> mean, covariance = class_gaussian(2.0, sums["sum"][1], sums["outer"][1])
    >>> mean.tolist(), covariance.tolist()
    ([2.0, 4.0], [[2.0, 4.0], [4.0, 8.0]])
    """

    addition: ClassVar[bool] = True

    features: Annotated[int, AtLeastOne] = 500
    head_epochs: Annotated[int, NonNegative] = 10
    head_lr: Annotated[float, Positive] = 0.01
    head_batch: Annotated[int, AtLeastOne] = 64
    every: Annotated[int | None, AtLeastOne] = None

    @property
    def calibrator(self) -> "VirtualFeatures":
        """Return the training of the head on virtual features."""
        return VirtualFeatures(self.every, self)


@dataclass(frozen=True)
class VirtualFeatures(Calibrator):
    """Trains the head on features drawn from the Gaussians of the classes; ``method`` holds the options."""

    method: CCVR = field(default_factory=CCVR)

    def class_statistics(self, features: Tensor, labels: Tensor, classes: int) -> Tree:
        """Return for each class the number of rows, the sum of their features and the sum of their outer products."""
        total: Tree = {}
        self.add_statistics(total, features, labels, classes)
        return total

    def add_statistics(self, total: Tree, features: Tensor, labels: Tensor, classes: int) -> None:
        """Add these sums in place: those of outer products take ``8 * classes * width^2`` bytes, and only once."""
        if "ccvr" not in total:
            width = features.shape[1]
            zeros = partial(features.new_zeros, dtype=torch.float64)
            shapes = {
                "count": (classes,),
                "sum": (classes, width),
                "outer": (classes, width, width),
            }
            total["ccvr"] = {name: zeros(shape) for name, shape in shapes.items()}
        count, added, outer = (total["ccvr"][name] for name in ("count", "sum", "outer"))
        for label in torch.unique(labels).tolist():
            mine = features[labels == label].double()
            count[label] += len(mine)
            added[label] += mine.sum(0)
            outer[label].addmm_(mine.T, mine)

    def check_statistics(self, statistics: Tree, rows: Tensor) -> None:
        """Raise an error unless counts are rows of the classes, and outer products those of a covariance."""
        count, total, outer = (statistics["ccvr"][name] for name in ("count", "sum", "outer"))
        counted = (count >= 0) & (count <= rows.to(count)) & (count == count.floor())
        if not bool(counted.all()):
            raise FedskewError("statistics/ccvr/count: told other numbers than rows of each class")
        for label in range(len(count)):
            if count[label] == 0 and (bool(total[label].any()) or bool(outer[label].any())):
                raise FedskewError(
                    f"statistics/ccvr: told sums over class {label}, and no row of it"
                )
            if (
                count[label] > 0
                and _factor(*class_gaussian(float(count[label]), total[label], outer[label]))
                is None
            ):
                raise FedskewError(f"statistics/ccvr/outer: told no covariance of class {label}")

    def calibrate(self, head: Tensors, statistics: Tree, loss: HeadLoss, stream: Stream) -> Tensors:
        """Return the head after SGD on virtual features."""
        draw = stream.generator()
        like = next(iter(head.values()))
        drawn, labels = self._virtual(statistics["ccvr"], draw)
        features = drawn.to(like)
        labels = labels.to(like.device)
        for _ in range(self.method.head_epochs):
            order = torch.from_numpy(draw.permutation(len(labels))).to(like.device)
            for batch in torch.split(order, self.method.head_batch):
                head = self._step(head, loss, features[batch], labels[batch])
        return head

    def _virtual(self, sums: Tensors, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return virtual features of every class that any client has, and their labels."""
        count, total, outer = (sums[name] for name in ("count", "sum", "outer"))
        if not count.any() or not all(torch.isfinite(one).all() for one in outer):
            raise FedskewError(
                "ccvr: the features of the last model are NaN or infinite: lower lr or check the data"
            )
        held = torch.nonzero(count).flatten()
        each = self.method.features
        drawn = []
        for c in held.tolist():
            drawn.append(_sample(*class_gaussian(float(count[c]), total[c], outer[c]), each, draw))
        return torch.cat(drawn), held.repeat_interleave(each)

    def _step(self, head: Tensors, loss: HeadLoss, features: Tensor, labels: Tensor) -> Tensors:
        with torch.enable_grad():
            weights = {}
            for name, value in head.items():
                weights[name] = value.detach().requires_grad_()
            grads = torch.autograd.grad(
                loss(weights, features, labels), list(weights.values()), materialize_grads=True
            )
        lr = self.method.head_lr
        result: Tensors = {}
        for (name, value), grad in zip(weights.items(), grads, strict=True):
            result[name] = value.detach() - lr * grad
        return result


def class_gaussian(count: float, total: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the covariance of a class from its sums; zero covariance for a single row."""
    mean = total / count
    # Wide features make this large: the rest is in place
    covariance = torch.addr(outer, mean, mean, alpha=-count)
    covariance /= max(count - 1, 1)
    return mean, covariance


def _factor(mean: Tensor, covariance: Tensor) -> Tensor | None:
    """Return the Cholesky factor of a covariance, which may be singular: a small ridge is added to it in place.

    None for what is not a covariance.
    """
    # The latter for features that are all 0
    ridge = 1e-8 * (mean.square() + covariance.diagonal()).mean() + 1e-30
    covariance.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    return None if failed or not bool(torch.isfinite(factor).all()) else factor


def _sample(mean: Tensor, covariance: Tensor, count: int, draw: np.random.Generator) -> Tensor:
    """Return samples of a Gaussian whose covariance may be singular."""
    factor = _factor(mean, covariance)
    if factor is None:
        raise FedskewError(
            "ccvr: the statistics of the clients have no covariance: leave the addition out"
        )
    noise = torch.from_numpy(draw.standard_normal((count, len(mean)))).to(mean)
    return torch.addmm(mean, noise, factor.T)
