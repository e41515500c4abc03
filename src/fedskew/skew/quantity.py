"""Clients that differ in how much they hold, and in nothing else."""

from typing import Annotated

import numpy as np

from fedskew.registry import AtLeastOne, Positive
from fedskew.skew.deal import apportion, at_least, check_clients, log_gammas, substream
from fedskew.skew.partition import Partition, Rows, Stream, skews


@skews.register("quantity")
def quantity(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    alpha: Annotated[float, Positive] = 0.5,
    min_size: Annotated[int, AtLeastOne] = 1,
) -> Partition:
    """Unlike sizes, like labels: the sizes are Dirichlet(alpha), the rows shuffled (NIID-Bench's quantity skew).

    Where the draw leaves a client under ``min_size``, it is filled up at the expense of the largest.

    Args:
        alpha: small for very unlike sizes, large for equal ones
        min_size: rows that every client has at least
    """
    check_clients("quantity", len(rows), clients, min_size)
    generator = substream(stream, 0).generator()
    logs = log_gammas(alpha, (clients,), generator)
    sizes = at_least(apportion(len(rows), logs, generator.random()), min_size, substream(stream, 1))
    owner = np.empty(len(rows), dtype=np.int64)
    owner[substream(stream, 2).permutation(len(rows))] = np.repeat(np.arange(clients), sizes)
    return Partition.from_owner(owner, clients)
