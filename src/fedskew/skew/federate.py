"""Building a federation: read a data set and partition it into clients."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.core.config import AUTO, Experiment
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import Choice, options_of, parse
from fedskew.core.streams import Ints, Stream
from fedskew.data import catalogue
from fedskew.data.convert import from_arrays, from_frames
from fedskew.data.dataset import Dataset, Rows, Split, datasets
from fedskew.data.federation import Federation
from fedskew.data.item_datasets import (
    collected,
    datasets_of_clients,
    gives_items,
    has_named_columns,
    of_clients,
    of_columns,
    when_used,
)
from fedskew.data.partition import Partition
from fedskew.data.targets import Target
from fedskew.skew.partitioning import SkewSpec, client_holdout, partition_rows
from fedskew.skew.skews import skews
from fedskew.skew.target import find

if TYPE_CHECKING:
    from fedskew.tasks.task import Task

DEFAULT_CLIENTS = 10
DEFAULT_SKEW = "dirichlet:alpha=0.2"


def load(spec: Any, *, validation: float = 0.0, seed: int = 0, **options: Any) -> Dataset:
    """Read a data set: ``load("digits")``, ``load("mnist", validation=0.2)``, ``load("my.csv:label=y")``.

    Several files, or several data frames by name, are the data of several clients: ``load("hospital_*.csv:label=y")``,
    ``load({"hospital_A": frame, ...}, label="y")``.

    Args:
        spec: a name with options, as text or table, or a path (.csv, .parquet, .npz, a pattern or a folder of these, a
            folder of images); or a data frame of pandas, or several by the names of their clients; or a data set of
            Hugging Face with ``label`` and perhaps ``group``, whose one other column is read when rows of it are used
        validation: share of the training rows to hold out, drawn before anything is fitted
        seed: seed of that choice
        options: options that are not written in the name: ``load("my.csv", label="y")``; a data frame has those of a
            CSV file: label, group, drop, categorical, test, target, ...

    >>> load("digits").shape
    (1, 8, 8)
    """
    valid = _valid("load", validation=validation, seed=seed)
    if isinstance(spec, os.PathLike):
        spec = os.fspath(spec)
    if has_named_columns(spec):
        unused = sorted(set(options) - {"label", "group"})
        if unused:
            raise unknown("option of a data set of Hugging Face", unused[0], ("label", "group"))
        return from_arrays(of_columns("data set", spec, **_columns(options)), **valid)
    is_frame = hasattr(spec, "columns")
    is_several_frames = isinstance(spec, Mapping) and not isinstance(spec.get("name"), str)
    if is_frame or is_several_frames:
        held = None
        if valid["validation"]:
            held = Split("validation", valid["validation"], valid["seed"])
        return from_frames(spec, held, options)
    if options:
        spec = _with_options(spec, options)
    data = catalogue.load(spec, **valid)
    recipe = {
        "data": datasets.as_table(catalogue.choose(spec)),
        "validation": valid["validation"],
        "split_seed": valid["seed"],
    }
    return replace(data, recipe=recipe)


def _columns(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return which columns hold the label and the group; None for one that was not given."""
    return {"label": options.get("label"), "group": options.get("group")}


