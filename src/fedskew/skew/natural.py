"""Clients that the data already has: writers, subjects, sites."""

import heapq

import numpy as np

from fedskew.errors import FedskewError
from fedskew.skew.deal import groups_of
from fedskew.skew.partition import Partition, Rows, Stream, skews
from fedskew.streams import Ints


@skews.register("natural")
def natural(rows: Rows, clients: int, stream: Stream, /) -> Partition:
    """One client a group of the data (a writer, a subject); with fewer clients, whole groups are dealt out by size.

    With 0 clients, or as many as there are groups, client i is the i-th group that has rows. With fewer, the groups go,
    largest first, each to the client that holds least so far: no group is split.
    """
    group = groups_of("natural", rows)
    sizes = np.bincount(group)
    present = np.flatnonzero(sizes)
    if not 0 <= clients <= len(present):
        raise FedskewError(
            f"skew natural: {clients} clients, but the data has {len(present)} groups: "
            f"use 1 to {len(present)} clients, or 0 (or none given) for one a group"
        )
    clients = clients or len(present)
    client_of = np.zeros(len(sizes), dtype=np.int64)
    client_of[present] = np.arange(clients) if clients == len(present) else _pack(sizes[present], clients, stream)
    return Partition.from_owner(client_of[group], clients)


def _pack(sizes: Ints, clients: int, stream: Stream) -> Ints:
    """The client of each group: largest group first, to the least loaded client; equal ones in random order."""
    order = stream.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    load = [(0, client) for client in range(clients)]
    result = np.empty(len(sizes), dtype=np.int64)
    for group, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        held, client = load[0]
        result[group] = client
        heapq.heapreplace(load, (held + size, client))
    return result
