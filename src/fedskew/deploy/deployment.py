"""A run whose clients are silos on their own machines: one schema for all of them, then rounds as in simulation."""

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedskew import __version__
from fedskew.algorithms.contract import Algorithm, resolve
from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.registry import Choice, parse
from fedskew.data.catalogue import choose
from fedskew.data.dataset import Dataset, Rows, datasets
from fedskew.data.differences import differences
from fedskew.data.federation import Federation
from fedskew.data.fitting import ASKED, Description, Request, fit
from fedskew.data.left_out import left_out_sentence
from fedskew.data.readers.array_silo import fit_arrays
from fedskew.data.readers.arrays import comparable
from fedskew.data.schema import Pipeline, Scaling
from fedskew.deploy.fit_checks import checked_description, checked_row_counts
from fedskew.deploy.remote_clients import Nodes, RemoteSilos
from fedskew.deploy.remote_evaluator import sent_metrics
from fedskew.deploy.remote_server import refuse, remote_server
from fedskew.deploy.requests import CountRows, Question, RowCounts
from fedskew.deploy.rowless_federation import federation_of, placeholder_targets
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import CallbackSpec
from fedskew.runs.choices import as_table
from fedskew.runs.execute import resuming, starting
from fedskew.runs.folder import RunFolder
from fedskew.runs.former_settings import as_options
from fedskew.runs.run import Run
from fedskew.runs.runner import Watch, run_to_end
from fedskew.tasks.task import task_for


def run_on_nodes(
    nodes: Nodes,
    count: int,
    experiment: Experiment,
    folder: Path,
    callbacks: "CallbackSpec | Iterable[CallbackSpec]" = (),
    alias: bool = False,
) -> Run:
    """Run an experiment with the silos of so many nodes, or go on with it if the folder holds it already.

    With ``alias`` no name of a client is written: they are ``client 1``, ``client 2`` and so on.
    """
    method = resolve(experiment.algorithm)
    _refuse_noise(method)
    recorded = _read_record(folder)
    choice = silo_options(experiment.data)
    run = uuid.uuid4().hex
    if recorded is not None:
        run = recorded["run"]
    request = _set_up(nodes, run, choice, experiment)
    described = _describe_nodes(nodes, count, request)
    nodes.marks = [_mark(run, silo.name) for silo in described]
    if recorded is not None:
        _check_nodes(folder, recorded, nodes.marks, nodes.names)
    shown = described
    if alias:
        shown = _aliased(described)
        nodes.names = [silo.name for silo in shown]
    pipeline, doubt = _fit(nodes, shown, request)
    if recorded is not None:
        _check_schema(folder, pipeline)
    row_counts = _count_rows(nodes, described, pipeline, request, experiment.validation > 0)
    fed = _federation(shown, row_counts, pipeline, choice, experiment)
    if doubt:
        fed = replace(fed, data=replace(fed.data, doubts=(doubt,)))
    make = partial(remote_server, nodes=nodes, everything=False)
    watch = Watch(callbacks)
    if recorded is not None:
        return run_to_end(resuming(folder, fed, watch=watch, make=make))
    settings = replace(experiment.settings(), engine="flower")
    return run_to_end(starting(fed, experiment.model, method, settings, folder, watch, make=make))


def _set_up(nodes: Nodes, run: str, choice: Choice, experiment: Experiment) -> Request:
    """Set what every message tells nodes about the run, and return what nodes are asked about their tables."""
    options = dict(choice.options)
    options.pop("paths", None)
    nodes.about["run"] = run
    nodes.about["options"] = json.dumps(options)
    nodes.about["validation"] = experiment.validation
    nodes.about["seed"] = _split_seed(experiment)
    nodes.about["version"] = __version__
    return Request(**{name: options[name] for name in ASKED}, compared=True)


def _split_seed(experiment: Experiment) -> int:
    if experiment.split_seed is None:
        return experiment.seed
    return experiment.split_seed


def _mark(run: str, name: str) -> str:
    """Return by what a run recognises a node, without its name."""
    return hashlib.sha256(f"{run}/{name}".encode()).hexdigest()


