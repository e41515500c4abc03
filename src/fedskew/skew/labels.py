"""Skew by holding: each client holds a few labels, or a few groups, and none of the others."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedskew.errors import FedskewError
from fedskew.registry import AtLeastOne, Positive
from fedskew.skew.deal import apportion, check_clients, groups_of, log_gammas, shuffled_by_class, spread, substream
from fedskew.skew.partition import Partition, Rows, Stream, skews
from fedskew.streams import Ints


@skews.register("classes")
def classes(rows: Rows, clients: int, stream: Stream, /, *, k: Annotated[int, AtLeastOne]) -> Partition:
    """Every client holds exactly k labels, and each label is dealt equally to its holders (#C of paper 002).

    Labels have equally many holders, to within one, unless a label has too few rows for that; who holds what is random.

    Args:
        k: labels that each client holds
    """
    return _deal("classes", "labels", rows.y, clients, k, stream).evenly()


@skews.register("domains")
def domains(rows: Rows, clients: int, stream: Stream, /, *, k: Annotated[int, AtLeastOne]) -> Partition:
    """Every client holds exactly k groups (domains), and each group is dealt equally to its holders (#D of paper 002).

    As ``classes``, with the group of a row (its domain, site or style) in place of its label; rows of a group are shuffled, so
    that its holders have its labels in like shares.

    Args:
        k: groups that each client holds
    """
    return _deal("domains", "groups", groups_of("domains", rows), clients, k, stream).evenly()


@skews.register("two-class-dirichlet")
def two_class_dirichlet(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    alpha: Annotated[float, Positive] = 0.5,
    sizes: Literal["alike", "unlike"] = "alike",
) -> Partition:
    """Two random labels a client, mixed by a Dirichlet(alpha) over those two (paper 001: 250 clients, alpha 0.5).

    The paper says no more than that. Reading: client i draws q_i ~ Dirichlet(alpha, alpha) for its two labels; the rows of a
    label are cut among its holders in proportion to their q, after one row for each, so that every row is used once and every
    client does hold both its labels. Labels have equally many holders, as in ``classes``. As each q_i adds up to one, sizes
    come out nearly alike; that the paper samples clients "proportionally to shard size" hints at a Dirichlet over the holders
    of each label instead, which makes them unlike.

    Args:
        alpha: small for clients with nearly one label, large for two in equal shares
        sizes: alike for a Dirichlet over each client's labels, unlike for one over each label's holders
    """
    deal = _deal("two-class-dirichlet", "labels", rows.y, clients, 2, stream)
    generator = substream(stream, 4).generator()
    logs = log_gammas(alpha, (clients, 2), generator)
    if sizes == "alike":
        logs -= np.logaddexp(logs[:, :1], logs[:, 1:])
    shares = logs.ravel()[deal.slot]
    dealt = np.ones(len(deal.slot), dtype=np.int64)
    start = 0
    for count, holders in zip(deal.counts.tolist(), deal.holders.tolist(), strict=True):
        dealt[start : start + holders] += apportion(count - holders, shares[start : start + holders], generator.random())
        start += holders
    return deal.partition(dealt)


@dataclass(frozen=True)
class _Deal:
    """Who holds which label, or group. A slot is one label of one client; slots stand label by label, in random order."""

    clients: int
    order: Ints  # rows, label by label, shuffled within each
    counts: Ints  # rows of each label
    holders: Ints  # clients that hold each label
    slot: Ints  # client * labels a client + which of its labels, for each slot

    def evenly(self) -> Partition:
        """Give the slots of a label equally many rows."""
        sizes = []
        for count, holders in zip(self.counts.tolist(), self.holders.tolist(), strict=True):
            even = np.full(holders, count // holders)
            even[: count % holders] += 1  # the holders stand in random order
            sizes.append(even)
        return self.partition(np.concatenate(sizes))

    def partition(self, sizes: Ints) -> Partition:
        """Give each slot that many rows of its label."""
        client = self.slot // (len(self.slot) // self.clients)
        owner = np.empty(len(self.order), dtype=np.int64)
        owner[self.order] = np.repeat(client, sizes)
        return Partition.from_owner(owner, self.clients)


def _deal(skew: str, what: str, label: Ints, clients: int, k: int, stream: Stream) -> _Deal:
    """Give every client k different labels and every label its holders."""
    check_clients(skew, len(label), clients)
    order, counts = shuffled_by_class(label, substream(stream, 0))
    _check_places(skew, what, counts, clients, k)
    holders = spread(np.minimum(counts, clients), clients * k, substream(stream, 1))
    held = _mix(_regular(holders, clients, k), substream(stream, 2)).ravel()
    shuffled = substream(stream, 3).permutation(len(held))
    return _Deal(clients, order, counts, holders, shuffled[np.argsort(held[shuffled], kind="stable")])


def _check_places(skew: str, what: str, counts: Ints, clients: int, k: int) -> None:
    """Refuse what cannot be dealt: every label needs a holder, and every holder a row."""
    labels, free_k = len(counts), skew != "two-class-dirichlet"
    if k > labels:
        fix = f": use k <= {labels}" if free_k else ""
        raise FedskewError(f"skew {skew}: {k} {what} a client, but the data has only {labels}{fix}")
    if clients * k < labels:
        raise FedskewError(
            f"skew {skew}: {clients} clients with {k} {what} each cannot hold all {labels} {what}: "
            f"use at least {-(-labels // k)} clients" + (f" or k >= {-(-labels // clients)}" if free_k else "")
        )
    if _places(counts, clients) < clients * k:
        most = _most_clients(counts, clients, k)
        fix = f"use at most {most} clients" if most * k >= labels else f"leave the rarest {what} out"
        raise FedskewError(
            f"skew {skew}: the rarest {what} have too few rows for {clients} clients with {k} {what} each: {fix}"
            + (" or choose a smaller k" if free_k else "")
        )


def _places(counts: Ints, clients: int) -> int:
    """How many holders the labels can have in all, when each holder needs a row and no client holds a label twice."""
    return int(np.minimum(counts, clients).sum())


def _most_clients(counts: Ints, clients: int, k: int) -> int:
    """The most clients, up to this many, for whom there are places: what is left over is concave in their number."""
    low, high = 1, clients
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _places(counts, middle) >= middle * k else (low, middle - 1)
    return low


def _regular(holders: Ints, clients: int, k: int) -> Ints:
    """A clients x k table of labels: label after label is dealt around the circle of clients, so none gets one twice."""
    return np.repeat(np.arange(len(holders)), holders).reshape(k, clients).T


def _mix(held: Ints, stream: Stream) -> Ints:
    """A random table with the same number of labels a client and of holders a label.

    Random pairs of clients trade: what both hold stays, what only one holds is pooled, shuffled and given back (the
    curveball chain of Strona et al. 2014). After log2(clients) rounds a label can have come from anybody.
    """
    clients, k = held.shape
    held = held[substream(stream, 0).permutation(clients)]
    pairs = clients // 2
    for turn in range(1, clients.bit_length() + 5):
        draw = substream(stream, turn)
        partners = draw.permutation(clients)
        left, right = partners[:pairs], partners[pairs : 2 * pairs]
        pool = np.sort(np.concatenate([held[left], held[right]], axis=1), axis=1)
        same = pool[:, 1:] == pool[:, :-1]
        key = substream(draw, 0).uniform(pool.size).reshape(pool.shape)
        key[:, :-1][same] = -1  # of two equal labels the first stays left
        key[:, 1:][same] = 2  # and the second right
        pool = np.take_along_axis(pool, np.argsort(key, axis=1, kind="stable"), axis=1)
        held[left], held[right] = pool[:, :k], pool[:, k:]
    return held
