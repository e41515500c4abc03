"""Checks that settings, model, data and method fit together, before training starts."""

from typing import NoReturn

import numpy as np
from torch import nn

from fedskew.algorithms.channel import Channel
from fedskew.algorithms.contract import Algorithm, Weights, overridden
from fedskew.algorithms.first_gradient import begins_with_gradients
from fedskew.algorithms.topologies import (
    Buffered,
    EdgeServers,
    Graph,
    Parallel,
    Scheduled,
    Synchronous,
    hides_labels,
)
from fedskew.batchnorm.masked import has_batch_norm
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.streams import Stream
from fedskew.core.trees import Tree, size_in_bytes
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.data.targets import IN_WORDS
from fedskew.engine.job import CANDIDATES, Job, initial_weights
from fedskew.engine.sharing import WHOLE
from fedskew.fleet.machines import Fleet
from fedskew.models.layout import head_module
from fedskew.models.low_rank import low_rank_names
from fedskew.models.parameters import trainable
from fedskew.server.calibration import ends_in_head
from fedskew.tasks.task import BuiltIn, Task

LATE = 10**9  # a round that comes after every change of the topology
_LOSSES_OF_ALL_ROWS = frozenset({"full_gradient", "loss_before", "loss_after", "candidate_losses"})
SERVER_MEMORY = 8  # GiB of models of single clients that a server may keep


def check_choices(algorithm: Algorithm, settings: Settings) -> None:
    """Raise an error for settings for which the method is not defined, before any data is read."""
    method = algorithm.label()
    topology = algorithm.topology(0)
    if "sgd" in algorithm.requires and settings.optimizer != "sgd":
        raise FedskewError(
            f"{method} with these options is defined for local SGD, got optimizer={settings.optimizer}: use "
            "optimizer=sgd, other options (fedskew list algorithms) or another method"
        )
    if "updates" in algorithm.requires and isinstance(topology, Scheduled):
        raise FedskewError(
            f"{method}: one model is trained by all clients, so no updates are sent: leave the addition out"
        )
    _check_graph(algorithm)
    _check_edges(algorithm)
    if settings.per_round is not None:
        algorithm.aggregator.check(settings.per_round)
    if hides_labels(topology):
        _check_secure(algorithm)
    if settings.workers:
        _check_workers(algorithm, settings.workers)
    if settings.test_trained and not isinstance(topology, Parallel):
        raise FedskewError(
            f"test_trained=true scores clients' models when all have trained, and {method} has no such moment: "
            "leave it out"
        )


def _check_graph(algorithm: Algorithm) -> None:
    """Raise an error for what needs a server, where clients on a graph have none."""
    if not isinstance(algorithm.topology(0), Graph):
        return
    if algorithm.client_selection.probe:
        raise FedskewError(
            f"{algorithm.label()}: a server selects clients by what they measure, and on a graph there is none: leave "
            "the addition out"
        )
    if type(algorithm.channel) is not Channel:
        raise FedskewError(
            f"{algorithm.label()}: a compressed update changes a model that its receiver has, and neighbours do not "
            "have each other's: leave the compression out"
        )


