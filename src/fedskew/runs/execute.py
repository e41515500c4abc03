"""One run from its specification to its last file: prepare it, run its rounds, resume it, summarise it."""

import copy
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedskew.algorithms.contract import Algorithm, algorithms, choice_of, resolve
from fedskew.algorithms.topologies import Scheduled
from fedskew.core.config import AUTO, Experiment, Settings, read_file, to_toml
from fedskew.core.errors import FedskewError, UnansweredError
from fedskew.core.lock import locked
from fedskew.core.registry import Choice
from fedskew.core.streams import Ints
from fedskew.data.federation import Federation, shown_clients
from fedskew.data.partition import Partition
from fedskew.deploy.node import Node, alone
from fedskew.deploy.remote_clients import Nodes
from fedskew.deploy.remote_server import RemoteClients, remote_server
from fedskew.engine.stacked import Stacked
from fedskew.models.build import ModelSpec, build
from fedskew.models.parameters import load_weights, trainable
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import CallbackSpec, EarlyStopping, as_callbacks
from fedskew.runs.checkpoint import Checkpoints, to_bytes
from fedskew.runs.choices import FROM_PYTHON, as_table, brief, described, from_python
from fedskew.runs.environment import check_imports, check_same, environment
from fedskew.runs.federate import federate
from fedskew.runs.folder import Row, RunFolder
from fedskew.runs.run import Run
from fedskew.runs.run_sources import InMemory
from fedskew.runs.runner import (
    CheckpointInterval,
    Steps,
    client_weights,
    finished_files,
    resumable,
    run_rounds,
)
from fedskew.runs.summary import SHARED_MODEL, predictions_of_one_class, summarise
from fedskew.runs.trackers import check_trackers, tracking
from fedskew.runs.worker_processes import with_workers
from fedskew.server.calibration import check_head
from fedskew.server.final_evaluation import one_class_rate
from fedskew.server.server import Server
from fedskew.tasks.scores import class_table
from fedskew.tasks.task import BY_TARGET, Task, tasks
from fedskew.tasks.task import choice_of as choice_of_task
from fedskew.tasks.task import resolve as resolve_task

_WARNINGS = 20  # about differences between clients
_told: set[str] = set()  # those that were given
PARTITION_SETTINGS = ("data", "validation", "skew", "clients", "split_seed", "client_test", "bins")


def starting(
    fed: Federation,
    model: ModelSpec,
    algorithm: Algorithm,
    settings: Settings,
    folder: "str | os.PathLike[str] | bool | None",
    callbacks: "CallbackSpec | Iterable[CallbackSpec]" = (),
    task: Task | None = None,
    interval: CheckpointInterval | None = None,
    nodes: Nodes | None = None,
) -> "Steps[Run]":
    """Train one method on one federation and record it: in a fresh folder under ``runs`` when None, nowhere when False.

    ``task`` is a task that was made in Python; without one the settings say which. ``nodes`` are
    clients on machines of their own.
    """
    server, config = prepare(fed, model, algorithm, settings, task, nodes)
    _warn_of_differences(fed)
    check_trackers(server.settings, folder is not False)
    EarlyStopping(server, [])  # refuses what it cannot watch
    server.labels.find()  # it may refuse, so before anything is written
    with with_workers(server, config):
        if folder is False:
            tables: dict[str, list[Any]] = {
                on_disk.ROUNDS: [],
                on_disk.CLIENTS: [],
                on_disk.TIMING: [],
            }
            return (yield from _drive(server, None, tables, config, callbacks, interval))
        if isinstance(folder, (str, os.PathLike)):
            place = Path(folder)
        else:
            place = None
        if nodes:
            met = {"run": nodes.about["run"], "clients": list(fed.client_names)}
        else:
            met = None
        disk = _create(place, config, server, met)
        with locked(disk.path):
            tables = {on_disk.ROUNDS: [], on_disk.TIMING: []}
            return (
                yield from _drive(server, Checkpoints(disk), tables, config, callbacks, interval)
            )


