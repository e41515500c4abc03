"""The Python front door: load, split, train, resume."""

import copy
import inspect
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedskew.algorithms.contract import Algorithm, algorithms, choice_of, resolve
from fedskew.core.config import CHOICES, Experiment, Settings, read_file, to_toml
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.lock import locked
from fedskew.core.registry import Choice, Composition, Registry, options_of
from fedskew.data import catalogue
from fedskew.data.convert import from_arrays
from fedskew.data.dataset import Dataset, datasets
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.device import pick_device
from fedskew.engine.lr_schedule import schedules
from fedskew.fleet.machines import fleets
from fedskew.heterogeneity.target import find
from fedskew.models.build import ModelSpec, build
from fedskew.models.network import models
from fedskew.models.parameters import trainable
from fedskew.runs import folder as on_disk
from fedskew.runs.checkpoint import Checkpoints, to_bytes
from fedskew.runs.environment import check_same, environment
from fedskew.runs.folder import RunFolder
from fedskew.runs.runner import Watcher, client_lines, finished_files, going_on, only_warned, run_rounds
from fedskew.runs.summary import Row, summarise
from fedskew.server.calibration import check_head
from fedskew.server.training import RoundResult, Training
from fedskew.skew.cut import SkewSpec, client_holdout, cut
from fedskew.skew.skews import skews

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_CLIENTS = 10
FROM_PYTHON = "from-python"  # stands in a configuration for what was passed as a Python object
REGISTRIES: Mapping[str, Registry[Any]] = {
    "data": datasets, "skew": skews, "model": models, "algorithm": algorithms, "schedule": schedules, "fleet": fleets,
}  # fmt: skip


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
        """One line for each client of each round; read from the folder, if there is one, as there may be very many."""
        if self.folder is None:
            return _frame(self.tables["clients"])
        return _frame(RunFolder(self.folder).table(on_disk.CLIENTS))

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
    valid = _valid("load", validation=validation, seed=seed)
    data = catalogue.load(spec, **valid)
    recipe = {"data": _table("data", spec), "validation": valid["validation"], "split_seed": valid["seed"]}
    return replace(data, recipe=recipe)


def _valid(where: str, **values: Any) -> dict[str, Any]:
    """Arguments that are settings as well, converted and checked as those are."""
    known = options_of(Experiment)
    return {name: known[name].convert(value, where) for name, value in values.items()}


def split(
    data: Any,
    skew: SkewSpec = "dirichlet:alpha=0.2",
    clients: int | None = None,
    *,
    seed: int = 0,
    client_test: float = 0.0,
    target: str | None = None,
    label: str | None = None,
    group: str | None = None,
) -> Federation:
    """Cut a data set into clients.

    Args:
        data: what ``load`` returned; or (x, y) or (x, y, group) of NumPy, PyTorch or pandas; or a data frame with ``label``
        skew: how, as text, as a table or as a function of (rows, clients, stream) that returns a Partition; text may add
            treatments of the rows: ``"dirichlet:alpha=0.3 + noise:sigma=0.1"``
        clients: how many; 10 when left out, or one a group with ``natural``
        seed: of the cut and of the held-out rows
        client_test: share of its rows that every client holds out to test its own model
        target: a level of unlikeness such as ``"hellinger=0.6"`` or ``"features.wasserstein=0.1"``; the skew's own knob is then
            left out (``"dirichlet"``) and found by a search
        label: column of a data frame that holds the class
        group: column of a data frame that says whose a row is

    >>> fed = split(load("digits"), "dirichlet:alpha=0.2", clients=10, seed=0)
    >>> fed.clients, len(fed.partition.rows)
    (10, 1438)
    """
    clients, seed, client_test = _valid("split", clients=clients, seed=seed, client_test=client_test).values()
    if clients is None and not (not callable(skew) and skews.choose(skew).name == "natural"):
        clients = DEFAULT_CLIENTS
    dataset = data if isinstance(data, Dataset) else from_arrays(data, label=label, group=group)
    skew = skew if callable(skew) else _numbered(skew, dataset.groups)
    if target is None:
        result = cut(skew, dataset.train, clients, seed)
    else:
        found = find(skew, dataset.train, clients, seed, target, classes=len(dataset.classes))
        skew, result = found.spec, found.cut
    partition, held_out = result.partition, None
    if client_test:
        partition, held_out = client_holdout(partition, result.rows, client_test, seed)
    recipe: Mapping[str, Any] = {}
    same_seed = not dataset.recipe.get("validation") or dataset.recipe["split_seed"] == seed
    if dataset.recipe and not callable(skew) and same_seed:
        made = {
            "skew": _table("skew", skews.settle(skew, result.partition.settled)),
            "clients": partition.clients,
            "split_seed": seed,
            "client_test": client_test,
        }
        recipe = {**dataset.recipe, **made}
    return Federation(dataset, partition, held_out, recipe, None if result.rows is dataset.train else result.rows)


