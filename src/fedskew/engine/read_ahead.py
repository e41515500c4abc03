"""Rows of the next steps, read from a file or a data set in a thread while the steps before them are computed."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedskew.core.streams import Ints
from fedskew.engine.input_rows import InputRows, Inputs

THREAD = "fedskew-reading"  # begins the name of the thread
_PIECES = 8  # the first is waited for, so that there are at least so many
_BYTES = 8 << 20  # of a piece as it is stored, unless a single batch takes more


@contextmanager
def read_ahead(x: Inputs, requests: Iterable[Tensor]) -> Iterator[Inputs]:
    """Give inputs that are then asked for these rows, request by request; what is in memory is given as it is.

    One piece of the rows is read ahead, in a thread that ends with the context. What goes wrong there is raised where
    the rows are asked for.
    """
    if not isinstance(x, InputRows) or x.in_memory:
        yield x
        return
    numbers = [rows.cpu().numpy() for rows in requests]
    if len(numbers) < 2:
        yield x
        return
    with ThreadPoolExecutor(1, THREAD) as thread:
        yield RowsAhead(x, numbers, thread)


def rows_of_piece(x: Inputs, most: int) -> int:
    """Return how many rows are worth asking for together: at most so many, and no more than are read ahead."""
    if not isinstance(x, InputRows) or x.in_memory:
        return most
    return max(1, min(most, _BYTES // x.row_bytes))


class RowsAhead(InputRows):
    """Stored rows that are asked for in a known order: pieces of several requests are read together, one piece ahead.

    Args:
        x: the rows
        requests: the numbers of the rows of each request
        thread: what reads them
    """

    def __init__(self, x: InputRows, requests: Sequence[Ints], thread: ThreadPoolExecutor) -> None:
        self.__dict__.update(x.__dict__)
        self._pieces = deque(_pieces(requests, rows_of_piece(x, sum(map(len, requests)))))
        self._thread = thread
        self._ready: deque[NDArray[Any]] = deque()
        self._coming = self._begin()

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Return the inputs of the next request, which has these rows."""
        assert dim == 0
        if not self._ready:
            self._ready.extend(self._coming.result())
            self._coming = self._begin()
        read = self._ready.popleft()
        assert len(read) == len(rows)
        return self.of_read(read)

    def _begin(self) -> "Future[list[NDArray[Any]]]":
        """Let the thread read the next piece."""
        piece: list[Ints] = []
        if self._pieces:
            piece = self._pieces.popleft()
        return self._thread.submit(self._of_piece, piece)

    def _of_piece(self, piece: list[Ints]) -> list[NDArray[Any]]:
        """Return the rows of each request."""
        if not piece:
            return []
        read = self.read(np.concatenate(piece))
        return np.split(read, np.cumsum([len(rows) for rows in piece])[:-1])


def _pieces(requests: Sequence[Ints], most: int) -> list[list[Ints]]:
    """Return requests in pieces, each with as many rows as it may have, or with one request.

    >>> [len(piece) for piece in _pieces([np.arange(4)] * 20, most=8)]
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    together = -(-len(requests) // _PIECES)
    pieces: list[list[Ints]] = []
    rows = 0
    for request in requests:
        rows += len(request)
        if not pieces or len(pieces[-1]) == together or rows > most:
            pieces.append([])
            rows = len(request)
        pieces[-1].append(request)
    return pieces