def _warn_of_differences(fed: Federation) -> None:
    """Warn of what is not the same at all clients, which training would not show; once of each, in a process."""
    found = fed.data.differences
    more = len(found) - _WARNINGS
    lines = [
        *found[:_WARNINGS],
        *([f"{more} more differences between clients (fedskew data check)"] if more > 0 else []),
    ]
    for line in lines:
        if line not in _told:
            warnings.warn(line, stacklevel=3)
    _told.update(lines)


def _create(
    place: Path | None, config: Mapping[str, Any], server: Server, nodes: Mapping[str, Any] | None
) -> RunFolder:
    """Create and return the folder of a run; without a given place, names are tried until one is free."""
    fed = server.fed
    pipeline = {
        **fed.data.pipeline.to_json(),
        **({"clients": list(fed.client_names)} if fed.named else {}),
    }
    content = (to_toml(config), environment(server), fed.partition, pipeline, nodes)
    while place is None:
        with suppress(on_disk.TakenError):
            return RunFolder.create(_fresh_folder(config), *content)
    return RunFolder.create(place, *content)


def resuming(
    folder: Path,
    fed: Federation | None = None,
    model: ModelSpec | None = None,
    algorithm: Algorithm | None = None,
    task: Task | None = None,
    *,
    callbacks: "CallbackSpec | Iterable[CallbackSpec]" = (),
    force: bool = False,
    workers: int | None = None,
    interval: CheckpointInterval | None = None,
    latest: int | None = None,
    nodes: Nodes | None = None,
) -> "Steps[Run]":
    """Continue a run from its last checkpoint, or from one of at most the round ``latest`` if it is still there.

    The others are those of ``fedskew.resume``, ``interval`` and ``nodes`` those of ``starting``.
    """
    disk = RunFolder.open(folder)
    with nullcontext() if disk.finished else locked(disk.path):
        began = disk.environment()
        disk.verify_start(force)
        check_imports(disk.path, began, force)
        config = read_config(disk)
        if fed is None and (disk.path / on_disk.OF_NODES).exists():
            raise FedskewError(
                f"{disk.path}: its rows are with its nodes: go on with it by flwr run APP"
            )
        _check_given(
            disk,
            config,
            {"data": fed, "skew": fed, "model": model, "algorithm": algorithm, "task": task},
        )
        if fed is None:
            fed = _federation_of(config)
        else:
            fed = fed
        same_rows = fed.partition == Partition.load(disk.path / on_disk.PARTITION)
        if not same_rows or fed.fingerprint != began.get("federation"):
            raise FedskewError(
                f"{disk.path}: the clients hold other rows than when the run began: "
                "put the data back or start a new run"
            )
        settings = _settings_to_resume(disk, config, began, workers)
        method = algorithm or resolve(config["algorithm"])
        server, resolved = prepare(
            fed, config["model"] if model is None else model, method, settings, task, nodes
        )
        # A run of an older version learnt classes, and does not say so
        config.setdefault("task", resolved["task"])
        check_same(disk, began, environment(server), force)
        checkpoints = Checkpoints(disk)
        checkpoints.restore(server, force, latest)
        tables = {name: disk.table(name) for name in (on_disk.ROUNDS, on_disk.TIMING)}
        if disk.finished:
            tables[on_disk.FINAL_CLIENTS] = disk.table(on_disk.FINAL_CLIENTS)
            server.calibrate()
            found = InMemory(server, _trained(server), tables, config, disk.path)
            return Run(disk.read_json(on_disk.SUMMARY), disk.path, found)
        with with_workers(server, config):
            return (yield from _drive(server, checkpoints, tables, config, callbacks, interval))


