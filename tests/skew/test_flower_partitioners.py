"""Partitioners of flwr-datasets by name: the same rows as when they are called by hand."""

import importlib.util
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.skew.skews import skews

installed = pytest.mark.skipif(
    importlib.util.find_spec("flwr_datasets") is None,
    reason="flwr-datasets is not installed: pip install 'fedskew[flower-datasets]'",
)
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("IidPartitioner", {}, 10),
    ("DirichletPartitioner", {"alpha": 0.3}, 10),
    ("PathologicalPartitioner", {"num_classes_per_partition": 2}, 10),
    ("ShardPartitioner", {"num_shards_per_partition": 2}, 10),
    ("SizePartitioner", {"partition_sizes": [100, 200, 300]}, 3),
    ("ContinuousPartitioner", {"strictness": 0.5}, 10),
    ("NaturalIdPartitioner", {}, 7),
    ("GroupedNaturalIdPartitioner", {"group_size": 2}, 4),
]


def grouped() -> fs.Dataset:
    """Return the digits with seven groups."""
    data = fs.load("digits")
    groups = np.arange(len(data.train)) % 7
    return replace(data, train=replace(data.train, group=groups), groups=tuple("abcdefg"))


@installed
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "options", "clients"), CASES, ids=[case[0] for case in CASES])
def test_rows_are_those_of_the_partitioner_itself(name, options, clients):
    import inspect

    from datasets import Dataset
    from flwr_datasets import partitioner

    data = grouped()
    kind = getattr(partitioner, name)
    known = inspect.signature(kind).parameters
    arguments = dict(options)
    if "num_partitions" in known:
        arguments["num_partitions"] = clients
    if "partition_by" in known:
        arguments["partition_by"] = "group" if "Natural" in name else "label"
    theirs = kind(**arguments)
    rows = np.arange(len(data.train))
    theirs.dataset = Dataset.from_dict(
        {"row": rows, "label": data.train.y, "group": data.train.group}
    )
    given = dict(options)
    if "seed" in known:
        given["seed"] = 42
    spec = {"name": "flower", "partitioner": name, **given}
    fed = fs.split(data, spec, clients=clients)
    for client in range(clients):
        own = list(theirs.load_partition(client)["row"])
        assert fed.partition.of(client).tolist() == own


@installed
@pytest.mark.filterwarnings("ignore")
def test_the_seed_of_the_split_decides():
    data = fs.load("digits")
    spec = "flower:DirichletPartitioner,alpha=0.5"
    first = fs.split(data, spec, seed=1)
    assert fs.split(data, spec, seed=1).partition == first.partition
    assert fs.split(data, spec, seed=2).partition != first.partition
    assert fs.split(data, first.recipe["skew"], seed=1).partition == first.partition


@installed
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("PathologicalPartitioner", "needs num_classes_per_partition="),
        ("Pathological", "did you mean 'PathologicalPartitioner'"),
        ("VerticalEvenPartitioner", "unknown partitioner"),
        ("IidPartitioner,alpha=1", "unknown option of IidPartitioner 'alpha'"),
        ("NaturalIdPartitioner", "the data has none: name a group column"),
        ("SizePartitioner,partition_sizes=10+10", "makes 2 clients, and 10 are asked for"),
        ("DistributionPartitioner", "needs distribution_array="),
        ("DirichletPartitioner,alpha=1,min_partition_size=1000", "DirichletPartitioner refuses"),
    ],
)
def test_mistakes(spec, message):
    with pytest.raises(FedskewError, match=message):
        fs.split(fs.load("digits"), f"flower:{spec}")


def test_without_flwr_datasets_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(FedskewError, match=r"pip install 'fedskew\[flower-datasets\]'"):
        fs.split(fs.load("digits"), "flower:IidPartitioner")


def test_the_bare_name_is_the_partitioner():
    choice = skews.choose("flower:IidPartitioner,shuffle=true + noise:sigma=0.1")
    assert str(choice).startswith("flower:partitioner=IidPartitioner,shuffle=true + noise")
    with pytest.raises(FedskewError, match=r"skew flower needs partitioner="):
        skews.choose("flower")
    with pytest.raises(FedskewError, match=r"'0\.2' is not key=value"):
        skews.choose("dirichlet:0.2")
