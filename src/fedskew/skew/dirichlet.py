"""Label skew by Dirichlet shares: each class is cut among all clients."""

from typing import Annotated

import numpy as np

from fedskew.registry import AtLeastOne, Positive
from fedskew.skew.deal import apportion, at_least, check_clients, log_gammas, move_rows, shuffled_by_class, substream
from fedskew.skew.partition import Partition, Rows, Stream, skews


@skews.register("dirichlet")
def dirichlet(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    alpha: Annotated[float, Positive] = 0.5,
    min_size: Annotated[int, AtLeastOne] = 1,
    balance: bool = False,
) -> Partition:
    """Unlike label mixtures: of class k, client i gets the share p_ki of p_k ~ Dirichlet(alpha) (paper 000, NIID-Bench).

    One draw, no retries: it always ends, and every row goes to exactly one client. Clients that the draw leaves under
    ``min_size`` are then filled up with random rows of the largest clients. Many published splits draw until no client is
    too small, which for small alpha never happens, or quietly give nothing more to clients that hold their equal share:
    that second habit is ``balance``.

    Args:
        alpha: small for very unlike clients (at 0.01 a class is mostly at one client), large for equal mixtures
        min_size: rows that every client has at least
        balance: a client that holds its equal share of all rows gets none of the next classes
    """
    check_clients("dirichlet", len(rows), clients, min_size)
    order, counts = shuffled_by_class(rows.y, substream(stream, 0))
    generator = substream(stream, 1).generator()
    owner = np.empty(len(rows), dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    start = 0
    for count in counts.tolist():  # one class at a time, so that a million clients need no table of clients x classes
        logs = log_gammas(alpha, (clients,), generator)
        if balance:
            logs[sizes * clients >= len(rows)] = -np.inf
        dealt = apportion(count, logs, generator.random())
        owner[order[start : start + count]] = np.repeat(np.arange(clients), dealt)
        sizes += dealt
        start += count
    wanted = at_least(sizes, min_size, substream(stream, 2))
    return Partition.from_owner(move_rows(owner, sizes, wanted, substream(stream, 3)), clients)
