"""Regions of feature space, in which labels are compared: the nearest of a few centres."""

import numpy as np

from fedskew.core.streams import Floats, Ints, Stream
from fedskew.heterogeneity.coded import Columns

REGIONS = 10
LLOYD_STEPS = 10
SAMPLE = 10_000  # rows from which the centres are found
_VALUES_AT_ONCE = 1 << 22


def regions_of(columns: Columns, stream: Stream) -> Ints:
    """Return the region of every row: ten steps of Lloyd's k-means on scaled features, then the nearest centre."""
    total = len(columns.rows)
    width = len(columns.chosen)
    sample = np.sort(stream.sample(total, min(total, SAMPLE)))
    points = columns.scaled(slice(None), sample).T
    distinct = np.unique(points, axis=0)
    draw = Stream(stream.seed, stream.purpose, *stream.path, 1)
    start = np.sort(draw.sample(len(distinct), min(REGIONS, len(distinct))))
    centres = distinct[start]
    for _ in range(LLOYD_STEPS):
        centres = _means(points, _nearest(points, centres), centres)
    step = max(_VALUES_AT_ONCE // max(width, 1), 1)
    regions = []
    for begin in range(0, total, step):
        part = slice(begin, min(begin + step, total))
        regions.append(_nearest(columns.scaled(slice(None), part).T, centres))
    return np.concatenate(regions)


def _nearest(points: Floats, centres: Floats) -> Ints:
    """Return the nearest centre: |x - c|^2 without |x|^2, which is the same for all centres."""
    nearest: Ints = np.argmin((centres**2).sum(axis=1) / 2 - points @ centres.T, axis=1)
    return nearest


def _means(points: Floats, nearest: Ints, centres: Floats) -> Floats:
    """Return the mean of each centre's points; a centre without points stays where it is."""
    member = np.zeros((len(points), len(centres)))
    member[np.arange(len(points)), nearest] = 1
    sizes = member.sum(axis=0)
    moved = (member.T @ points) / np.maximum(sizes, 1)[:, None]
    return np.where(sizes[:, None] > 0, moved, centres)