def _check_given(disk: RunFolder, config: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse to resume a run without the Python objects that it was made of."""
    for name, part in given.items():
        if from_python(config.get(name)) and part is None:
            if name in ("data", "skew"):
                what = "fed"
            else:
                what = name
            raise FedskewError(
                f"{disk.path}: its {name} was a Python object, resume it from Python: fedskew.resume(folder, "
                f"{what}=...)"
            )


def _settings_to_resume(
    disk: RunFolder, config: Mapping[str, Any], began: Row, workers: int | None
) -> Settings:
    """Return the settings of a run, with as many threads as it had and perhaps another number of workers."""
    settings = settings_of(config)
    if workers and settings.workers is None:
        raise FedskewError(
            f"{disk.path}: the run began without workers, which add up clients in another order: resume it without"
        )
    threads = settings.threads or began.get("threads")  # sums depend on how they are shared out
    return replace(settings, workers=workers or settings.workers, threads=threads)


def read_config(disk: RunFolder) -> dict[str, Any]:
    """Return the configuration of a run."""
    path = disk.path / on_disk.CONFIG
    config = read_file(path)
    for name in ("data", "skew", "model", "algorithm"):
        if name not in config:
            raise FedskewError(
                f"{path} does not say which {name}: put the line back or start a new run"
            )
    return config


def server_of(config: Mapping[str, Any]) -> Server:
    """Return the server of a configuration that names all parts of a run."""
    method = resolve(config["algorithm"])
    return prepare(_federation_of(config), config["model"], method, settings_of(config))[0]


def node_of(config: Mapping[str, Any], client: int, folder: Path) -> Node:
    """Return one client of a configuration that names all parts of a run, which keeps its state in the folder."""
    fed = _federation_of(config)
    settings = settings_of(config)
    task = _fitted(_task(fed, settings, None), fed)
    model = build(config["model"], fed.data.shape, task.width(len(fed.data.classes)), settings.seed)
    shares = {}
    for name, rows in (("test", fed.test), ("validation", fed.validation)):
        if rows is not None:
            shares[name] = np.arange(client, len(rows), fed.clients)
    return Node(
        alone(fed, client),
        client,
        model,
        resolve(config["algorithm"]),
        settings,
        task,
        folder,
        shares,
        True,
    )


def _federation_of(config: Mapping[str, Any]) -> Federation:
    return federate(
        Experiment(**{name: config[name] for name in PARTITION_SETTINGS if name in config})
    )


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Return the settings of a configuration."""
    return Settings(
        **{field.name: config[field.name] for field in fields(Settings) if field.name in config}
    )


def prepare(
    fed: Federation,
    model: ModelSpec,
    algorithm: Algorithm,
    settings: Settings,
    task: Task | None = None,
    nodes: Nodes | None = None,
) -> tuple[Server, dict[str, Any]]:
    """Return a server and its whole configuration; bad choices raise an error here, before anything is written.

    ``nodes`` are the clients on their own machines, whose rows the federation does not have.
    """
    if not isinstance(fed, Federation):
        raise FedskewError(
            f"train needs what fedskew.split returns, got {type(fed).__name__}: fedskew.split(data, skew) first"
        )
    check_trackers(settings)
    task = _task(fed, settings, task)
    config_of_task = (
        as_table("task", choice_of_task(task)) if tasks.name_of(type(task)) else FROM_PYTHON
    )
    task = _fitted(task, fed)
    module = build(model, fed.data.shape, task.width(len(fed.data.classes)), settings.seed)
    _check_model(module, fed, task)
    if settings.engine == "flower":
        server = remote_server(
            fed, module, algorithm, settings, task, nodes, everything=nodes is None
        )
    else:
        server = Server(fed, module, algorithm, settings, task=task)
    check_head(server.job)
    config: dict[str, Any] = {
        field.name: getattr(settings, field.name) for field in fields(Settings)
    }
    # What was used, or the same file on another machine would give other bits
    config["threads"] = server.threads
    config |= {kind: as_table(kind, config[kind]) for kind in ("schedule", "fleet")}
    config["task"] = config_of_task
    config |= fed.recipe or {"data": FROM_PYTHON, "skew": FROM_PYTHON, "clients": fed.clients}
    named, kind = (
        isinstance(model, (str, Mapping, Choice)),
        type(model) if isinstance(model, nn.Module) else model,
    )
    config["model"] = as_table("model", model) if named else described([kind], {})
    registered, parts = (
        algorithms.name_of(type(algorithm)) is not None,
        algorithm.parts or (type(algorithm),),
    )
    config["algorithm"] = (
        as_table("algorithm", choice_of(algorithm))
        if registered
        else described(parts, algorithm.options())
    )
    return server, config


def _fitted(task: Task, fed: Federation) -> Task:
    """Return the task for the classes of a federation."""
    if task.target != "class":
        return task
    return task.fitted(
        np.bincount(fed.train.y[fed.partition.rows], minlength=len(fed.data.classes))
    )


def _task(fed: Federation, settings: Settings, given: Task | None) -> Task:
    """Return the task of a run: that from Python, that of the settings, or the one that the targets ask for."""
    target = fed.data.target
    if given is None and settings.task == FROM_PYTHON:
        raise FedskewError(
            f"task={FROM_PYTHON} stands for a Python object: give task=fedskew.Task(...), or another task"
        )
    task = given or resolve_task(BY_TARGET[target] if settings.task == AUTO else settings.task)
    if task.target != target:
        have = {"class": "classes", "number": "numbers", "labels": "several labels a row"}
        raise FedskewError(
            f"task {task.label()} learns {have[task.target]}, and the targets of {fed.data.name} are {have[target]}: "
            f"use task={BY_TARGET[target]}, or read the data with target={task.target}"
        )
    return task


def _check_model(module: nn.Module, fed: Federation, task: Task) -> None:
    """Try a few rows on a copy, so that a model or a task that does not fit the data is refused at once."""
    dtype = next(iter(trainable(module).values())).dtype
    rows = torch.from_numpy(fed.train.x[:8].copy()).to(dtype)
    tried = copy.deepcopy(module).cpu().eval()
    try:
        with torch.no_grad():
            answer = tried(rows[:1].clone())
    except Exception as problem:  # whatever a user's forward raises
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise FedskewError(
            f"the model does not take rows of shape {fed.data.shape}: {reason}"
        ) from problem
    expected = (1, task.width(len(fed.data.classes)))
    if not isinstance(answer, torch.Tensor) or answer.shape != expected:
        if isinstance(answer, torch.Tensor):
            shown = f"shape {tuple(answer.shape)}"
        else:
            shown = f"a {type(answer).__name__}"
        if expected[1] == len(fed.data.classes):
            what = "one logit a class"
        else:
            what = f"the outputs of task {task.label()}"
        raise FedskewError(
            f"the model answers one row with {shown}, expected a tensor of shape {expected}: {what}"
        )
    with torch.no_grad():
        outputs = torch.cat([tried(row[None].clone()) for row in rows])
    y = torch.from_numpy(fed.train.y[: len(rows)].copy())
    task.check(outputs, y.to(dtype) if y.is_floating_point() else y)


def _drive(
    server: Server,
    checkpoints: Checkpoints | None,
    tables: dict[str, list[Any]],
    config: Mapping[str, Any],
    callbacks: "CallbackSpec | Iterable[CallbackSpec]",
    interval: CheckpointInterval | None,
) -> "Steps[Run]":
    """Ask for all rounds, and write the last files of the run."""
    if checkpoints:
        disk = checkpoints.disk
    else:
        disk = None
    # Nodes of their own have folders of their own
    clients = server.clients
    if disk and isinstance(clients, RemoteClients) and clients.everything:
        clients.nodes.about["folder"] = str(disk.path.absolute() / on_disk.NODES)
    stopping = EarlyStopping(server, tables[on_disk.ROUNDS])
    with tracking() as trackers:
        watching = [stopping, trackers, *as_callbacks(callbacks)]
        for callback in watching:
            callback.on_run_start(server, disk.path if disk else None, tables[on_disk.ROUNDS])
        if not stopping.stopped:
            with _model_kept(server, disk):
                yield from run_rounds(server, checkpoints, tables, watching, interval)
        with resumable(server, disk):
            run = _finish(server, disk, tables, config)
        for callback in watching:
            callback.on_run_end(run)
    return run


@contextmanager
def _model_kept(server: Server, disk: RunFolder | None) -> Iterator[None]:
    """Write the model of a run on nodes that has trained in all its rounds, if nobody scores the last of them."""
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
    if disk and isinstance(server.clients, RemoteClients):
        # Before clients are asked again, who may not answer
        disk.write(on_disk.MODEL, _weights(server))
    last = server.last_scores()  # before a new head: what the rounds are about
    calibrated = server.calibrate()
    final, own_matrix = server.final_clients()
    matrix = server.confusion()
    threshold = server.threshold()
    fed, task = server.fed, server.job.task
    rows = client_weights(tables, disk)
    held = server.evaluator.holds_out
    numbers = summarise(
        tables[on_disk.ROUNDS],
        rows,
        final,
        server.trained_on.clients,
        held,
        task,
        server.headline.name,
    )
    numbers |= {name: value for name, value in last.items() if name not in numbers}
    for name in ("bytes_down", "bytes_up", "simulated_seconds"):
        numbers[name] += calibrated.get(f"calibration_{name}", 0)
    seconds = float(sum(row["seconds"] for row in tables[on_disk.TIMING]))
    summary = {**facts(server, config), **numbers, **calibrated}
    if matrix is not None:
        summary["test_one_class_rate"] = one_class_rate(matrix)
        summary["test_one_class"] = fed.data.classes[int(matrix.sum(0).argmax())]
    if threshold:
        summary["threshold"] = threshold[0].probability
        for part, scores in threshold[1].items():
            for name, value in scores.items():
                summary[f"thresholded_{part}_{name}"] = value
    if warned := predictions_of_one_class(summary):
        summary["warnings"] = warned
    summary["seconds"] = seconds
    if isinstance(server.engine, Stacked) and server.engine.not_captured:
        summary["not_captured"] = "; ".join(
            f"{part}: {why}" for why, part in server.engine.not_captured.items()
        )
    if disk:
        columns = list(dict.fromkeys(key for row in final for key in row))
        table = on_disk.to_csv(
            [{key: row.get(key) for key in columns} for row in final], header=True
        )
        files = {on_disk.FINAL_CLIENTS: table, on_disk.MODEL: _weights(server)}
        files |= _class_files(fed.data.classes, {"global": matrix, "own": own_matrix})
        files[on_disk.CLIENT_CLASSES] = _client_classes(fed)
        if threshold:
            chosen = {
                **vars(threshold[0]),
                "probability": threshold[0].probability,
                "class": fed.data.classes[1],
            }
            files[on_disk.THRESHOLDS] = (on_disk.to_json(chosen, indent=2) + "\n").encode()
        finished_files(disk, files, summary)
    tables[on_disk.FINAL_CLIENTS] = final
    folder = None
    if disk:
        folder = disk.path
    return Run(summary, folder, InMemory(server, _trained(server), tables, config, folder))


def _class_files(names: Sequence[str], matrices: Mapping[str, Ints | None]) -> dict[str, bytes]:
    """Return the confusion matrices on test rows as files, and a table of their classes."""
    known = {}
    for model, matrix in matrices.items():
        if matrix is not None:
            known[model] = matrix
    places = {"global": on_disk.CONFUSION, "own": on_disk.OWN_CONFUSION}
    files = {}
    for model, matrix in known.items():
        files[places[model]] = on_disk.matrix_to_csv(matrix, names)
    rows = []
    for model, matrix in known.items():
        columns = {"rows": matrix.sum(1), "predicted": matrix.sum(0), **class_table(matrix)}
        for i, name in enumerate(names):
            rows.append(
                {
                    "model": model,
                    "class": name,
                    **{column: values[i].item() for column, values in columns.items()},
                }
            )
    if rows:
        return {**files, on_disk.CLASSES: on_disk.to_csv(rows, header=True)}
    return {}


def _client_classes(fed: Federation) -> bytes:
    """Return how many training rows of each class the clients hold, of some at even steps where there are many."""
    columns = fed.label_columns
    clients = shown_clients(fed.clients)
    names = fed.client_names
    counts = columns.counts(fed.partition, clients)
    return on_disk.counts_to_csv(
        f"client/{columns.title}", [names[client] for client in clients], columns.names, counts
    )


def facts(server: Server, config: Mapping[str, Any]) -> Row:
    """Return the entries of the summary about the set-up."""
    fed, algorithm = server.fed, server.algorithm
    facts: Row = {}
    for name in ("data", "skew", "model", "algorithm", "task", "fleet"):
        facts[name] = brief(name, config[name])
    facts |= {
        "clients": fed.clients,
        "clients_per_round": server.per_round,
        "seed": server.settings.seed,
    }
    facts["metric"], facts[SHARED_MODEL] = server.headline.name, server.job.shared_model
    if (weights_of_classes := getattr(server.job.task, "class_weights", None)) is not None:
        facts["class_weights"] = list(weights_of_classes)
    if server.protocol:
        facts["label_protocol_seconds"] = server.protocol.seconds
        facts["label_protocol_bytes"] = sum(server.protocol.bytes_sent.values())
    weights = algorithm.aggregator.name or algorithm.weighting.name.format(base=server.weights)
    if isinstance(algorithm.topology(0), Scheduled):
        facts["weights"] = "samples"
    else:
        facts["weights"] = weights
    for part, rate in majority_rates(fed).items():
        facts[f"{part}_majority_rate"] = rate
    facts["parameters"] = sum(value.numel() for value in server.state.params.values())
    return facts


def majority_rates(fed: Federation) -> dict[str, float]:
    """Return the share of the most frequent class among training and test rows: what always predicting it would score.

    Empty where the targets are no classes.
    """
    if fed.data.target != "class":
        return {}
    labels = {
        "train": fed.train.y[fed.partition.rows],
        "test": fed.test.y if fed.test is not None else np.zeros(0, np.int64),
    }
    result: dict[str, float] = {}
    for part, y in labels.items():
        if len(y):
            result[part] = float(np.bincount(y).max() / len(y))
    return result


def _trained(server: Server) -> nn.Module:
    """Return the model with the global weights, ready to be used."""
    load_weights(server.model, server.state.model())
    return server.model.eval()


def _weights(server: Server) -> bytes:
    """Return the file with the weights and the buffers of the model."""
    model = _trained(server)
    return to_bytes({**dict(model.named_parameters()), **dict(model.named_buffers())})


def _fresh_folder(config: Mapping[str, Any]) -> Path:
    """Return the folder ``runs/METHOD-DATA-SKEW-sSEED``."""
    words = []
    for kind in ("algorithm", "data", "skew"):
        words.append(config[kind] if isinstance(config[kind], str) else config[kind]["name"])
    return fresh_folder(*words, f"s{config['seed']}")


def fresh_folder(*words: str) -> Path:
    """Return a folder under ``runs`` named by the words (of a choice, its name), with a number if that exists."""
    names = ("+".join(part.split(":")[0] for part in word.split(" + ")) for word in words)
    base = "-".join(names)
    number = 2
    place = Path("runs") / base
    while place.exists():
        place = Path("runs") / f"{base}-{number}"
        number = number + 1
    return place
