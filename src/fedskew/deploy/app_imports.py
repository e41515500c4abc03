"""What the processes of apps use, imported before there is one."""

import httpcore  # noqa: F401
import pandas  # noqa: F401
from flwr.supernode.runtime import run_clientapp  # noqa: F401

from fedskew.algorithms.contract import algorithms
from fedskew.data.dataset import datasets
from fedskew.deploy import client_app  # noqa: F401
from fedskew.engine.lr_schedule import schedules
from fedskew.models.network import models
from fedskew.tasks.task import tasks

for registry in (algorithms, datasets, schedules, models, tasks):
    registry.loaded()