def _numbered(skew: "str | Mapping[str, Any] | Choice", groups: tuple[str, ...]) -> "str | Mapping[str, Any] | Choice":
    """A skew that names a group (``domains:alone=photo``) with the group's number, which is what rows have."""
    name = skews.choose(skew).options.get("alone")
    return skews.settle(skew, {"alone": str(groups.index(name))}) if name in groups else skew


def _choose(kind: str, spec: Any) -> Choice:
    return catalogue.choose(spec) if kind == "data" else REGISTRIES[kind].choose(spec)


def _table(kind: str, spec: Any) -> dict[str, Any] | str:
    """A choice as a table with every option, or as text if it has several parts: what the configuration of a run holds."""
    choice = REGISTRIES[kind].full(_choose(kind, spec))
    return str(choice) if isinstance(choice, Composition) else {"name": choice.name, **choice.options}


def spell(kind: str, spec: Any) -> str:
    """A choice as ``name:key=value``, with the options that were given."""
    return str(_choose(kind, spec))


def brief(kind: str, spec: Any) -> str:
    """A choice as ``name:key=value``, without what is at its default."""
    return FROM_PYTHON if spec == FROM_PYTHON else str(REGISTRIES[kind].brief(_choose(kind, spec)))


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
    training, config = prepare(fed, model, resolve(algorithm), Settings(**settings))
    if folder is False and training.settings.tensorboard:
        raise FedskewError("tensorboard=true needs a run folder: leave folder=False out")
    training.agree()  # it may refuse, so before anything is written
    if folder is False:
        return _drive(training, None, {"rounds": [], "clients": [], "timing": []}, config, watch)
    place = Path(folder) if isinstance(folder, (str, os.PathLike)) else None
    disk = _create(place, config, training)
    with locked(disk.path):
        return _drive(training, Checkpoints(disk), {"rounds": [], "timing": []}, config, watch)


def _create(place: Path | None, config: Mapping[str, Any], training: Training) -> RunFolder:
    """The folder of a run; without a place under a fresh name, and the next one if somebody else was quicker."""
    content = (to_toml(config), environment(training), training.fed.partition)
    while place is None:
        with suppress(on_disk.TakenError):
            return RunFolder.create(_fresh_folder(config), *content)
    return RunFolder.create(place, *content)


def _signature_with_settings() -> inspect.Signature:
    """``train``'s own parameters, then every setting with its default, so that help and notebooks show them."""
    own = [parameter for parameter in inspect.signature(train).parameters.values() if parameter.name != "settings"]
    extra = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(Settings)
    ]
    return inspect.Signature([*own, *extra], return_annotation=Run)


train.__signature__ = _signature_with_settings()  # type: ignore[attr-defined]


def check_choices(experiment: Experiment) -> None:
    """Refuse what can be refused before any data is read: names, their options, the device, clashes."""
    for kind in CHOICES:
        if getattr(experiment, kind) == FROM_PYTHON:
            raise FedskewError(f"{kind}={FROM_PYTHON} stands for a Python object: run it from Python, or choose another {kind}")
        _choose(kind, getattr(experiment, kind))
    resolve(experiment.algorithm).check(
        optimizer=experiment.optimizer, per_round=experiment.per_round, secure=experiment.secure
    )
    pick_device(experiment.device)


