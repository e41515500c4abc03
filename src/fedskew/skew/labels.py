"""Skews in which each client has a few labels, or a few groups, and none of the others."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Positive
from fedskew.core.streams import Ints, Stream, substream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.assignment import (
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
    """Exactly k labels per client, each label divided equally among its clients (#C of Stratify, NIID-Bench).

    ``deal=balanced``: labels have equally many clients, to within one, unless a label has too few rows; the
    assignment is random. ``deal=random`` is NIID-Bench's: client i has label i mod K, and draws its other k - 1
    labels from all; the more clients draw a label, the fewer rows of it each gets, so sizes vary. With fewer clients
    than labels, some labels may not be drawn (NIID-Bench fails there). As every row must have a client, each such
    label replaces a drawn one that another client has too, at random: all clients still have k.

    Args:
        k: number of labels of each client
        deal: equally many clients per label (balanced), or labels drawn by each client (random, NIID-Bench)
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
    """Exactly k groups (domains) per client, each group divided equally among its clients (#D of Stratify).

    As ``classes``, with the group of a row (its domain, site or style) instead of its label; rows of a group are
    shuffled, so that its clients have similar label shares. With ``alone`` instead of ``k``, the first client has all
    of that group and nothing else, and the other groups are divided equally among the other clients (Stratify,
    section V-F and Table V).

    Args:
        k: number of groups of each client
        alone: name or number of the group of the first client; the other clients share the rest
    """
    group = groups_of("domains", rows)
    if (k is None) == (alone is None):
        raise FedskewError(
            "skew domains needs k=, the groups of each client, or alone=, the group of a single client"
        )
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
    """Two random labels per client, mixed by a Dirichlet(alpha) over those two (FedProx with one mu per layer).

    The paper (250 clients, alpha 0.5) says no more than that. Reading: client i draws q_i ~ Dirichlet(alpha, alpha)
    for its two labels; the rows of a label are divided among its clients in proportion to their q, after one row for
    each, so that every row is used once and every client has both its labels. Labels have equally many clients, as in
    ``classes``. As each q_i adds up to one, sizes are nearly equal (their standard deviation is a tenth of their
    mean), and drawing clients "proportionally to shard size", as the paper does, is nearly uniform. ``sizes=unequal``
    is a Dirichlet over the clients of each label instead: there it is about as large as the mean. The default is
    equal, the wording of the paper: its Dirichlet is over two classes each, and it does not mention sizes.

    Args:
        alpha: small for clients with nearly one label, large for two in equal shares
        sizes: equal for a Dirichlet over each client's labels, as in the paper; unequal for one over each label's
            clients
    """
    deal = _deal(
        "two-class-dirichlet", "labels", labels_of("two-class-dirichlet", rows), clients, 2, stream
    )
    generator = substream(stream, 4).generator()
    logs = log_gammas(alpha, (clients, 2), generator)
    if sizes == "equal":
        logs -= np.logaddexp(logs[:, :1], logs[:, 1:])
    shares = logs.ravel()[deal.slot]
    sizes_of_slots = np.ones(len(deal.slot), dtype=np.int64)
    start = 0
    for count, holders in zip(deal.counts.tolist(), deal.holders.tolist(), strict=True):
        sizes_of_slots[start : start + holders] += apportion(
            count - holders, shares[start : start + holders], generator.random()
        )
        start += holders
    return deal.partition(sizes_of_slots)


def _alone(group: Ints, clients: int, alone: str, stream: Stream) -> Partition:
    """Return the partition with one group at the first client, and the others divided among the other clients."""
    present = np.unique(group)
    if not alone.isdecimal() or int(alone) not in present:
        shown = ", ".join(map(str, present[:10]))
        if len(present) > 10:
            shown += " …"
        raise FedskewError(
            f"skew domains: alone={alone} is not a group of the training rows: use the name of one, or {shown}"
        )
    rest = np.flatnonzero(group != int(alone))
    if not 2 <= clients <= len(rest) + 1:
        fix = "the data has no other group, use another skew"
        if len(rest):
            fix = f"use 2 to {len(rest) + 1} clients"
        raise FedskewError(
            f"skew domains: {clients} clients, of which the first has group {alone} and the others share {len(rest)} "
            f"rows: {fix}"
        )
    owner = np.zeros(len(group), dtype=np.int64)
    order, counts = shuffled_by_class(group[rest], stream)
    # Where the remainder of one group ends, that of the next begins, so that sizes differ by one at most.
    starts = np.cumsum(counts) - counts
    parts = []
    for count, start in zip(counts.tolist(), starts, strict=True):
        parts.append(equal_parts(count, clients - 1, start % (clients - 1)))
    owner[rest[order]] = 1 + np.concatenate(parts)
    return Partition.from_owner(owner, clients)


@dataclass(frozen=True)
class _Deal:
    """The labels, or groups, of each client. A slot is one label of one client; slots are ordered by label."""

    clients: int
    order: Ints  # rows, label by label, shuffled within each
    counts: Ints  # rows of each label
    holders: Ints  # number of clients of each label
    slot: Ints  # client * labels per client + position among its labels, for each slot

    def evenly(self) -> Partition:
        """Divide each label equally among its slots."""
        sizes = []
        for count, holders in zip(self.counts.tolist(), self.holders.tolist(), strict=True):
            even = np.full(holders, count // holders)
            even[: count % holders] += 1  # the slots are in random order
            sizes.append(even)
        return self.partition(np.concatenate(sizes))

    def partition(self, sizes: Ints) -> Partition:
        """Return the partition with that many rows of its label for each slot."""
        client = self.slot // (len(self.slot) // self.clients)
        owner = np.empty(len(self.order), dtype=np.int64)
        owner[self.order] = np.repeat(client, sizes)
        return Partition.from_owner(owner, self.clients)


def _deal(
    skew: str,
    what: str,
    label: Ints,
    clients: int,
    k: int,
    stream: Stream,
    deal: Literal["balanced", "random"] = "balanced",
) -> _Deal:
    """Assign k different labels to every client, and clients to every label."""
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
    return _Deal(
        clients, order, counts, holders, shuffled[np.argsort(held[shuffled], kind="stable")]
    )


def _check_places(skew: str, what: str, counts: Ints, clients: int, k: int) -> None:
    """Raise an error if k labels per client are impossible: every label needs a client, and every slot a row."""
    labels = len(counts)
    free_k = skew != "two-class-dirichlet"
    if k > labels:
        fix = ""
        if free_k:
            fix = f": use k <= {labels}"
        raise FedskewError(f"skew {skew}: {k} {what} a client, but the data has only {labels}{fix}")
    if clients * k < labels:
        fix = f"use at least {-(-labels // k)} clients"
        if free_k:
            fix += f" or k >= {-(-labels // clients)}"
        raise FedskewError(
            f"skew {skew}: {clients} clients with {k} {what} each cannot have all {labels} {what}: {fix}"
        )
    if _places(counts, clients) < clients * k:
        most = _most_clients(counts, clients, k)
        fix = f"leave the rarest {what} out"
        if most * k >= labels:
            fix = f"use at most {most} clients"
        if free_k:
            fix += " or choose a smaller k"
        raise FedskewError(
            f"skew {skew}: the rarest {what} have too few rows for {clients} clients with {k} {what} each: {fix}"
        )


def _places(counts: Ints, clients: int) -> int:
    """Return how many slots the labels have in all, when each slot needs a row and no client has a label twice."""
    return int(np.minimum(counts, clients).sum())


def _most_clients(counts: Ints, clients: int, k: int) -> int:
    """Return the most clients, up to this many, with enough slots: what remains is concave in their number."""
    low, high = 1, clients
    while low < high:
        middle = (low + high + 1) // 2
        if _places(counts, middle) >= middle * k:
            low = middle
        else:
            high = middle - 1
    return low


def _drawn(labels: int, clients: int, k: int, stream: Stream) -> Ints:
    """Return a clients x k table of different labels: client i has label i mod K and draws the others."""
    generator = stream.generator()
    held = np.empty((clients, k), dtype=np.int64)
    held[:, 0] = np.arange(clients) % labels
    for column in range(1, k):
        drawing = np.arange(clients)
        while len(drawing):  # a client that has drawn a label twice draws again
            held[drawing, column] = generator.integers(labels, size=len(drawing))
            drawing = drawing[(held[drawing, :column] == held[drawing, column, None]).any(axis=1)]
    # Labels that nobody has drawn: there are none unless there are fewer clients than labels.
    for label in np.setdiff1d(np.arange(labels), held):
        shared = np.bincount(held.ravel(), minlength=labels)[held] > 1
        shared[:, 0] = False
        client, column = np.argwhere(shared)[generator.integers(shared.sum())]
        held[client, column] = label
    return held


def _check_drawn(skew: str, counts: Ints, holders: Ints) -> None:
    """Raise an error for a draw in which a label has more clients than rows."""
    short = np.flatnonzero(counts < holders)
    if len(short):
        raise FedskewError(
            f"skew {skew}: {holders[short[0]]} clients drew a label that has {counts[short[0]]} rows: use fewer "
            "clients, a smaller k, another seed, or deal=balanced, which gives rare labels fewer holders"
        )


def _regular(holders: Ints, clients: int, k: int) -> Ints:
    """Return a clients x k table of labels, dealt out in turn, so that no client gets a label twice."""
    return np.repeat(np.arange(len(holders)), holders).reshape(k, clients).T


def _mix(held: Ints, stream: Stream) -> Ints:
    """Return a random table with the same number of labels per client and of clients per label.

    Random pairs of clients trade: labels of both stay, labels of one only are pooled, shuffled and divided again (the
    curveball chain of Strona et al. 2014). After log2(clients) rounds a label can have come from any client.
    """
    clients, k = held.shape
    held = held[substream(stream, 0).permutation(clients)]
    pairs = clients // 2
    for turn in range(1, clients.bit_length() + 5):
        draw = substream(stream, turn)
        partners = draw.permutation(clients)
        left = partners[:pairs]
        right = partners[pairs : 2 * pairs]
        pool = np.sort(np.concatenate([held[left], held[right]], axis=1), axis=1)
        same = pool[:, 1:] == pool[:, :-1]
        key = substream(draw, 0).uniform(pool.size).reshape(pool.shape)
        key[:, :-1][same] = -1  # of two equal labels the first stays left
        key[:, 1:][same] = 2  # and the second right
        pool = np.take_along_axis(pool, np.argsort(key, axis=1, kind="stable"), axis=1)
        held[left], held[right] = pool[:, :k], pool[:, k:]
    return held