def _with_options(
    spec: "str | Mapping[str, Any] | Choice", options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a data set by name with further options."""
    if isinstance(spec, str):
        spec = parse(spec, "data set")
    if isinstance(spec, Mapping):
        given = dict(spec)
    else:
        given = {"name": spec.name, **spec.options}
    for name in options:
        if name in given:
            raise FedskewError(
                f"load: {name} is given twice, as {given[name]} and as {options[name]}"
            )
    return {**given, **options}


def _valid(where: str, **values: Any) -> dict[str, Any]:
    """Return arguments that are settings as well, converted and checked as those are."""
    known = options_of(Experiment)
    return {name: known[name].convert(value, where) for name, value in values.items()}


def split(
    data: Any,
    skew: SkewSpec = AUTO,
    clients: int | None = None,
    *,
    seed: int = 0,
    client_test: float = 0.0,
    client_validation: float = 0.0,
    validation: float = 0.0,
    unseen: float = 0.0,
    target: str | None = None,
    label: str | None = None,
    group: str | None = None,
    task: "str | Mapping[str, Any] | Task" = AUTO,
    bins: int | None = None,
    classes: "int | Sequence[str] | None" = None,
    lazy: bool = False,
) -> Federation:
    """Partition a data set into clients.

    Args:
        data: what ``load`` returned; or (x, y) or (x, y, group) of NumPy, PyTorch or pandas; or a data frame with
            ``label``; or a map-style data set of PyTorch; or such a data set of each client, in a list or by name; or a
            data set of Hugging Face with ``label``. A memory-mapped x, or any object with shape, dtype, a length and
            rows by an array of their numbers, is not read here: a round reads the rows of its clients
        skew: how, as text, as a table or as a function of (rows, clients, stream) that returns a Partition; text may
            add treatments of the rows: ``"dirichlet:alpha=0.3 + noise:sigma=0.1"``; by default ``dirichlet:alpha=0.2``,
            or ``natural`` where the data comes with its clients
        clients: number of clients; by default 10, or one per group with ``natural``
        seed: seed of the partition and of the held-out rows
        client_test: share of each client's rows that is held out to test its model
        client_validation: share of each client's rows that is set aside to choose numbers by, with the model that the
            client uses; drawn after ``client_test``, from what remains
        unseen: share of the clients that take no part in training; after it, their held-out rows are scored with the
            shared model, with that model fine-tuned, and with what the method gives newcomers
        validation: of arrays or a data frame, share of the training rows that is set aside before they are partitioned;
            what ``load`` returned has such rows by ``load(..., validation=0.2)``
        target: a level of heterogeneity such as ``"hellinger=0.6"`` or ``"features.wasserstein=0.1"``; the skew's own
            parameter is then left out (``"dirichlet"``) and found by a search
        label: column of a data frame that holds the class or the number, or several columns of labels, ``"a+b+c"``
        group: column of a data frame with the group of a row
        task: how arrays or a data frame are read: y holds numbers with ``"regression"``, several labels per row (0 and
            1) with ``"multilabel"``, and classes otherwise; what ``load`` returned knows that by itself
        bins: bins that stand in for classes in skews and measures, where targets are not classes: quantiles of
            numbers, or the most frequent combinations of labels
        classes: of arrays, a data frame or a data set of PyTorch, how many classes there are, 0 … K-1, or their names,
            where some may have no row (a vocabulary); by default those with rows
        lazy: read the items of data sets of PyTorch when they are used, instead of collecting them in memory; their
            labels are ``targets`` or ``labels`` where these are those of the items, and else every item is read once

    >>> fed = split(load("digits"), "dirichlet:alpha=0.2", clients=10, seed=0)
    >>> fed.clients, len(fed.partition.rows)
    (10, 1438)
    """
    given = _valid(
        "split",
        clients=clients,
        seed=seed,
        client_test=client_test,
        client_validation=client_validation,
        validation=validation,
        unseen=unseen,
        bins=bins,
    )
    clients, seed, client_test, client_validation, validation, unseen, bins = given.values()
    data, by_client = _gathered(data, lazy)
    if by_client and skew == AUTO:
        skew = "natural"
    dataset = _dataset(data, label, group, task, validation, seed, classes).with_bins(bins)
    if skew == AUTO:
        skew = usual_skew(dataset)
    if not callable(skew):
        clients = _number_of_clients(skews.choose(skew).name, dataset, clients)
        skew = _with_number_of_group(skew, dataset.groups)
    elif clients is None:
        clients = DEFAULT_CLIENTS
    if target is None:
        divided = partition_rows(skew, dataset.train, clients, seed)
    else:
        labels = len(dataset.label_names) or None
        found = find(skew, dataset.train, clients, seed, target, classes=labels)
        skew, divided = found.spec, found.result
    partition, held_out = _set_aside(divided.partition, divided.rows, client_test, seed)
    partition, chosen_by = _set_aside(
        partition, divided.rows, client_validation, seed, "client validation"
    )
    how = {
        "clients": partition.clients,
        "split_seed": seed,
        "client_test": client_test,
        "client_validation": client_validation,
        "unseen": unseen,
        "bins": bins,
    }
    recipe = _recipe(dataset, skew, divided.partition, how)
    treated = None
    if divided.rows is not dataset.train:
        treated = divided.rows
    whole = Federation(dataset, partition, held_out, recipe, treated, chosen_by)
    if not unseen:
        return whole
    return _without_unseen(whole, unseen, seed)


def _gathered(data: Any, lazy: bool) -> tuple[Any, bool]:
    """Return data sets of clients, and a lazy one, as arrays, other data as it is; and whether it is by client."""
    own = datasets_of_clients(data)
    if own is not None:
        return of_clients("data sets", own, lazy), True
    if not lazy or has_named_columns(data):
        return data, False
    if not gives_items(data):
        raise FedskewError(
            "lazy=True is for map-style data sets of PyTorch: of arrays, give a memory-mapped x "
            "(np.load(..., mmap_mode='r')), and leave it out"
        )
    return when_used("data set", data), False


def _without_unseen(whole: Federation, share: float, seed: int) -> Federation:
    """Return a federation with this share of its clients apart, drawn at random, which take no part in training."""
    count = max(1, round(share * whole.clients))
    if count >= whole.clients:
        raise FedskewError(
            f"unseen={share:g} leaves none of {whole.clients} clients to train: use a smaller share, or more clients"
        )
    if whole.tested_on is None:
        raise FedskewError(
            f"unseen={share:g} scores clients that take no part in training on rows they hold out: add client_test=0.2"
        )
    apart = np.sort(Stream(seed, "unseen clients").sample(whole.clients, count))
    others = np.setdiff1d(np.arange(whole.clients), apart)
    return replace(_only(whole, others), unseen=replace(_only(whole, apart), recipe={}))


def _only(whole: Federation, clients: Ints) -> Federation:
    """Return a federation of some of the clients, with all of their rows."""
    held_out = whole.held_out
    if held_out is not None:
        held_out = held_out.only(clients)
    chosen_by = whole.client_validation
    if chosen_by is not None:
        chosen_by = chosen_by.only(clients)
    return replace(
        whole,
        partition=whole.partition.only(clients),
        held_out=held_out,
        client_validation=chosen_by,
    )


def _set_aside(
    partition: Partition, rows: Rows, share: float, seed: int, stream: str = "client holdout"
) -> tuple[Partition, Partition | None]:
    """Return each client's rows as (training, set aside); None of them where the share is 0."""
    if not share:
        return partition, None
    return client_holdout(partition, rows, share, seed, stream)


def _recipe(
    dataset: Dataset, skew: SkewSpec, partition: Partition, how: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what makes the same federation again; empty where Python objects or another seed would be needed."""
    if callable(skew) or not _is_made_again_by(dataset.recipe, how["split_seed"]):
        return {}
    settled = skews.as_table(skews.choose(skews.settle(skew, partition.settled)))
    return {**dataset.recipe, "skew": settled, **how}


def _number_of_clients(skew: str, dataset: Dataset, clients: int | None) -> int | None:
    """Return how many clients there are to be; None where the groups of the data, or a client map, say it."""
    if skew == "natural":
        _check_clients(dataset, clients)
    elif clients is None and skew != "fedscale":
        return DEFAULT_CLIENTS
    return clients


def _check_clients(dataset: Dataset, clients: int | None) -> None:
    """Refuse another number of clients than that of a data set which comes with its clients."""
    if not dataset.silos or clients in (None, len(dataset.silos)):
        return
    names = ", ".join(dataset.groups[:5])
    if len(dataset.groups) > 5:
        names += ", …"
    raise FedskewError(
        f"clients={clients}: {dataset.name} comes with its {len(dataset.silos)} clients ({names}): leave clients out, "
        "or choose a skew that partitions all rows anew (skew=iid)"
    )


def _is_made_again_by(recipe: Mapping[str, Any], seed: int) -> bool:
    """Return whether a data set is made again by its recipe, its validation rows by this seed."""
    if not recipe:
        return False
    return not recipe.get("validation") or recipe["split_seed"] == seed


def usual_skew(data: Dataset) -> str:
    """Return how a data set is partitioned by default: by the clients that it comes with, if it does."""
    if data.silos:
        return "natural"
    return DEFAULT_SKEW


def _dataset(
    data: Any,
    label: str | None,
    group: str | None,
    task: "str | Mapping[str, Any] | Task",
    validation: float,
    seed: int,
    classes: "int | Sequence[str] | None",
) -> Dataset:
    """Return what ``load`` returned as it is, and arrays or a data frame as a data set for the task."""
    if isinstance(data, Dataset):
        _check_loaded(data, task, validation)
        if classes is not None:
            raise FedskewError(
                f"classes: {data.name} was loaded, and its classes are known: leave it out"
            )
        return data
    if has_named_columns(data):
        data = of_columns("data set", data, label, group)
        label = group = None
    elif gives_items(data):
        data = collected("data set", data)
    target: Target = "class"
    if task != AUTO:
        target = _target_of(task)
    return from_arrays(
        data,
        label=label,
        group=group,
        target=target,
        validation=validation,
        seed=seed,
        classes=classes,
    )


def _check_loaded(data: Dataset, task: "str | Mapping[str, Any] | Task", validation: float) -> None:
    """Refuse what only ``load`` can do to a data set, as it was read already."""
    if validation:
        raise FedskewError(
            f"validation={validation:g}: {data.name} was loaded, and features are fitted to its training rows: set "
            f"rows aside by load(..., validation={validation:g})"
        )
    if task == AUTO:
        return
    wanted = _target_of(task)
    if wanted != data.target:
        raise FedskewError(
            f"task {task} takes targets of kind {wanted}, and those of {data.name} are of kind {data.target}: "
            "leave task out, or load the data with target="
        )


def _target_of(task: "str | Mapping[str, Any] | Task") -> Target:
    """Return what a task learns."""
    from fedskew.tasks.task import resolve  # here, as no partition needs PyTorch otherwise

    return resolve(task).target


def _with_number_of_group(
    skew: "str | Mapping[str, Any] | Choice", groups: tuple[str, ...]
) -> "str | Mapping[str, Any] | Choice":
    """Return a skew that names a group (``domains:alone=photo``) with the group's number, which is what rows have."""
    name = skews.choose(skew).options.get("alone")
    if name in groups:
        return skews.settle(skew, {"alone": str(groups.index(name))})
    return skew


def federate(experiment: Experiment, data: Dataset | None = None) -> Federation:
    """Return the federation of an experiment; ``data`` avoids reading it again."""
    seed = experiment.split_seed
    if seed is None:
        seed = experiment.seed
    data = data or load(experiment.data, validation=experiment.validation, seed=seed)
    return split(
        data,
        experiment.skew,
        experiment.clients,
        seed=seed,
        client_test=experiment.client_test,
        client_validation=experiment.client_validation,
        unseen=experiment.unseen,
        bins=experiment.bins,
    )
