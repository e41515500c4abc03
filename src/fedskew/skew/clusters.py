"""Same features, different labels: clusters of rows, each divided equally in stored order (SFDL)."""

import warnings
from typing import TYPE_CHECKING, Annotated

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Bounds, Share
from fedskew.core.streams import Floats, Ints, Stream, substream
from fedskew.data.dataset import Features, Rows
from fedskew.data.partition import Partition
from fedskew.data.readers.arrays import moments
from fedskew.data.stored_rows import AnyRows
from fedskew.skew.assignment import assign_rest, check_clients, check_labels, equal_parts, placed
from fedskew.skew.columns import columns
from fedskew.skew.skews import skews

if TYPE_CHECKING:
    from sklearn.cluster import KMeans

_SAMPLE = 10_000  # rows on which the clusters are fitted and judged
_MOST_CLUSTERS = 10  # when their number is not given
_CHUNK = 1 << 22  # numbers standardised at a time


@skews.register("sfdl")
def sfdl(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    clusters: Annotated[int | None, Bounds(2)] = None,
    strength: Annotated[float, Share] = 1.0,
) -> Partition:
    """Same features, different labels: clusters of rows are divided into n equal parts (SFDL of MFedBN).

    Every client has equally many rows of each cluster, to within one. A cluster is divided in stored order, as in the
    paper's text, so the label skew depends on the order of the rows: it is strong for a table stored by label or by
    time, and absent for a shuffled one.

    K-means on standardised columns (the paper names neither), fitted on a sample of at most 10,000 rows; the others
    belong to the nearest centre. Without ``clusters``, 2 to 10 are tried on that sample and ranked by the
    Davies-Bouldin (low is good) and by the Calinski-Harabasz score (high is good); the smallest sum of both ranks is
    taken, with fewer clusters on a tie.

    Args:
        clusters: clusters of rows; by default chosen by both scores
        strength: share of the rows assigned by this rule, the others are assigned at random: 1 as in the paper, 0 for
            IID
    """
    check_clients("sfdl", len(rows), clients)
    check_labels("sfdl", rows.y)
    cluster = row_clusters(rows.x, clusters, substream(stream, 0))
    kept = placed(len(rows), strength, substream(stream, 1))
    order = kept[np.argsort(cluster[kept], kind="stable")]
    owner = np.full(len(rows), -1)
    start = 0
    for count in np.bincount(cluster[kept]).tolist():
        owner[order[start : start + count]] = equal_parts(count, clients, start)
        start += count
    return Partition.from_owner(assign_rest(owner, clients, substream(stream, 2)), clients)


def row_clusters(x: AnyRows, clusters: int | None, stream: Stream) -> Ints:
    """Return the cluster of every row."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    table = columns(x)
    mean, deviation = moments(table)
    scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    sample = np.sort(substream(stream, 0).sample(len(table), min(len(table), _SAMPLE)))
    points = _standardised(table[sample], mean, scale)
    seed = int(substream(stream, 1).bits(1)[0] >> np.uint64(32))
    with threadpool_limits(1):  # sums by several threads are not reproducible
        model = _fit(points, clusters, seed)
        step = max(1, _CHUNK // table.shape[1])
        parts = []
        for i in range(0, len(table), step):
            parts.append(model.predict(_standardised(table[i : i + step], mean, scale)))
    return np.concatenate(parts).astype(np.int64)


def _standardised(table: Features, mean: Floats, scale: Floats) -> Features:
    result: Features = ((table - mean) * scale).astype(np.float32)
    return result


def _fit(points: Features, clusters: int | None, seed: int) -> "KMeans":
    """Return k-means with the given number of clusters, or with the best one."""
    different = len(np.unique(points, axis=0))
    if different < (clusters or 2):
        fix = "they are constant, use a skew by label, such as lds"
        if different > 1:
            fix = f"use clusters <= {different}"
        raise FedskewError(
            f"skew sfdl: {clusters or 2} clusters, but the features have {different} different rows: {fix}"
        )
    if clusters is not None:
        return _k_means(points, clusters, seed)
    # The scores need fewer clusters than rows.
    most = max(2, min(_MOST_CLUSTERS, different, len(points) - 1))
    return _best(points, [_k_means(points, number, seed) for number in range(2, most + 1)])


def _best(points: Features, models: "list[KMeans]") -> "KMeans":
    """Return the model with the smallest sum of ranks by both scores; the first of equals."""
    from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score

    if len(models) == 1:
        return models[0]
    davies = np.array([davies_bouldin_score(points, model.labels_) for model in models])
    calinski = np.array([calinski_harabasz_score(points, model.labels_) for model in models])
    ranks = []
    for score in (davies, -calinski):
        ranks.append(np.argsort(np.argsort(score, kind="stable"), kind="stable"))
    return models[int(np.argmin(ranks[0] + ranks[1]))]


def _k_means(points: Features, clusters: int, seed: int) -> "KMeans":
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # It warns of fewer clusters than wanted, where points differ only by rounding.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return KMeans(clusters, n_init=1, random_state=seed).fit(points)
