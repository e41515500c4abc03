"""Federated learning for clients that are nothing alike."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for editors and type checkers
    from fedskew.algorithms.base import Algorithm as Algorithm
    from fedskew.algorithms.bounds import Central as Central
    from fedskew.algorithms.bounds import Local as Local
    from fedskew.algorithms.fedavg import FedAvg as FedAvg
    from fedskew.algorithms.fednova import FedNova as FedNova
    from fedskew.algorithms.fedopt import FedAdagrad as FedAdagrad
    from fedskew.algorithms.fedopt import FedAdam as FedAdam
    from fedskew.algorithms.fedopt import FedAvgM as FedAvgM
    from fedskew.algorithms.fedopt import FedYogi as FedYogi
    from fedskew.algorithms.fedprox import FedProx as FedProx
    from fedskew.api import Run as Run
    from fedskew.api import load as load
    from fedskew.api import resume as resume
    from fedskew.api import split as split
    from fedskew.api import train as train
    from fedskew.config import Experiment as Experiment
    from fedskew.config import Settings as Settings
    from fedskew.conformance import check as check
    from fedskew.data.dataset import Dataset as Dataset
    from fedskew.errors import FedskewError as FedskewError
    from fedskew.measures.heterogeneity import measure as measure
    from fedskew.report.split_folder import load_split as load_split
    from fedskew.skew.federation import Federation as Federation
    from fedskew.skew.partition import Partition as Partition

__version__ = "0.1.0"

# Name -> module. Loaded when first asked for, so that `import fedskew` costs nothing and the command line starts at once.
_PUBLIC = {
    "Algorithm": "fedskew.algorithms.base",
    "Central": "fedskew.algorithms.bounds",
    "Dataset": "fedskew.data.dataset",
    "Experiment": "fedskew.config",
    "FedAdagrad": "fedskew.algorithms.fedopt",
    "FedAdam": "fedskew.algorithms.fedopt",
    "FedAvg": "fedskew.algorithms.fedavg",
    "FedAvgM": "fedskew.algorithms.fedopt",
    "FedNova": "fedskew.algorithms.fednova",
    "FedProx": "fedskew.algorithms.fedprox",
    "FedYogi": "fedskew.algorithms.fedopt",
    "Federation": "fedskew.skew.federation",
    "FedskewError": "fedskew.errors",
    "Local": "fedskew.algorithms.bounds",
    "Partition": "fedskew.skew.partition",
    "Run": "fedskew.api",
    "Settings": "fedskew.config",
    "check": "fedskew.conformance",
    "load": "fedskew.api",
    "load_split": "fedskew.report.split_folder",
    "measure": "fedskew.measures.heterogeneity",
    "resume": "fedskew.api",
    "split": "fedskew.api",
    "train": "fedskew.api",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fedskew' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