def federate(experiment: Experiment, data: Dataset | None = None) -> Federation:
    """The federation that an experiment trains on; ``data`` saves reading it again."""
    seed = experiment.seed if experiment.split_seed is None else experiment.split_seed
    data = data or load(experiment.data, validation=experiment.validation, seed=seed)
    return split(data, experiment.skew, experiment.clients, seed=seed, client_test=experiment.client_test)


def run_experiment(
    experiment: Experiment,
    *,
    folder: "str | os.PathLike[str] | None" = None,
    watch: Watcher | None = None,
    fed: Federation | None = None,
) -> Run:
    """Run what a file or the command line describes; ``fed`` saves reading the data again for the next of several runs."""
    check_choices(experiment)
    if folder is not None:
        on_disk.must_be_new(Path(folder))
    settings = vars(experiment.settings())
    return train(fed or federate(experiment), experiment.model, experiment.algorithm, folder=folder, watch=watch, **settings)


def run_or_resume(experiment: Experiment, folder: Path, watch: Watcher | None = None) -> Run:
    """Run an experiment, or go on with it if the folder holds the very same one: a job that is started again is one line."""
    if not folder.exists():
        return run_experiment(experiment, folder=folder, watch=watch)
    check_choices(experiment)
    disk, fed = RunFolder.open(folder), federate(experiment)
    _, config = prepare(fed, experiment.model, resolve(experiment.algorithm), experiment.settings())
    wanted, there = tomllib.loads(to_toml(config)), read_config(disk)
    for name in sorted(wanted.keys() | there.keys()):
        if name != "threads" and wanted.get(name) != there.get(name):
            raise FedskewError(
                f"{folder} holds another run, its {name} is {there.get(name)} and not {wanted.get(name)}: "
                f"choose another folder, or go on with what it holds ({on_disk.resume_command(folder)})"
            )
    return resume(folder, fed=fed, watch=watch)


def resume(
    folder: "str | os.PathLike[str]",
    *,
    fed: Federation | None = None,
    model: ModelSpec | None = None,
    algorithm: Algorithm | None = None,
    watch: Watcher | None = None,
    force: bool = False,
) -> Run:
    """Go on with a run that was killed; the result has the same bits as if it never had been.

    The checkpoint and all that it relies on is verified first, and so is that data, model and algorithm are those of the run.

    Args:
        folder: the run folder
        fed: the federation, if it was made from Python objects
        model: the model as it was passed to ``train``, if it was a Python object
        algorithm: the algorithm, if its class is not a registered one
        watch: called after every round
        force: go on from the last checkpoint that is whole, and with a configuration, model or algorithm that was changed
    """
    disk = RunFolder.open(Path(folder))
    with nullcontext() if disk.finished else locked(disk.path):
        return _resume(disk, fed, model, algorithm, watch, force)


def _resume(
    disk: RunFolder,
    fed: Federation | None,
    model: ModelSpec | None,
    algorithm: Algorithm | None,
    watch: Watcher | None,
    force: bool,
) -> Run:
    began = disk.environment()
    disk.verify_start(force)
    config = read_config(disk)
    for name, given in (("data", fed), ("skew", fed), ("model", model), ("algorithm", algorithm)):
        if config[name] == FROM_PYTHON and given is None:
            what = "fed" if name in ("data", "skew") else name
            raise FedskewError(
                f"{disk.path}: its {name} was a Python object, go on from Python: fedskew.resume(folder, {what}=...)"
            )
    if fed is None:
        cut = ("data", "validation", "skew", "clients", "split_seed", "client_test")
        fed = federate(Experiment(**{name: config[name] for name in cut if name in config}))
    if fed.partition != Partition.load(disk.path / on_disk.PARTITION) or fed.fingerprint != began.get("federation"):
        raise FedskewError(
            f"{disk.path}: the clients hold other rows than when the run began: put the data back or start a new run"
        )
    settings = Settings(**{field.name: config[field.name] for field in fields(Settings) if field.name in config})
    settings = replace(settings, threads=settings.threads or began.get("threads"))  # sums depend on how they are shared out
    method = algorithm or resolve(config["algorithm"])
    training, _ = prepare(fed, config["model"] if model is None else model, method, settings)
    check_same(disk, began, environment(training), force)
    checkpoints = Checkpoints(disk)
    checkpoints.restore(training, force)
    files = {"rounds": on_disk.ROUNDS, "timing": on_disk.TIMING}
    if disk.finished:
        tables = {name: disk.table(file) for name, file in {**files, "final": on_disk.FINAL_CLIENTS}.items()}
        training.finish()
        return Run(disk.read_json(on_disk.SUMMARY), _trained(training), disk.path, tables, training)
    return _drive(training, checkpoints, {name: disk.table(file) for name, file in files.items()}, config, watch)


