"""Skews that sort the rows and cut: by a feature (vop), by label (lds, shards), by a feature within each label (sldf)."""

from typing import Annotated, Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, NonNegative, Share
from fedskew.core.streams import Ints, Stream, substream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.columns import ascending, chosen_column, columns, units, widest
from fedskew.skew.deal import check_clients, check_labels, deal_rest, equal_parts, labels_of, placed, shuffled_by_class
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
    """Clients are neighbouring intervals of the feature of greatest variance: sort by it, n equal cuts (FDS-VOP, MFedBN).

    Rows with equal values stand in random order, so two neighbours may share the value at which they are cut. Variances are
    in the units of the file, also where the model trains on standardised features. Of features whose variances are equal but
    for rounding the first is taken.

    Args:
        column: number of the feature to sort by, counted from 0; the one of greatest variance when left out
        strength: share of the rows placed by this rule, the others are dealt at random: 1 as printed, 0 for none
    """
    check_clients("vop", len(rows), clients)
    values = chosen_column("vop", rows, column)
    kept = placed(len(rows), strength, substream(stream, 0))
    return _in_runs(kept[ascending(values[kept], substream(stream, 1))], len(rows), clients, substream(stream, 2))


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
    """Clients are neighbouring runs of the rows sorted by label, n equal cuts (LDS, MFedBN).

    The paper shows this skew in its Figs. 5 and 9 and never describes it: sorting by label and cutting is a reading of them.
    Neighbouring clients share a label. Which label is 0 is not said either: in Fig. 9 it is the commonest (Benign, and clients
    1 to 3 hold nothing else), which ``order=frequency`` gives; in Fig. 5 it is not, and labels are numbered in alphabetical
    order here. Rows of one label stand in random order.

    Args:
        order: of the labels: by their numbers, or the commonest first
        strength: share of the rows placed by this rule, the others are dealt at random: 1 as printed, 0 for none
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
def sldf(rows: Rows, clients: int, stream: Stream, /, *, strength: Annotated[float, Share] = 1.0) -> Partition:
    """Same labels, different features: each label is sorted by its own widest feature, n equal cuts (SLDF, MFedBN).

    Every client has equally many rows of each label, to within one, and of each label another interval of the feature that has
    the greatest variance, in the units of the file, among the rows of that label. What is left over of one label goes to the
    clients after those who had the rest of the label before, so that sizes differ by one at most. A label all of whose rows
    are equal is dealt at random.

    Args:
        strength: share of the rows placed by this rule, the others are dealt at random: 1 as printed, 0 for none
    """
    check_clients("sldf", len(rows), clients)
    chosen_column("sldf", rows, None)  # refuses what does not vary at all
    table, unit = columns(rows.x), units(rows)
    kept = placed(len(rows), strength, substream(stream, 0))
    order, counts = shuffled_by_class(labels_of("sldf", rows)[kept], substream(stream, 1))
    owner = np.full(len(rows), -1)
    start = 0
    for count in counts.tolist():
        members = kept[order[start : start + count]]
        column = widest(table[members], unit)
        if column is not None:
            members = members[np.argsort(table[members, column], kind="stable")]
        owner[members] = equal_parts(count, clients, start)
        start += count
    return Partition.from_owner(deal_rest(owner, clients, substream(stream, 2)), clients)


@skews.register("shards")
def shards(rows: Rows, clients: int, stream: Stream, /, *, per_client: Annotated[int, AtLeastOne] = 2) -> Partition:
    """Few labels a client: rows sorted by label are cut into equal shards, and each client gets some (McMahan et al. 2017).

    Rows of one label stand in random order, and shards differ by one row at most. A shard may lie across two labels, so
    clients have about, not exactly, ``per_client`` labels; ``classes`` gives exactly k.

    Args:
        per_client: shards that each client gets
    """
    check_clients("shards", len(rows), clients)
    labels = labels_of("shards", rows)
    check_labels("shards", labels)
    count = clients * per_client
    if count > len(rows):
        raise FedskewError(
            f"skew shards: {len(rows)} rows cannot be cut into {count} shards, {per_client} for each of {clients} clients: "
            f"use per_client <= {len(rows) // clients} or fewer clients"
        )
    order, _ = shuffled_by_class(labels, substream(stream, 0))
    holder = substream(stream, 1).permutation(count) % clients
    owner = np.empty(len(rows), dtype=np.int64)
    owner[order] = holder[equal_parts(len(rows), count)]
    return Partition.from_owner(owner, clients)


def _in_runs(order: Ints, count: int, clients: int, stream: Stream) -> Partition:
    """Equal runs of the ordered rows, one a client; rows that are not among them are dealt at random."""
    owner = np.full(count, -1)
    owner[order] = equal_parts(len(order), clients)
    return Partition.from_owner(deal_rest(owner, clients, stream), clients)
