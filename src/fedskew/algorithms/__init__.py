"""The contract of a method, and the methods, one paper in each file.

The contract, the objects that a method may have and every registered class can be imported from here.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for editors and type checkers
    from fedskew.aggregation.mean import Aggregator as Aggregator
    from fedskew.aggregation.rules import Rule as Rule
    from fedskew.algorithms.adaptation import Adaptation as Adaptation
    from fedskew.algorithms.afl_cp import AFLCP as AFLCP
    from fedskew.algorithms.apfl import APFL as APFL
    from fedskew.algorithms.asynchronous import FedAsync as FedAsync
    from fedskew.algorithms.asynchronous import FedBuff as FedBuff
    from fedskew.algorithms.attack import Attack as Attack
    from fedskew.algorithms.bounds import Central as Central
    from fedskew.algorithms.bounds import Local as Local
    from fedskew.algorithms.calibrator import Calibrator as Calibrator
    from fedskew.algorithms.ccvr import CCVR as CCVR
    from fedskew.algorithms.cfl import CFL as CFL
    from fedskew.algorithms.channel import Channel as Channel
    from fedskew.algorithms.compression import Quantize as Quantize
    from fedskew.algorithms.compression import TopK as TopK
    from fedskew.algorithms.contract import Algorithm as Algorithm
    from fedskew.algorithms.contract import Batch as Batch
    from fedskew.algorithms.contract import Cohort as Cohort
    from fedskew.algorithms.contract import Report as Report
    from fedskew.algorithms.contract import Requirement as Requirement
    from fedskew.algorithms.contract import View as View
    from fedskew.algorithms.contract import Weighting as Weighting
    from fedskew.algorithms.contract import algorithms as algorithms
    from fedskew.algorithms.contract import difference as difference
    from fedskew.algorithms.contract import proximal as proximal
    from fedskew.algorithms.d_psgd import DPSGD as DPSGD
    from fedskew.algorithms.d_psgd import Gossip as Gossip
    from fedskew.algorithms.ditto import Ditto as Ditto
    from fedskew.algorithms.fed_sb import FedSB as FedSB
    from fedskew.algorithms.fedala import FedALA as FedALA
    from fedskew.algorithms.fedamp import FedAMP as FedAMP
    from fedskew.algorithms.fedavg import FedAvg as FedAvg
    from fedskew.algorithms.fedbabu import FedBABU as FedBABU
    from fedskew.algorithms.fedbn import FedBN as FedBN
    from fedskew.algorithms.fedbn import MFedBN as MFedBN
    from fedskew.algorithms.fedbs import FedBS as FedBS
    from fedskew.algorithms.feddyn import FedDyn as FedDyn
    from fedskew.algorithms.fedex_lora import FedExLoRA as FedExLoRA
    from fedskew.algorithms.fedexp import FedExP as FedExP
    from fedskew.algorithms.fedfomo import FedFomo as FedFomo
    from fedskew.algorithms.fedga import FedGA as FedGA
    from fedskew.algorithms.fedlc import FedLC as FedLC
    from fedskew.algorithms.fednova import FedNova as FedNova
    from fedskew.algorithms.fedntd import FedNTD as FedNTD
    from fedskew.algorithms.fedopt import FedAdagrad as FedAdagrad
    from fedskew.algorithms.fedopt import FedAdam as FedAdam
    from fedskew.algorithms.fedopt import FedAvgM as FedAvgM
    from fedskew.algorithms.fedopt import FedYogi as FedYogi
    from fedskew.algorithms.fedpac import FedPAC as FedPAC
    from fedskew.algorithms.fedpbs import FedPBS as FedPBS
    from fedskew.algorithms.fedper import FedPer as FedPer
    from fedskew.algorithms.fedproto import FedProto as FedProto
    from fedskew.algorithms.fedprox import FedProx as FedProx
    from fedskew.algorithms.fedprox_layers import FedProxLayers as FedProxLayers
    from fedskew.algorithms.fedrep import FedRep as FedRep
    from fedskew.algorithms.fedrep import LGFedAvg as LGFedAvg
    from fedskew.algorithms.fedrod import FedRoD as FedRoD
    from fedskew.algorithms.fedrs import FedRS as FedRS
    from fedskew.algorithms.fedsa_lora import FedSALoRA as FedSALoRA
    from fedskew.algorithms.fedsam import FedSAM as FedSAM
    from fedskew.algorithms.fedtan import FedTAN as FedTAN
    from fedskew.algorithms.ffa_lora import FFALoRA as FFALoRA
    from fedskew.algorithms.finetune import FineTune as FineTune
    from fedskew.algorithms.flora import FLoRA as FLoRA
    from fedskew.algorithms.hierarchical import Hierarchical as Hierarchical
    from fedskew.algorithms.ifca import IFCA as IFCA
    from fedskew.algorithms.initial_weights import InitialWeights as InitialWeights
    from fedskew.algorithms.lora import LoRA as LoRA
    from fedskew.algorithms.moon import Moon as Moon
    from fedskew.algorithms.norm_test import NormTest as NormTest
    from fedskew.algorithms.per_fedavg import PerFedAvg as PerFedAvg
    from fedskew.algorithms.pfedme import PFedMe as PFedMe
    from fedskew.algorithms.power_of_choice import PowerOfChoice as PowerOfChoice
    from fedskew.algorithms.privacy import DifferentialPrivacy as DifferentialPrivacy
    from fedskew.algorithms.qfedavg import QFedAvg as QFedAvg
    from fedskew.algorithms.robust import Clip as Clip
    from fedskew.algorithms.robust import Krum as Krum
    from fedskew.algorithms.robust import Median as Median
    from fedskew.algorithms.robust import TrimmedMean as TrimmedMean
    from fedskew.algorithms.scaffold import Scaffold as Scaffold
    from fedskew.algorithms.selection import ClientPool as ClientPool
    from fedskew.algorithms.selection import Probe as Probe
    from fedskew.algorithms.selection import Selection as Selection
    from fedskew.algorithms.selection import TrainConfig as TrainConfig
    from fedskew.algorithms.stratify import SFL as SFL
    from fedskew.algorithms.stratify import StratifyBatch as StratifyBatch
    from fedskew.algorithms.stratify import StratifyHybrid as StratifyHybrid
    from fedskew.algorithms.stratify import StratifySingle as StratifySingle
    from fedskew.algorithms.stratify_rounds import StratifyRounds as StratifyRounds
    from fedskew.algorithms.topologies import Buffered as Buffered
    from fedskew.algorithms.topologies import EdgeServers as EdgeServers
    from fedskew.algorithms.topologies import Graph as Graph
    from fedskew.algorithms.topologies import Parallel as Parallel
    from fedskew.algorithms.topologies import Sequential as Sequential
    from fedskew.algorithms.topologies import Synchronous as Synchronous
    from fedskew.batchnorm.policy import BatchNormPolicy as BatchNormPolicy
    from fedskew.core.errors import FedskewError as FedskewError
    from fedskew.core.registry import AtLeastOne as AtLeastOne
    from fedskew.core.registry import Bounds as Bounds
    from fedskew.core.registry import NonNegative as NonNegative
    from fedskew.core.registry import PartialShare as PartialShare
    from fedskew.core.registry import Positive as Positive
    from fedskew.core.registry import Share as Share
    from fedskew.core.streams import Floats as Floats
    from fedskew.core.streams import Ints as Ints
    from fedskew.core.streams import Stream as Stream
    from fedskew.core.trees import Tensors as Tensors
    from fedskew.core.trees import Tree as Tree
    from fedskew.models.layout import Layout as Layout
    from fedskew.models.low_rank import AdapterLayout as AdapterLayout
    from fedskew.sample_schedules.holdings import Holdings as Holdings
    from fedskew.sample_schedules.sample_schedule import SampleSchedule as SampleSchedule

# Name -> module, imported on first access.
_CONTRACT = {
    **dict.fromkeys(
        (
            "Algorithm",
            "Batch",
            "Cohort",
            "Report",
            "Requirement",
            "View",
            "Weighting",
            "algorithms",
            "difference",
            "proximal",
        ),
        "fedskew.algorithms.contract",
    ),
    **dict.fromkeys(
        ("ClientPool", "Probe", "Selection", "TrainConfig"), "fedskew.algorithms.selection"
    ),
    **dict.fromkeys(
        ("Buffered", "EdgeServers", "Graph", "Parallel", "Sequential", "Synchronous"),
        "fedskew.algorithms.topologies",
    ),
    "Aggregator": "fedskew.aggregation.mean",
    "Rule": "fedskew.aggregation.rules",
    "BatchNormPolicy": "fedskew.batchnorm.policy",
    "Adaptation": "fedskew.algorithms.adaptation",
    "InitialWeights": "fedskew.algorithms.initial_weights",
    "Calibrator": "fedskew.algorithms.calibrator",
    "Channel": "fedskew.algorithms.channel",
    # Which other methods derive from while they are being registered
    "FedAvg": "fedskew.algorithms.fedavg",
    "Layout": "fedskew.models.layout",
    "AdapterLayout": "fedskew.models.low_rank",
    **dict.fromkeys(("Tensors", "Tree"), "fedskew.core.trees"),
    **dict.fromkeys(("Floats", "Ints", "Stream"), "fedskew.core.streams"),
    **dict.fromkeys(
        ("AtLeastOne", "Bounds", "NonNegative", "PartialShare", "Positive", "Share"),
        "fedskew.core.registry",
    ),
    "Holdings": "fedskew.sample_schedules.holdings",
    "SampleSchedule": "fedskew.sample_schedules.sample_schedule",
    "FedskewError": "fedskew.core.errors",
}


if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name in _CONTRACT:
            return getattr(importlib.import_module(_CONTRACT[name]), name)
        if not name.startswith("_"):
            for kind in _classes():
                if kind.__name__ == name:
                    return kind
        raise AttributeError(f"module 'fedskew.algorithms' has no attribute {name!r}")


def _classes() -> list[type[Any]]:
    """Return every registered method."""
    return list(importlib.import_module("fedskew.algorithms.contract").algorithms.loaded().values())


def __dir__() -> list[str]:
    return sorted([*_CONTRACT, *(kind.__name__ for kind in _classes())])
