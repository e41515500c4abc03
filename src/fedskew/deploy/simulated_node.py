"""A client of a run as a node of Flower's simulation: every process makes it anew from the configuration of the run."""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedskew.deploy.node import Node


def answer(about: Mapping[str, Any], request: bytes) -> bytes:
    """Return the answer of a client to a request."""
    return _node(str(about["config"]), int(about["client"]), str(about["folder"])).answer(request)


@lru_cache(maxsize=64)
def _node(config: str, client: int, folder: str) -> Node:
    from fedskew.runs.execute import node_of

    return node_of(tomllib.loads(config), client, Path(folder) / str(client))
