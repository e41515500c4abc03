"""Clients of a run as nodes of Flower's simulation: every process makes its client from the configuration."""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.algorithms.contract import resolve
from fedskew.deploy.node import Node, job_of, rows_of_client
from fedskew.models.build import build
from fedskew.runs.execute import federation_of_config, task_of
from fedskew.runs.recorded_config import settings_of


def answer(about: Mapping[str, Any], request: bytes) -> bytes:
    """Return the answer of a client to a request."""
    return _node(str(about["config"]), int(about["client"]), str(about["folder"])).answer(request)


@lru_cache(maxsize=64)
def _node(config: str, client: int, folder: str) -> Node:
    return node_of(tomllib.loads(config), client, Path(folder) / str(client))


def node_of(config: Mapping[str, Any], client: int, folder: Path) -> Node:
    """Return one client of a run as a node that keeps its state in the folder.

    The configuration names all parts of the run.
    """
    fed = federation_of_config(config)
    settings = settings_of(config)
    task = task_of(fed, settings)
    model = build(config["model"], fed.data.shape, task.width(len(fed.data.classes)), settings.seed)
    shares = {}
    for name, rows in (("test", fed.test), ("validation", fed.validation)):
        if rows is not None:
            shares[name] = np.arange(client, len(rows), fed.clients)
    mine = rows_of_client(fed, client)
    job = job_of(mine, client, model, resolve(config["algorithm"]), settings, task)
    return Node(mine, job, settings, folder, shares, everything=True)
