"""Skews by sorting: by a feature (vop), by label (lds, shards), by a feature within each label (sldf)."""

from typing import Annotated, Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, NonNegative, Share
from fedskew.core.streams import Ints, Stream, substream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.assignment import (
    assign_rest,
    check_clients,
    check_labels,
    equal_parts,
    labels_of,
    placed,
    shuffled_by_class,
)
from fedskew.skew.columns import ascending, chosen_column, columns, most_variable, units
from fedskew.skew.skews import skews


@skews.register("vop")
def vop(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    column: Annotated[int | None, NonNegative] = None,
    strength: Annotated[float, Share] = 1.0,
) -> Partition:
    """Feature skew: clients are neighbouring intervals of the feature with the largest variance (FDS-VOP, MFedBN).

    The rows are sorted by it and divided into n equal parts; rows with equal values are in random order, so two
    neighbours may share a value. Variances are in the units of the file, also where the model trains on standardised
    features. Of features with equal variances (up to rounding) the first is taken.

    Args:
        column: number of the feature to sort by, counted from 0; by default that with the largest variance
        strength: share of the rows assigned by this rule, the others are assigned at random: 1 as in the paper, 0 for
            IID
    """
    check_clients("vop", len(rows), clients)
    values = chosen_column("vop", rows, column)
    kept = placed(len(rows), strength, substream(stream, 0))
    return _in_runs(
        kept[ascending(values[kept], substream(stream, 1))],
        len(rows),
        clients,
        substream(stream, 2),
    )


@skews.register("lds")
def lds(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    order: Literal["label", "frequency"] = "label",
    strength: Annotated[float, Share] = 1.0,
) -> Partition:
    """Label skew: clients are neighbouring equal runs of the rows sorted by label (LDS, MFedBN).

    The paper shows this skew in its Figs. 5 and 9 and never describes it: this is a reading of them. Neighbouring
    clients share a label. Which label is 0 is not said either: in Fig. 9 it is the most frequent (Benign, the only
    one of clients 1 to 3), which ``order=frequency`` gives; in Fig. 5 it is not, and labels are numbered in
    alphabetical order here. Rows of one label are in random order.

    Args:
        order: order of the labels: by their numbers, or the most frequent first
        strength: share of the rows assigned by this rule, the others are assigned at random: 1 as in the paper, 0 for
            IID
    """
    check_clients("lds", len(rows), clients)
    labels = labels_of("lds", rows)
    check_labels("lds", labels)
    kept = placed(len(rows), strength, substream(stream, 0))
    place = np.arange(int(labels.max()) + 1)
    if order == "frequency":
        place[np.argsort(-np.bincount(labels), kind="stable")] = place.copy()
    sorted_rows, _ = shuffled_by_class(place[labels[kept]], substream(stream, 1))
    return _in_runs(kept[sorted_rows], len(rows), clients, substream(stream, 2))


@skews.register("sldf")
def sldf(
    rows: Rows, clients: int, stream: Stream, /, *, strength: Annotated[float, Share] = 1.0
) -> Partition:
    """Same labels, different features: each label is sorted by its feature with the largest variance (SLDF, MFedBN).

    Every client has equally many rows of each label, to within one, and of each label another interval of the feature
    with the largest variance, in the units of the file, among the rows of that label. The remainders of the labels go
    to the clients in turn, so that sizes differ by one at most. A label all of whose rows are equal is assigned at
    random.

    Args:
        strength: share of the rows assigned by this rule, the others are assigned at random: 1 as in the paper, 0 for
            IID
    """
    check_clients("sldf", len(rows), clients)
    chosen_column("sldf", rows, None)  # raises an error if all are constant
    table = columns(rows.x)
    unit = units(rows)
    kept = placed(len(rows), strength, substream(stream, 0))
    order, counts = shuffled_by_class(labels_of("sldf", rows)[kept], substream(stream, 1))
    owner = np.full(len(rows), -1)
    start = 0
    for count in counts.tolist():
        members = kept[order[start : start + count]]
        column = most_variable(table[members], unit)
        if column is not None:
            members = members[np.argsort(table[members, column], kind="stable")]
        owner[members] = equal_parts(count, clients, start)
        start += count
    return Partition.from_owner(assign_rest(owner, clients, substream(stream, 2)), clients)


@skews.register("shards")
def shards(
    rows: Rows, clients: int, stream: Stream, /, *, per_client: Annotated[int, AtLeastOne] = 2
) -> Partition:
    """Label skew: rows sorted by label are divided into equal shards, and each client gets some (McMahan et al. 2017).

    Rows of one label are in random order, and shards differ by one row at most. A shard may have two labels, so
    clients have about, not exactly, ``per_client`` labels; ``classes`` gives exactly k.

    Args:
        per_client: shards of each client
    """
    check_clients("shards", len(rows), clients)
    labels = labels_of("shards", rows)
    check_labels("shards", labels)
    count = clients * per_client
    if count > len(rows):
        raise FedskewError(
            f"skew shards: {len(rows)} rows cannot be divided into {count} shards, {per_client} for each of "
            f"{clients} clients: use per_client <= {len(rows) // clients} or fewer clients"
        )
    order, _ = shuffled_by_class(labels, substream(stream, 0))
    holder = substream(stream, 1).permutation(count) % clients
    owner = np.empty(len(rows), dtype=np.int64)
    owner[order] = holder[equal_parts(len(rows), count)]
    return Partition.from_owner(owner, clients)


def _in_runs(order: Ints, count: int, clients: int, stream: Stream) -> Partition:
    """Return equal runs of the ordered rows, one per client; the other rows are assigned at random."""
    owner = np.full(count, -1)
    owner[order] = equal_parts(len(order), clients)
    return Partition.from_owner(assign_rest(owner, clients, stream), clients)
