"""The partitioners of flwr-datasets by name: ``flower:PathologicalPartitioner,num_classes_per_partition=2``."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import AtLeastOne, NonNegative, Positive, Share
from fedskew.core.streams import Ints, Stream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.skews import skews

_ROW, _LABEL, _GROUP = "row", "label", "group"  # columns of the data set that a partitioner gets
_BY_GROUP = ("NaturalIdPartitioner", "GroupedNaturalIdPartitioner")


@skews.register("flower")
def flower(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    partitioner: str,
    alpha: Annotated[float | None, Positive] = None,
    min_partition_size: Annotated[int | None, NonNegative] = None,
    self_balancing: bool | None = None,
    num_classes_per_partition: Annotated[int | None, AtLeastOne] = None,
    class_assignment_mode: Literal["random", "deterministic", "first-deterministic"] | None = None,
    num_shards_per_partition: Annotated[int | None, AtLeastOne] = None,
    shard_size: Annotated[int | None, AtLeastOne] = None,
    keep_incomplete_shard: bool | None = None,
    partition_sizes: tuple[int, ...] = (),
    strictness: Annotated[float | None, Share] = None,
    group_size: Annotated[int | None, AtLeastOne] = None,
    mode: Literal["allow-smaller", "allow-bigger", "drop-reminder", "strict"] | None = None,
    sort_unique_ids: bool | None = None,
    shuffle: bool | None = None,
    seed: Annotated[int | None, NonNegative] = None,
) -> Partition:
    """A partitioner of flwr-datasets by its name, with its own options (needs fedskew[flower-datasets]).

    It gets the labels and groups of the rows, and returns which rows each client has. Rows that it leaves out belong to
    no client. IidPartitioner and the partitioners by size take the rows in stored order.

    Args:
        partitioner: its class, such as DirichletPartitioner, PathologicalPartitioner or NaturalIdPartitioner
        alpha: concentration of DirichletPartitioner and InnerDirichletPartitioner
        min_partition_size: fewest rows per client, of DirichletPartitioner
        self_balancing: whether a client with its share of the rows gets no more, of DirichletPartitioner
        num_classes_per_partition: classes per client, of PathologicalPartitioner
        class_assignment_mode: how classes are assigned, of PathologicalPartitioner
        num_shards_per_partition: shards per client, of ShardPartitioner
        shard_size: rows per shard, of ShardPartitioner
        keep_incomplete_shard: whether the last, smaller shard is used, of ShardPartitioner
        partition_sizes: rows of each client, a+b+c, of SizePartitioner and InnerDirichletPartitioner
        strictness: from 0 for no order to 1 for clients sorted by label, of ContinuousPartitioner
        group_size: groups per client, of GroupedNaturalIdPartitioner
        mode: what becomes of the last groups, of GroupedNaturalIdPartitioner
        sort_unique_ids: whether groups are sorted first, of GroupedNaturalIdPartitioner
        shuffle: whether each client's rows are shuffled
        seed: seed of the partitioner, such as Flower's default 42; by default it follows from the seed of the split
    """
    given = {
        "alpha": alpha,
        "min_partition_size": min_partition_size,
        "self_balancing": self_balancing,
        "num_classes_per_partition": num_classes_per_partition,
        "class_assignment_mode": class_assignment_mode,
        "num_shards_per_partition": num_shards_per_partition,
        "shard_size": shard_size,
        "keep_incomplete_shard": keep_incomplete_shard,
        "partition_sizes": list(partition_sizes) or None,
        "strictness": strictness,
        "group_size": group_size,
        "mode": mode,
        "sort_unique_ids": sort_unique_ids,
        "shuffle": shuffle,
        "seed": seed,
    }
    kind = _class_of(partitioner)
    arguments = _arguments(partitioner, kind, given, clients, stream)
    try:
        made = kind(**arguments)
        made.dataset = _table(partitioner, rows)
        lists = _rows_by_client(partitioner, made, clients)
    except (ValueError, TypeError, KeyError) as error:
        raise FedskewError(f"skew flower: {partitioner} refuses: {error}") from error
    return Partition.from_lists(lists)


def _class_of(name: str) -> Callable[..., Any]:
    """Return a class of flwr-datasets that divides rows, or raise an error that names the nearest."""
    try:
        from flwr_datasets import partitioner as module
    except ImportError:
        raise FedskewError(
            f"skew flower: {name} needs flwr-datasets: pip install 'fedskew[flower-datasets]'"
        ) from None
    known = {}
    for title, kind in vars(module).items():
        # Vertical partitioners divide columns
        if title.endswith("Partitioner") and not title.startswith("Vertical"):
            known[title] = kind
    known.pop("Partitioner", None)
    if name not in known:
        raise unknown("partitioner of flwr-datasets", name, known)
    found: Callable[..., Any] = known[name]
    return found


def _arguments(
    name: str,
    kind: Callable[..., Any],
    given: Mapping[str, Any],
    clients: int,
    stream: Stream,
) -> dict[str, Any]:
    """Return the arguments of a partitioner: the user's options, the clients, the column to go by, and a seed."""
    known = inspect.signature(kind).parameters
    arguments: dict[str, Any] = {}
    for option, value in given.items():
        if value is None:
            continue
        if option not in known:
            raise unknown(f"option of {name}", option, known.keys() & given.keys())
        arguments[option] = value
    column = _LABEL
    if name in _BY_GROUP:
        column = _GROUP
    defaults = {
        "num_partitions": clients,
        "partition_by": column,
        "seed": int(stream.bits(1)[0] >> np.uint64(33)),
    }
    for option, value in defaults.items():
        if option in known:
            arguments.setdefault(option, value)
    for option, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and option not in arguments:
            raise FedskewError(f"skew flower: {name} needs {option}=")
    return arguments


def _table(name: str, rows: Rows) -> Any:
    """Return labels and groups of the rows, with their numbers, as a data set of Hugging Face."""
    from datasets import Dataset

    columns: dict[str, Any] = {_ROW: np.arange(len(rows))}
    if rows.labelled:
        columns[_LABEL] = rows.labels
    elif rows.target == "number":
        columns[_LABEL] = rows.y
    if rows.group is not None:
        columns[_GROUP] = rows.group
    elif name in _BY_GROUP:
        raise FedskewError(
            f"skew flower: {name} goes by groups, and the data has none: name a group column"
        )
    return Dataset.from_dict(columns)


def _rows_by_client(name: str, made: Any, clients: int) -> list[Ints]:
    """Return the rows of each client."""
    count = made.num_partitions
    if count != clients:
        raise FedskewError(
            f"skew flower: {name} makes {count} clients, and {clients} are asked for: say clients={count}"
        )
    found: list[Ints] = []
    for client in range(count):
        numbers = made.load_partition(client)[_ROW]
        found.append(np.asarray(numbers, dtype=np.int64))
    return found