def read_config(disk: RunFolder) -> dict[str, Any]:
    """The configuration of a run."""
    path = disk.path / on_disk.CONFIG
    config = read_file(path)
    for name in ("data", "skew", "model", "algorithm"):
        if name not in config:
            raise FedskewError(f"{path} does not say which {name}: put the line back or start a new run")
    return config


def prepare(fed: Federation, model: ModelSpec, algorithm: Algorithm, settings: Settings) -> tuple[Training, dict[str, Any]]:
    """A training and its whole configuration; everything that can be refused is refused here, before anything is written."""
    if not isinstance(fed, Federation):
        raise FedskewError(f"train needs what fedskew.split returns, got {type(fed).__name__}: fedskew.split(data, skew) first")
    if settings.tensorboard:
        _summary_writer()
    module = build(model, fed.data.shape, len(fed.data.classes), settings.seed)
    _check_model(module, fed)
    training = Training(fed, module, algorithm, settings)
    check_head(training.job, training.personal is not None)
    config: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(Settings)}
    config["threads"] = training.threads  # what was used, or the same file on another machine would give other bits
    config |= {kind: _table(kind, config[kind]) for kind in ("schedule", "fleet")}
    config |= fed.recipe or {"data": FROM_PYTHON, "skew": FROM_PYTHON, "clients": fed.clients}
    config["model"] = _table("model", model) if isinstance(model, (str, Mapping, Choice)) else FROM_PYTHON
    registered = algorithms.name_of(type(algorithm)) is not None
    config["algorithm"] = _table("algorithm", choice_of(algorithm)) if registered else FROM_PYTHON
    return training, config


def _check_model(module: nn.Module, fed: Federation) -> None:
    """Try one row on a copy, so that a model that does not fit the data is refused in a line and not after a minute."""
    row = torch.from_numpy(fed.train.x[:1].copy()).to(next(iter(trainable(module).values())).dtype)
    try:
        with torch.no_grad():
            answer = copy.deepcopy(module).cpu().eval()(row)
    except Exception as problem:  # whatever a user's forward raises
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise FedskewError(f"the model does not take rows of shape {fed.data.shape}: {reason}") from problem
    expected = (1, len(fed.data.classes))
    if not isinstance(answer, torch.Tensor) or answer.shape != expected:
        shown = f"shape {tuple(answer.shape)}" if isinstance(answer, torch.Tensor) else f"a {type(answer).__name__}"
        raise FedskewError(f"the model answers one row with {shown}, expected a tensor of shape {expected}: one logit a class")


def _drive(
    training: Training,
    checkpoints: Checkpoints | None,
    tables: dict[str, list[Row]],
    config: Mapping[str, Any],
    watch: Watcher | None,
) -> Run:
    """Round after round to the end, and the files that a run ends with."""
    disk = checkpoints.disk if checkpoints else None
    with _events(training, disk) as events:
        run_rounds(training, checkpoints, tables, [one for one in (events, watch) if one])
    with going_on(training, disk):
        return _finish(training, disk, tables, config)


