"""From a specification to a checked partition, and from a partition to each client's training and held-out rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice, Composition
from fedskew.core.streams import Ints, Stream, bits
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.series import WholeSeries
from fedskew.skew.skews import Skew, skews, treatments

SkewSpec: TypeAlias = str | Mapping[str, Any] | Choice | Callable[[Rows, int, Stream], Partition]


@dataclass(frozen=True)
class Partitioned:
    """The partition, and the rows of all clients after treatments, if there are any."""

    partition: Partition
    rows: Rows


def partition_rows(spec: SkewSpec, rows: Rows, clients: int | None, seed: int) -> Partitioned:
    """Partition the rows as ``spec`` says: every row at exactly one client, and no client without rows.

    ``spec`` is a name with options (``"dirichlet:alpha=0.2"``), with treatments after it (``"... +
    noise:sigma=0.1"``), a table, a choice, or a function of (rows, clients, stream). Without a number of clients,
    ``natural`` has one per group. With the option ``overlap`` a row may have several clients or none; with ``groups``
    the rows of the other groups have none.

    Rows that overlap (``rows.series``) stay together: the skew assigns one item per series (its most frequent label,
    its mean features, its group), and a client has whole series. Sizes, shares and counts are then those of series.

    >>> rows = Rows(np.zeros((6, 1), np.float32), np.array([0, 0, 1, 1, 2, 2]))
    >>> partition_rows("classes:k=1", rows, 3, seed=0).partition.counts(rows.y, 3).max(axis=1).tolist()
    [2, 2, 2]
    """
    if callable(spec):
        return Partitioned(_deal(spec, rows, clients or 0, seed).check(len(rows)), rows)
    choice = skews.choose(spec)
    partition = _deal(partial(skews.get(choice.name), **choice.options), rows, clients or 0, seed)
    overlap = bool(choice.options.get("overlap"))
    # Partitioners of Flower may leave rows out
    subset = choice.options.get("groups") is not None or choice.name == "flower"
    partition.check(len(rows), overlap=overlap, subset=subset)
    if not isinstance(choice, Composition):
        return Partitioned(partition, rows)
    for place, treatment in enumerate(choice.added):
        treat = treatments.get(treatment.name)
        rows = treat(rows, partition, Stream(seed, "treatment", place), **treatment.options)
    return Partitioned(partition, rows)


def _deal(skew: Skew, rows: Rows, clients: int, seed: int) -> Partition:
    """Return the partition of the rows, or of their series."""
    if rows.series is None:
        return _deal_items(skew, rows, clients, seed)
    whole = WholeSeries.of(rows)
    if clients > len(whole.items):
        raise FedskewError(
            f"{len(whole.items)} series are too few for {clients} clients, as windows that overlap stay with their "
            f"series: use at most {len(whole.items)} clients, more series (a group column), or a window stride >= the "
            "window"
        )
    of_series = _deal_items(skew, whole.items, clients, seed)
    return replace(whole.rows_of(of_series), settled=of_series.settled)


def _deal_items(skew: Skew, items: Rows, clients: int, seed: int) -> Partition:
    """Return what a skew makes of items, each of which is a row or a whole series."""
    partition = skew(items, clients, Stream(seed, "partition"))
    if not isinstance(partition, Partition):
        raise FedskewError(f"a skew must return a Partition, got {type(partition).__name__}")
    return partition


def client_holdout(
    partition: Partition,
    rows: Rows,
    share: float,
    seed: int,
    stream: str = "client holdout",
) -> tuple[Partition, Partition]:
    """Return each client's rows as (training, held out): ``share`` of its rows are held out, evenly over its labels.

    ``stream`` names the random numbers by which rows are drawn, so that rows held out twice are drawn anew.

    The count is rounded, but at least one row is held out and at least one kept; a client with a single row keeps it,
    so its part of the test partition is empty. Rows that overlap (``rows.series``) are held out as whole series.

    >>> everything = Partition.from_owner(np.zeros(10, np.int64), clients=1)
    >>> rows = Rows(np.zeros((10, 1), np.float32), np.repeat([0, 1], 5))
    >>> train, test = client_holdout(everything, rows, 0.2, seed=0)
    >>> train.sizes.tolist(), rows.y[test.rows].tolist()
    ([8], [0, 1])
    """
    if not 0 < share < 1:
        raise FedskewError(f"a held-out share of {share:g} is out of range, it must be > 0 and < 1")
    if rows.series is None:
        return _hold_out(partition, rows.kinds, share, seed, stream)
    whole = WholeSeries.of(rows)
    train, test = _hold_out(whole.items_of(partition), whole.items.y, share, seed, stream)
    if not len(test.rows):
        raise FedskewError(
            f"a held-out share of {share:g}: every client has a single series of overlapping windows, which stays "
            "whole: use fewer clients or a window stride >= the window"
        )
    return whole.rows_of(train), whole.rows_of(test)


def _hold_out(
    partition: Partition, y: Ints, share: float, seed: int, stream: str
) -> tuple[Partition, Partition]:
    sizes = partition.sizes
    held = np.clip(np.rint(sizes * share).astype(np.int64), 1, np.maximum(sizes - 1, 0))
    chosen = _evenly(partition, y, held, seed, stream)
    test = Partition(partition.rows[chosen], np.concatenate([[0], np.cumsum(held)]))
    train = Partition(partition.rows[~chosen], np.concatenate([[0], np.cumsum(sizes - held)]))
    return train, test


def _evenly(
    partition: Partition, y: Ints, wanted: Ints, seed: int, stream: str
) -> NDArray[np.bool_]:
    """Return which positions of ``partition.rows`` are chosen: ``wanted`` of each client, evenly over its labels."""
    sizes = partition.sizes
    total = len(partition.rows)
    owner = np.repeat(np.arange(partition.clients), sizes)
    order = Stream(seed, stream).permutation(total)
    order = order[np.argsort(y[partition.rows[order]], kind="stable")]
    order = order[np.argsort(owner[order], kind="stable")]
    # Row i of a client's n is chosen where (i * wanted + start) // n steps up: `wanted` times, whatever start < n is.
    drawn = bits(seed, f"{stream} start", np.arange(partition.clients))
    start = (drawn % np.maximum(sizes, 1).astype(np.uint64)).astype(np.int64)
    line = (np.arange(total) - partition.offsets[owner]) * wanted[owner] + start[owner]
    chosen = np.empty(total, dtype=np.bool_)
    chosen[order] = (line + wanted[owner]) // sizes[owner] > line // sizes[owner]
    return chosen
