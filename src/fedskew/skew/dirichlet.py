"""Dirichlet shares: each label, each group or each bin of a feature is divided among all clients."""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Bounds, NonNegative, Positive
from fedskew.core.streams import Ints, Stream, substream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.assignment import (
    apportion,
    at_least,
    check_clients,
    groups_of,
    labels_of,
    log_gammas,
    move_rows,
    shuffled_by_class,
)
from fedskew.skew.columns import chosen_column, ranks
from fedskew.skew.skews import skews

REDRAWS = 1000  # after so many, further draws are unlikely to succeed


@skews.register("dirichlet")
def dirichlet(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    alpha: Annotated[float, Positive] = 0.5,
    min_size: Annotated[int | None, AtLeastOne] = None,
    min_rule: Literal["fill", "redraw"] = "fill",
    balance: bool = False,
    by: Literal["label", "group"] = "label",
) -> Partition:
    """Label skew: of class k, client i gets the share p_ki of p_k ~ Dirichlet(alpha) (FedPBS, NIID-Bench).

    Every row has exactly one client. Clients below ``min_size`` then get random rows of the largest clients, so that
    one draw is always enough. NIID-Bench draws again until no client is too small (``min_rule=redraw``), which for
    small alpha or many clients never happens: after 1,000 draws it is an error. It also gives no more rows to clients
    that have an equal share: ``balance``.

    Args:
        alpha: small for strong skew (at 0.01 a class is mostly at one client), large for equal label shares
        min_size: minimum rows of a client; none for 10 (NIID-Bench), or half of an equal share where that is less, but
            2 (needed by BatchNorm) where there are 2 per client
        min_rule: how it is reached: rows of the largest clients (fill), or a new draw (redraw, NIID-Bench)
        balance: whether a client with an equal share of all rows gets none of the next classes
        by: label for label skew, group for skew of groups (domains, sites)
    """
    least = min_size
    if least is None:
        least = _least(len(rows), clients)
    check_clients("dirichlet", len(rows), clients, least)
    if by == "label":
        kind = labels_of("dirichlet", rows)
    else:
        kind = groups_of("dirichlet:by=group", rows)
    draws = _Draws(kind, clients, alpha, balance, stream)
    if min_rule == "fill":
        return draws.filled(least)
    return draws.redrawn(least)


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
    min_size: Annotated[int | None, AtLeastOne] = None,
) -> Partition:
    """Feature skew: the bins of a feature's histogram are divided as ``dirichlet`` divides labels (FedArtML).

    The bins have equally many rows, except that equal values are in one bin: with bins of equal width nearly all rows
    of a long-tailed feature would be in one of them. The feature is the one with the largest variance, as in ``vop``.

    Args:
        alpha: small for strong skew, large for equal shares
        bins: bins of the histogram
        column: number of the feature, counted from 0; by default that with the largest variance
        min_size: minimum rows of a client; none as in dirichlet
    """
    least = min_size
    if least is None:
        least = _least(len(rows), clients)
    check_clients("feature-dirichlet", len(rows), clients, least)
    bin_of = (ranks(chosen_column("feature-dirichlet", rows, column)) * bins).astype(np.int64)
    return _Draws(bin_of, clients, alpha, False, stream).filled(least)


def _least(rows: int, clients: int) -> int:
    """Return the default minimum size of a client.

    >>> [_least(rows, 10) for rows in (1000, 150, 39, 19)]
    [10, 7, 2, 1]
    """
    share = rows // max(clients, 1)
    return max(min(10, share // 2), min(2, max(share, 1)))


class _Draws:
    """Partitions of the rows of each kind, each by its own Dirichlet draw."""

    def __init__(
        self, kind: Ints, clients: int, alpha: float, balance: bool, stream: Stream
    ) -> None:
        self.clients = clients
        self.alpha = alpha
        self.balance = balance
        self.stream = stream
        self.order, self.counts = shuffled_by_class(kind, substream(stream, 0))
        self.generator = substream(stream, 1).generator()

    def owners(self) -> tuple[Ints, Ints]:
        """Return the client of each row by the next draw, and the clients' sizes."""
        owner = np.empty(len(self.order), dtype=np.int64)
        sizes = np.zeros(self.clients, dtype=np.int64)
        start = 0
        # One kind at a time, so that no clients x kinds array is needed
        for count in self.counts.tolist():
            logs = log_gammas(self.alpha, (self.clients,), self.generator)
            if self.balance:
                logs[sizes * self.clients >= len(owner)] = -np.inf
            parts = apportion(count, logs, self.generator.random())
            owner[self.order[start : start + count]] = np.repeat(np.arange(self.clients), parts)
            sizes += parts
            start += count
        return owner, sizes

    def filled(self, least: int) -> Partition:
        """Return the first draw, with rows moved to the clients that are too small."""
        owner, sizes = self.owners()
        wanted = at_least(sizes, least, substream(self.stream, 2))
        return self._partition(move_rows(owner, sizes, wanted, substream(self.stream, 3)), least)

    def redrawn(self, least: int) -> Partition:
        """Return the first draw in which no client is too small."""
        best = 0
        for _ in range(REDRAWS):
            owner, sizes = self.owners()
            if sizes.min() >= least:
                return self._partition(owner, least)
            best = max(best, int(sizes.min()))
        smaller = ""
        if best:
            smaller = f"min_size <= {best}, "
        raise FedskewError(
            f"skew dirichlet: in {REDRAWS:,} draws no partition had {least} rows at every client, the smallest had "
            f"at most {best}: use {smaller}a larger alpha, fewer clients, or min_rule=fill"
        )

    def _partition(self, owner: Ints, least: int) -> Partition:
        return replace(Partition.from_owner(owner, self.clients), settled={"min_size": least})
