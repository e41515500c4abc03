"""Federated learning on heterogeneous (non-IID) clients."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for editors and type checkers
    from fedskew.advice.advise import advise as advise
    from fedskew.algorithms import AFLCP as AFLCP
    from fedskew.algorithms import APFL as APFL
    from fedskew.algorithms import CCVR as CCVR
    from fedskew.algorithms import CFL as CFL
    from fedskew.algorithms import DPSGD as DPSGD
    from fedskew.algorithms import IFCA as IFCA
    from fedskew.algorithms import SFL as SFL
    from fedskew.algorithms import Attack as Attack
    from fedskew.algorithms import Central as Central
    from fedskew.algorithms import Clip as Clip
    from fedskew.algorithms import DifferentialPrivacy as DifferentialPrivacy
    from fedskew.algorithms import Ditto as Ditto
    from fedskew.algorithms import FedAdagrad as FedAdagrad
    from fedskew.algorithms import FedAdam as FedAdam
    from fedskew.algorithms import FedALA as FedALA
    from fedskew.algorithms import FedAMP as FedAMP
    from fedskew.algorithms import FedAsync as FedAsync
    from fedskew.algorithms import FedAvg as FedAvg
    from fedskew.algorithms import FedAvgM as FedAvgM
    from fedskew.algorithms import FedBABU as FedBABU
    from fedskew.algorithms import FedBN as FedBN
    from fedskew.algorithms import FedBS as FedBS
    from fedskew.algorithms import FedBuff as FedBuff
    from fedskew.algorithms import FedDyn as FedDyn
    from fedskew.algorithms import FedExLoRA as FedExLoRA
    from fedskew.algorithms import FedExP as FedExP
    from fedskew.algorithms import FedFomo as FedFomo
    from fedskew.algorithms import FedGA as FedGA
    from fedskew.algorithms import FedLC as FedLC
    from fedskew.algorithms import FedNova as FedNova
    from fedskew.algorithms import FedNTD as FedNTD
    from fedskew.algorithms import FedPAC as FedPAC
    from fedskew.algorithms import FedPBS as FedPBS
    from fedskew.algorithms import FedPer as FedPer
    from fedskew.algorithms import FedProto as FedProto
    from fedskew.algorithms import FedProx as FedProx
    from fedskew.algorithms import FedProxLayers as FedProxLayers
    from fedskew.algorithms import FedRep as FedRep
    from fedskew.algorithms import FedRoD as FedRoD
    from fedskew.algorithms import FedRS as FedRS
    from fedskew.algorithms import FedSALoRA as FedSALoRA
    from fedskew.algorithms import FedSAM as FedSAM
    from fedskew.algorithms import FedSB as FedSB
    from fedskew.algorithms import FedTAN as FedTAN
    from fedskew.algorithms import FedYogi as FedYogi
    from fedskew.algorithms import FFALoRA as FFALoRA
    from fedskew.algorithms import FineTune as FineTune
    from fedskew.algorithms import FLoRA as FLoRA
    from fedskew.algorithms import Gossip as Gossip
    from fedskew.algorithms import Hierarchical as Hierarchical
    from fedskew.algorithms import Krum as Krum
    from fedskew.algorithms import LGFedAvg as LGFedAvg
    from fedskew.algorithms import Local as Local
    from fedskew.algorithms import LoRA as LoRA
    from fedskew.algorithms import Median as Median
    from fedskew.algorithms import MFedBN as MFedBN
    from fedskew.algorithms import Moon as Moon
    from fedskew.algorithms import NormTest as NormTest
    from fedskew.algorithms import PerFedAvg as PerFedAvg
    from fedskew.algorithms import PFedMe as PFedMe
    from fedskew.algorithms import PowerOfChoice as PowerOfChoice
    from fedskew.algorithms import QFedAvg as QFedAvg
    from fedskew.algorithms import Quantize as Quantize
    from fedskew.algorithms import Scaffold as Scaffold
    from fedskew.algorithms import StratifyBatch as StratifyBatch
    from fedskew.algorithms import StratifyHybrid as StratifyHybrid
    from fedskew.algorithms import StratifyRounds as StratifyRounds
    from fedskew.algorithms import StratifySingle as StratifySingle
    from fedskew.algorithms import TopK as TopK
    from fedskew.algorithms import TrimmedMean as TrimmedMean
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
    from fedskew.core.errors import BudgetSpentError as BudgetSpentError
    from fedskew.core.errors import FedskewError as FedskewError
    from fedskew.data.dataset import Dataset as Dataset
    from fedskew.data.federation import Federation as Federation
    from fedskew.data.partition import Partition as Partition
    from fedskew.estimators import FederatedClassifier as FederatedClassifier
    from fedskew.estimators import FederatedRegressor as FederatedRegressor
    from fedskew.heterogeneity.heterogeneity import measure as measure
    from fedskew.nodes.split_folder import load_split as load_split
    from fedskew.runs.callbacks import Callback as Callback
    from fedskew.tasks.binary import Binary as Binary
    from fedskew.tasks.classification import Classification as Classification
    from fedskew.tasks.multilabel import Multilabel as Multilabel
    from fedskew.tasks.next_token import NextToken as NextToken
    from fedskew.tasks.regression import Regression as Regression
    from fedskew.tasks.sequence_regression import SequenceRegression as SequenceRegression
    from fedskew.tasks.survival import Survival as Survival
    from fedskew.tasks.task import Task as Task
    from fedskew.testing import check as check

__version__ = "0.2.1"

# Name -> module. Imported at first use, so that `import fedskew` and the command line start at once.
# Registered methods (fedskew.FedProx) need no line here: they are found by their class names.
_PUBLIC = {
    "Algorithm": "fedskew.algorithms.contract",
    "BudgetSpentError": "fedskew.core.errors",
    "Callback": "fedskew.runs.callbacks",
    "Dataset": "fedskew.data.dataset",
    "Experiment": "fedskew.core.config",
    "Federation": "fedskew.data.federation",
    "FederatedClassifier": "fedskew.estimators",
    "FederatedRegressor": "fedskew.estimators",
    "FedskewError": "fedskew.core.errors",
    "Partition": "fedskew.data.partition",
    "Regression": "fedskew.tasks.regression",
    "Run": "fedskew.api",
    "Settings": "fedskew.core.config",
    "Binary": "fedskew.tasks.binary",
    "Classification": "fedskew.tasks.classification",
    "Multilabel": "fedskew.tasks.multilabel",
    "NextToken": "fedskew.tasks.next_token",
    "SequenceRegression": "fedskew.tasks.sequence_regression",
    "Survival": "fedskew.tasks.survival",
    "Task": "fedskew.tasks.task",
    "advise": "fedskew.advice.advise",
    "check": "fedskew.testing",
    "compare": "fedskew.api",
    "load": "fedskew.api",
    "load_split": "fedskew.nodes.split_folder",
    "measure": "fedskew.heterogeneity.heterogeneity",
    "open_run": "fedskew.api",
    "resume": "fedskew.api",
    "split": "fedskew.api",
    "train": "fedskew.api",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


if not TYPE_CHECKING:  # a type checker would take every name for one that is there

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
    methods = []
    for name in dir(importlib.import_module("fedskew.algorithms")):
        if name[:1].isupper():
            methods.append(name)
    return sorted({*globals(), *_PUBLIC, *methods})
