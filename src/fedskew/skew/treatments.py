"""Treatments: changes of a client's rows after the partition."""

import math
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import NonNegative, Positive, Share
from fedskew.core.streams import Ints, Stream, substream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.data.stored_rows import whole
from fedskew.skew.skews import treatments

_CHUNK = 1 << 20  # random numbers drawn at a time


@treatments.register("noise")
def noise(
    rows: Rows,
    partition: Partition,
    stream: Stream,
    /,
    *,
    sigma: Annotated[float, NonNegative] = 0.1,
) -> Rows:
    """Feature skew: client i of n gets Gaussian noise of standard deviation sigma * i / n, i = 1 … n (NIID-Bench).

    The first client has the least noise and the last has sigma. NIID-Bench's text calls sigma * i / n the variance,
    its code takes sigma * i / (n - 1), i = 0 … n - 1, as the standard deviation. The noise is in the units of the
    features as stored. A client's held-out rows have its noise too; the rows of no client (test, validation) have
    none.

    Args:
        sigma: standard deviation of the noise at the last client
    """
    level = np.zeros(len(rows), dtype=np.float32)  # 0 for rows of no client
    level[partition.rows] = np.repeat(
        sigma * np.arange(1, partition.clients + 1) / partition.clients, partition.sizes
    )
    x = whole(rows.x, "treatment noise").copy()
    generator = stream.generator()
    step = max(1, _CHUNK // max(1, x[:1].size))
    for start in range(0, len(x), step):
        part = x[start : start + step]
        scale = level[start : start + step].reshape(-1, *[1] * (x.ndim - 1))
        part += scale * generator.standard_normal(part.shape, dtype=np.float32)
    return replace(rows, x=x)


@treatments.register("relabel")
def relabel(
    rows: Rows,
    partition: Partition,
    stream: Stream,
    /,
    *,
    fraction: Annotated[float, Share] = 0.5,
    permutations: Annotated[int | None, Positive] = None,
) -> Rows:
    """Concept shift: some clients permute all labels, each by its own permutation, or by one of a few.

    The fraction of clients is rounded, but at least one unless it is 0; they are drawn at random. Each of them
    permutes the labels along a random cycle, so that no label stays the same: the same features have other labels
    there, P(y|x) differs. A client's held-out rows are relabelled too; the rows of no client are not.

    Args:
        fraction: share of the clients whose labels are permuted
        permutations: how many different permutations there are, dealt to these clients in turn; none for one each
    """
    labels = _labels_of(rows, "relabel", "permute")
    count = 0
    if fraction:
        count = max(round(fraction * partition.clients), 1)
    y = rows.y.copy()
    few: list[Ints] = []
    if permutations is not None:
        few = _different_cycles(labels, min(permutations, count), stream)
    for place, client in enumerate(substream(stream, 0).sample(partition.clients, count).tolist()):
        if permutations is None:
            table = _cycle(labels, substream(stream, 1, client))
        else:
            table = few[place % permutations]
        held = partition.of(client)
        y[held] = table[y[held]]
    return replace(rows, y=y)


@treatments.register("label-noise")
def label_noise(
    rows: Rows,
    partition: Partition,
    stream: Stream,
    /,
    *,
    rate: Annotated[float, Share] = 0.2,
    kind: Literal["symmetric", "by-class"] = "symmetric",
) -> Rows:
    """Label noise: each row of a client has, with this chance, a wrong label.

    The wrong label is any other one, with equal chances (symmetric), or the one that follows, the first after the last
    (by-class, the pair noise of Co-teaching): then classes are confused in pairs. Rows are drawn independently, so
    that the share of wrong labels at a client is the rate on average. A client's held-out rows have noise too; the
    rows of no client (test, validation) have none.

    Args:
        rate: chance of a wrong label
        kind: any other label (symmetric), or the one that follows (by-class)
    """
    labels = _labels_of(rows, "label-noise", "confuse")
    place = np.searchsorted(labels, rows.y)
    others = len(labels) - 1
    steps = np.ones(len(rows), dtype=np.int64)
    if kind == "symmetric":
        steps += (substream(stream, 1).uniform(len(rows)) * others).astype(np.int64)
    held = np.zeros(len(rows), dtype=np.bool_)
    held[partition.rows] = True
    wrong = held & (substream(stream, 0).uniform(len(rows)) < rate)
    y = np.where(wrong, labels[(place + steps) % len(labels)], rows.y)
    return replace(rows, y=y)


def _labels_of(rows: Rows, treatment: str, does: str) -> Ints:
    """Return the labels of the rows; an error where there are no two of them."""
    if rows.target != "class":
        raise FedskewError(
            f"treatment {treatment} {does}s classes, and the targets are none: leave {treatment} out"
        )
    labels = np.unique(rows.y)
    if len(labels) < 2:
        raise FedskewError(
            f"treatment {treatment}: the data has only 1 label, so there is nothing to {does}: "
            f"leave {treatment} out"
        )
    return labels


def _different_cycles(labels: Ints, count: int, stream: Stream) -> list[Ints]:
    """Return so many of these permutations of the labels, of which no two are equal."""
    possible = math.factorial(len(labels) - 1)
    if count > possible:
        raise FedskewError(
            f"treatment relabel: permutations={count} of {len(labels)} labels are more than the {possible} that leave "
            f"no label the same and are one cycle: use permutations={possible} or less"
        )
    cycles: dict[bytes, Ints] = {}
    number = 0
    while len(cycles) < count:
        table = _cycle(labels, substream(stream, 1, number))
        cycles.setdefault(table.tobytes(), table)
        number += 1
    return list(cycles.values())


def _cycle(labels: Ints, stream: Stream) -> Ints:
    """Return a random permutation of the labels, as a table from old to new, that is one cycle."""
    circle = labels[stream.permutation(len(labels))]
    table = np.zeros(labels.max() + 1, dtype=np.int64)
    table[circle] = np.roll(circle, 1)
    return table