def _aliased(described: list[Description]) -> list[Description]:
    """Return what the nodes tell of themselves under other names."""
    digits = len(str(len(described)))
    aliased = []
    for number, silo in enumerate(described, 1):
        aliased.append(replace(silo, name=f"client {number:0{digits}}"))
    return aliased


def _check_nodes(
    folder: Path, recorded: Mapping[str, Any], marks: Sequence[str], names: Sequence[str]
) -> None:
    """Refuse to go on with other nodes than those of the run."""
    if recorded["nodes"] != list(marks):
        raise FedskewError(
            f"{folder} is a run of {', '.join(recorded['clients'])}, and there are {', '.join(names)}: start the same"
        )


def _fit(nodes: Nodes, described: list[Description], request: Request) -> tuple[Pipeline, str]:
    """Return how rows become features, fitted to the tables or the arrays of all nodes; and which columns do not."""
    silos = RemoteSilos(nodes, described)
    if any(silo.shape is not None for silo in described):
        return fit_arrays("nodes", silos, request), ""
    fitted = fit("nodes", silos, request)
    return fitted.schema, left_out_sentence(fitted.left_out)


def check_experiment(values: Mapping[str, Any], nodes: int) -> None:
    """Refuse settings with which no run on so many nodes could begin."""
    experiment = Experiment(**values)
    target: Any = silo_options(experiment.data).options["target"]
    for name in ("skew", "clients", "client_test", "client_validation", "unseen", "bins"):
        if name in values:
            raise FedskewError(
                f"{name}={values[name]}: clients are nodes, with the rows that they have: leave it out"
            )
    method, settings = as_options(resolve(experiment.algorithm), experiment.settings())
    task = task_for(settings.task, target)
    if task.target != target:
        raise FedskewError(
            f"task={settings.task} needs data=silos:target={task.target}, and it is {target}"
        )
    if target == "tokens":
        raise FedskewError(
            "silos:target=tokens: each node knows the tokens of its own rows alone, and they agree on no vocabulary: "
            "try it on one machine with engine=flower"
        )
    sent_metrics(task, settings)
    refuse(method, settings)
    _refuse_noise(method)
    _refuse_telling(method)
    if settings.per_round is not None and settings.per_round > nodes:
        raise FedskewError(
            f"per_round={settings.per_round} is more than the {nodes} nodes: lower it or leave it out"
        )


def _refuse_noise(method: Algorithm) -> None:
    """Refuse noise that would hide nothing: it comes from the seed of the run, which all parties have."""
    if "secret_noise" in method.requires:
        raise FedskewError(
            f"algorithm {method.label()}: its noise is drawn from the seed of the run, which the server and every node "
            "have, and would hide nothing: leave it out (dp, epsilon), or simulate the run"
        )


def _refuse_telling(method: Algorithm) -> None:
    """Refuse profiles that clients tell in rounds: here the server itself has what they would tell."""
    telling = method.client_selection.telling
    if telling and telling.in_rounds:
        raise FedskewError(
            f"algorithm {method.label()}: nodes tell the server their numbers of rows of each class, and it measures "
            "the rest, so there is nothing to tell in rounds: leave refresh and candidates out, or simulate the run"
        )


def silo_options(data: str | Mapping[str, Any]) -> Choice:
    """Return how the tables of silos are read: ``silos:label=outcome``, without the paths, which each node has."""
    if isinstance(data, str):
        given = parse(data, "data set")
    else:
        options = dict(data)
        name = str(options.pop("name", None))
        given = Choice(name, options)
    if given.name != "silos":
        raise FedskewError(
            f"data={data}: every node has its own file, so say how to read it: data=silos:label=COLUMN"
        )
    choice = datasets.full(choose({"name": "silos", **given.options, "paths": ("a file each",)}))
    if choice.options.get("label") is None:
        raise FedskewError(
            f"data={data}: label= is missing: the column with the class, data=silos:label=COLUMN"
        )
    return choice


