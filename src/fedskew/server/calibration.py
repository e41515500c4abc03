"""After the last round, or in between: the clients' tallies of what goes into the head, and what a method makes of them."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.algorithms.contract import overridden
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints, Stream
from fedskew.core.trees import Tensors, Tree
from fedskew.engine.features import Tap
from fedskew.engine.inference import rows_at_once
from fedskew.engine.job import Job
from fedskew.models.layout import head_module, layout
from fedskew.models.parameters import trainable


def check_head(job: Job, personal: bool) -> None:
    """Refuse before training what ``new_head`` cannot do; ``personal``: clients train models all of their own."""
    if not overridden(job.algorithm, "tally"):
        return
    method, model, names = job.algorithm.label(), type(job.model).__name__, layout(job.model).head
    if personal or names & job.kept:
        raise FedskewError(
            f"{method}: each client has a head of its own, and there is no common one to train again: "
            "leave the addition out or take a method that shares the head"
        )
    if not names:
        head_module(job.model)  # refuses
    if not names & trainable(job.model).keys():
        raise FedskewError(f"{method}: the head of {model} is frozen: set requires_grad=True on its weights")
    if not _ends_in_head(job):
        raise FedskewError(
            f"{method}: {model} must end in its head, with one vector a row going in and the logits coming out: "
            "name that layer 'head'"
        )


@torch.no_grad()
def _ends_in_head(job: Job) -> bool:
    worker = copy.deepcopy(job.model).eval()
    tap = Tap(worker)
    logits = worker(job.x[:1].clone())  # a model may write to its input
    features = getattr(tap, "features", None)
    return features is not None and features.dim() == 2 and torch.allclose(head_module(worker)(features), logits)


def new_head(job: Job, classes: int, models: Iterable[tuple[Tensors, Ints]], round: int) -> tuple[Tensors, Tree]:
    """The head after so many rounds, by the names it has in the model, and the tally that it was made from.

    ``models`` are the weights and buffers under which rows are looked at, with the numbers of these rows. Tallies are sums over
    rows, so those of several clients may go in at once.
    """
    worker = copy.deepcopy(job.model).eval()
    total: Tree = {}
    for state, rows in models:
        _load(worker, state)
        _add_tallies(total, job, worker, torch.from_numpy(rows).to(job.y.device), classes)
    layer, prefix = head_module(worker), _prefix(worker)

    def classify(weights: Tensors, features: Tensor) -> Tensor:
        logits: Tensor = functional_call(layer, {name.removeprefix(prefix): w for name, w in weights.items()}, (features,))
        return logits

    head = {name: value.detach().clone() for name, value in trainable(worker).items() if name in layout(worker).head}
    return job.algorithm.finish(head, total, classify, Stream(job.seed, "finish", round)), total


@torch.no_grad()
def _load(worker: nn.Module, state: Tensors) -> None:
    for name, value in {**trainable(worker), **dict(worker.named_buffers())}.items():
        value.copy_(state[name])


@torch.no_grad()
def _add_tallies(total: Tree, job: Job, worker: nn.Module, rows: Tensor, classes: int) -> None:
    tap = Tap(worker)
    for some in torch.split(rows, rows_at_once(worker, job.x)):
        worker(job.x[some])
        sound = torch.isfinite(tap.features).all(1)  # a broken client must not break the head for all
        for part, tensors in job.algorithm.tally(tap.features[sound], job.y[some][sound], classes).items():
            sums = total.setdefault(part, {})
            for name, value in tensors.items():
                sums[name] = sums[name].add_(value) if name in sums else value
    tap.remove()


def _prefix(model: nn.Module) -> str:
    """What the names of the head's tensors begin with."""
    name = next(name for name, module in model.named_modules() if module is head_module(model))
    return f"{name}." if name else ""
