"""What stays the same over all rounds of a run, and what an engine gives back."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedskew.algorithms.base import Algorithm, Report, Tensors, Tree
from fedskew.engine.optimizer import Optimizer
from fedskew.engine.plan import Plan
from fedskew.skew.partition import Partition
from fedskew.streams import Ints


@dataclass(frozen=True)
class Job:
    """The model, the data on its device, the method and the local optimiser."""

    model: nn.Module
    x: Tensor
    y: Tensor
    partition: Partition
    algorithm: Algorithm
    optimizer: Optimizer
    kept: frozenset[str]  # names that never leave a client
    seed: int

    def rows(self, clients: Ints, positions: Ints) -> Tensor:
        """Row numbers of the data, on the data's device, for positions ``[..., client, slot]`` of these clients."""
        rows = self.partition.rows[self.partition.offsets[clients][:, None] + positions]
        return torch.from_numpy(rows).to(self.y.device)


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
    payload: Tree  # what they send, kept names left out
    buffers: Tensors  # what they send of their buffers, kept names left out
    own: Tree  # what stays with them, as in Start


class Engine(Protocol):
    """Runs the local work of a round; the only thing that knows how clients are executed."""

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Execute the plan; yields each client once, alone or in stacks, in any order."""
        ...


MEMO, OPTIMIZER = "memo.", "optimizer."


def parts(own: Tree, prefix: str) -> Tree:
    """The parts of ``own`` under a prefix, by their plain names."""
    return {name.removeprefix(prefix): tensors for name, tensors in own.items() if name.startswith(prefix)}


def prefixed(tree: Tree, prefix: str) -> Tree:
    """The inverse of ``parts``."""
    return {prefix + name: tensors for name, tensors in tree.items()}
