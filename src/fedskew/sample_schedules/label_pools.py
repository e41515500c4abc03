"""Shared by the schedules: the candidates for each placeholder, draws among them, and each client's next unused row."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, compress, count
from typing import Literal, TypeAlias

import numpy as np

from fedskew.core.streams import Ints, Stream, substream
from fedskew.sample_schedules.holdings import Holdings

Selection: TypeAlias = Literal["uniform", "weighted"]
_FLAGS = bytes.maketrans(b"01", b"\0\1")


class Pools:
    """The candidates for each placeholder, as bit sets (bit k: client k), and draws among them.

    With uniform selection all candidates are equally likely, with weighted selection by their share of the
    placeholder's count. A client that has used all its rows stays a candidate until it was selected and reported
    that, since the server cannot know before.
    """

    def __init__(self, holdings: Holdings, selection: Selection, stream: Stream) -> None:
        if selection == "weighted":
            weights = holdings.weights
        else:
            weights = (holdings.counts > 0).astype(np.int64)
        self._weights: list[list[int]] = weights.T.astype(np.int64).tolist()
        self.sets: list[int] = []  # the candidates for each placeholder, one bit a client
        for held in holdings.counts.T:
            self.sets.append(sum(1 << client for client in np.flatnonzero(held).tolist()))
        self._shares = uniforms(stream)
        # A set is used for many draws before it changes. With many clients its list is long, so the cache is smaller.
        self._cached = lru_cache(maxsize=2**19 // len(holdings.counts) + 1)(self._listed)

    def draw(self, candidates: int, placeholder: int) -> int:
        """Return one of these clients, all of which have the placeholder."""
        members, chances = self._cached(candidates, placeholder)
        return members[bisect_right(chances, next(self._shares) * chances[-1])]

    def retained(self, placeholder: int, count: int | None) -> int:
        """Return ``count`` candidates for the placeholder, drawn without replacement; all of them for None."""
        left = self.sets[placeholder]
        if count is None or left.bit_count() <= count:
            return left
        kept = 0
        for _ in range(count):
            one = 1 << self.draw(left, placeholder)
            kept = kept | one
            left = left & ~one
        return kept

    def remove(self, client: int, placeholder: int) -> None:
        """Remove the client from the candidates for this placeholder."""
        self.sets[placeholder] &= ~(1 << client)

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to this less one, all equally likely."""
        return int(next(self._shares) * limit)

    def _listed(self, candidates: int, placeholder: int) -> tuple[list[int], list[int]]:
        """Return the clients of a set, and the cumulative sum of their weights."""
        flags = bin(candidates)[:1:-1].encode().translate(_FLAGS)
        return list(compress(count(), flags)), list(
            accumulate(compress(self._weights[placeholder], flags))
        )


class RowSupply:
    """The rows of every client and placeholder in shuffled order, each used once, or with ``reuse`` repeatedly.

    With ``reuse``, a client that has used all rows of a placeholder gets all of them again, in a new order.
    """

    def __init__(self, holdings: Holdings, stream: Stream, reuse: bool = False) -> None:
        self._holdings, self._stream, self._reuse = holdings, stream, reuse
        self._width: int = holdings.counts.shape[1]
        cells = np.repeat(np.arange(holdings.counts.size), holdings.counts.ravel())
        self._shuffles = [holdings.flat[shuffle_within(cells, stream)]]
        self._length = len(cells)
        self._next: list[int] = holdings.offsets[:-1].tolist()
        self._stop: list[int] = holdings.offsets[1:].tolist()

    def take(self, client: int, placeholder: int) -> int:
        """Return the position of the client's next row of the placeholder, for ``rows``; -1 if all are used."""
        cell = client * self._width + placeholder
        if self._next[cell] == self._stop[cell] and not (
            self._reuse and self._refill(client, placeholder)
        ):
            return -1
        self._next[cell] += 1
        return self._next[cell] - 1

    def _refill(self, client: int, placeholder: int) -> int:
        """Shuffle all rows of a client and placeholder again, and return their number."""
        cell = client * self._width + placeholder
        rows = self._holdings.rows(client, placeholder)
        self._shuffles.append(
            rows[substream(self._stream, len(self._shuffles)).permutation(len(rows))]
        )
        self._next[cell], self._stop[cell] = self._length, self._length + len(rows)
        self._length += len(rows)
        return len(rows)

    def rows(self, positions: Ints) -> Ints:
        """Return the rows at positions that ``take`` returned."""
        return np.concatenate(self._shuffles)[positions]


def shuffle_within(segments: Ints, stream: Stream) -> Ints:
    """Return positions 0 … n-1 by segment, those of one segment in random order.

    >>> shuffle_within(np.array([0, 0, 0, 1, 2, 2]), Stream(0, "demo")).tolist()
    [0, 2, 1, 3, 4, 5]
    """
    order = stream.permutation(len(segments))
    return order[np.argsort(segments[order], kind="stable")]


def uniforms(stream: Stream) -> Iterator[float]:
    """Yield numbers in [0, 1) without end, drawn in blocks."""
    for block in count():
        yield from substream(stream, block).uniform(1024).tolist()
