"""Windows of consecutive measurements, and splits in which no window is in two parts."""

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.data.dataset import Features, Rows, Split


def split_series(name: str, rows: Ints, group: Ints | None, split: Split) -> tuple[Ints, Ints]:
    """Return row numbers (kept, held out): whole groups where there are several, else the end of the series.

    Neighbouring windows share rows or are at least similar, so a random split would put near-copies into both parts.
    """
    if group is not None and group[rows].min() < group[rows].max():
        held = np.isin(group[rows], _groups_to_hold(group[rows], split))
        return rows[~held], rows[held]
    cut = len(rows) - round(len(rows) * split.share)
    if not 0 < cut < len(rows):
        raise FedskewError(
            f"{name}: a {split.part} share of {split.share:g} of {len(rows)} rows leaves one part empty: choose "
            "another share, or add rows"
        )
    return rows[:cut], rows[cut:]


def _groups_to_hold(group: Ints, split: Split) -> Ints:
    """Return random groups as long as they fit into the share; at least one is held and at least one is kept."""
    groups, sizes = np.unique(group, return_counts=True)
    order = split.stream.permutation(len(groups))
    room = len(group) * split.share
    chosen = []
    for position in order:
        if sizes[position] <= room:
            chosen.append(position)
            room -= sizes[position]
    # Every group is larger than the share: the smallest comes nearest to it.
    return groups[chosen or [int(np.argmin(sizes))]]


def cut_windows(rows: Rows, window: int, stride: int, classes: int) -> Rows:
    """Return windows of consecutive rows of one group: features (columns, window) and the most frequent label.

    On a tie it is the lowest label. With ``stride < window`` neighbours share rows: then ``series`` is the group of
    each window (0 without groups).
    """
    if rows.group is None:
        series = np.zeros(len(rows), dtype=np.int64)
    else:
        series = rows.group
    order = np.argsort(series, kind="stable")
    ordered = rows.take(order)
    _, first, length = np.unique(series[order], return_index=True, return_counts=True)
    starts = []
    for begin, count in zip(first, length, strict=True):
        starts.append(np.arange(begin, begin + count - window + 1, stride))
    start: Ints = np.concatenate([*starts, np.zeros(0, dtype=np.int64)])
    columns = rows.x.shape[1]
    x: Features = np.zeros((0, columns, window), dtype=np.float32)
    if len(start):
        x = np.ascontiguousarray(
            np.lib.stride_tricks.sliding_window_view(ordered.x, window, axis=0)[start]
        )
    group = None
    if ordered.group is not None:
        group = ordered.group[start]
    overlapping = None
    if stride < window:
        overlapping = series[order][start]
    return Rows(x, _majority(ordered.y, start, window, classes), group, overlapping, rows.unit)


def _majority(y: Ints, start: Ints, window: int, classes: int) -> Ints:
    best = np.zeros(len(start), dtype=np.int64)
    most = np.zeros(len(start), dtype=np.int64)
    for label in range(classes):
        seen = np.concatenate([[0], np.cumsum(y == label)])
        count = seen[start + window] - seen[start]
        better = count > most
        best[better], most[better] = label, count[better]
    return best
