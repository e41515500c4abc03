"""Running an experiment from a file or the command line."""

import os
import tomllib
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedskew.algorithms.contract import resolve
from fedskew.core.config import AUTO, CHOICES, FORMER, Experiment, to_toml
from fedskew.core.errors import FedskewError
from fedskew.data.federation import Federation
from fedskew.engine.device import pick_device
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import CallbackSpec
from fedskew.runs.choices import as_table, choose, method_as_table
from fedskew.runs.execute import prepare, resuming, starting
from fedskew.runs.folder import RunFolder
from fedskew.runs.former_settings import as_options
from fedskew.runs.recorded_config import FROM_PYTHON, from_python, read_config, settings_of
from fedskew.runs.run import Run
from fedskew.runs.runner import Resumption, Watch, run_to_end
from fedskew.server import refusals
from fedskew.skew.federate import federate


def check_choices(experiment: Experiment) -> None:
    """Raise an error for bad choices before any data is read: names, their options, the device, settings that clash."""
    for kind in CHOICES:
        if kind in ("task", "skew") and getattr(experiment, kind) == AUTO:
            continue
        choose(kind, getattr(experiment, kind))
    method, settings = as_options(resolve(experiment.algorithm), experiment.settings())
    refusals.check_choices(method, settings)
    pick_device(experiment.device)


def run_experiment(
    experiment: Experiment,
    *,
    folder: "str | os.PathLike[str] | None" = None,
    callbacks: "CallbackSpec | Iterable[CallbackSpec]" = (),
    fed: Federation | None = None,
) -> Run:
    """Run an experiment; ``fed`` avoids reading the data again for the next of several runs."""
    check_choices(experiment)
    if folder is not None:
        on_disk.must_be_new(Path(folder))
    fed = fed or federate(experiment)
    method = resolve(experiment.algorithm)
    settings, watch = experiment.settings(), Watch(callbacks)
    return run_to_end(starting(fed, experiment.model, method, settings, folder, watch))


def _resolved(fed: Federation, experiment: Experiment) -> dict[str, Any]:
    """Return the whole configuration of an experiment, as it is read back from a file."""
    _, config = prepare(fed, experiment.model, resolve(experiment.algorithm), experiment.settings())
    return tomllib.loads(to_toml(config))


def _completed(config: dict[str, Any], fed: Federation, experiment: Experiment) -> dict[str, Any]:
    """Return a configuration with the settings that are newer than it: its run had their defaults."""
    choices = {}
    for kind in CHOICES:
        if not from_python(config.get(kind, FROM_PYTHON)):
            choices[kind] = as_table(kind, config[kind])
    if "algorithm" in choices:
        method, _ = as_options(resolve(config["algorithm"]), settings_of(config))
        choices["algorithm"] = method_as_table(method)
    kept = {name: value for name, value in config.items() if name not in FORMER}
    defaults: dict[str, Any] = {}
    for field in fields(Experiment):
        if field.name not in config and field.name not in FORMER:
            defaults[field.name] = field.default
    newer_settings = {}
    if defaults:
        newer_settings = _resolved(fed, replace(experiment, **defaults))
    return {**newer_settings, **kept, **tomllib.loads(to_toml(choices))}


def run_or_resume(
    experiment: Experiment, folder: Path, callbacks: "CallbackSpec | Iterable[CallbackSpec]" = ()
) -> Run:
    """Run an experiment, or resume it if the folder holds the same one, so that a job can be started again."""
    if not folder.exists():
        return run_experiment(experiment, folder=folder, callbacks=callbacks)
    check_choices(experiment)
    disk = RunFolder.open(folder)
    fed = federate(experiment)
    wanted = _resolved(fed, experiment)
    there = _completed(read_config(disk), fed, experiment)
    for name in sorted(wanted.keys() | there.keys()):
        if name == "threads":
            continue  # the folder says how many
        if name == "workers" and "none" not in (wanted[name], there[name]):
            continue  # any number of workers gives the same results
        if wanted.get(name) != there.get(name):
            raise FedskewError(
                f"{folder} holds another run, its {name} is {there.get(name)} and not {wanted.get(name)}: "
                f"choose another folder, or resume what it holds ({on_disk.resume_command(folder)})"
            )
    how = Resumption(workers=experiment.workers)
    return run_to_end(resuming(folder, fed, how=how, watch=Watch(callbacks)))
