"""Calibration after the last round or in between: class statistics of all clients, and a new head made from them."""

import copy
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints, Stream
from fedskew.core.trees import Tensors, Tree
from fedskew.engine.features import Tap, features_of
from fedskew.engine.inference import fastest_layout, rows_at_once
from fedskew.engine.job import Job
from fedskew.models.layout import head_module, layout
from fedskew.models.parameters import load_weights, trainable

ROWS_GATHERED = 4096  # rows whose statistics are computed together


def check_head(job: Job) -> None:
    """Raise an error before training if ``new_head`` cannot work."""
    if not job.algorithm.calibrator:
        return
    method = job.algorithm.label()
    model = type(job.model).__name__
    names = layout(job.model).head
    if job.algorithm.personal_method or names & job.local_names:
        raise FedskewError(
            f"{method}: each client has a head of its own, and there is no common one to train again: "
            "leave the addition out or take a method that shares the head"
        )
    if not names:
        head_module(job.model)  # raises an error without a head
    if not names & trainable(job.model).keys():
        raise FedskewError(
            f"{method}: the head of {model} is frozen: set requires_grad=True on its weights"
        )
    if not ends_in_head(job):
        raise FedskewError(
            f"{method}: {model} must end in its head, with one vector a row going in and the logits coming out: "
            "name that layer 'head'"
        )


@torch.no_grad()
def ends_in_head(job: Job) -> bool:
    """Return whether the outputs of the model are those of its head, for one vector a row."""
    worker = copy.deepcopy(job.model).eval()
    tap = Tap(worker)
    logits = worker(job.x[:1].clone())  # a model may write to its input
    features = getattr(tap, "features", None)
    return (
        features is not None
        and features.dim() == 2
        and torch.allclose(head_module(worker)(features), logits)
    )


def statistics_of(job: Job, models: Iterable[tuple[Tensors, Ints]]) -> Tree:
    """Return the class statistics of some rows.

    ``models`` are the weights and buffers under which features are computed, with the numbers of the rows. Statistics
    are sums over rows, so those of several clients may go in at once.
    """
    worker = copy.deepcopy(job.model).eval()
    worker = worker.to(memory_format=fastest_layout(worker, job.x))  # type: ignore[call-overload]
    total: Tree = {}
    for state, rows in models:
        load_weights(worker, state)
        _add_statistics(total, job, worker, torch.from_numpy(rows).to(job.y.device))
    return total


def new_head(job: Job, state: Tensors, statistics: Tree, round: int) -> Tensors:
    """Return the head of a model after so many rounds, by its names there, from the statistics of all clients."""
    calibrator = job.algorithm.calibrator
    assert calibrator
    worker = copy.deepcopy(job.model).eval()
    load_weights(worker, state)
    layer = head_module(worker)
    prefix = _prefix(worker)

    def loss(weights: Tensors, features: Tensor, labels: Tensor) -> Tensor:
        of_layer = {name.removeprefix(prefix): value for name, value in weights.items()}
        outputs = functional_call(layer, of_layer, (features,))
        return job.task.losses(outputs, labels)

    head = {}
    for name, value in trainable(worker).items():
        if name in layout(worker).head:
            head[name] = value.detach().clone()
    calibrated = calibrator.calibrate(head, statistics, loss, Stream(job.seed, "finish", round))
    if not all(bool(torch.isfinite(value).all()) for value in calibrated.values()):
        raise FedskewError(
            f"{job.algorithm.label()}: the new head is NaN or infinite: lower head_lr or check the data"
        )
    return calibrated


@torch.no_grad()
def _add_statistics(total: Tree, job: Job, worker: nn.Module, rows: Tensor) -> None:
    """Add the statistics of these rows, of many at once: sums over wide features are as large as many rows."""
    assert job.algorithm.calibrator
    for gathered in torch.split(rows, ROWS_GATHERED):
        found = features_of(worker, _batches(job, worker, gathered))
        features, targets = map(torch.cat, zip(*found, strict=True))
        # A client with invalid features must not affect the head
        finite = torch.isfinite(features).all(1)
        job.algorithm.calibrator.add_statistics(
            total, features[finite], targets[finite], job.classes
        )


def _batches(job: Job, worker: nn.Module, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets of these rows, as many at once as the model runs through quickly."""
    memory_format = fastest_layout(worker, job.x)
    for batch in torch.split(rows, rows_at_once(worker, job.x)):
        yield job.x[batch].contiguous(memory_format=memory_format), job.y[batch]


def _prefix(model: nn.Module) -> str:
    """Return the common prefix of the names of the head's tensors."""
    name = next(name for name, module in model.named_modules() if module is head_module(model))
    if name:
        return f"{name}."
    return ""
