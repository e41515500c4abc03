"""The Python front door: load, split, train, resume."""

import inspect
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import nn

from fedskew.algorithms.base import Algorithm, Tensors, resolve
from fedskew.config import Experiment, Settings, read_file, to_toml
from fedskew.data import catalogue
from fedskew.data.convert import from_arrays
from fedskew.data.dataset import Dataset
from fedskew.engine.schedule import schedules
from fedskew.engine.training import RoundResult, Training
from fedskew.errors import FedskewError, Interrupted, unknown
from fedskew.fleet.uniform import fleets
from fedskew.models.base import models
from fedskew.models.build import ModelSpec, build
from fedskew.registry import Choice
from fedskew.report import folder as on_disk
from fedskew.report.folder import RunFolder
from fedskew.report.summary import Row, summarise
from fedskew.skew.cut import SkewSpec, client_holdout, split_rows
from fedskew.skew.federation import Federation
from fedskew.skew.partition import Partition, skews

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_CLIENTS = 10
FROM_PYTHON = "from-python"  # stands in a configuration for what was passed as a Python object


class Watcher(Protocol):
    """Somebody who wants to see every round as it ends."""

    def __call__(self, result: RoundResult, rounds: int) -> None:
        """Called once a round."""
        ...


@dataclass(frozen=True)
class Run:
    """A finished run: tidy tables, the summary, the trained model and the folder it was written to (None: nowhere)."""

    summary: Row
    model: nn.Module
    folder: Path | None
    tables: Mapping[str, list[Row]]
    training: Training

    @property
    def rounds(self) -> "pd.DataFrame":
        """One line a round, with the seconds it took."""
        return _frame(self.tables["rounds"]).merge(_frame(self.tables["timing"]), on="round")

    @property
    def clients(self) -> "pd.DataFrame":
        """One line for each client of each round."""
        return _frame(self.tables["clients"])

    @property
    def final_clients(self) -> "pd.DataFrame":
        """One line a client about the model it ended with."""
        return _frame(self.tables["final"])


