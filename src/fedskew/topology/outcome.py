"""What every topology returns for a round, and the interface of the server that topologies use."""

from dataclasses import dataclass, field
from typing import Protocol

from fedskew.algorithms.contract import Algorithm, Weights
from fedskew.core.config import Settings
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree
from fedskew.data.partition import Partition
from fedskew.engine.job import Engine, Job, Start, Updates
from fedskew.engine.plan import Plan
from fedskew.sample_schedules.holdings import Holdings
from fedskew.topology.client_table import ClientTable, Row
from fedskew.topology.collector import Arrived
from fedskew.topology.participation import Participation


@dataclass(frozen=True)
class RoundOutcome:
    """The outcome of a round, for every topology.

    Args:
        client_rows: one row for the table of clients for each client that did something
        invited: the clients that were invited to train
        began: simulated second at which the round began, and likewise when it ended
        clients: how many clients were invited, or were not because they measured too late
        excluded: how many updates were not valid
        bytes_down: bytes received by clients that are not in the client rows; bytes_up likewise for bytes sent
        metrics: columns that the topology adds to the table of rounds
    """

    client_rows: ClientTable
    invited: Ints
    began: float
    ended: float
    clients: int
    excluded: int
    dropped: int
    late: int
    bytes_down: int = 0
    bytes_up: int = 0
    metrics: Row = field(default_factory=dict)


class RoundServer(Protocol):
    """The server's interface for topologies: the state of the run, and the methods that change it."""

    algorithm: Algorithm
    settings: Settings
    engine: Engine
    job: Job
    participation: Participation
    trained_on: Partition
    params: Tensors
    buffers: Tensors
    server_state: Tree
    fresh_client: Tree  # what a client keeps before its first round
    round: int
    per_round: int
    least: int
    weights: Weights
    total_weight: float
    # Parts of the client state whose mean over all clients is part of the server state
    mirrored: frozenset[str]

    @property
    def holdings(self) -> Holdings:
        """Return the label holdings of all clients, for topologies with a sample schedule."""
        ...

    def state(self) -> Tensors:
        """Return weights and buffers of the global model."""
        ...

    def shared(self) -> Tensors:
        """Return the weights that clients send."""
        ...

    def start(self, plan: Plan, lr: float) -> Start:
        """Return the state from which the clients of a plan start."""
        ...

    def keep(self, arrived: Arrived, counted: Ints) -> None:
        """Store what clients keep between rounds."""
        ...

    def observe(self, updates: Updates) -> None:
        """Record the models of clients right after local training, if the settings require it."""
        ...

    def train_personal(self, start: Start, plan: Plan) -> None:
        """Train the clients' own models, if the method has any."""
        ...
