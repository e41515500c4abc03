"""Choices of a run (data, skew, model, algorithm, ...) as its configuration and its tables write them."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from fedskew.algorithms.contract import Algorithm, algorithms, choice_of
from fedskew.core.errors import FedskewError
from fedskew.core.plugins import place
from fedskew.core.registry import Choice, Registry
from fedskew.data import catalogue
from fedskew.data.dataset import datasets
from fedskew.engine.lr_schedule import schedules
from fedskew.fleet.machines import fleets
from fedskew.models.build import ModelSpec
from fedskew.models.network import models
from fedskew.runs.recorded_config import FROM_PYTHON, from_python
from fedskew.skew.skews import skews
from fedskew.tasks.task import tasks

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
    """Return a validated choice; what stands for a Python object is refused."""
    if from_python(spec):
        what = ""
        if isinstance(spec, Mapping) and "class" in spec:
            what = f" ({spec['class']})"
        raise FedskewError(
            f"{kind}={FROM_PYTHON} stands for a Python object{what}: run it from Python, choose another {kind}, or "
            "register its class under a name and import it: fedskew --import FILE run ... (CONTRIBUTING.md)"
        )
    if kind == "data":
        return catalogue.choose(spec)
    return REGISTRIES[kind].choose(spec)


def as_table(kind: str, spec: Any) -> dict[str, Any] | str:
    """Return a choice as a configuration holds it."""
    return REGISTRIES[kind].as_table(choose(kind, spec))


def spell(kind: str, spec: Any) -> str:
    """Return a choice as ``name:key=value``, with the options that were given."""
    return str(choose(kind, spec))


def brief(kind: str, spec: Any) -> str:
    """Return a choice as ``name:key=value``, without what is at its default."""
    if not from_python(spec):
        return str(REGISTRIES[kind].brief(choose(kind, spec)))
    if not isinstance(spec, Mapping):
        return FROM_PYTHON
    options = dict(spec)
    options.pop("name")
    return str(Choice(options.pop("class", FROM_PYTHON), options))


def model_as_table(model: ModelSpec) -> dict[str, Any] | str:
    """Return a model as a configuration holds it."""
    if isinstance(model, (str, Mapping, Choice)):
        return as_table("model", model)
    if isinstance(model, nn.Module):
        return _described([type(model)], {})
    return _described([model], {})


def method_as_table(algorithm: Algorithm) -> dict[str, Any] | str:
    """Return a method as a configuration holds it."""
    if algorithms.name_of(type(algorithm)) is not None:
        return as_table("algorithm", choice_of(algorithm))
    return _described(algorithm.parts or (type(algorithm),), algorithm.options())


def _described(things: Iterable[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table that says of what classes or functions a Python object is; it cannot be made again from that."""
    return {"name": FROM_PYTHON, "class": " + ".join(map(place, things)), **options}
