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
from fedskew.deploy.requests import Facts


def federation_of(data: Dataset, clients: Sequence[Facts]) -> Federation:
    """Return a federation with the numbers of rows that clients have told, and nothing of what is in them.

    Rows are numbered client by client, and within a client by their labels; their features are zeros that take no
    memory. ``data`` says what all clients agree about: classes, shape of a row, pipeline.
    """
    held = [one.held_out for one in clients]
    parts = [one.train for one in clients] + [counts for counts in held if counts is not None]
    owners = [*range(len(clients)), *(i for i, counts in enumerate(held) if counts is not None)]
    train = _hollow(data, parts, owners)
    ends = np.cumsum([0, *(int(counts.sum()) for counts in parts)])
    ranges = [np.arange(first, last) for first, last in pairwise(ends)]
    if len(ranges) > len(clients):
        own = Partition.from_lists(ranges[len(clients) :])
    else:
        own = None
    validation = [one.validation for one in clients if one.validation is not None]
    hollow = replace(
        data,
        train=train,
        test=_hollow(data, [one.test for one in clients], range(len(clients))),
        validation=_hollow(data, validation, range(len(clients))) if validation else None,
        groups=tuple(one.name for one in clients),
    )
    return Federation(hollow, Partition.from_lists(ranges[: len(clients)]), own)


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


def _hollow(data: Dataset, counts: Sequence[Ints], owners: Sequence[int]) -> Rows:
    sizes = [int(one.sum()) for one in counts]
    x = np.lib.stride_tricks.as_strided(
        np.zeros(1, dtype=np.float32),
        (sum(sizes), *data.shape),
        (0,) * (1 + len(data.shape)),
        writeable=True,
    )
    labels = [np.repeat(np.arange(len(one)), one) for one in counts]
    group = np.repeat(np.asarray(owners, dtype=np.int64), sizes)
    return Rows(x, hollow_targets(data.target, np.concatenate(labels), len(data.classes)), group)


def hollow_targets(kind: Target, labels: Ints, classes: int) -> Targets:
    """Return targets of a kind for rows of which at most the class is known."""
    if kind == "class":
        return labels.astype(np.int64)
    if kind == "number":
        return np.zeros(len(labels), np.float32)
    return np.zeros((len(labels), classes), np.uint8)
