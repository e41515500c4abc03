"""What the skews share: shuffles by class, shares from a Dirichlet, shares turned into whole rows, and lower limits kept."""

import numpy as np

from fedskew.errors import FedskewError
from fedskew.streams import Floats, Ints, Stream


def substream(stream: Stream, *path: int) -> Stream:
    """A stream of its own below this one, for one purpose of a skew that has several."""
    return Stream(stream.seed, stream.purpose, *stream.path, *path)


def check_clients(skew: str, rows: int, clients: int, min_size: int = 1) -> None:
    """Refuse what cannot be dealt: every client needs ``min_size`` rows."""
    if clients < 1:
        raise FedskewError(f"skew {skew}: {clients} clients asked for, at least 1 is needed")
    if clients * min_size > rows:
        fewer = f"at most {rows // min_size} clients" if rows >= min_size else "more rows"
        smaller = f" or min_size <= {rows // clients}" if min_size > 1 and rows >= clients else ""
        raise FedskewError(
            f"skew {skew}: {rows} rows are too few for {clients} clients with at least {min_size} each: use {fewer}{smaller}"
        )


def shuffled_by_class(y: Ints, stream: Stream) -> tuple[Ints, Ints]:
    """Rows grouped by label and shuffled within each, and how many rows each label has; labels without rows are left out."""
    order = stream.permutation(len(y))
    counts = np.bincount(y)
    narrow = y.astype(np.min_scalar_type(len(counts)))  # 8- and 16-bit keys sort several times faster
    return order[np.argsort(narrow[order], kind="stable")], counts[counts > 0]


def log_gammas(alpha: float, shape: tuple[int, ...], generator: np.random.Generator) -> Floats:
    """Logarithms of independent Gamma(alpha) numbers; divided by their sum, such numbers are Dirichlet(alpha).

    For small alpha the numbers themselves underflow to zero, all of them at once (then a share is 0/0). Their logarithms
    do not: Gamma(a) = Gamma(a + 1) * U^(1/a) in distribution, and -log U is exponential.
    """
    # Beyond these ends the shares are one-hot, or equal, to the last bit that a float has.
    alpha = min(max(alpha, 1e-12), 1e15)
    logs: Floats = np.log(generator.standard_gamma(alpha + 1, shape)) - generator.standard_exponential(shape) / alpha
    return logs


def apportion(total: int, log_weights: Floats, offset: float) -> Ints:
    """``total`` rows in proportion to the weights, each count within one of its exact share.

    The line 0 … total is cut at the cumulative shares, shifted by ``offset`` in [0, 1) and rounded down. For a uniform
    offset the mean of each count is its exact share: plain rounding would favour the same clients in every class.

    >>> apportion(10, np.log([0.5, 0.25, 0.25]), offset=0.5).tolist()
    [5, 3, 2]
    """
    weights = np.exp(log_weights - log_weights.max())
    ends = np.cumsum(weights)
    whole: Ints = np.minimum(np.floor(ends / ends[-1] * total + offset), total).astype(np.int64)
    return np.diff(whole, prepend=0)


def spread(limits: Ints, total: int, stream: Stream) -> Ints:
    """Share out ``total`` as evenly as the ``limits`` allow; the last few, one each, go where the stream says.

    >>> spread(np.array([1, 9, 9]), 7, Stream(0, "demo")).tolist()
    [1, 3, 3]
    """
    low, high = 0, int(limits.max())
    while low < high:  # the highest common level whose sum does not exceed the total
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(np.minimum(limits, middle).sum()) <= total else (low, middle - 1)
    shares = np.minimum(limits, low)
    above = np.flatnonzero(limits > low)
    shares[above[stream.sample(len(above), total - int(shares.sum()))]] += 1
    return shares


def at_least(sizes: Ints, min_size: int, stream: Stream) -> Ints:
    """Sizes of the same sum, none under ``min_size``: what the small ones lack is taken off the largest.

    >>> at_least(np.array([0, 2, 8]), 2, Stream(0, "demo")).tolist()
    [2, 2, 6]
    """
    lack = np.maximum(min_size - sizes, 0)
    return spread(sizes, int(sizes.sum() - lack.sum()), stream) + lack


def move_rows(owner: Ints, sizes: Ints, wanted: Ints, stream: Stream) -> Ints:
    """Owners after random rows of the clients above their wanted size went to those below it."""
    surplus = np.maximum(sizes - wanted, 0)
    if not surplus.any():
        return owner
    giving = np.flatnonzero(surplus[owner] > 0)
    giving = giving[substream(stream, 0).permutation(len(giving))]
    giving = giving[np.argsort(owner[giving], kind="stable")]
    donors = np.flatnonzero(surplus)
    position = np.arange(len(giving)) - np.repeat(np.cumsum(sizes[donors]) - sizes[donors], sizes[donors])
    moving = giving[position < np.repeat(surplus[donors], sizes[donors])]
    moving = moving[substream(stream, 1).permutation(len(moving))]
    result = owner.copy()
    result[moving] = np.repeat(np.arange(len(sizes)), np.maximum(wanted - sizes, 0))
    return result
