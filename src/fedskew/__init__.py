"""Federated learning on heterogeneous (non-IID) clients."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for editors and type checkers
    from fedskew.advice.advise import advise as advise
    from fedskew.algorithms.contract import Algorithm as Algorithm
    from fedskew.api import Run as Run
    from fedskew.api import compare as compare
    from fedskew.api import load as load
    from fedskew.api import open_run as open_run
    from fedskew.api import resume as resume
    from fedskew.api import split as split
    from fedskew.api import train as train
    from fedskew.core.config import Experiment as Experiment
    from fedskew.core.config import Settings as Settings
    from fedskew.core.errors import FedskewError as FedskewError
    from fedskew.data.dataset import Dataset as Dataset
    from fedskew.data.federation import Federation as Federation
    from fedskew.data.partition import Partition as Partition
    from fedskew.export.split_folder import load_split as load_split
    from fedskew.heterogeneity.heterogeneity import measure as measure
    from fedskew.runs.callbacks import Callback as Callback
    from fedskew.tasks.binary import Binary as Binary
    from fedskew.tasks.classification import Classification as Classification
    from fedskew.tasks.multilabel import Multilabel as Multilabel
    from fedskew.tasks.regression import Regression as Regression
    from fedskew.tasks.task import Task as Task
    from fedskew.testing import check as check

__version__ = "0.2.1"

# Name -> module. Imported at first use, so that `import fedskew` and the command line start at once.
# Registered methods (fedskew.FedProx) need no line here: they are found by their class names.
_PUBLIC = {
    "Algorithm": "fedskew.algorithms.contract",
    "Callback": "fedskew.runs.callbacks",
    "Dataset": "fedskew.data.dataset",
    "Experiment": "fedskew.core.config",
    "Federation": "fedskew.data.federation",
    "FedskewError": "fedskew.core.errors",
    "Partition": "fedskew.data.partition",
    "Regression": "fedskew.tasks.regression",
    "Run": "fedskew.api",
    "Settings": "fedskew.core.config",
    "Binary": "fedskew.tasks.binary",
    "Classification": "fedskew.tasks.classification",
    "Multilabel": "fedskew.tasks.multilabel",
    "Task": "fedskew.tasks.task",
    "advise": "fedskew.advice.advise",
    "check": "fedskew.testing",
    "compare": "fedskew.api",
    "load": "fedskew.api",
    "load_split": "fedskew.export.split_folder",
    "measure": "fedskew.heterogeneity.heterogeneity",
    "open_run": "fedskew.api",
    "resume": "fedskew.api",
    "split": "fedskew.api",
    "train": "fedskew.api",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    elif name[:1].isupper():
        try:
            value = getattr(importlib.import_module("fedskew.algorithms"), name)
        except AttributeError:
            raise AttributeError(f"module 'fedskew' has no attribute {name!r}") from None
    else:
        raise AttributeError(f"module 'fedskew' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    methods = [name for name in dir(importlib.import_module("fedskew.algorithms")) if name[:1].isupper()]
    return sorted({*globals(), *_PUBLIC, *methods})
