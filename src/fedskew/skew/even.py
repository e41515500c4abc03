"""The partition without skew, as a baseline: shuffled rows in equal parts."""

import numpy as np

from fedskew.core.streams import Stream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.assignment import check_clients
from fedskew.skew.skews import skews


@skews.register("iid")
def iid(rows: Rows, clients: int, stream: Stream, /) -> Partition:
    """No skew: the rows are shuffled and distributed evenly.

    >>> y = np.array([0, 0, 0, 1, 1])
    >>> iid(Rows(np.zeros((5, 1), np.float32), y), 2, Stream(0, "demo")).sizes.tolist()
    [3, 2]
    """
    check_clients("iid", len(rows), clients)
    owner = np.empty(len(rows), dtype=np.int64)
    owner[stream.permutation(len(rows))] = np.arange(len(rows)) % clients
    return Partition.from_owner(owner, clients)
