"""Federated learning for clients that are nothing alike."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for editors and type checkers
    from fedskew.algorithms.afl_cp import AFLCP as AFLCP
    from fedskew.algorithms.asynchronous import FedAsync as FedAsync
    from fedskew.algorithms.asynchronous import FedBuff as FedBuff
    from fedskew.algorithms.bounds import Central as Central
    from fedskew.algorithms.bounds import Local as Local
    from fedskew.algorithms.ccvr import CCVR as CCVR
    from fedskew.algorithms.contract import Algorithm as Algorithm
    from fedskew.algorithms.ditto import Ditto as Ditto
    from fedskew.algorithms.fedavg import FedAvg as FedAvg
    from fedskew.algorithms.fedbn import FedBN as FedBN
    from fedskew.algorithms.fedbn import MFedBN as MFedBN
    from fedskew.algorithms.fedbs import FedBS as FedBS
    from fedskew.algorithms.feddyn import FedDyn as FedDyn
    from fedskew.algorithms.fedga import FedGA as FedGA
    from fedskew.algorithms.fednova import FedNova as FedNova
    from fedskew.algorithms.fedopt import FedAdagrad as FedAdagrad
    from fedskew.algorithms.fedopt import FedAdam as FedAdam
    from fedskew.algorithms.fedopt import FedAvgM as FedAvgM
    from fedskew.algorithms.fedopt import FedYogi as FedYogi
    from fedskew.algorithms.fedpbs import FedPBS as FedPBS
    from fedskew.algorithms.fedper import FedPer as FedPer
    from fedskew.algorithms.fedprox import FedProx as FedProx
    from fedskew.algorithms.fedprox_layers import FedProxLayers as FedProxLayers
    from fedskew.algorithms.fedtan import FedTAN as FedTAN
    from fedskew.algorithms.moon import Moon as Moon
    from fedskew.algorithms.robust import Clip as Clip
    from fedskew.algorithms.robust import Krum as Krum
    from fedskew.algorithms.robust import Median as Median
    from fedskew.algorithms.robust import TrimmedMean as TrimmedMean
    from fedskew.algorithms.scaffold import Scaffold as Scaffold
    from fedskew.algorithms.stratify import SFL as SFL
    from fedskew.algorithms.stratify import StratifyBatch as StratifyBatch
    from fedskew.algorithms.stratify import StratifyHybrid as StratifyHybrid
    from fedskew.algorithms.stratify import StratifySingle as StratifySingle
    from fedskew.api import Run as Run
    from fedskew.api import load as load
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
    from fedskew.runs.open_run import open_run as open_run
    from fedskew.testing import check as check

__version__ = "0.1.0"

# Name -> module. Loaded when first asked for, so that `import fedskew` costs nothing and the command line starts at once.
_PUBLIC = {
    "AFLCP": "fedskew.algorithms.afl_cp",
    "Algorithm": "fedskew.algorithms.contract",
    "CCVR": "fedskew.algorithms.ccvr",
    "Central": "fedskew.algorithms.bounds",
    "Clip": "fedskew.algorithms.robust",
    "Dataset": "fedskew.data.dataset",
    "Ditto": "fedskew.algorithms.ditto",
    "Experiment": "fedskew.core.config",
    "FedAdagrad": "fedskew.algorithms.fedopt",
    "FedAdam": "fedskew.algorithms.fedopt",
    "FedAsync": "fedskew.algorithms.asynchronous",
    "FedAvg": "fedskew.algorithms.fedavg",
    "FedAvgM": "fedskew.algorithms.fedopt",
    "FedBN": "fedskew.algorithms.fedbn",
    "FedBS": "fedskew.algorithms.fedbs",
    "FedBuff": "fedskew.algorithms.asynchronous",
    "FedDyn": "fedskew.algorithms.feddyn",
    "FedGA": "fedskew.algorithms.fedga",
    "FedNova": "fedskew.algorithms.fednova",
    "FedPBS": "fedskew.algorithms.fedpbs",
    "FedPer": "fedskew.algorithms.fedper",
    "FedProx": "fedskew.algorithms.fedprox",
    "FedProxLayers": "fedskew.algorithms.fedprox_layers",
    "FedTAN": "fedskew.algorithms.fedtan",
    "FedYogi": "fedskew.algorithms.fedopt",
    "Federation": "fedskew.data.federation",
    "FedskewError": "fedskew.core.errors",
    "Krum": "fedskew.algorithms.robust",
    "Local": "fedskew.algorithms.bounds",
    "MFedBN": "fedskew.algorithms.fedbn",
    "Median": "fedskew.algorithms.robust",
    "Moon": "fedskew.algorithms.moon",
    "Partition": "fedskew.data.partition",
    "Run": "fedskew.api",
    "SFL": "fedskew.algorithms.stratify",
    "Scaffold": "fedskew.algorithms.scaffold",
    "Settings": "fedskew.core.config",
    "StratifyBatch": "fedskew.algorithms.stratify",
    "StratifyHybrid": "fedskew.algorithms.stratify",
    "StratifySingle": "fedskew.algorithms.stratify",
    "TrimmedMean": "fedskew.algorithms.robust",
    "check": "fedskew.testing",
    "load": "fedskew.api",
    "load_split": "fedskew.export.split_folder",
    "measure": "fedskew.heterogeneity.heterogeneity",
    "open_run": "fedskew.runs.open_run",
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
