"""Arrays of other tools' files whose groups are clients."""

from dataclasses import replace

import numpy as np

from fedskew.data.dataset import Rows
from fedskew.data.readers.arrays import Arrays


def with_clients(arrays: Arrays) -> Arrays:
    """Return arrays whose groups with training rows are the clients.

    Test rows are each client's own. Where some belong to others, who have no training rows, the model is scored on all
    test rows together.
    """
    train, test = arrays.train, arrays.test
    assert train.group is not None  # for type checkers: these files name the client of every row
    present = np.unique(train.group)
    number = np.full(len(arrays.groups), -1)
    number[present] = np.arange(len(present))
    notes = arrays.notes
    if isinstance(test, Rows) and test.group is not None:
        group = number[test.group]
        strangers = len(np.unique(test.group[group < 0]))
        test = replace(test, group=group)
        if strangers:
            test = replace(test, group=None)
            notes += (
                f"{strangers} clients have test rows only: all test rows are scored together, with the shared model",
            )
    return replace(
        arrays,
        train=replace(train, group=number[train.group]),
        test=test,
        groups=tuple(arrays.groups[group] for group in present.tolist()),
        notes=notes,
        silos=True,
    )