def _check_edges(algorithm: Algorithm) -> None:
    """Raise an error for what has no meaning where every edge has a model and a server of its own."""
    if not isinstance(algorithm.topology(0), EdgeServers):
        return
    several = algorithm.no_shared_model or overridden(algorithm, "answer")
    reasons = {
        "all rows are in one place": "pooled_rows" in algorithm.requires,
        "the server has several models, or answers single clients": bool(several)
        or "candidate_losses" in algorithm.requires,
        "clients share statistics in every step, also with those of other edges": (
            algorithm.batchnorm.shared != "never"
        ),
        "the server keeps features by class, which have no mean over edges": (
            "class_features" in algorithm.requires
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise FedskewError(f"{algorithm.label()}: {reason}: leave hierarchical out")


def _check_secure(algorithm: Algorithm) -> None:
    """Raise an error where there are no labels to hide, or where the server needs what it must not learn."""
    topology = algorithm.topology(0)
    if not isinstance(topology, Scheduled) or topology.label_access == "none":
        raise no_labels_to_hide(algorithm)
    if topology.label_access == "shares" and topology.counts_labels:
        raise FedskewError(
            "secure=true with selection=weighted gives the server shares of labels and no counts: use "
            "frequency=uniform and set with per_label= how often each label occurs"
        )


def no_labels_to_hide(algorithm: Algorithm) -> FedskewError:
    """Return the error for secret labels with a method whose server does not go by labels."""
    return FedskewError(
        f"secure=true hides labels from a server that schedules by them, and {algorithm.label()} does not: "
        "use a Stratify method, or leave it out"
    )


def _check_workers(algorithm: Algorithm, workers: int) -> None:
    """Raise an error where the clients of a round cannot be divided among workers."""
    method = algorithm.label()
    if isinstance(algorithm.topology(0), Scheduled):
        raise FedskewError(
            f"workers={workers} divides the clients of a round, and {method} trains one model on all of them: "
            "leave it out"
        )
    if algorithm.batchnorm.shared != "never":
        raise FedskewError(
            f"workers={workers} divides the clients of a round, and those of {method} share statistics at "
            "every layer: leave it out"
        )


def check_all(job: Job, settings: Settings, per_round: int) -> None:
    """Raise an error if data, model, settings and method do not fit together."""
    algorithm = job.algorithm
    check_choices(algorithm, settings)
    algorithm.aggregator.check(per_round)
    algorithm.check_clients(job.partition.clients)
    algorithm.trainable(job.layout, 0, 1)  # raises an error for a part that the model does not have
    _check_task(job, settings)
    _check_rows_alone(job)
    _check_features_of_tokens(job)
    _check_schedule(job, settings)
    _check_aggregation(job, per_round)
    _check_adaptation(job)
    _check_ranks(job)
    _check_linear_head(job)
    _check_several_models(job, per_round)
    _check_choice_of_model(algorithm)
    _check_models_of_edges(job, per_round)


def _check_task(job: Job, settings: Settings) -> None:
    """Raise an error for metrics that the task does not have, and for methods that need classes if targets are none."""
    task, algorithm = job.task, job.algorithm
    for name in settings.metrics:
        if name not in task.metric_names:
            raise unknown(f"metric of task {task.label()}", name, task.metric_names)
    task.headline(settings.metric)  # likewise
    needs_classes = {"classes", "class_counts"} & algorithm.requires
    if task.target == "class":
        if needs_classes and task.width(job.classes) != job.classes:
            raise FedskewError(
                f"{algorithm.label()} needs one output per class, and task {task.label()} has another number: "
                "use task=classification"
            )
        return

    def refusal(does: str) -> FedskewError:
        return FedskewError(
            f"{algorithm.label()} {does} classes, and the targets of task {task.label()} are {IN_WORDS[task.target]}: "
            "use another method"
        )

    def no_counts() -> NoReturn:
        raise refusal("selects clients by their")

    topology = algorithm.topology(0)
    if isinstance(topology, Scheduled) and topology.label_access != "none":
        raise refusal("schedules samples by their")
    if algorithm.calibrator:
        raise refusal("needs the features of")
    if needs_classes:
        raise refusal("looks at")
    # A selection that asks for the class counts of clients is refused when it does
    algorithm.client_selection.client_profile(no_counts, Stream(settings.seed, "disclose"))


def _check_features_of_tokens(job: Job) -> None:
    """Raise an error for methods that look at the features of rows, where every token has its own."""
    if job.task.target == "tokens" and "features" in job.algorithm.requires:
        raise FedskewError(
            f"{job.algorithm.label()} looks at one vector of features per row, and task {job.task.label()} has one per "
            "token: use another method"
        )


def _check_rows_alone(job: Job) -> None:
    """Raise an error for what adds up losses row by row, where the loss of a row depends on the others in its batch."""
    task, algorithm = job.task, job.algorithm
    if task.rows_alone:
        return
    does = ""
    if isinstance(algorithm.topology(0), Scheduled):
        does = "trains on batches that several clients hold"
    elif algorithm.requires & _LOSSES_OF_ALL_ROWS or begins_with_gradients(algorithm):
        does = "adds up losses over all rows of a client"
    elif algorithm.client_selection.probe:
        does = "measures losses of single rows"
    if does:
        raise FedskewError(
            f"{algorithm.label()} {does}, and in task {task.label()} the loss of a row depends on the rows beside it: "
            "use another method"
        )


def check_thresholds(task: Task, fed: Federation, job: Job) -> None:
    """Raise an error if no threshold can be chosen: for two classes, on validation rows of both, of a global model."""
    classes = len(fed.data.classes)
    if not isinstance(task, BuiltIn) or task.target != "class" or classes != 2:
        have = f"is task {task.label()}"
        if task.target == "class":
            have = f"has {classes} classes"
        raise FedskewError(
            f"thresholds are for two classes and the tasks classification and binary, and this {have}: leave it out; "
            "class_weights=balanced is for any number of classes"
        )
    if job.shared_model != WHOLE:
        raise FedskewError(
            f"thresholds are chosen for a global model, and {job.shared_model}: leave it out"
        )
    if fed.validation is None or len(np.unique(fed.validation.y)) < 2:
        raise FedskewError(
            "thresholds are chosen on validation rows of both classes, and there are none: add validation=0.2, or "
            "leave it out"
        )


def _check_schedule(job: Job, settings: Settings) -> None:
    method = job.algorithm.label()
    topology = job.algorithm.topology(0)
    if not isinstance(topology, Scheduled):
        return
    has_one_client_a_step = min(settings.batch_size, job.partition.clients) < 2
    if topology.secure and isinstance(topology, Synchronous) and has_one_client_a_step:
        raise FedskewError(
            "secure=true sums gradients over the clients of a step, and here every step has one: use at least 2 "
            "clients and batch_size=2"
        )
    if job.local_names:
        raise FedskewError(
            f"norm={settings.norm} keeps parts of the model with each client, but {method} has one model for all: "
            "use norm=aggregate"
        )
    if trains_single_samples(job.algorithm) and has_batch_norm(job.model):
        raise FedskewError(
            f"{method} trains on one sample at a time, and BatchNorm has no spread to normalise by then: "
            "use norm=group in the model, or a method that trains in batches"
        )


def trains_single_samples(algorithm: Algorithm) -> bool:
    """Return whether the method takes optimiser steps of one sample in any round."""
    return any(getattr(algorithm.topology(round), "single_samples", False) for round in (0, LATE))


def _check_aggregation(job: Job, per_round: int) -> None:
    """Raise an error if an aggregation rule is added to a method that does not aggregate updates."""
    algorithm = job.algorithm
    topology = job.algorithm.topology(0)
    if not algorithm.aggregator.needs_all:
        return
    method = algorithm.label()
    if isinstance(topology, Scheduled):
        raise FedskewError(
            f"{method}: one model is trained by all clients, so no updates are combined: leave the rule out"
        )
    if not trainable(job.model).keys() - job.unsent:
        raise FedskewError(
            f"{method}: clients send nothing that could be combined: leave the rule out"
        )
    updates = per_round
    if isinstance(topology, Buffered):
        updates = min(topology.buffer_size, per_round)
    if isinstance(topology, EdgeServers):
        updates = per_round // topology.edges
    may_have_few = updates < per_round or "pooled_rows" in algorithm.requires
    least = max(2, algorithm.aggregator.least_updates)
    if may_have_few and updates < least:
        raise FedskewError(
            f"{method}: the rule needs the updates of at least {least} clients, and a step of the server "
            f"has {updates}: take more clients per round (per_round), or leave the rule out"
        )


def _check_linear_head(job: Job) -> None:
    """Raise an error if the method adds a head to the model's, and that is not a linear layer at its end."""
    if "linear_head" not in job.algorithm.requires:
        return
    head = head_module(job.model)  # raises an error for a model without a head
    if not isinstance(head, nn.Linear) or not ends_in_head(job):
        raise FedskewError(
            f"{job.algorithm.label()}: {type(job.model).__name__} must end in a linear head: name that layer 'head', "
            "or use another method"
        )


def _check_several_models(job: Job, per_round: int) -> None:
    """Raise an error for what needs one global model where the server has several, and for too many of them."""
    algorithm = job.algorithm
    method = algorithm.label()
    if not algorithm.no_shared_model and not overridden(algorithm, "answer"):
        return
    if "private_updates" in algorithm.requires:
        raise FedskewError(
            f"{method}: the server answers clients by their single updates, which noise on the mean does not hide: "
            "leave dp out"
        )
    if algorithm.aggregator.needs_all:
        raise FedskewError(
            f"{method}: a rule combines the updates of one model, and here clients train several: leave the rule out"
        )
    if algorithm.mixes_rounds:
        raise FedskewError(
            f"{method}: rounds on a sample schedule train one model, and here clients train several: leave "
            "stratify-rounds out"
        )
    if type(algorithm.channel) is not Channel and not overridden(algorithm, "answer"):
        raise FedskewError(
            f"{method}: what an update left unsent belongs to one model, and a client may choose another one next: "
            "leave the compression out"
        )
    if algorithm.calibrator:
        raise FedskewError(
            f"{method}: there is no global model whose head could be calibrated: leave ccvr out"
        )
    if overridden(algorithm, "answer"):
        _check_memory(job, per_round)


def _check_choice_of_model(algorithm: Algorithm) -> None:
    """Raise an error where clients are selected by what they measure, and will train another model than that."""
    if "candidate_losses" not in algorithm.requires or overridden(algorithm, "answer"):
        return
    if algorithm.client_selection.probe:
        raise FedskewError(
            f"{algorithm.label()}: a client measures before it knows which model it will train: leave the addition out"
        )


def check_buffers_of_models(job: Job, server_state: Tree) -> None:
    """Raise an error if clients would average buffers, such as BatchNorm's, of layers that have several models."""
    algorithm = job.algorithm
    answer = algorithm.answer(server_state, np.zeros(1, dtype=np.int64))
    several = answer.get("model", {}).keys() | algorithm.broadcast(server_state).get(CANDIDATES, {})
    if not set(several) - job.layout.head:
        return
    sent = sorted(dict(job.model.named_buffers()).keys() - job.unsent)
    if sent:
        raise FedskewError(
            f"{algorithm.label()}: clients would share {sent[0]} between different models: use norm=local, or "
            "norm=group in the model"
        )


def _check_memory(job: Job, per_round: int) -> None:
    """Raise an error if what the server keeps of every client, and answers those of a round, is too large."""
    weights = {}
    for name, value in trainable(job.model).items():
        weights[name] = value.detach().to("meta")
    clients = job.partition.clients
    initial = initial_weights(weights, job.unsent, job.layout, clients)
    state = job.algorithm.init_server_state(initial)
    answers = job.algorithm.answer(state, np.arange(per_round))
    size = (size_in_bytes(state) + size_in_bytes(answers)) / 2**30
    if size > SERVER_MEMORY:
        raise FedskewError(
            f"{job.algorithm.label()} keeps models of all {clients} clients on the server, {size:.1f} GiB, and at most "
            f"{SERVER_MEMORY} are allowed: use fewer clients, a smaller model, or ifca, which keeps a few models"
        )


def _check_ranks(job: Job) -> None:
    """Raise an error if clients keep adapters that are to have the ranks with which they are sent."""
    adapters = job.algorithm.adapters
    kept = sorted(low_rank_names(job.local_names))
    if adapters is not None and adapters.ranks and kept:
        raise FedskewError(
            f"{job.algorithm.label()}: {kept[0]} stays with its client, and ranks are those of adapters that are sent: "
            "leave ranks out"
        )


def _check_rule_of_cloud(topology: EdgeServers, method: str, per_round: int) -> None:
    """Raise an error if the rule of the cloud needs more edges than there are, or than clients reach between rounds."""
    rule = topology.rule
    rule.check(topology.edges)
    if topology.edges < max(2, rule.least_updates):
        raise FedskewError(
            f"{method}: the rule of the cloud needs more than edges={topology.edges}: use more edges, or leave the "
            "rule out"
        )
    most = topology.every * per_round
    if most < rule.least_updates:
        raise FedskewError(
            f"{method}: {most} clients between rounds of the cloud are updates of at most as many edges, and its rule "
            f"needs {rule.least_updates}: take more clients per round (per_round), or a larger every"
        )


def _check_models_of_edges(job: Job, per_round: int) -> None:
    """Raise an error if edges cannot be found by labels, a rule needs more edges, or their models are too large."""
    topology = job.algorithm.topology(0)
    if not isinstance(topology, EdgeServers):
        return
    method = job.algorithm.label()
    if topology.by == "labels" and job.task.target != "class":
        raise FedskewError(
            f"{method}: by=labels needs classes as targets, and those of task {job.task.label()} are none: use "
            "by=order or by=network"
        )
    if topology.rule.needs_all:
        _check_rule_of_cloud(topology, method, per_round)
    weights = initial_weights(trainable(job.model), job.unsent, job.layout, job.partition.clients)
    state = job.algorithm.init_server_state(weights)
    for part, tensors in state.items():
        if not all(value.is_floating_point() for value in tensors.values()):
            raise FedskewError(
                f"{method}: the server keeps counts ({part}), which have no mean over edges: leave hierarchical out"
            )
    size = topology.edges * (size_in_bytes({"": dict(weights)}) + size_in_bytes(state)) / 2**30
    if size > SERVER_MEMORY:
        raise FedskewError(
            f"{method}: {topology.edges} edges have models of {size:.1f} GiB, and at most {SERVER_MEMORY} are "
            "allowed: use fewer edges or a smaller model"
        )


def _check_adaptation(job: Job) -> None:
    """Raise an error if clients are to adapt a model on their rows, and have none of their own."""
    if job.algorithm.adaptation is None:
        return
    if "pooled_rows" in job.algorithm.requires:
        raise FedskewError(
            f"{job.algorithm.label()}: all rows are in one place, so that no client can adapt the model on its own: "
            "leave the addition out"
        )
    # Raises an error for a part that the model does not have
    job.algorithm.adaptation.method.trainable(job.layout, 0, 1)


def check_private(job: Job, settings: Settings, fleet: Fleet, payload: Tree) -> None:
    """Raise an error for what would break the guarantee of a method with private updates; ``payload`` is a sample."""
    method = job.algorithm.label()
    if "private_updates" not in job.algorithm.requires:
        return
    if settings.sampling != "uniform":
        raise FedskewError(
            f"{method}: epsilon is that of clients with equal chances, got sampling={settings.sampling}: "
            "use sampling=uniform"
        )
    if fleet.windows:
        raise FedskewError(
            f"{method}: with fleet={settings.fleet} a slow client decides at what time the next round begins, and so "
            "who is available then, which epsilon does not cover: use a fleet whose clients are always there"
        )
    if not payload.get("delta"):
        raise FedskewError(f"{method}: clients send no update that could be clipped: leave dp out")
    if payload["buffers"]:
        raise FedskewError(
            f"{method}: clients send {next(iter(payload['buffers']))}, to which neither clipping nor noise applies: "
            "use norm=local, or norm=group in the model"
        )
    if others := sorted(payload.keys() - {"delta", "buffers"}):
        raise FedskewError(
            f"{method}: clients send {', '.join(others)} beside their update, to which neither clipping nor noise "
            "applies: use another method"
        )


def check_drawn(algorithm: Algorithm, trained_on: Partition) -> None:
    """Raise an error for noise of each client's own, where many are drawn to be the same one."""
    telling = algorithm.client_selection.telling
    if (
        telling and telling.in_rounds
    ):  # noise is drawn by the number of a client, when it tells something
        return
    if "secret_noise" in algorithm.requires and trained_on.distinct is not trained_on:
        raise FedskewError(
            f"{algorithm.label()}: clients that are drawn from a few would have the same noise: leave epsilon out"
        )


def check_candidates(algorithm: Algorithm, per_round: int) -> None:
    """Raise an error if fewer clients tell their profiles in a round than take part in it."""
    telling = algorithm.client_selection.telling
    if telling and telling.candidates is not None and telling.candidates < per_round:
        raise FedskewError(
            f"{algorithm.label()}: candidates={telling.candidates} is fewer than the {per_round} clients of a round: "
            "raise it, or lower per_round"
        )


def check_fleet(algorithm: Algorithm, fleet: Fleet) -> None:
    """Raise an error if the server is to go on when enough clients have answered, and the method has other rounds."""
    if fleet.enough < 1 and type(algorithm.topology(0)) is not Parallel:
        raise FedskewError(
            f"fleet: enough={fleet.enough:g} is for rounds in which a server waits for clients that train apart, and "
            f"{algorithm.label()} has others: leave it out"
        )


def clients_per_round(settings: Settings, trained_on: Partition, clients: int) -> int:
    """Return how many of the clients take part in a round."""
    if settings.per_round is None:
        return trained_on.clients
    if settings.per_round > clients:
        raise FedskewError(
            f"per_round={settings.per_round} is more than the {clients} clients: use at most {clients}"
        )
    return min(settings.per_round, trained_on.clients)


def least_batch(model: nn.Module, trained_on: Partition, batch_size: int, fed: Federation) -> int:
    """Return how many rows a batch must have: 2 where BatchNorm computes a variance."""
    if not has_batch_norm(model):
        return 1
    if batch_size == 1:
        raise FedskewError(
            "batch_size=1 with BatchNorm has no spread to normalise by: use batch_size >= 2 or norm=group in the model"
        )
    if trained_on.sizes.min() == 1:
        client = int(np.argmin(trained_on.sizes))
        raise FedskewError(
            f"client {fed.client_names[client]} has 1 row, BatchNorm needs 2; use min_size=2 in the skew, "
            "fewer clients or norm=group"
        )
    return 2


def weights_of(algorithm: Algorithm, settings: Settings) -> Weights:
    """Return what clients count by in the mean: what the method prescribes, else what the settings or its paper say."""
    if algorithm.weighting.by:
        return algorithm.weighting.by
    if settings.weights == "paper":
        return algorithm.weighting.paper
    return settings.weights
