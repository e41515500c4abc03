"""One run from its specification to its last file: prepare it, run its rounds, resume it, summarise it."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedskew.algorithms.contract import Algorithm, resolve
from fedskew.core.config import FORMER, Experiment, Settings, to_toml
from fedskew.core.errors import FedskewError, UnansweredError
from fedskew.core.lock import locked
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.data.targets import IN_WORDS
from fedskew.engine.job import training_form
from fedskew.models.build import ModelSpec, build
from fedskew.models.low_rank import merged
from fedskew.models.parameters import load_weights
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import EarlyStopping, as_callbacks
from fedskew.runs.checkpoint import Checkpoints, to_bytes
from fedskew.runs.choices import as_table, method_as_table, model_as_table
from fedskew.runs.environment import check_same, environment
from fedskew.runs.folder import Row, RunFolder
from fedskew.runs.former_settings import as_options, recorded_options, warn_of_former
from fedskew.runs.model_trial import try_model
from fedskew.runs.newcomers import check_newcomers
from fedskew.runs.recorded_config import FROM_PYTHON, from_python, settings_of
from fedskew.runs.resume_checks import check_start
from fedskew.runs.run import Run
from fedskew.runs.run_sources import InMemory
from fedskew.runs.runner import (
    RESUMED,
    UNWATCHED,
    Resumption,
    Steps,
    Watch,
    client_weights,
    finished_files,
    resumable,
    run_rounds,
)
from fedskew.runs.summary import Ending, data_warnings, summarise
from fedskew.runs.trackers import check_trackers, tracking
from fedskew.runs.worker_processes import with_workers
from fedskew.server.calibration import check_head
from fedskew.server.cautions import cautions
from fedskew.server.makers import MakeServer, maker_for
from fedskew.server.server import Server
from fedskew.skew.federate import federate
from fedskew.tasks.task import BY_TARGET, Task, task_for, tasks
from fedskew.tasks.task import choice_of as choice_of_task

_warned: set[str] = set()  # the warnings that this process has given
# Registered models, with the data's shape, their outputs and their task, that this process has tried
_tried: set[tuple[Any, ...]] = set()
PARTITION_SETTINGS = (
    "data",
    "validation",
    "skew",
    "clients",
    "split_seed",
    "client_test",
    "client_validation",
    "unseen",
    "bins",
)


def starting(
    fed: Federation,
    model: ModelSpec,
    algorithm: Algorithm,
    settings: Settings,
    folder: "str | os.PathLike[str] | bool | None",
    watch: Watch = UNWATCHED,
    task: Task | None = None,
    make: MakeServer | None = None,
) -> "Steps[Run]":
    """Train one method on one federation and record it: in a fresh folder under ``runs`` when None, nowhere when False.

    ``task`` is a task that was made in Python; without one the settings say which. ``make`` makes the
    server, by default that of the engine.
    """
    server, config = prepare(fed, model, algorithm, settings, task, make)
    _warn_once(cautions(server))
    _warn_once(data_warnings(fed))
    check_trackers(server.settings, folder is not False)
    EarlyStopping(server, [])  # refuses what it cannot watch
    check_newcomers(server)
    server.labels.find()  # it may refuse, so before anything is written
    tables: dict[str, list[Any]] = {on_disk.ROUNDS: [], on_disk.TIMING: []}
    with with_workers(server, config):
        if folder is False:
            tables[on_disk.CLIENTS] = []
            return (yield from _drive(server, None, tables, config, watch))
        place = None
        if isinstance(folder, (str, os.PathLike)):
            place = Path(folder)
        disk = _create(place, config, server)
        with locked(disk.path):
            return (yield from _drive(server, Checkpoints(disk), tables, config, watch))


def _warn_once(lines: Sequence[str]) -> None:
    """Warn of what the process has not warned of before."""
    for line in lines:
        if line not in _warned:
            warnings.warn(line, stacklevel=3)
    _warned.update(lines)


def _create(place: Path | None, config: Mapping[str, Any], server: Server) -> RunFolder:
    """Create and return the folder of a run; without a given place, names are tried until one is free."""
    fed = server.fed
    pipeline = fed.data.pipeline.to_json()
    if fed.named:
        pipeline = {**pipeline, "clients": list(fed.client_names)}
    content = (
        to_toml(config),
        environment(server),
        fed.partition,
        pipeline,
        server.clients.introduced(),
    )
    if place is not None:
        return RunFolder.create(place, *content)
    while True:
        with suppress(on_disk.TakenError):  # another process took the name: try the next one
            return RunFolder.create(_fresh_folder(config), *content)


def resuming(
    folder: Path,
    fed: Federation | None = None,
    model: ModelSpec | None = None,
    algorithm: Algorithm | None = None,
    task: Task | None = None,
    *,
    how: Resumption = RESUMED,
    watch: Watch = UNWATCHED,
    make: MakeServer | None = None,
) -> "Steps[Run]":
    """Continue a run from a checkpoint; a finished one is returned with its server.

    The first five are those of ``fedskew.resume``, ``watch`` and ``make`` those of ``starting``.
    """
    disk = RunFolder.open(folder)
    lock: AbstractContextManager[None] = nullcontext()
    if not disk.finished:
        lock = locked(disk.path)
    with lock:
        given = {"data": fed, "skew": fed, "model": model, "algorithm": algorithm, "task": task}
        began, config, settings = check_start(disk, given, how.force, how.workers)
        if fed is None:
            fed = federation_of_config(config)
        _check_rows(disk, fed, began)
        if model is None:
            model = config["model"]
        method, settings = as_options(algorithm or resolve(config["algorithm"]), settings)
        server, resolved = prepare(fed, model, method, settings, task, make)
        # Older versions only learnt classes, and did not record a task
        config.setdefault("task", resolved["task"])
        check_same(disk, recorded_options(began, method), environment(server), how.force)
        checkpoints = Checkpoints(disk)
        checkpoints.restore(server, how.force, how.latest)
        tables = {name: disk.table(name) for name in (on_disk.ROUNDS, on_disk.TIMING)}
        if disk.finished:
            return _finished_before(server, disk, tables, config)
        with with_workers(server, config):
            return (yield from _drive(server, checkpoints, tables, config, watch))


def _check_rows(disk: RunFolder, fed: Federation, began: Row) -> None:
    """Refuse to resume a run whose clients hold other rows than when it began."""
    same_rows = fed.partition == Partition.load(disk.path / on_disk.PARTITION)
    if not same_rows or fed.fingerprint != began.get("federation"):
        raise FedskewError(
            f"{disk.path}: the clients hold other rows than when the run began: "
            "put the data back or start a new run"
        )


def _finished_before(
    server: Server, disk: RunFolder, tables: dict[str, list[Any]], config: Mapping[str, Any]
) -> Run:
    """Return a run that was finished when it was resumed."""
    server.calibrate()
    for name in (on_disk.FINAL_CLIENTS, on_disk.UNSEEN_CLIENTS):
        tables[name] = disk.table(name)
    source = InMemory(server, _trained(server), tables, config, disk.path)
    return Run(disk.read_json(on_disk.SUMMARY), disk.path, source)


def server_of(config: Mapping[str, Any]) -> Server:
    """Return the server of a configuration that names all parts of a run."""
    method, settings = as_options(resolve(config["algorithm"]), settings_of(config))
    return prepare(federation_of_config(config), config["model"], method, settings)[0]


def federation_of_config(config: Mapping[str, Any]) -> Federation:
    """Return the federation of a configuration that names data and skew."""
    given = {name: config[name] for name in PARTITION_SETTINGS if name in config}
    return federate(Experiment(**given))


def prepare(
    fed: Federation,
    model: ModelSpec,
    algorithm: Algorithm,
    settings: Settings,
    task: Task | None = None,
    make: MakeServer | None = None,
) -> tuple[Server, dict[str, Any]]:
    """Return a server and its whole configuration; bad choices raise an error here, before anything is written.

    ``make`` makes the server, by default that of the engine.
    """
    if not isinstance(fed, Federation):
        raise FedskewError(
            f"train needs what fedskew.split returns, got {type(fed).__name__}: fedskew.split(data, skew) first"
        )
    given = settings
    algorithm, settings = as_options(algorithm, given)
    warn_of_former(given, algorithm)
    check_trackers(settings)
    task = _task(fed, settings, task)
    config_of_task = _task_as_table(task)
    task = _fitted(task, fed)
    width = task.width(len(fed.data.classes))
    module = build(model, fed.data.shape, width, settings.seed)
    tried = (repr(model_as_table(model)), fed.data.shape, width, repr(config_of_task))
    if tried not in _tried:
        try_model(training_form(module, algorithm, settings), fed, task)
        if not from_python(model_as_table(model)) and not from_python(config_of_task):
            _tried.add(tried)
    make = make or maker_for(settings.engine)
    server = make(fed, module, algorithm, settings, task)
    check_head(server.job)
    config: dict[str, Any] = {}
    for field in fields(Settings):
        if field.name not in FORMER:
            config[field.name] = getattr(settings, field.name)
    # The number in use, not the setting: with another number, another machine would compute other bits
    config["threads"] = server.threads
    for kind in ("schedule", "fleet"):
        config[kind] = as_table(kind, config[kind])
    config["task"] = config_of_task
    config |= fed.recipe or {"data": FROM_PYTHON, "skew": FROM_PYTHON, "clients": fed.clients}
    config["model"] = model_as_table(model)
    config["algorithm"] = method_as_table(algorithm)
    return server, config


def _task_as_table(task: Task) -> Any:
    """Return a task as a configuration holds it."""
    if tasks.name_of(type(task)):
        return as_table("task", choice_of_task(task))
    return FROM_PYTHON


def task_of(fed: Federation, settings: Settings) -> Task:
    """Return the task of the settings, for the classes of a federation."""
    return _fitted(_task(fed, settings, None), fed)


def _fitted(task: Task, fed: Federation) -> Task:
    """Return the task for the classes of a federation."""
    columns = len(fed.data.classes)
    if task.target == "numbers":
        return task.fitted(np.full(columns, len(fed.partition.rows)))
    if task.target != "class":
        return task
    y = fed.train.y[fed.partition.rows]
    return task.fitted(np.bincount(y, minlength=columns))


def _task(fed: Federation, settings: Settings, given: Task | None) -> Task:
    """Return the task of a run: that from Python, that of the settings, or the one that the targets ask for."""
    target = fed.data.target
    if given is None and settings.task == FROM_PYTHON:
        raise FedskewError(
            f"task={FROM_PYTHON} stands for a Python object: give task=fedskew.Task(...), or another task"
        )
    task = given
    if task is None:
        task = task_for(settings.task, target)
    if task.target != target:
        raise FedskewError(
            f"task {task.label()} learns {IN_WORDS[task.target]}, and the targets of {fed.data.name} are "
            f"{IN_WORDS[target]}: "
            f"use task={BY_TARGET[target]}, or read the data with target={task.target}"
        )
    for part, rows in (("train", fed.train), ("test", fed.test), ("validation", fed.validation)):
        if rows is not None:
            task.check_values(f"{fed.data.name}: {part}", rows.y)
    return task


def _drive(
    server: Server,
    checkpoints: Checkpoints | None,
    tables: dict[str, list[Any]],
    config: Mapping[str, Any],
    watch: Watch,
) -> "Steps[Run]":
    """Ask for all rounds, and write the last files of the run."""
    disk, folder = None, None
    if checkpoints:
        disk = checkpoints.disk
        folder = disk.path
        server.clients.recorded_in(folder)
    stopping = EarlyStopping(server, tables[on_disk.ROUNDS])
    with tracking() as trackers:
        watching = [stopping, trackers, *as_callbacks(watch.callbacks)]
        for callback in watching:
            callback.on_run_start(server, folder, tables[on_disk.ROUNDS])
        if not stopping.stopped:
            with _model_kept(server, disk):
                yield from run_rounds(server, checkpoints, tables, watching, watch.interval)
        with resumable(server, disk):
            run = _finish(server, disk, tables, config)
        for callback in watching:
            callback.on_run_end(run)
    return run


@contextmanager
def _model_kept(server: Server, disk: RunFolder | None) -> Iterator[None]:
    """Write the model of a run that has trained all its rounds, even if no node answers to score the last one."""
    try:
        yield
    except UnansweredError:
        if disk and server.round == server.settings.rounds:
            disk.write(on_disk.MODEL, _weights(server))
        raise


def _finish(
    server: Server,
    disk: RunFolder | None,
    tables: dict[str, list[Any]],
    config: Mapping[str, Any],
) -> Run:
    """Score the models after the last round, write the last files, and return the run."""
    if disk and server.clients.away:
        # Written before clients are asked for their last scores, as they may not answer
        disk.write(on_disk.MODEL, _weights(server))
    end = Ending.of(server)
    numbers = summarise(
        tables[on_disk.ROUNDS],
        client_weights(tables, disk),
        end.clients,
        server.trained_on.clients,
        server.evaluator.holds_out,
        server.job.task,
        server.headline.name,
    )
    seconds = float(sum(row["seconds"] for row in tables[on_disk.TIMING]))
    summary = end.summary(config, numbers, seconds)
    if server.clients.introduced() is not None:
        del summary["simulated_seconds"]  # nodes take real time
    folder = None
    if disk:
        folder = disk.path
        finished_files(disk, end.files(_weights(server)), summary)
    tables[on_disk.FINAL_CLIENTS] = end.clients
    tables[on_disk.UNSEEN_CLIENTS] = end.newcomers
    return Run(summary, folder, InMemory(server, _trained(server), tables, config, folder))


def _trained(server: Server) -> nn.Module:
    """Return the model with the global weights, ready to be used."""
    load_weights(server.model, server.state.model())
    return merged(server.model).eval()


def _weights(server: Server) -> bytes:
    """Return the file with the weights and the buffers of the model."""
    model = _trained(server)
    return to_bytes({**dict(model.named_parameters()), **dict(model.named_buffers())})


def _fresh_folder(config: Mapping[str, Any]) -> Path:
    """Return the folder ``runs/METHOD-DATA-SKEW-sSEED``."""
    words = []
    for kind in ("algorithm", "data", "skew"):
        chosen = config[kind]
        if isinstance(chosen, Mapping):
            chosen = chosen["name"]
        words.append(chosen)
    return fresh_folder(*words, f"s{config['seed']}")


def fresh_folder(*words: str) -> Path:
    """Return a folder under ``runs`` named by the words (of a choice, its name), with a number if that exists."""
    names = []
    for word in words:
        parts = [part.split(":")[0] for part in word.split(" + ")]
        names.append("+".join(parts))
    base = Path("runs") / "-".join(names)
    place = base
    number = 2
    while place.exists():
        place = base.with_name(f"{base.name}-{number}")
        number += 1
    return place
