"""Treatments: changes of a client's rows after the partition."""

from dataclasses import replace
from typing import Annotated

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import NonNegative, Share
from fedskew.core.streams import Ints, Stream, substream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
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
    x = rows.x.copy()
    generator = stream.generator()
    step = max(1, _CHUNK // max(1, x[:1].size))
    for start in range(0, len(x), step):
        part = x[start : start + step]
        scale = level[start : start + step].reshape(-1, *[1] * (x.ndim - 1))
        part += scale * generator.standard_normal(part.shape, dtype=np.float32)
    return replace(rows, x=x)


@treatments.register("relabel")
def relabel(
    rows: Rows, partition: Partition, stream: Stream, /, *, fraction: Annotated[float, Share] = 0.5
) -> Rows:
    """Concept shift: some clients permute all labels, each by its own permutation.

    The fraction of clients is rounded, but at least one unless it is 0; they are drawn at random. Each of them
    permutes the labels along a random cycle, so that no label stays the same: the same features have other labels
    there, P(y|x) differs. A client's held-out rows are relabelled too; the rows of no client are not.

    Args:
        fraction: share of the clients whose labels are permuted
    """
    if rows.target != "class":
        raise FedskewError(
            "treatment relabel permutes classes, and the targets are none: leave relabel out"
        )
    labels = np.unique(rows.y)
    if len(labels) < 2:
        raise FedskewError(
            "treatment relabel: the data has only 1 label, so there is nothing to permute: leave relabel out"
        )
    count = 0
    if fraction:
        count = max(round(fraction * partition.clients), 1)
    y = rows.y.copy()
    for client in substream(stream, 0).sample(partition.clients, count).tolist():
        held = partition.of(client)
        y[held] = _cycle(labels, substream(stream, 1, client))[y[held]]
    return replace(rows, y=y)


def _cycle(labels: Ints, stream: Stream) -> Ints:
    """Return a random permutation of the labels, as a table from old to new, that is one cycle."""
    circle = labels[stream.permutation(len(labels))]
    table = np.zeros(labels.max() + 1, dtype=np.int64)
    table[circle] = np.roll(circle, 1)
    return table