def _finish(training: Training, disk: RunFolder | None, tables: dict[str, list[Row]], config: Mapping[str, Any]) -> Run:
    finished = training.finish()
    final = training.final_clients()
    fed = training.fed
    spelled = {name: brief(name, config[name]) for name in ("data", "skew", "model", "algorithm", "fleet")}
    facts = {**spelled, "clients": fed.clients, "clients_per_round": training.per_round, "seed": training.settings.seed}
    if training.protocol:
        facts["label_protocol_seconds"] = training.protocol.seconds
        facts["label_protocol_bytes"] = sum(training.protocol.bytes_sent.values())
    walks = training.algorithm.topology(0) != "parallel"
    facts["weights"] = "samples" if walks else training.algorithm.weighs_by.format(base=training.weights)
    facts |= {f"{part}_majority_rate": rate for part, rate in majority_rates(fed).items()}
    facts["parameters"] = sum(value.numel() for value in training.params.values())
    population = training.trained_on.clients
    numbers = summarise(tables["rounds"], client_lines(tables, disk), final, population, fed.held_out is not None)
    for name in ("bytes_down", "bytes_up", "simulated_seconds"):
        numbers[name] += finished.get(f"calibration_{name}", 0)
    summary = {**facts, **numbers, **finished, "seconds": float(sum(row["seconds"] for row in tables["timing"]))}
    if disk:
        columns = list(dict.fromkeys(key for row in final for key in row))
        lines = on_disk.to_csv([{key: row.get(key) for key in columns} for row in final], header=True)
        model = _trained(training)
        weights = to_bytes({**dict(model.named_parameters()), **dict(model.named_buffers())})
        finished_files(disk, {on_disk.FINAL_CLIENTS: lines, on_disk.MODEL: weights}, summary)
        with only_warned(str(disk.path / on_disk.PICTURE)):
            from fedskew.runs.figures import draw_run

            disk.write(on_disk.PICTURE, draw_run(tables["rounds"], fed, summary))
    return Run(summary, _trained(training), disk.path if disk else None, {**tables, "final": final}, training)


def majority_rates(fed: Federation) -> dict[str, float]:
    """The share of the most frequent class among training and test rows: what predicting it for everybody would score."""
    labels = {"train": fed.train.y[fed.partition.rows], "test": fed.test.y if fed.test is not None else np.zeros(0, np.int64)}
    return {part: float(np.bincount(y).max() / len(y)) for part, y in labels.items() if len(y)}


def _trained(training: Training) -> nn.Module:
    """The model with the global weights, ready to be used."""
    model, state = training.model, training.state()
    with torch.no_grad():  # by name and not load_state_dict, which wants tied weights twice and no temporary buffers
        for name, value in {**trainable(model), **dict(model.named_buffers())}.items():
            value.copy_(state[name])
    return model.eval()


def _fresh_folder(config: Mapping[str, Any]) -> Path:
    """``runs/METHOD-DATA-SKEW-sSEED``."""
    words = [config[kind] if isinstance(config[kind], str) else config[kind]["name"] for kind in ("algorithm", "data", "skew")]
    return fresh_folder(*words, f"s{config['seed']}")


def fresh_folder(*words: str) -> Path:
    """A folder under ``runs`` that is named by the words (of a choice, its name), with a number behind when that is taken."""
    names = ("+".join(part.split(":")[0] for part in word.split(" + ")) for word in words)
    base, number = "-".join(names), 2
    place = Path("runs") / base
    while place.exists():
        place, number = Path("runs") / f"{base}-{number}", number + 1
    return place


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise FedskewError("tensorboard=true needs the package: pip install 'fedskew[tensorboard]'") from None
    return SummaryWriter


@contextmanager
def _events(training: Training, disk: RunFolder | None) -> Iterator[Watcher | None]:
    """A watcher that writes TensorBoard's events, if they are wanted; what a killed run had after its checkpoint is purged."""
    if disk is None or not training.settings.tensorboard:
        yield None
        return
    with _summary_writer()(str(disk.path / "tensorboard"), purge_step=training.round + 1) as writer:

        def write(result: RoundResult, rounds: int) -> None:
            for name, value in result.round.items():
                if name != "round" and value is not None:
                    writer.add_scalar(name, value, result.round["round"])
            writer.flush()

        yield write