def _frame(rows: list[Row]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(rows)


def load(spec: "str | Mapping[str, Any] | Choice", *, validation: float = 0.0, seed: int = 0) -> Dataset:
    """Read a data set: ``load("digits")``, ``load("mnist", validation=0.2)``, ``load("my.csv:label=y")``.

    Args:
        spec: a name with options, as text or table, or a path (.csv, .parquet, .npz, a folder of images)
        validation: share of the training rows to hold out, drawn before anything is fitted
        seed: seed of that choice

    >>> load("digits").shape
    (1, 8, 8)
    """
    data = catalogue.load(spec, validation=validation, seed=seed)
    return replace(data, recipe={"data": table_of(catalogue.choose(spec)), "validation": validation, "split_seed": seed})


def split(
    data: Any,
    skew: SkewSpec = "dirichlet:alpha=0.2",
    clients: int | None = None,
    *,
    seed: int = 0,
    client_test: float = 0.0,
    label: str | None = None,
    group: str | None = None,
) -> Federation:
    """Cut a data set into clients.

    Args:
        data: what ``load`` returned; or (x, y) or (x, y, group) of NumPy, PyTorch or pandas; or a data frame with ``label``
        skew: how, as text, as a table or as a function of (rows, clients, stream) that returns a Partition
        clients: how many; 10 when left out, or one a group with ``natural``
        seed: of the cut and of the held-out rows
        client_test: share of its rows that every client holds out to test its own model
        label: column of a data frame that holds the class
        group: column of a data frame that says whose a row is

    >>> fed = split(load("digits"), "dirichlet:alpha=0.2", clients=10, seed=0)
    >>> fed.clients, len(fed.partition.rows)
    (10, 1438)
    """
    dataset = data if isinstance(data, Dataset) else from_arrays(data, label=label, group=group)
    if clients is None and not (not callable(skew) and skews.choose(skew).name == "natural"):
        clients = DEFAULT_CLIENTS
    partition = split_rows(skew, dataset.train, clients, seed)
    held_out: Partition | None = None
    if client_test:
        partition, held_out = client_holdout(partition, dataset.train.y, client_test, seed)
    recipe: Mapping[str, Any] = {}
    same_seed = not dataset.recipe.get("validation") or dataset.recipe["split_seed"] == seed
    if dataset.recipe and not callable(skew) and same_seed:
        cut = {
            "skew": table_of(skews.choose(skew)),
            "clients": partition.clients,
            "split_seed": seed,
            "client_test": client_test,
        }
        recipe = {**dataset.recipe, **cut}
    return Federation(dataset, partition, held_out, recipe)


def table_of(choice: Choice) -> dict[str, Any]:
    """A choice as a table: what a configuration file holds."""
    return {"name": choice.name, **choice.options}


def train(
    fed: Federation,
    model: ModelSpec = "mlp",
    algorithm: "str | Mapping[str, Any] | type[Algorithm] | Algorithm" = "fedavg",
    *,
    folder: "str | os.PathLike[str] | bool | None" = None,
    watch: Watcher | None = None,
    **settings: Any,
) -> Run:
    """Train one method on one federation and record it.

    Args:
        fed: what ``split`` returned
        model: a name with options, a function of (shape, classes), or any module (its weights are the start; it is not changed)
        algorithm: a name with options, or an algorithm such as ``FedProx(mu=0.1)``
        folder: where the run is written; a fresh folder under ``runs`` when left out, nowhere when False
        watch: called after every round with its result and the number of rounds
        settings: everything in ``fedskew.Settings``, by name

    >>> run = train(split(load("digits"), "iid", clients=5), "logreg", rounds=3, folder=False)
    >>> run.summary["rounds"], run.summary["test_accuracy_last"] > 0.8
    (3, True)
    """
    known = {field.name for field in fields(Settings)}
    for name in settings:
        if name not in known:
            raise unknown("setting", name, known)
    method, chosen = resolve(algorithm), Settings(**settings)
    training, config = _prepare(fed, model, method, chosen)
    place = None if folder is False else Path(folder) if isinstance(folder, (str, os.PathLike)) else _fresh_folder(config)
    disk = None if place is None else RunFolder.create(place, to_toml(config), environment(training), fed.partition)
    return _drive(training, disk, {"rounds": [], "clients": [], "timing": []}, config, watch)


def _signature_with_settings() -> inspect.Signature:
    """``train``'s own parameters, then every setting with its default, so that help and notebooks show them."""
    own = [parameter for parameter in inspect.signature(train).parameters.values() if parameter.name != "settings"]
    extra = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(Settings)
    ]
    return inspect.Signature([*own, *extra], return_annotation=Run)


train.__signature__ = _signature_with_settings()  # type: ignore[attr-defined]


def federate(experiment: Experiment) -> Federation:
    """The federation that an experiment trains on."""
    seed = experiment.seed if experiment.split_seed is None else experiment.split_seed
    data = load(experiment.data, validation=experiment.validation, seed=seed)
    return split(data, experiment.skew, experiment.clients, seed=seed, client_test=experiment.client_test)


def run_experiment(
    experiment: Experiment,
    *,
    folder: "str | os.PathLike[str] | None" = None,
    watch: Watcher | None = None,
    fed: Federation | None = None,
) -> Run:
    """Run what a file or the command line describes; ``fed`` saves reading the data again for the next of several runs."""
    settings = {field.name: getattr(experiment, field.name) for field in fields(Settings)}
    return train(fed or federate(experiment), experiment.model, experiment.algorithm, folder=folder, watch=watch, **settings)


