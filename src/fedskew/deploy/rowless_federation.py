"""What a server knows of rows that it does not have: how many there are, of each client and each class."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from fedskew.core.streams import Ints
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.data.targets import Target, Targets
from fedskew.deploy.requests import RowCounts


def federation_of(data: Dataset, clients: Sequence[RowCounts]) -> Federation:
    """Return a federation with the numbers of rows that clients have told, and nothing of what is in them.

    Rows are numbered client by client, and within a client by their labels; their features are zeros that take no
    memory. ``data`` says what all clients agree about: classes, shape of a row, pipeline.
    """
    everybody = range(len(clients))
    counts = [told.train for told in clients]
    owners = list(everybody)
    validation = []
    for client, told in enumerate(clients):
        if told.held_out is not None:
            counts.append(told.held_out)
            owners.append(client)
        if told.validation is not None:
            validation.append(told.validation)
    validation_rows = None
    if validation:
        validation_rows = _placeholder_rows(data, validation, everybody)
    rowless = replace(
        data,
        train=_placeholder_rows(data, counts, owners),
        test=_placeholder_rows(data, [told.test for told in clients], everybody),
        validation=validation_rows,
        groups=tuple(told.name for told in clients),
    )
    ranges = _consecutive(counts)
    held_out = None
    if len(ranges) > len(clients):
        held_out = Partition.from_lists(ranges[len(clients) :])
    return Federation(rowless, Partition.from_lists(ranges[: len(clients)]), held_out)


def _consecutive(counts: Sequence[Ints]) -> list[Ints]:
    """Return the numbers of the rows of one part after the other."""
    sizes = [int(of_classes.sum()) for of_classes in counts]
    ends = np.cumsum([0, *sizes])
    return [np.arange(first, last) for first, last in pairwise(ends)]


def positions_of(fed: Federation) -> Ints:
    """Return the place of every row among those of its client, which a client numbers by their labels.

    A server that has only seen how many rows of each label a client has can name a row in this way.
    """
    rows, sizes = fed.partition.rows, fed.partition.sizes
    if fed.data.target == "class":
        labels = fed.train.y[rows]
    else:
        labels = np.zeros(len(rows), dtype=np.int64)
    order = np.lexsort((labels, np.repeat(np.arange(fed.clients), sizes)))
    positions = np.zeros(len(fed.train), dtype=np.int64)
    positions[rows[order]] = np.arange(len(rows)) - np.repeat(fed.partition.offsets[:-1], sizes)
    return positions


def _placeholder_rows(data: Dataset, counts: Sequence[Ints], owners: Sequence[int]) -> Rows:
    """Return so many rows of each class for each owner; all of them share the memory of one zero."""
    sizes = [int(of_classes.sum()) for of_classes in counts]
    x = np.lib.stride_tricks.as_strided(
        np.zeros(1, dtype=np.float32),
        (sum(sizes), *data.shape),
        (0,) * (1 + len(data.shape)),
        writeable=True,
    )
    labels = [np.repeat(np.arange(len(of_classes)), of_classes) for of_classes in counts]
    group = np.repeat(np.asarray(owners, dtype=np.int64), sizes)
    columns = len(data.classes)
    if data.target == "tokens":
        columns = data.shape[0]
    y = placeholder_targets(data.target, np.concatenate(labels), columns)
    return Rows(x, y, group)


def placeholder_targets(kind: Target, labels: Ints, columns: int) -> Targets:
    """Return targets of a kind for rows of which at most the class is known; ``columns`` of labels, or of tokens."""
    if kind == "class":
        return labels.astype(np.int64)
    if kind == "number":
        return np.zeros(len(labels), np.float32)
    if kind == "tokens":
        return np.zeros((len(labels), columns), np.int64)
    return np.zeros((len(labels), columns), np.uint8)
