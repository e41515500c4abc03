"""Feature skew by clusters of features: each client gets the rows that are extreme in its features (FDS-WGC)."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne, Bounds, Share
from fedskew.core.streams import Floats, Ints, Stream, substream
from fedskew.data.dataset import Features, Rows
from fedskew.data.partition import Partition
from fedskew.skew.assignment import assign_rest, at_least, check_clients, move_rows, placed
from fedskew.skew.columns import columns, ranks
from fedskew.skew.skews import skews

_LEVELS = 1001  # quantiles that represent a feature
_MOST_FEATURES = 4096  # their pairwise distances take 128 MiB


@skews.register("wgc")
def wgc(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    clusters: Annotated[int | None, AtLeastOne] = None,
    quantile: Annotated[float, Bounds(0, 0.5, above=True)] = 0.25,
    overlap: bool = False,
    strength: Annotated[float, Share] = 1.0,
) -> Partition:
    """Feature skew: features are clustered; a client gets the rows that are extreme in its cluster (FDS-WGC of MFedBN).

    Features are scaled to [0, 1] and clustered by their 1-Wasserstein distances (average linkage; features of more
    than 1,001 rows by 1,001 even quantiles); constant ones are not used. As in the paper's text, a row belongs to
    every cluster in which some feature is at or beyond its 25 % or 75 % quantile: to several, or to none. That is
    ``overlap=true``. By default each row belongs to one cluster, that in which it is most extreme: in which one of
    its values is nearest to the first or last rank. Rows that are extreme in none are assigned at random; ties are
    broken at random.

    The paper does not say how clusters and clients are matched. Here cluster k goes to client k; of more clusters
    than clients, cluster k goes to client k mod n; with fewer, the rows of a cluster are divided among clients k, k +
    K, k + 2K, …

    Args:
        clusters: clusters of features; by default as many as clients
        quantile: share of a feature's rows at either end that is extreme
        overlap: as in the paper's text, a row may have several clients or none
        strength: share of the rows assigned by this rule, the others are assigned at random: 1 as in the paper, 0 for
            IID
    """
    check_clients("wgc", len(rows), clients)
    table = columns(rows.x)
    wanted = clusters or clients
    if overlap and wanted < clients:
        raise FedskewError(
            f"skew wgc: with overlap=true, clusters={wanted} leaves {clients - wanted} of {clients} clients without "
            f"one: use clusters >= {clients}"
        )
    members = feature_clusters(table, wanted)
    kept = placed(len(rows), strength, substream(stream, 0))
    if overlap:
        return _by_the_text(table, members, quantile, kept, clients, substream(stream, 1))
    cluster = _most_extreme(table, members, quantile, substream(stream, 2))
    owner = np.full(len(rows), -1)
    owner[kept] = _clients_of(cluster, wanted, clients, substream(stream, 3))[kept]
    owner = assign_rest(owner, clients, substream(stream, 4))
    sizes = np.bincount(owner, minlength=clients)
    owner = move_rows(owner, sizes, at_least(sizes, 1, substream(stream, 5)), substream(stream, 6))
    return Partition.from_owner(owner, clients)


def feature_clusters(table: Features, wanted: int) -> list[Ints]:
    """Return the columns of each cluster, clusters in order of their first column."""
    varying = np.flatnonzero(table.min(axis=0) < table.max(axis=0))
    if len(varying) < wanted:
        fix = "use a skew by label, such as lds"
        if len(varying):
            fix = f"use clusters <= {len(varying)}"
        raise FedskewError(
            f"skew wgc: {wanted} clusters of features, but only {len(varying)} features vary: {fix}"
        )
    if len(varying) > _MOST_FEATURES:
        raise FedskewError(
            f"skew wgc compares every pair of features, and {len(varying)} are too many (at most {_MOST_FEATURES}): "
            "use vop"
        )
    if wanted in (1, len(varying)):  # nothing to choose; scikit-learn refuses a single feature
        return np.array_split(varying, wanted)
    from sklearn.cluster import AgglomerativeClustering

    distances = feature_distances(table[:, varying])
    clustering = AgglomerativeClustering(n_clusters=wanted, metric="precomputed", linkage="average")
    cluster = clustering.fit(distances).labels_
    firsts = np.sort(np.unique(cluster, return_index=True)[1])
    return [varying[cluster == cluster[first]] for first in firsts]


def feature_distances(table: Features) -> Floats:
    """Return 1-Wasserstein distances between the columns, each scaled to [0, 1]: the mean distance of their quantiles.

    >>> feature_distances(np.array([[0, 8, 0], [1, 9, 0], [2, 10, 2]], dtype=np.float32)).round(3).tolist()
    [[0.0, 0.0, 0.167], [0.0, 0.0, 0.167], [0.167, 0.167, 0.0]]
    """
    from scipy.spatial.distance import pdist, squareform

    levels = np.rint(np.linspace(0, len(table) - 1, min(len(table), _LEVELS))).astype(np.int64)
    curves: Floats = np.empty((table.shape[1], len(levels)))
    for column in range(table.shape[1]):
        curve = np.sort(table[:, column])[levels].astype(np.float64)
        curves[column] = (curve - curve[0]) / (curve[-1] - curve[0])
    distances: Floats = squareform(pdist(curves, "cityblock")) / len(levels)
    return distances


def _most_extreme(table: Features, members: list[Ints], quantile: float, stream: Stream) -> Ints:
    """Return the cluster in which each row is most extreme; -1 if it is extreme in none."""
    cluster = np.full(len(table), -1)
    # How extreme each row is in its cluster; at first, as much as counts at all (less 1e-12, for rounding)
    highest = np.full(len(table), 1 - 2 * quantile - 1e-12)
    tied = np.zeros(len(table), dtype=np.int64)
    for number, features in enumerate(members):
        extreme = np.zeros(len(table))
        for column in features:
            np.maximum(extreme, np.abs(2 * ranks(table[:, column]) - 1), out=extreme)
        higher = extreme > highest
        cluster[higher] = number
        highest[higher] = extreme[higher]
        tied[higher] = 1
        # Of t equals each must win with probability 1/t: the t-th replaces the one before with that probability.
        equal = np.flatnonzero((extreme == highest) & ~higher)
        tied[equal] += 1
        cluster[equal[substream(stream, number).uniform(len(equal)) * tied[equal] < 1]] = number
    return cluster


def _clients_of(cluster: Ints, clusters: int, clients: int, stream: Stream) -> Ints:
    """Return the client of each row of a cluster; -1 stays."""
    owner = np.where(cluster < 0, -1, cluster % clients)
    # With more clients than clusters, the first clusters have several clients.
    for number in range(min(clusters, clients - clusters)):
        members = np.flatnonzero(cluster == number)
        members = members[substream(stream, number).permutation(len(members))]
        owner[members] = np.resize(np.arange(number, clients, clusters), len(members))
    return owner


def _by_the_text(
    table: Features, members: list[Ints], quantile: float, kept: Ints, clients: int, stream: Stream
) -> Partition:
    """Return each client's rows by the paper's text: all at or beyond a quantile of some feature of its clusters."""
    rest = np.setdiff1d(np.arange(len(table)), kept, assume_unique=True)
    client_of_rest = assign_rest(np.full(len(rest), -1), clients, stream)
    held = []
    for client in range(clients):
        mine: NDArray[np.bool_] = np.zeros(len(table), dtype=np.bool_)
        for column in np.concatenate(members[client::clients]):
            low, high = np.quantile(table[:, column], [quantile, 1 - quantile])
            mine |= (table[:, column] <= low) | (table[:, column] >= high)
        mine[rest] = client_of_rest == client
        held.append(np.flatnonzero(mine))
    return Partition.from_lists(held)
