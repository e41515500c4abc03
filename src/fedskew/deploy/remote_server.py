"""A server that has no rows: what the rounds need of clients is asked of nodes, everything else is as in simulation."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedskew.algorithms.contract import Algorithm
from fedskew.algorithms.first_gradient import begins_with_gradients
from fedskew.algorithms.topologies import EdgeServers, Graph, Scheduled, hides_labels
from fedskew.core.config import Settings, to_toml
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree
from fedskew.data.federation import Federation
from fedskew.deploy.checks import finite, fits, most_bytes
from fedskew.deploy.flower_grid import simulated
from fedskew.deploy.remote_clients import Nodes, Versions
from fedskew.deploy.remote_engine import RemoteEngine
from fedskew.deploy.remote_evaluator import RemoteEvaluator
from fedskew.deploy.requests import Statistics
from fedskew.deploy.rowless_federation import positions_of
from fedskew.engine.job import STATE, Start
from fedskew.engine.plan import Plan
from fedskew.runs.folder import NODES
from fedskew.runs.recorded_config import from_python
from fedskew.server.calibration import statistics_of
from fedskew.server.client_store import ClientStore
from fedskew.server.clients import AWAY, OWN, PERSONAL, VERSIONS, jobs_of, models_away
from fedskew.server.evaluated_rows import OwnModel
from fedskew.server.makers import MAKERS
from fedskew.server.server import Server
from fedskew.tasks.task import Task
from fedskew.topology.collector import Arrived
from fedskew.topology.context import RoundContext
from fedskew.topology.payload import largest_reported, sample_payload
from fedskew.topology.run_state import RunState

# Settings that nodes on machines of their own are not told
_UNTOLD = {"data", "skew", "clients", "bins", "fleet", "tensorboard", "mlflow", "wandb"}
_ANSWER = 600.0  # seconds in which a node of a simulation answers


def remote_server(
    fed: Federation,
    model: nn.Module,
    algorithm: Algorithm,
    settings: Settings,
    task: Task | None = None,
    nodes: Nodes | None = None,
    everything: bool = True,
) -> Server:
    """Return a server whose clients are nodes: it sees sums, updates and numbers of rows.

    The transport of the nodes may be set later, before the first round; ``everything`` says that nodes have the test
    rows of all clients, as in a simulation.
    """
    refuse(algorithm, settings)
    if fed.client_validation is not None:
        raise FedskewError(
            "client_validation sets rows of clients aside for scores that nodes do not send: leave it out, or simulate "
            "the run with engine=stacked"
        )
    if fed.unseen is not None:
        raise FedskewError(
            "unseen scores clients that take no part, and every node takes part: leave it out, or simulate the run "
            "with engine=stacked"
        )
    engine = RemoteEngine(nodes or Nodes(None), [Versions(fed.clients) for _ in range(2)])

    def make_clients(fed: Federation, context: RoundContext, state: RunState) -> RemoteClients:
        return RemoteClients(fed, context, state, engine, everything)

    return Server(fed, model, algorithm, settings, engine, task, make_clients)


class RemoteClients:
    """Clients that are nodes: their state stays with them, and the server knows after which round it was kept."""

    away = True

    def __init__(
        self,
        fed: Federation,
        context: RoundContext,
        state: RunState,
        engine: RemoteEngine,
        everything: bool,
    ) -> None:
        self.fed = fed
        self.context = context
        self.state = state
        self.engine = engine
        self.everything = everything
        engine.job = context.job
        engine.positions = positions_of(fed)
        engine.mirrored = tuple(STATE + name for name in sorted(context.mirrored))
        self.nodes.names = ()
        if fed.named:
            self.nodes.names = fed.client_names
        if not isinstance(context.algorithm.topology(0), Scheduled):
            engine.sent = sample_payload(context, state)
            engine.reported = largest_reported(context, state)

    @property
    def nodes(self) -> Nodes:
        """Return the nodes that are asked."""
        return self.engine.nodes

    @contextmanager
    def serving(self, config: Mapping[str, Any]) -> Iterator[None]:
        """Let the nodes take part; where there are none yet, start those of Flower's simulation."""
        for name, value in config.items():
            if from_python(value):
                raise FedskewError(
                    f"engine=flower makes clients in other processes from names, and {name} is a Python object: "
                    "give a name"
                )
        told = dict(config)
        if not self.everything:
            # A node needs to know what it trains, and nothing about other clients or this machine.
            for name in _UNTOLD & told.keys():
                del told[name]
        self.nodes.about["config"] = to_toml(told)
        if self.nodes.transport:
            yield
            return
        from fedskew.deploy.simulated_node import answer

        with (
            tempfile.TemporaryDirectory() as folder,
            simulated(answer, self.fed.clients, _ANSWER) as transport,
        ):
            self.nodes.transport = transport
            self.nodes.about["folder"] = folder
            yield

    def recorded_in(self, folder: Path) -> None:
        """Note where simulated nodes keep their state; others have folders of their own."""
        if self.everything:
            self.nodes.about["folder"] = str(folder.absolute() / NODES)

    def introduced(self) -> Mapping[str, Any] | None:
        """Return the number of the run among its nodes, and their names; None in a simulation."""
        if self.everything:
            return None
        return {
            "run": self.nodes.about["run"],
            "clients": list(self.fed.client_names),
            "nodes": list(self.nodes.marks),
        }

    def kept(self, clients: Ints) -> Tree:
        """Return nothing: what clients kept is with them."""
        return {}

    def keep(self, arrived: Arrived, counted: Ints) -> None:
        """Note whose new state counts."""
        versions = self.engine.versions[0]
        now = self.state.round + 1
        versions.rounds[0, arrived.valid] = now
        versions.rounds[1, np.intersect1d(arrived.valid, counted)] = now

    def train_personal(self, start: Start, plan: Plan) -> None:
        """Let clients train the models of their own, if the method has any, and note who did."""
        if self.context.algorithm.personal_method is None:
            return
        _, job = jobs_of(self.context.job)
        shared = self.state.shared(self.context.job.unsent)
        own = replace(start, server={"weights": shared})
        for updates in self.context.engine.train(job, own, plan):
            self.engine.versions[1].rounds[:, updates.report.clients] = self.state.round + 1

    def model(self, client: int) -> Tensors:
        """Refuse to return what is not here."""
        raise models_away(self.fed.client_names[client])

    def models(self, needed: Ints) -> OwnModel:
        """Return what refuses to: nodes score their own models."""
        return self.model

    def statistics(self) -> Tree:
        """Return the class statistics of all clients that answer, added up."""
        job = self.context.job
        state = self.state.model()
        requests = {}
        for client in range(self.fed.clients):
            requests[client] = Statistics(state, self.engine.versions[0].of(client))
        calibrator = job.algorithm.calibrator
        assert calibrator
        like = statistics_of(job, [(state, self.fed.partition.rows[:1])])

        def check(client: int, answer: Tree) -> Tree:
            fits(answer, like, "statistics")
            finite(answer, "statistics")
            calibrator.check_statistics(answer, job.class_counts(np.array([client]))[0])
            return answer

        total: Tree = {}
        for answer in self.nodes.ask(requests, dict, check, most_bytes(like)).values():
            for part, tensors in answer.items():
                sums = total.setdefault(part, {})
                for name, value in tensors.items():
                    if name in sums:
                        sums[name] = sums[name] + value
                    else:
                        sums[name] = value
        return total

    def evaluator(self) -> RemoteEvaluator:
        """Return what evaluates models by asking nodes."""
        context = self.context
        return RemoteEvaluator(
            self.fed, context.job, self.state, context.settings, self.engine, self.everything
        )

    def stores(self) -> dict[str, ClientStore]:
        """Return nothing: what clients keep is with them."""
        return {}

    def checkpoint(self) -> Tensors:
        """Return the versions, which stand for what clients keep, and the names of the tensors in their own models."""
        flat: Tensors = {}
        for i, versions in enumerate(self.engine.versions):
            flat[f"{VERSIONS}/{i}"] = versions.state()
        store = OWN
        names = set(self.context.job.local_names)
        if self.context.algorithm.personal_method is not None:
            store = PERSONAL
            names = set(self.state.model())
        for name in sorted(names):
            flat[f"{AWAY}/{store}/{name}"] = torch.zeros(0)
        return flat

    def restore(self, flat: Tensors) -> None:
        """Let clients go back to the state that they had when ``checkpoint`` was called."""
        for i, versions in enumerate(self.engine.versions):
            versions.restore(flat[f"{VERSIONS}/{i}"])


