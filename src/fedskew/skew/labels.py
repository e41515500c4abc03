"""Skew by holding: each client holds a few labels, or a few groups, and none of the others."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Positive
from fedskew.core.streams import Ints, Stream, substream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.deal import (
    apportion,
    check_clients,
    equal_parts,
    groups_of,
    labels_of,
    log_gammas,
    shuffled_by_class,
    spread,
)
from fedskew.skew.skews import skews


@skews.register("classes")
def classes(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    k: Annotated[int, AtLeastOne],
    deal: Literal["balanced", "random"] = "balanced",
) -> Partition:
    """Every client holds exactly k labels, and each label is dealt equally to its holders (#C of Stratify, NIID-Bench).

    ``deal=balanced``: labels have equally many holders, to within one, unless a label has too few rows for that; who holds
    what is random. ``deal=random`` is NIID-Bench's: client i holds label i mod K, and draws its other k - 1 labels from all;
    the more clients draw a label, the fewer rows of it each gets, so sizes vary. With fewer clients than labels, that leaves
    labels which nobody drew (NIID-Bench fails there). As every row must belong to a client, each such label takes the place
    of a drawn one that has another holder, at random: everybody still holds k.

    Args:
        k: labels that each client holds
        deal: labels with equally many holders (balanced), or drawn by each client for itself (random, NIID-Bench)
    """
    return _deal("classes", "labels", labels_of("classes", rows), clients, k, stream, deal).evenly()


@skews.register("domains")
def domains(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    k: Annotated[int | None, AtLeastOne] = None,
    alone: str | None = None,
) -> Partition:
    """Every client holds exactly k groups (domains), and each group is dealt equally to its holders (#D of Stratify).

    As ``classes``, with the group of a row (its domain, site or style) in place of its label; rows of a group are shuffled, so
    that its holders have its labels in like shares. With ``alone`` in place of ``k``, the first client holds all of that group
    and nothing else, and the other groups are dealt equally to all other clients (Stratify, section V-F and Table V).

    Args:
        k: groups that each client holds
        alone: the group, by its name or number, that is at the first client; the others share the rest
    """
    group = groups_of("domains", rows)
    if (k is None) == (alone is None):
        raise FedskewError("skew domains needs k=, groups that each client holds, or alone=, the group at a single client")
    if k is not None:
        return _deal("domains", "groups", group, clients, k, stream).evenly()
    return _alone(group, clients, str(alone), stream)


@skews.register("two-class-dirichlet")
def two_class_dirichlet(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    alpha: Annotated[float, Positive] = 0.5,
    sizes: Literal["equal", "unequal"] = "equal",
) -> Partition:
    """Two random labels a client, mixed by a Dirichlet(alpha) over those two (FedProx with one mu a layer: 250 clients, 0.5).

    The paper says no more than that. Reading: client i draws q_i ~ Dirichlet(alpha, alpha) for its two labels; the rows of a
    label are cut among its holders in proportion to their q, after one row for each, so that every row is used once and every
    client does hold both its labels. Labels have equally many holders, as in ``classes``. As each q_i adds up to one, sizes
    come out nearly equal (their standard deviation is a tenth of their mean), and drawing clients "proportionally to shard
    size", as the paper does, is nearly drawing them uniformly. ``sizes=unequal`` is a Dirichlet over the holders of each label
    instead: there it is about as large as the mean. The default is equal, the words of the paper: its Dirichlet is over two
    classes each, and sizes it does not mention.

    Args:
        alpha: small for clients with nearly one label, large for two in equal shares
        sizes: equal for a Dirichlet over each client's labels, as in the paper's words; unequal for one over each label's
            holders, which makes sampling by size matter
    """
    deal = _deal("two-class-dirichlet", "labels", labels_of("two-class-dirichlet", rows), clients, 2, stream)
    generator = substream(stream, 4).generator()
    logs = log_gammas(alpha, (clients, 2), generator)
    if sizes == "equal":
        logs -= np.logaddexp(logs[:, :1], logs[:, 1:])
    shares = logs.ravel()[deal.slot]
    dealt = np.ones(len(deal.slot), dtype=np.int64)
    start = 0
    for count, holders in zip(deal.counts.tolist(), deal.holders.tolist(), strict=True):
        dealt[start : start + holders] += apportion(count - holders, shares[start : start + holders], generator.random())
        start += holders
    return deal.partition(dealt)


def _alone(group: Ints, clients: int, alone: str, stream: Stream) -> Partition:
    """One group at the first client, each of the others cut equally among all others."""
    present = np.unique(group)
    if not alone.isdecimal() or int(alone) not in present:
        shown = ", ".join(map(str, present[:10])) + (" …" if len(present) > 10 else "")
        raise FedskewError(f"skew domains: alone={alone} is no group of the training rows: use the name of one, or {shown}")
    rest = np.flatnonzero(group != int(alone))
    if not 2 <= clients <= len(rest) + 1:
        raise FedskewError(
            f"skew domains: {clients} clients, of which the first holds group {alone} and the others share {len(rest)} rows: "
            + (f"use 2 to {len(rest) + 1} clients" if len(rest) else "the data has no other group, use another skew")
        )
    owner = np.zeros(len(group), dtype=np.int64)
    order, counts = shuffled_by_class(group[rest], stream)
    starts = np.cumsum(counts) - counts  # what is left over of a group goes on where that of the last one ended
    parts = [
        equal_parts(count, clients - 1, start % (clients - 1)) for count, start in zip(counts.tolist(), starts, strict=True)
    ]
    owner[rest[order]] = 1 + np.concatenate(parts)
    return Partition.from_owner(owner, clients)


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


def _deal(
    skew: str, what: str, label: Ints, clients: int, k: int, stream: Stream, deal: Literal["balanced", "random"] = "balanced"
) -> _Deal:
    """Give every client k different labels and every label its holders."""
    check_clients(skew, len(label), clients)
    order, counts = shuffled_by_class(label, substream(stream, 0))
    _check_places(skew, what, counts, clients, k)
    if deal == "random":
        held = _drawn(len(counts), clients, k, substream(stream, 1)).ravel()
        holders = np.bincount(held, minlength=len(counts))
        _check_drawn(skew, counts, holders)
    else:
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


def _drawn(labels: int, clients: int, k: int, stream: Stream) -> Ints:
    """A clients x k table of different labels: client i has label i mod K and draws the others; every label is in it."""
    generator = stream.generator()
    held = np.empty((clients, k), dtype=np.int64)
    held[:, 0] = np.arange(clients) % labels
    for column in range(1, k):
        drawing = np.arange(clients)
        while len(drawing):  # whoever has drawn a label that it holds draws again
            held[drawing, column] = generator.integers(labels, size=len(drawing))
            drawing = drawing[(held[drawing, :column] == held[drawing, column, None]).any(axis=1)]
    for label in np.setdiff1d(np.arange(labels), held):  # only where there are fewer clients than labels
        shared = np.bincount(held.ravel(), minlength=labels)[held] > 1
        shared[:, 0] = False
        client, column = np.argwhere(shared)[generator.integers(shared.sum())]
        held[client, column] = label
    return held


def _check_drawn(skew: str, counts: Ints, holders: Ints) -> None:
    """Refuse a draw in which a label has more holders than rows."""
    short = np.flatnonzero(counts < holders)
    if len(short):
        raise FedskewError(
            f"skew {skew}: {holders[short[0]]} clients drew a label that has {counts[short[0]]} rows: use fewer clients, a "
            "smaller k, another seed, or deal=balanced, which gives rare labels fewer holders"
        )


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
