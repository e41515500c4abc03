"""Settings, models and methods that do not go together: refused before anything is trained."""

import numpy as np
from torch import nn

from fedskew.algorithms.contract import Algorithm, overridden
from fedskew.batchnorm.masked import has_batch_norm
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.data.partition import Partition
from fedskew.engine.job import Job
from fedskew.models.parameters import trainable


def clients_a_round(settings: Settings, trained_on: Partition, clients: int) -> int:
    """How many clients take part in a round, of those that there are."""
    if settings.per_round is None:
        return trained_on.clients
    if settings.per_round > clients:
        raise FedskewError(f"per_round={settings.per_round} is more than the {clients} clients: use at most {clients}")
    return min(settings.per_round, trained_on.clients)


def check_topology(algorithm: Algorithm, job: Job, settings: Settings) -> None:
    """Refuse settings that make no sense for the way in which the method moves the model."""
    if settings.secure and algorithm.reads() == "nothing":
        raise FedskewError(
            f"secure=true hides labels from a server that schedules by them, and {algorithm.label()} does not: "
            "use a Stratify method, or leave it out"
        )
    together = algorithm.topology(0) == "parallel" and algorithm.awaits() is None
    if settings.test_trained and not together:
        raise FedskewError(
            f"test_trained=true scores clients' models when all have trained, and {algorithm.label()} has no such moment: "
            "leave it out"
        )
    if algorithm.topology(0) == "parallel":
        return
    if settings.secure and algorithm.topology(0) == "lockstep" and min(settings.batch_size, job.partition.clients) < 2:
        raise FedskewError(
            "secure=true sums gradients over the clients of a step, and here every step has one: use at least 2 clients and "
            "batch_size=2"
        )
    if job.kept:
        raise FedskewError(
            f"norm={settings.norm} keeps parts of the model with each client, but {algorithm.label()} has one model for all: "
            "use norm=aggregate"
        )
    if algorithm.one_by_one and has_batch_norm(job.model):
        raise FedskewError(
            f"{algorithm.label()} trains on one sample at a time, and BatchNorm has no spread to normalise by then: "
            "use norm=group in the model, or a method that trains in batches"
        )


def check_combining(algorithm: Algorithm, job: Job, updates: int | None) -> None:
    """Refuse a rule for the updates of several clients where the method has none.

    ``updates`` is how many make a step of a method that pools all rows or does not wait for everybody; None for the others.
    """
    if not overridden(algorithm, "combine"):
        return
    method = algorithm.label()
    if algorithm.topology(0) != "parallel":
        raise FedskewError(f"{method}: one model goes through all clients, so no updates are combined: leave the rule out")
    if not trainable(job.model).keys() - job.unsent:
        raise FedskewError(f"{method}: clients send nothing that could be combined: leave the rule out")
    if updates is not None and updates < max(2, algorithm.quorum()):
        raise FedskewError(
            f"{method}: the rule needs the updates of at least {max(2, algorithm.quorum())} clients, and a step of the server "
            f"has {updates}: take more clients a round (per_round), or leave the rule out"
        )


def least_batch(model: nn.Module, trained_on: Partition, batch_size: int) -> int:
    """Rows that a batch must have: 2 where BatchNorm needs a spread to divide by."""
    if not has_batch_norm(model):
        return 1
    if batch_size == 1:
        raise FedskewError(
            "batch_size=1 with BatchNorm has no spread to normalise by: use batch_size >= 2 or norm=group in the model"
        )
    if trained_on.sizes.min() == 1:
        client = int(np.argmin(trained_on.sizes))
        raise FedskewError(
            f"client {client} has 1 row, BatchNorm needs 2; use min_size=2 in the skew, fewer clients or norm=group"
        )
    return 2
