"""Choices of a run (data, skew, model, algorithm, ...) as its configuration and its tables write them."""

from collections.abc import Mapping
from typing import Any

from fedskew.algorithms.contract import algorithms
from fedskew.core.registry import Choice, Composition, Registry
from fedskew.data import catalogue
from fedskew.data.dataset import datasets
from fedskew.engine.lr_schedule import schedules
from fedskew.fleet.machines import fleets
from fedskew.models.network import models
from fedskew.skew.skews import skews
from fedskew.tasks.task import tasks

FROM_PYTHON = "from-python"  # placeholder in a configuration for a Python object
REGISTRIES: Mapping[str, Registry[Any]] = {
    "data": datasets,
    "skew": skews,
    "model": models,
    "algorithm": algorithms,
    "schedule": schedules,
    "fleet": fleets,
    "task": tasks,
}


def choose(kind: str, spec: Any) -> Choice:
    """Return a validated choice."""
    return catalogue.choose(spec) if kind == "data" else REGISTRIES[kind].choose(spec)


def as_table(kind: str, spec: Any) -> dict[str, Any] | str:
    """Return a choice as a table with every option, or as text if it has several parts: what a configuration holds."""
    choice = REGISTRIES[kind].full(choose(kind, spec))
    return str(choice) if isinstance(choice, Composition) else {"name": choice.name, **choice.options}


def spell(kind: str, spec: Any) -> str:
    """Return a choice as ``name:key=value``, with the options that were given."""
    return str(choose(kind, spec))


def brief(kind: str, spec: Any) -> str:
    """Return a choice as ``name:key=value``, without what is at its default."""
    return FROM_PYTHON if spec == FROM_PYTHON else str(REGISTRIES[kind].brief(choose(kind, spec)))
