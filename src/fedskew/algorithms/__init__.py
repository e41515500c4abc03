"""The contract of a method, and the methods, one paper in each file.

The contract, the objects that a method may have and every registered class can be imported from here.
"""

import importlib
from typing import Any

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
    **dict.fromkeys(("ClientPool", "Probe", "Selection", "TrainConfig"), "fedskew.algorithms.selection"),
    **dict.fromkeys(("Buffered", "Parallel", "Sequential", "Synchronous"), "fedskew.algorithms.topologies"),
    "Aggregator": "fedskew.aggregation.mean",
    "Rule": "fedskew.aggregation.rules",
    "BatchNormPolicy": "fedskew.batchnorm.policy",
    "Calibrator": "fedskew.algorithms.calibrator",
    "Channel": "fedskew.algorithms.channel",
    "FedAvg": "fedskew.algorithms.fedavg",  # which other methods derive from while they are being registered
    "Layout": "fedskew.models.layout",
    **dict.fromkeys(("Tensors", "Tree"), "fedskew.core.trees"),
    **dict.fromkeys(("Floats", "Ints", "Stream"), "fedskew.core.streams"),
    **dict.fromkeys(
        ("AtLeastOne", "Bounds", "NonNegative", "PartialShare", "Positive", "Share"), "fedskew.core.registry"
    ),
    "Holdings": "fedskew.schedules.holdings",
    "SampleSchedule": "fedskew.schedules.sample_schedule",
    "FedskewError": "fedskew.core.errors",
}


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