def _describe_nodes(nodes: Nodes, count: int, request: Request) -> list[Description]:
    """Return what the nodes tell of themselves, in the order by which clients are numbered from now on."""

    def check(client: int, told: Description) -> Description:
        return checked_description(told, request)

    questions = dict.fromkeys(range(count), Question("describe", request))
    answers: list[Description] = nodes.everybody(questions, Description, check)
    names = [silo.name for silo in answers]
    ordered = sorted(names)
    for name, following in pairwise(ordered):
        if name == following:
            raise FedskewError(
                f"several nodes are named {name}: start them with names of their own"
            )
    assert nodes.transport
    nodes.names = ordered
    places = [names.index(name) for name in ordered]
    nodes.transport.renumber(places)
    return [answers[place] for place in places]


def _read_record(folder: Path) -> dict[str, Any] | None:
    """Return what a run folder says of its nodes; None if there is no such folder."""
    if not folder.exists():
        return None
    RunFolder.open(folder)
    path = folder / on_disk.OF_NODES
    if not path.exists():
        raise FedskewError(f"{folder} is a run without nodes: choose another folder")
    with reading(path):
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        # Runs of version 0.2.1 have names alone.
        record.setdefault("nodes", [_mark(record["run"], name) for name in record["clients"]])
        return record


def _check_schema(folder: Path, pipeline: Pipeline) -> None:
    """Refuse to go on with files that make other features of their rows than when the run began."""
    began = RunFolder.open(folder).read_json(on_disk.PIPELINE)
    changed = []
    for name, value in pipeline.to_json().items():
        if json.dumps(value) != json.dumps(began.get(name)):
            changed.append(name)
    if changed:
        raise FedskewError(
            f"{folder}: the nodes' files give another schema ({', '.join(changed)}) than when the run began: put the "
            "files back or start a new run"
        )


def _count_rows(
    nodes: Nodes,
    described: list[Description],
    pipeline: Pipeline,
    request: Request,
    validation: bool,
) -> list[RowCounts]:
    """Tell the nodes the schema, and return the numbers of their rows."""
    nodes.about["schema"] = json.dumps(pipeline.to_json())

    def check(client: int, told: RowCounts) -> RowCounts:
        return checked_row_counts(told, described[client], request, pipeline.label, validation)

    requests = dict.fromkeys(range(len(described)), CountRows())
    row_counts: list[RowCounts] = nodes.everybody(requests, RowCounts, check)
    total = np.sum([counts.train for counts in row_counts], axis=0)
    nodes.about["counts"] = json.dumps(total.tolist())
    return row_counts


def _federation(
    described: list[Description],
    row_counts: list[RowCounts],
    pipeline: Pipeline,
    choice: Choice,
    experiment: Experiment,
) -> Federation:
    """Return the federation of the nodes: the schema of what they told, and the numbers of their rows."""
    names = []
    named_counts = []
    for silo, counts in zip(described, row_counts, strict=True):
        names.append(silo.name)
        named_counts.append(replace(counts, name=silo.name))
    fed = federation_of(_rowless_dataset(described, pipeline), named_counts)
    recipe = {
        "data": as_table("data", Choice("silos", {**choice.options, "paths": tuple(names)})),
        "validation": experiment.validation,
        "skew": "natural",
        "clients": len(names),
        "split_seed": _split_seed(experiment),
        "client_test": 0.0,
        "client_validation": 0.0,
        "unseen": 0.0,
        "bins": None,
    }
    return replace(fed, recipe=recipe)


def _rowless_dataset(described: list[Description], pipeline: Pipeline) -> Dataset:
    """Return a data set with what all silos agree about, and a placeholder for its rows."""
    classes = pipeline.label.classes
    target = pipeline.label.target
    if isinstance(pipeline, Scaling):
        shape = pipeline.shape
        schema = comparable(pipeline)
    else:
        width = len(pipeline.features)
        schema = pipeline
        if schema.window:
            shape = (width, schema.window)
        else:
            shape = (width,)
    x = np.zeros((1, *shape), np.float32)
    y = placeholder_targets(target, np.zeros(1, np.int64), len(classes))
    placeholder = Rows(x, y)
    return Dataset(
        name="nodes",
        train=placeholder,
        test=placeholder.take(np.zeros(0, np.int64)),
        classes=classes,
        features=pipeline.features,
        differences=differences(schema, described),
        silos=tuple(described),
        schema=pipeline,
    )
