"""What the skews share: shuffles by class, shares from a Dirichlet, shares turned into whole rows, and lower limits kept."""

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints, Stream, substream
from fedskew.data.dataset import Rows


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


def check_labels(skew: str, y: Ints) -> None:
    """Refuse data with a single label where a skew makes the clients differ in their labels."""
    if len(y) and y.min() == y.max():
        raise FedskewError(f"skew {skew}: the data has only 1 label, so clients cannot differ in it: use a skew by feature")


def labels_of(skew: str, rows: Rows) -> Ints:
    """The class of every row, or the bin that stands in for it; refuses targets that have neither."""
    if rows.labelled:
        return rows.labels
    what = "numbers" if rows.target == "number" else "several labels a row"
    raise FedskewError(
        f"skew {skew} deals out classes, and the targets are {what}: let bins of them stand in (bins=5, --bins 5), "
        "or use a skew that looks at no labels (iid, quantity, natural, feature-dirichlet, vop)"
    )


def groups_of(skew: str, rows: Rows) -> Ints:
    """The group of every row; refuses data without groups."""
    if rows.group is None:
        raise FedskewError(f"skew {skew}: the data has no groups: name a group column, or choose another skew")
    return rows.group


def placed(count: int, strength: float, stream: Stream) -> Ints:
    """The rows that a rule of this strength places, in stored order; those of a lower strength are among them."""
    kept = round(count * strength)
    return np.arange(count) if kept == count else np.sort(stream.permutation(count)[:kept])


def deal_rest(owner: Ints, clients: int, stream: Stream) -> Ints:
    """Owners after the rows of nobody (-1) were dealt at random, equally many to each, the last few to the smallest clients.

    >>> np.bincount(deal_rest(np.array([0, 0, -1, 1, 1, -1, -1, -1]), 3, Stream(0, "demo"))).tolist()
    [3, 3, 2]
    """
    loose = np.flatnonzero(owner < 0)
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    smallest = substream(stream, 0).permutation(clients)
    smallest = smallest[np.argsort(sizes[smallest], kind="stable")]
    shares = np.full(clients, len(loose) // clients)
    shares[smallest[: len(loose) % clients]] += 1
    result = owner.copy()
    result[loose[substream(stream, 1).permutation(len(loose))]] = np.repeat(np.arange(clients), shares)
    return result


def equal_parts(count: int, clients: int, start: int = 0) -> Ints:
    """The clients of ``count`` ordered rows cut into equal runs, one a client; those from ``start`` on get what is left over.

    >>> equal_parts(7, 3).tolist(), equal_parts(7, 3, start=2).tolist()
    ([0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 2])
    """
    sizes = np.full(clients, count // clients)
    sizes[(start + np.arange(count % clients)) % clients] += 1
    return np.repeat(np.arange(clients), sizes)


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
    from scipy.special import gammaincinv

    # Beyond these ends the shares are one-hot, or equal, to the last bit that a float has.
    alpha = min(max(alpha, 1e-12), 1e15)
    # By inverse CDF and not by rejection: for one stream every number moves continuously with alpha, and a search of alpha
    # (skew/target.py) can come as near to a level as it likes.
    uniform = np.maximum(generator.random(shape), 2.0**-60)
    logs: Floats = np.log(gammaincinv(alpha + 1, uniform)) - generator.standard_exponential(shape) / alpha
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