def refuse(algorithm: Algorithm, settings: Settings) -> None:
    """Refuse what cannot be done where rows stay with their clients."""
    reasons = {
        f"{algorithm.label()} trains on all rows in one place": "pooled_rows" in algorithm.requires,
        "hostile clients are simulated": algorithm.poison is not None,
        f"{algorithm.label()} has no server, and nodes do not talk to each other": isinstance(
            algorithm.topology(0), Graph
        ),
        "edge servers between nodes and the server are simulated": isinstance(
            algorithm.topology(0), EdgeServers
        ),
        "secure=true simulates the clients' side of the label protocol": hides_labels(
            algorithm.topology(0)
        ),
        "test_trained=true evaluates clients' models on the server": settings.test_trained,
        "rounds of two kinds are simulated only": algorithm.mixes_rounds,
        "nodes receive all that the server sets in every round, and the factors of fed-sb would travel once": (
            begins_with_gradients(algorithm)
        ),
        "nodes send and receive adapters of the largest rank, and clients of smaller ranks would send less": (
            algorithm.adapters is not None and bool(algorithm.adapters.ranks)
        ),
        "thresholds need the predictions for all rows in one place": (
            settings.thresholds is not None
        ),
        "workers are processes of a simulation": settings.workers is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            raise FedskewError(
                f"{reason}, and here rows and models stay with their clients: leave it out"
            )


MAKERS["flower"] = remote_server
