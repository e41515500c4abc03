"""Entries of a table that were missing and are filled in, so that a classifier does not tell clients by them."""

from dataclasses import dataclass

import numpy as np

from fedskew.core.streams import Ints, Stream
from fedskew.data.schema import Features, Gaps


@dataclass(frozen=True)
class TableGaps:
    """Which entries are filled in: rows, in the order of their clients, by columns of the table.

    ``column_of`` is the column of the table that each feature belongs to.
    """

    filled: Gaps
    column_of: Ints

    def known(self, features: Ints, mine: Ints, others: Ints) -> Ints:
        """Return the places of the features of which there are entries among both kinds of rows."""
        lost: Gaps = np.logical_or(self.filled[mine].all(0), self.filled[others].all(0))
        kept: Ints = np.flatnonzero(~lost[self.column_of[features]])
        return kept

    def redrawn(self, x: Features, features: Ints, rows: Ints, stream: Stream) -> Features:
        """Return ``x``, these features of these rows, with entries drawn from those that are there for all filled ones.

        A category keeps its features together.
        """
        drawn = x.copy()
        random = stream.generator()
        filled = self.filled[rows]
        for column in np.flatnonzero(filled.any(0)).tolist():
            places = np.flatnonzero(self.column_of[features] == column)
            gaps = np.flatnonzero(filled[:, column])
            there = np.flatnonzero(~filled[:, column])
            if len(places) and len(there):
                donors = there[random.integers(len(there), size=len(gaps))]
                drawn[gaps[:, None], places] = x[donors[:, None], places]
        return drawn
