"""A worker: a process that trains shards of clients for the leading process of a run, and nothing else."""

import copy
import socket
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedskew.algorithms.contract import Algorithm, Weights
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.engine.device import pick_device
from fedskew.engine.job import make_job
from fedskew.server.server import Server, jobs_of, make_engine
from fedskew.tasks.task import Task
from fedskew.topology.shards import Sharded, ShardTrainer, Work
from fedskew.workers.group import LEADER, Failure, Group, WorkerLostError
from fedskew.workers.messages import packed


@dataclass(frozen=True)
class Inputs:
    """What a worker must have before the first round of a run."""

    model: nn.Module
    rows: Rows
    partition: Partition
    algorithm: Algorithm
    settings: Settings
    task: Task
    classes: int
    weights: Weights

    @classmethod
    def of(cls, server: Server) -> "Inputs":
        """Return what the workers of a server must have."""
        model, fed = copy.deepcopy(server.model).cpu(), server.fed
        return cls(
            model, fed.train, server.trained_on, server.algorithm, server.settings, server.job.task,
            len(fed.data.classes), server.weights,
        )  # fmt: skip

    def trainer(self) -> ShardTrainer:
        """Return what trains shards for the run."""
        job = make_job(self.model, self.rows, self.partition, self.algorithm, self.settings, 0, self.task, self.classes)
        return ShardTrainer(make_engine(self.settings), jobs_of(job), self.weights)


@dataclass(frozen=True)
class Gpus:
    """Tells all processes whether each of them has a GPU of its own."""

    own: bool


@contextmanager
def enlisted(server: Server, group: Group) -> Iterator[None]:
    """Give the workers of a group what they need for a run, and let the server use them; afterwards it is alone."""
    engine = server.engine
    assert isinstance(engine, Sharded)
    inputs = Inputs.of(server)
    _check_can_be_sent(inputs)
    questions: Sequence[Any] = [inputs] * len(group.workers)
    mine, theirs = group.ask(questions, lambda: _gpu(server.device))
    gpus, group.device = [mine, *theirs], server.device
    own = None not in gpus and len(set(gpus)) == group.size
    group.ask([Gpus(own)] * len(group.workers), lambda: group.use_gpus(own))
    engine.group = group
    try:
        yield
    finally:
        engine.group = None


def _check_can_be_sent(inputs: Inputs) -> None:
    for name in ("model", "algorithm", "task"):
        try:
            packed(getattr(inputs, name))
        except Exception as problem:  # whatever the object of a user raises
            raise FedskewError(
                f"the {name} cannot be sent to workers ({' '.join(str(problem).split())}): define its class and "
                "functions in a module, by name, or leave workers out"
            ) from problem


def serve(group: Group, number: int) -> None:
    """Do what the leader asks until it says that it is done, or is gone; ``number`` counts workers of this machine."""
    warnings.simplefilter("ignore")  # the leader has given the same warnings
    trainer: ShardTrainer | None = None
    answer: Any
    while True:
        try:
            question = group.receive(LEADER)
        except WorkerLostError:
            return
        except Exception as problem:  # an object that cannot be made here, such as of a class in a user's script
            question = problem
        if question is None:
            return
        try:
            if isinstance(question, Exception):
                raise question
            if isinstance(question, Inputs):
                trainer = None  # its memory is free before the next one takes some
                _choose_gpu(question.settings.device, number)
                trainer = question.trainer()
                group.device = trainer.jobs[0].x.device
                answer = _gpu(group.device)
            elif isinstance(question, Gpus):
                group.use_gpus(question.own)
                answer = None
            else:
                assert isinstance(question, Work)
                assert trainer
                answer = trainer.perform(question)
        except Exception as problem:
            answer = Failure.of(group.rank, problem)
        try:
            group.send(answer, LEADER)
        except WorkerLostError:
            return


def _choose_gpu(device: str, number: int) -> None:
    """Let the workers of a machine take one GPU after the other, where the user left the choice open."""
    found = pick_device(device)
    if found.type == "cuda":
        torch.cuda.set_device(number % torch.cuda.device_count() if found.index is None else found)


def _gpu(device: torch.device) -> str | None:
    """Return which GPU of all machines a device is, or None for a CPU."""
    if device.type != "cuda":
        return None
    return f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
