"""Dirichlet shares: each label, each group or each bin of a feature is cut among all clients."""

from typing import Annotated, Literal

import numpy as np

from fedskew.registry import AtLeastOne, Bounds, NonNegative, Positive
from fedskew.skew.columns import chosen_column, ranks
from fedskew.skew.deal import (
    apportion,
    at_least,
    check_clients,
    groups_of,
    log_gammas,
    move_rows,
    shuffled_by_class,
    substream,
)
from fedskew.skew.partition import Partition, Rows, Stream, skews
from fedskew.streams import Ints


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
    by: Literal["label", "group"] = "label",
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
        by: label for unlike label mixtures, group for unlike mixtures of groups (domains, sites)
    """
    check_clients("dirichlet", len(rows), clients, min_size)
    kind = rows.y if by == "label" else groups_of("dirichlet:by=group", rows)
    return _deal(kind, clients, alpha, min_size, balance, stream)


@skews.register("feature-dirichlet")
def feature_dirichlet(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    alpha: Annotated[float, Positive] = 0.5,
    bins: Annotated[int, Bounds(2)] = 10,
    column: Annotated[int | None, NonNegative] = None,
    min_size: Annotated[int, AtLeastOne] = 1,
) -> Partition:
    """Unlike mixtures of a feature's values: its histogram's bins are cut as ``dirichlet`` cuts labels (FedArtML).

    The bins hold equally many rows, as far as equal values, which are never put apart, allow: bins of equal width would leave
    nearly all rows of a long-tailed feature in one of them. The feature is the one of greatest variance, as in ``vop``.

    Args:
        alpha: small for very unlike clients, large for equal mixtures
        bins: bins of the histogram
        column: number of the feature, counted from 0; the one of greatest variance when left out
        min_size: rows that every client has at least
    """
    check_clients("feature-dirichlet", len(rows), clients, min_size)
    bin_of = (ranks(chosen_column("feature-dirichlet", rows.x, column)) * bins).astype(np.int64)
    return _deal(bin_of, clients, alpha, min_size, False, stream)


def _deal(kind: Ints, clients: int, alpha: float, min_size: int, balance: bool, stream: Stream) -> Partition:
    """Cut the rows of each kind by a Dirichlet draw of its own, then fill up the clients that are too small."""
    order, counts = shuffled_by_class(kind, substream(stream, 0))
    generator = substream(stream, 1).generator()
    owner = np.empty(len(kind), dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    start = 0
    for count in counts.tolist():  # one kind at a time, so that a million clients need no table of clients x kinds
        logs = log_gammas(alpha, (clients,), generator)
        if balance:
            logs[sizes * clients >= len(kind)] = -np.inf
        dealt = apportion(count, logs, generator.random())
        owner[order[start : start + count]] = np.repeat(np.arange(clients), dealt)
        sizes += dealt
        start += count
    wanted = at_least(sizes, min_size, substream(stream, 2))
    return Partition.from_owner(move_rows(owner, sizes, wanted, substream(stream, 3)), clients)
