"""What the rounds of every topology are given: what stays the same over all rounds, and the clients."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from fedskew.algorithms.contract import Algorithm, Weights
from fedskew.core.config import Settings
from fedskew.core.streams import Ints
from fedskew.core.trees import Tree
from fedskew.data.partition import Partition
from fedskew.engine.job import Engine, Job, Start
from fedskew.engine.plan import Plan
from fedskew.topology.collector import Arrived
from fedskew.topology.participation import Participation


@dataclass(frozen=True)
class RoundContext:
    """What stays the same over all rounds of a run.

    Args:
        trained_on: which rows each client trains on; one client has all where the method pools them
        per_round: how many clients take part in a round
        least: how many rows a batch must have
        weights: what clients count by in the mean, their rows or 1
        fresh_client: what a client keeps before its first round
        mirrored: parts of the client state whose mean over all clients is part of the server state
    """

    job: Job
    settings: Settings
    engine: Engine
    participation: Participation
    trained_on: Partition
    per_round: int
    least: int
    weights: Weights
    fresh_client: Tree
    mirrored: frozenset[str]

    @property
    def algorithm(self) -> Algorithm:
        """Return the method of the run."""
        return self.job.algorithm

    @cached_property
    def total_weight(self) -> float:
        """The weight of all clients together."""
        if self.weights == "uniform":
            return float(self.trained_on.clients)
        return float(self.trained_on.total)


class RoundClients(Protocol):
    """What rounds ask of clients, wherever these are."""

    def kept(self, clients: Ints) -> Tree:
        """Return what these clients kept, stacked; empty where it stays on machines of their own."""
        ...

    def keep(self, arrived: Arrived, counted: Ints) -> None:
        """Store what clients keep between rounds; ``counted`` are those that no rule excluded."""
        ...

    def train_personal(self, start: Start, plan: Plan) -> None:
        """Train the clients' own models, if the method has any."""
        ...
