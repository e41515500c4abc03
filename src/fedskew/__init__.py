"""Federated learning for clients that are nothing alike."""

import importlib
from typing import Any

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
    "measure": "fedskew.measure.heterogeneity",
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
