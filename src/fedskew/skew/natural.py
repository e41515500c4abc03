"""Clients that the data already has: writers, subjects, sites."""

import heapq
from typing import Annotated

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne
from fedskew.core.streams import Ints, Stream, substream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.assignment import groups_of
from fedskew.skew.skews import skews


@skews.register("natural")
def natural(
    rows: Rows, clients: int, stream: Stream, /, *, groups: Annotated[int | None, AtLeastOne] = None
) -> Partition:
    """One client per group of the data (a writer, a subject); with fewer clients, whole groups are assigned by size.

    With 0 clients, or as many as there are groups, client i is the i-th group that has rows. With fewer, the groups
    are assigned, largest first, each to the smallest client so far: no group is split. With ``groups``, that many of
    them are drawn first, and the rows of the others have no client: ``groups=30`` is 30 writers as 30 clients, or
    with 10 clients these 30 assigned to them.

    Args:
        groups: number of groups that take part, drawn at random; none for all
    """
    group = groups_of("natural", rows)
    sizes = np.bincount(group)
    present = np.flatnonzero(sizes)
    if groups is not None and groups > len(present):
        raise FedskewError(
            f"skew natural: groups={groups}, but the data has {len(present)} groups with training rows: "
            f"use groups <= {len(present)}, or leave it out for all"
        )
    if groups is not None:
        present = present[np.sort(substream(stream, 0).sample(len(present), groups))]
    if not 0 <= clients <= len(present):
        has = f"the data has {len(present)} groups"
        if groups is not None:
            has = f"groups={groups} takes {groups} of the groups"
        raise FedskewError(
            f"skew natural: {clients} clients, but {has}: use 1 to {len(present)} clients, or 0 (or none given) for "
            "one per group"
        )
    clients = clients or len(present)
    client_of = np.full(len(sizes), -1)
    if clients == len(present):
        client_of[present] = np.arange(clients)
    else:
        client_of[present] = _pack(sizes[present], clients, stream)
    owner = client_of[group]
    held = np.flatnonzero(owner >= 0)
    packed = Partition.from_owner(owner[held], clients)
    return Partition(held[packed.rows], packed.offsets)


def _pack(sizes: Ints, clients: int, stream: Stream) -> Ints:
    """Return the client of each group: largest group first, to the smallest client; ties are broken at random."""
    order = stream.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    load = [(0, client) for client in range(clients)]
    client_of = np.empty(len(sizes), dtype=np.int64)
    for group, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        held, client = load[0]
        client_of[group] = client
        heapq.heapreplace(load, (held + size, client))
    return client_of
