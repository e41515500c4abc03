"""Servers for engines of other rooms, which say themselves how such a server is made."""

import importlib
from collections.abc import Callable
from typing import TypeAlias

from torch import nn

from fedskew.algorithms.contract import Algorithm
from fedskew.core.config import Settings
from fedskew.data.federation import Federation
from fedskew.server.server import Server
from fedskew.tasks.task import Task

MakeServer: TypeAlias = Callable[[Federation, nn.Module, Algorithm, Settings, Task], Server]
MAKERS: dict[str, MakeServer] = {}  # by the name of the engine
_HOMES = {"flower": "fedskew.deploy.remote_server"}  # the module that registers an engine there


def maker_for(engine: str) -> MakeServer:
    """Return what makes the server of a run with this engine."""
    if engine not in _HOMES:
        return _local
    if engine not in MAKERS:
        importlib.import_module(_HOMES[engine])
    return MAKERS[engine]


def _local(
    fed: Federation, model: nn.Module, algorithm: Algorithm, settings: Settings, task: Task
) -> Server:
    return Server(fed, model, algorithm, settings, task=task)