def resume(
    folder: "str | os.PathLike[str]",
    *,
    fed: Federation | None = None,
    model: ModelSpec | None = None,
    algorithm: Algorithm | None = None,
    watch: Watcher | None = None,
) -> Run:
    """Go on with a run that was killed; the result has the same bits as if it never had been.

    Args:
        folder: the run folder
        fed: the federation, if it was made from Python objects
        model: the model as it was passed to ``train``, if it was a Python object
        algorithm: the algorithm, if its class is not a registered one
        watch: called after every round
    """
    disk = RunFolder.open(Path(folder))
    config = read_file(disk.path / on_disk.CONFIG)
    for name, given in (("data", fed), ("skew", fed), ("model", model), ("algorithm", algorithm)):
        if config[name] == FROM_PYTHON and given is None:
            what = "fed" if name in ("data", "skew") else name
            raise FedskewError(
                f"{disk.path} was trained on a {name} {FROM_PYTHON}: call fedskew.resume(folder, {what}=...) with it"
            )
    if fed is None:
        cut = ("data", "validation", "skew", "clients", "split_seed", "client_test")
        fed = federate(Experiment(**{name: config[name] for name in cut if name in config}))
    if fed.partition != Partition.load(disk.path / on_disk.PARTITION):
        raise FedskewError(f"{disk.path}: the clients hold other rows than when the run began; the data has changed")
    settings = Settings(**{field.name: config[field.name] for field in fields(Settings) if field.name in config})
    method = algorithm or resolve(config["algorithm"])
    training, _ = _prepare(fed, config["model"] if model is None else model, method, settings)
    stored = disk.load_checkpoint()
    if stored is not None:
        training.restore(tensors_from_bytes(stored))
    tables = {
        name: disk.trim(file, training.round)
        for name, file in (("rounds", on_disk.ROUNDS), ("clients", on_disk.CLIENTS), ("timing", on_disk.TIMING))
    }
    return _drive(training, disk, tables, config, watch)


def _prepare(fed: Federation, model: ModelSpec, algorithm: Algorithm, settings: Settings) -> tuple[Training, dict[str, Any]]:
    """Everything that can be refused is refused here, before anything is written."""
    module = build(model, fed.data.shape, len(fed.data.classes), settings.seed)
    _check_output(module, fed)
    training = Training(fed, module, algorithm, settings)
    config: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(Settings)}
    config |= {"schedule": table_of(schedules.choose(settings.schedule)), "fleet": table_of(fleets.choose(settings.fleet))}
    config |= fed.recipe or {"data": FROM_PYTHON, "skew": FROM_PYTHON, "clients": fed.clients}
    config["model"] = table_of(models.choose(model)) if isinstance(model, (str, Mapping, Choice)) else FROM_PYTHON
    name = type(algorithm).label()
    registered = name != type(algorithm).__name__
    config["algorithm"] = table_of(Choice(name, algorithm.options())) if registered else FROM_PYTHON
    return training, config


def _check_output(module: nn.Module, fed: Federation) -> None:
    """Try one row, so that a model that does not fit the data is refused in a line and not after a minute."""
    row = torch.from_numpy(fed.train.x[:1]).to(next(module.parameters(), torch.zeros(())).dtype)
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            answer = module(row)
    except RuntimeError as problem:
        reason = str(problem).splitlines()[0]
        raise FedskewError(f"the model does not take rows of shape {fed.data.shape}: {reason}") from None
    finally:
        module.train(training)
    if answer.shape != (1, len(fed.data.classes)):
        raise FedskewError(
            f"the model answers one row with shape {tuple(answer.shape)}, expected (1, {len(fed.data.classes)}), one a class"
        )


def _drive(
    training: Training, disk: RunFolder | None, tables: dict[str, list[Row]], config: Mapping[str, Any], watch: Watcher | None
) -> Run:
    """Round after round to the end; Ctrl-C leaves a run that can be resumed."""
    try:
        _run_rounds(training, disk, tables, watch)
        return _finish(training, disk, tables, config)
    except KeyboardInterrupt:
        done = f"interrupted after round {training.round} of {training.settings.rounds}"
        raise Interrupted(f"{done}; go on with: fedskew resume {disk.path}" if disk else done) from None


