"""From what the user wrote to a checked partition, and from a partition to each client's own training and test rows."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.errors import FedskewError
from fedskew.registry import Choice
from fedskew.skew.partition import Partition, Rows, skews
from fedskew.streams import Ints, Stream, bits

SkewSpec: TypeAlias = str | Mapping[str, Any] | Choice | Callable[[Rows, int, Stream], Partition]


def split_rows(spec: SkewSpec, rows: Rows, clients: int | None, seed: int) -> Partition:
    """The partition that ``spec`` says: every row at exactly one client, and no client without rows.

    ``spec`` is a name with options (``"dirichlet:alpha=0.2"``), a table, a choice, or a function of (rows, clients, stream).
    Without a number of clients, a skew that finds them in the data (``natural``) takes all of those. A skew that has an
    option ``overlap`` may give a row to several clients, or to none, when it is on.

    >>> rows = Rows(np.zeros((6, 1), np.float32), np.array([0, 0, 1, 1, 2, 2]))
    >>> split_rows("classes:k=1", rows, 3, seed=0).counts(rows.y, 3).max(axis=1).tolist()
    [2, 2, 2]
    """
    stream, clients = Stream(seed, "partition"), clients or 0
    if callable(spec):
        result, overlap = spec(rows, clients, stream), False
    else:
        choice = skews.choose(spec)
        overlap = bool(choice.options.get("overlap"))
        result = skews.get(choice.name)(rows, clients, stream, **choice.options)
    if not isinstance(result, Partition):
        raise FedskewError(f"a skew must return a Partition, got {type(result).__name__}")
    return result.check(len(rows), overlap=overlap)


def client_holdout(partition: Partition, y: Ints, share: float, seed: int) -> tuple[Partition, Partition]:
    """Each client's rows as (training, test): ``share`` of its own rows are held out, evenly over its labels.

    The count is rounded, but at least one row is held out and at least one kept; a client with a single row keeps it, so
    its part of the test partition is empty.

    >>> everything = Partition.from_owner(np.zeros(10, np.int64), clients=1)
    >>> train, test = client_holdout(everything, np.repeat([0, 1], 5), 0.2, seed=0)
    >>> train.sizes.tolist(), np.repeat([0, 1], 5)[test.rows].tolist()
    ([8], [0, 1])
    """
    if not 0 < share < 1:
        raise FedskewError(f"a held-out share of {share:g} is out of range, it must be > 0 and < 1")
    sizes = partition.sizes
    held = np.clip(np.rint(sizes * share).astype(np.int64), 1, np.maximum(sizes - 1, 0))
    chosen = _evenly(partition, y, held, seed)
    test = Partition(partition.rows[chosen], np.concatenate([[0], np.cumsum(held)]))
    train = Partition(partition.rows[~chosen], np.concatenate([[0], np.cumsum(sizes - held)]))
    return train, test


def _evenly(partition: Partition, y: Ints, wanted: Ints, seed: int) -> NDArray[np.bool_]:
    """Which positions of ``partition.rows`` are chosen: ``wanted`` of each client, spread over its rows sorted by label."""
    sizes, total = partition.sizes, len(partition.rows)
    owner = np.repeat(np.arange(partition.clients), sizes)
    order = Stream(seed, "client holdout").permutation(total)
    order = order[np.argsort(y[partition.rows[order]], kind="stable")]
    order = order[np.argsort(owner[order], kind="stable")]
    # Row i of a client's n is chosen where (i * wanted + start) // n steps up: `wanted` times, whatever start < n is.
    drawn = bits(seed, "client holdout start", np.arange(partition.clients))
    start = (drawn % np.maximum(sizes, 1).astype(np.uint64)).astype(np.int64)
    line = (np.arange(total) - partition.offsets[owner]) * wanted[owner] + start[owner]
    chosen = np.empty(total, dtype=np.bool_)
    chosen[order] = (line + wanted[owner]) // sizes[owner] > line // sizes[owner]
    return chosen
