"""Nodes in this process, and a server whose clients they are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedskew as fs
from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.data.federation import Federation
from fedskew.deploy.node import Node, job_of, rows_of_client
from fedskew.deploy.remote_clients import Nodes
from fedskew.deploy.remote_server import remote_server
from fedskew.deploy.requests import CountRows, from_bytes, to_bytes
from fedskew.deploy.rowless_federation import federation_of
from fedskew.models.build import build
from fedskew.server.server import Server
from fedskew.tasks.task import BY_TARGET
from fedskew.tasks.task import resolve as resolve_task

CLIENTS = 5


@dataclass
class InProcess:
    """Carries requests to nodes in this process; some of them may be silent, late, or have what they say changed."""

    nodes: list[Node]
    silent: set[int] = field(default_factory=set)
    # They do what they are asked, and nobody waits for the answer
    late: set[int] = field(default_factory=set)
    changed: Callable[[int, bytes], bytes] = lambda client, content: content
    seen: list[bytes] = field(default_factory=list)

    def ask(
        self, requests: Mapping[int, bytes], about: Mapping[str, Any], *patience: Any
    ) -> dict[int, bytes]:
        self.seen += requests.values()
        there = {
            client: content for client, content in requests.items() if client not in self.silent
        }
        answers = {client: self.nodes[client].answer(content) for client, content in there.items()}
        self.seen += answers.values()
        return {
            client: self.changed(client, content)
            for client, content in answers.items()
            if client not in self.late
        }


@dataclass
class Pair:
    """The same run twice: with all rows in one place, and with nodes."""

    plain: Server
    remote: Server
    transport: InProcess
    make_remote: Callable[[], Server]


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., Pair]:
    """Return a function that makes both servers of a method."""

    def made(
        spec: str,
        model: str = "tabular:hidden=6",
        fed: Federation | None = None,
        folder: Path = tmp_path,
        **settings: Any,
    ) -> Pair:
        algorithm = resolve(spec)
        fed = fed or fs.split(
            fs.load("digits"), "dirichlet:alpha=0.5", clients=CLIENTS, seed=0, client_test=0.1
        )
        defaults = {
            "rounds": 3,
            "batch_size": 64,
            "engine": "loop",
            "dtype": "float64",
            "lr": 0.05,
            "threads": 1,
        }
        chosen = Settings(**{**defaults, **settings})
        task = resolve_task(BY_TARGET[fed.data.target])
        if fed.data.target == "class":
            task = task.fitted(
                np.bincount(fed.train.y[fed.partition.rows], minlength=len(fed.data.classes))
            )

        def network() -> Any:
            return build(model, fed.data.shape, task.width(len(fed.data.classes)), 0)

        nodes = []
        for client in range(fed.clients):
            mine = rows_of_client(fed, client)
            job = job_of(mine, client, network(), algorithm, chosen, task)
            shares = {"test": np.arange(client, len(fed.test), fed.clients)}
            nodes.append(Node(mine, job, chosen, folder / str(client), shares, everything=True))
        transport = InProcess(nodes)
        counts = [from_bytes(node.answer(to_bytes(CountRows()))) for node in nodes]

        def remote() -> Server:
            return remote_server(
                federation_of(fed.data, counts),
                network(),
                algorithm,
                chosen,
                task,
                Nodes(transport),
            )

        return Pair(
            Server(fed, network(), algorithm, chosen, task=task), remote(), transport, remote
        )

    return made
