"""What stays the same over all rounds of a run, and what an engine takes and gives back; server and lone client share it."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from fedskew.algorithms.contract import Algorithm, Probe, Report
from fedskew.batchnorm.masked import check_layers
from fedskew.core.config import Settings
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.engine.device import pick_device
from fedskew.engine.optimizer import Optimizer
from fedskew.engine.plan import Plan
from fedskew.models.layout import Layout, head_module, layout
from fedskew.models.parameters import trainable
from fedskew.topology.sample_schedule import Walk

MEMO, OPTIMIZER = "memo.", "optimizer."


def parts(own: Tree, prefix: str) -> Tree:
    """The parts of ``own`` under a prefix, by their plain names."""
    return {name.removeprefix(prefix): tensors for name, tensors in own.items() if name.startswith(prefix)}


def prefixed(tree: Tree, prefix: str) -> Tree:
    """The inverse of ``parts``."""
    return {prefix + name: tensors for name, tensors in tree.items()}


@dataclass(frozen=True)
class Job:
    """The model, the data on its device, the method and the local optimiser.

    The data may be everybody's, or only one client's: then ``first`` is that client's number and the partition has one client.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    partition: Partition
    algorithm: Algorithm
    optimizer: Optimizer
    kept: frozenset[str]  # names that never leave a client
    seed: int
    first: int = 0  # number of the partition's first client
    fixed: frozenset[str] = frozenset()  # names that clients get and never send
    secure: bool = False  # a server in lock-step learns sums over the clients of a step and nothing of each

    @property
    def unsent(self) -> frozenset[str]:
        """Names that no client sends."""
        return self.kept | self.fixed

    def rows(self, clients: Ints, positions: Ints) -> Tensor:
        """Row numbers of the data, on the data's device, for positions ``[..., client, slot]`` of these clients."""
        rows = self.partition.rows[self.partition.offsets[clients - self.first][:, None] + positions]
        return torch.from_numpy(rows).to(self.y.device)


def make_job(
    model: nn.Module, rows: Rows, partition: Partition, algorithm: Algorithm, settings: Settings, first: int = 0
) -> Job:
    """A job for the device and the precision of the settings; the model that was passed in stays as it is."""
    check_layers(model)
    if algorithm.uses_features:
        head_module(model)  # refuses a model that has none
    device, dtype = pick_device(settings.device), getattr(torch, settings.dtype)
    names = layout(model)
    moving = {*trainable(model), *dict(model.named_buffers())}
    fixed = frozenset(algorithm.fixed(names)) & moving
    kept = (frozenset(algorithm.kept(names)) | _kept_by_policy(names, settings.norm)) & moving - fixed
    optimizer = Optimizer(settings.optimizer, settings.momentum, settings.weight_decay, settings.nesterov)
    x, y = torch.from_numpy(rows.x).to(device, dtype), torch.from_numpy(rows.y).to(device)
    own_model = copy.deepcopy(model).to(device=device, dtype=dtype)
    return Job(own_model, x, y, partition, algorithm, optimizer, kept, settings.seed, first, fixed, settings.secure)


def _kept_by_policy(names: Layout, norm: str) -> frozenset[str]:
    """What of BatchNorm stays with each client, whatever the method: nothing, all of it, or only the running statistics.

    The last is SiloBN (Andreux et al. 2020): scale and shift are averaged, what they are applied to is the client's own.
    """
    if norm == "aggregate":
        return frozenset()
    return names.batch_norm & names.buffers if norm == "silo" else names.batch_norm


def fresh_client(job: Job) -> Tree:
    """What a client holds for itself before its first round; made from the model as it is before the first round of all."""
    params, buffers = trainable(job.model), dict(job.model.named_buffers())
    everything = {name: value.detach().clone() for name, value in {**params, **buffers}.items()}
    weights = {name: everything[name] for name in params}
    tree = prefixed(job.algorithm.remember({name: value for name, value in weights.items() if name not in job.unsent}), MEMO)
    if job.kept:
        tree["kept"] = {name: everything[name] for name in sorted(job.kept)}
    if job.algorithm.keeps_optimizer:
        tree |= prefixed(job.optimizer.init(weights, stacked=False), OPTIMIZER)
    return tree


@dataclass(frozen=True)
class Start:
    """Where a round's clients begin: the global model, what the server adds, and what each client kept.

    ``own`` is stacked in the order of the plan's clients: ``kept`` (tensors of the model that never leave it), ``memo.*`` (the
    parts of its memo) and ``optimizer.*`` (the parts of its optimiser's state).
    """

    params: Tensors
    buffers: Tensors
    server: Tree
    own: Tree
    lr: float


@dataclass(frozen=True)
class Updates:
    """The finished work of some of a round's clients; every tensor is stacked in the order of ``report.clients``."""

    report: Report
    payload: Tree  # what they send, unsent names left out
    buffers: Tensors  # what they send of their buffers, unsent names left out
    own: Tree  # what stays with them, as in Start
    # Weights, and buffers that are nowhere else, as they are after local training, for whoever wants to look.
    trained: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Course:
    """A model on its way: what it begins with, and the state of the optimiser that goes with it."""

    params: Tensors
    buffers: Tensors
    optimizer: Tree
    lr: float
    round: int


@dataclass(frozen=True)
class Walked:
    """The end of a walk, and what was seen on it, one entry a sample, before the step that used it."""

    params: Tensors
    buffers: Tensors
    optimizer: Tree
    losses: Floats
    right: Floats


class Engine(Protocol):
    """Runs the local work of a round; the only thing that knows how clients are executed."""

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Execute the plan; yields each client once, alone or in stacks.

        The order is the engine's, but must be the same every time: sums in another order differ in their last bits.
        """
        ...

    def walk(self, job: Job, course: Course, path: Walk, resets: bool) -> Walked:
        """Take one model along a path, step by step; ``resets`` starts the optimiser anew at each visit."""
        ...

    def probe(self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]) -> dict[str, Floats]:
        """Measure the model that each client would start from on the first batch of its plan, in evaluation mode."""
        ...
