"""A worker: a process that trains shards of clients for the leading process of a run, and nothing else."""

import copy
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedskew.algorithms.contract import Algorithm, Weights
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.plugins import imported
from fedskew.core.streams import Ints
from fedskew.data.dataset import Features, Rows
from fedskew.data.partition import Partition
from fedskew.data.stored_rows import whole
from fedskew.data.targets import Targets
from fedskew.engine.device import pick_device
from fedskew.engine.job import make_job
from fedskew.server.clients import jobs_of
from fedskew.server.server import Server
from fedskew.server.server_parts import make_engine
from fedskew.tasks.task import Task
from fedskew.topology.shards import Sharded, ShardTrainer, Work
from fedskew.transport.group import LEADER, Failure, Group, WorkerLostError
from fedskew.transport.messages import packed, sendable


class Hole:
    """The place of a parameter or a buffer in a model that is given to another process without its tensors."""

    def __init__(self, value: Tensor) -> None:
        self.parameter = isinstance(value, nn.Parameter)
        self.trainable = value.requires_grad

    def filled(self, value: Tensor) -> Tensor:
        """Return what belongs here."""
        if self.parameter:
            return nn.Parameter(value, self.trainable)
        return value


@dataclass(frozen=True)
class Inputs:
    """What a worker is started with: the code of a run, which is never sent in a message.

    ``model`` has holes in the place of its tensors.
    """

    model: nn.Module
    holes: list[Hole]
    algorithm: Algorithm
    settings: Settings
    task: Task
    classes: int
    weights: Weights

    @classmethod
    def of(cls, server: Server) -> "Inputs":
        """Return what the workers of a server are started with."""
        tensors = _tensors(server.model)
        holes = [Hole(value) for value in tensors]
        model = copy.deepcopy(
            server.model, {id(value): hole for value, hole in zip(tensors, holes, strict=True)}
        )
        classes = len(server.fed.data.classes)
        return cls(
            model,
            holes,
            server.algorithm,
            server.settings,
            server.job.task,
            classes,
            server.weights,
        )

    def trainer(self, numbers: "Numbers") -> ShardTrainer:
        """Return what trains shards for the run."""
        filled = {}
        for hole, value in zip(self.holes, numbers.tensors, strict=True):
            filled[id(hole)] = hole.filled(value)
        model = copy.deepcopy(self.model, filled)
        rows = Rows(numbers.x, numbers.y)
        partition = Partition(numbers.rows, numbers.offsets)
        job = make_job(
            model, rows, partition, self.algorithm, self.settings, 0, self.task, self.classes
        )
        return ShardTrainer(make_engine(self.settings), jobs_of(job), self.weights)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


@dataclass(frozen=True)
class Numbers:
    """What a worker on this machine is sent before the first round: rows, whose they are, and the model's tensors."""

    x: Features
    y: Targets
    rows: Ints
    offsets: Ints
    tensors: list[Tensor]

    @classmethod
    def of(cls, server: Server) -> "Numbers":
        """Return what the workers of a server are sent."""
        rows, partition = server.rows, server.job.partition
        tensors = [value.detach().cpu() for value in _tensors(server.model)]
        x = whole(rows.x, "workers: each of them")
        return cls(x, rows.y, partition.rows, partition.offsets, tensors)


@dataclass(frozen=True)
class Recipe:
    """What a worker of ``torchrun`` is sent before the first round: names and options, from which it makes the run.

    ``fingerprint`` is that of the rows of all clients, ``imports`` the SHA-256 of the modules that the user imported.
    """

    config: dict[str, Any]
    fingerprint: str
    imports: list[str]

    def trainer(self, make: Callable[[Mapping[str, Any]], Server]) -> ShardTrainer:
        """Return what trains shards for the run; ``make`` returns the server of a configuration."""
        server = make(self.config)
        if server.fed.fingerprint != self.fingerprint:
            raise FedskewError(
                f"{socket.gethostname()} has other rows of {server.fed.data.name} than the machine of process 0: "
                "copy the data from there"
            )
        if [code.sha256 for code in imported()] != self.imports:
            raise FedskewError(
                f"{socket.gethostname()} has other code in what --import names than the machine of process 0: copy it "
                "from there"
            )
        assert isinstance(server.engine, Sharded)
        return server.engine.trainer


@dataclass(frozen=True)
class Begin:
    """Tells a worker that a run begins: on which device, and what the run is made from."""

    device: str
    content: Numbers | Recipe


@dataclass(frozen=True)
class Gpus:
    """Tells all processes whether each of them has a GPU of its own."""

    own: bool


sendable(Numbers, Recipe, Begin, Gpus)


@contextmanager
def enlisted(server: Server, group: Group, content: Numbers | Recipe) -> Iterator[None]:
    """Give the workers of a group what they need for a run, and let the server use them; afterwards it is alone."""
    engine = server.engine
    assert isinstance(engine, Sharded)
    begin = Begin(server.settings.device, content)
    mine, theirs = group.ask([begin] * len(group.workers), lambda: _gpu(server.device))
    gpus = [mine, *theirs]
    group.device = server.device
    each_has_its_own = None not in gpus and len(set(gpus)) == group.size
    group.ask(
        [Gpus(each_has_its_own)] * len(group.workers), lambda: group.use_gpus(each_has_its_own)
    )
    engine.group = group
    try:
        yield
    finally:
        engine.group = None


def serve(group: Group, number: int, trainer_of: Callable[[Any], ShardTrainer]) -> None:
    """Do what the leader asks until it says that it is done, or is gone.

    ``number`` counts the workers of this machine; ``trainer_of`` makes a trainer of what the leader sends for a run.
    """
    warnings.simplefilter("ignore")  # the leader has given the same warnings
    trainer: ShardTrainer | None = None
    answer: Any
    while True:
        try:
            question = group.receive(LEADER)
            if question is None:
                return
            if isinstance(question, Begin):
                trainer = None  # its memory is free before the next one takes some
                _choose_gpu(question.device, number)
                trainer = trainer_of(question.content)
                group.device = trainer.jobs[0].x.device
                answer = _gpu(group.device)
            elif isinstance(question, Gpus):
                group.use_gpus(question.own)
                answer = None
            else:
                assert isinstance(question, Work)
                assert trainer
                answer = trainer.perform(question)
            message = packed(answer)
        except WorkerLostError:
            return
        except Exception as problem:
            message = packed(Failure.of(group.rank, problem))
        try:
            group.send(message, LEADER)
        except WorkerLostError:
            return


def _choose_gpu(device: str, number: int) -> None:
    """Choose the GPU of this process; where the user named none, the workers of a machine take theirs in turn."""
    chosen = pick_device(device)
    if chosen.type != "cuda":
        return
    if chosen.index is None:
        torch.cuda.set_device(number % torch.cuda.device_count())
    else:
        torch.cuda.set_device(chosen)


def _gpu(device: torch.device) -> str | None:
    """Return which GPU of all machines a device is, or None for a CPU."""
    if device.type != "cuda":
        return None
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