def _run_rounds(training: Training, disk: RunFolder | None, tables: dict[str, list[Row]], watch: Watcher | None) -> None:
    """Every round is recorded before the next begins."""
    settings = training.settings
    events = _tensorboard(disk) if settings.tensorboard else None
    while training.round < settings.rounds:
        began = time.perf_counter()
        result = training.advance()
        new = {"rounds": [result.round], "clients": result.clients}
        new["timing"] = [{"round": training.round, "seconds": time.perf_counter() - began}]
        for name, rows in new.items():
            tables[name].extend(rows)
        if disk:
            disk.append(on_disk.ROUNDS, new["rounds"])
            disk.append(on_disk.CLIENTS, new["clients"])
            disk.append(on_disk.TIMING, new["timing"])
            if training.round % settings.checkpoint_every == 0 or training.round == settings.rounds:
                disk.save_checkpoint(_to_bytes(training.checkpoint()))
        if events:
            events(result)
        if watch:
            watch(result, settings.rounds)


def _finish(training: Training, disk: RunFolder | None, tables: dict[str, list[Row]], config: Mapping[str, Any]) -> Run:
    final = training.final_clients()
    fed = training.fed
    spelled = {name: spell(config[name]) for name in ("data", "skew", "model", "algorithm")}
    facts = {**spelled, "clients": fed.clients, "clients_per_round": training.per_round, "seed": training.settings.seed}
    facts["parameters"] = sum(value.numel() for value in training.params.values())
    population = training.trained_on.clients
    numbers = summarise(tables["rounds"], tables["clients"], final, population, fed.held_out is not None)
    summary = {**facts, **numbers, "seconds": float(sum(row["seconds"] for row in tables["timing"]))}
    model = training.model
    model.load_state_dict(training.state())
    model.eval()
    if disk:
        columns = list(dict.fromkeys(key for row in final for key in row))
        (disk.path / on_disk.FINAL_CLIENTS).unlink(missing_ok=True)
        disk.append(on_disk.FINAL_CLIENTS, [{key: row.get(key) for key in columns} for row in final])
        disk.write(on_disk.MODEL, _to_bytes(training.state()))
        from fedskew.report.picture import draw_run

        disk.write(on_disk.PICTURE, draw_run(tables["rounds"], fed, summary))
        disk.write_json(on_disk.SUMMARY, summary)
    return Run(summary, model, disk.path if disk else None, {**tables, "final": final}, training)


def _to_bytes(tensors: Tensors) -> bytes:
    return tensors_to_bytes({name: value.detach().contiguous().cpu() for name, value in tensors.items()})


def spell(value: Any) -> str:
    """A configured choice as ``name:key=value``."""
    if not isinstance(value, Mapping):
        return str(value)
    return str(Choice(value["name"], {key: entry for key, entry in value.items() if key != "name"}))


def _fresh_folder(config: Mapping[str, Any]) -> Path:
    """``runs/METHOD-DATA-SKEW-sSEED``, with a number behind it when that is taken."""
    words = [spell(config[name]).split(":")[0] for name in ("algorithm", "data", "skew")]
    base = "-".join(word.replace("/", "_") for word in words) + f"-s{config['seed']}"
    name, number = Path("runs") / base, 2
    while name.exists():
        name, number = Path("runs") / f"{base}-{number}", number + 1
    return name


def environment(training: Training) -> dict[str, Any]:
    """What the bits of a run depend on beside its configuration."""
    from fedskew import __version__

    versions = {
        "fedskew": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    device = str(training.device)
    if training.device.type == "cuda":
        device += f" ({torch.cuda.get_device_name(training.device)})"
    return {
        **versions,
        "platform": platform.platform(),
        "device": device,
        "threads": training.threads,
        "federation": training.fed.fingerprint,
    }


def _tensorboard(disk: RunFolder | None) -> Callable[[RoundResult], None]:
    if disk is None:
        raise FedskewError("tensorboard=true needs a run folder: leave folder=False out")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise FedskewError("tensorboard=true needs the package: pip install 'fedskew[tensorboard]'") from None
    writer = SummaryWriter(str(disk.path / "tensorboard"))

    def write(result: RoundResult) -> None:
        for name, value in result.round.items():
            if name != "round" and value is not None:
                writer.add_scalar(name, value, result.round["round"])
        writer.flush()

    return write
