"""Shared by the skews: shuffles by class, Dirichlet shares, shares as whole rows, and minimum sizes."""

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints, Stream, substream
from fedskew.data.dataset import Rows
from fedskew.data.targets import IN_WORDS


def check_clients(skew: str, rows: int, clients: int, min_size: int = 1) -> None:
    """Raise an error if there are too few rows: every client needs ``min_size``."""
    if clients < 1:
        raise FedskewError(f"skew {skew}: {clients} clients, at least 1 is needed")
    if clients * min_size <= rows:
        return
    fix = "use more rows"
    if rows >= min_size:
        fix = f"use at most {rows // min_size} clients"
    if min_size > 1 and rows >= clients:
        fix += f" or min_size <= {rows // clients}"
    raise FedskewError(
        f"skew {skew}: {rows} rows are too few for {clients} clients with at least {min_size} each: {fix}"
    )


def check_labels(skew: str, y: Ints) -> None:
    """Raise an error for data with a single label where a skew is about labels."""
    if len(y) and y.min() == y.max():
        raise FedskewError(
            f"skew {skew}: the data has only 1 label, so clients cannot differ in it: use a skew by feature"
        )


def labels_of(skew: str, rows: Rows) -> Ints:
    """Return the class of every row, or the bin that stands in for it; raise an error for targets that have neither."""
    if rows.labelled:
        return rows.labels
    fix = "let bins of them stand in (bins=5), or "
    if rows.target in ("numbers", "tokens"):
        fix = ""
    raise FedskewError(
        f"skew {skew} deals out classes, and the targets are {IN_WORDS[rows.target]}: {fix}use a skew that looks at no "
        "labels (iid, quantity, natural, feature-dirichlet, vop)"
    )


def groups_of(skew: str, rows: Rows) -> Ints:
    """Return the group of every row; raise an error for data without groups."""
    if rows.group is None:
        raise FedskewError(
            f"skew {skew}: the data has no groups: name a group column, or choose another skew"
        )
    return rows.group


def placed(count: int, strength: float, stream: Stream) -> Ints:
    """Return the rows that a rule of this strength assigns, in stored order.

    With the same stream, a lower strength gives a subset of these rows.
    """
    kept = round(count * strength)
    if kept == count:
        return np.arange(count)
    return np.sort(stream.permutation(count)[:kept])


def assign_rest(owner: Ints, clients: int, stream: Stream) -> Ints:
    """Assign the rows without a client (-1) at random, equally many to each, the last few to the smallest clients.

    >>> np.bincount(assign_rest(np.array([0, 0, -1, 1, 1, -1, -1, -1]), 3, Stream(0, "demo"))).tolist()
    [3, 3, 2]
    """
    loose = np.flatnonzero(owner < 0)
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    smallest = substream(stream, 0).permutation(clients)
    smallest = smallest[np.argsort(sizes[smallest], kind="stable")]
    shares = np.full(clients, len(loose) // clients)
    shares[smallest[: len(loose) % clients]] += 1
    complete = owner.copy()
    shuffled = loose[substream(stream, 1).permutation(len(loose))]
    complete[shuffled] = np.repeat(np.arange(clients), shares)
    return complete


def equal_parts(count: int, clients: int, start: int = 0) -> Ints:
    """Return the clients of ``count`` ordered rows in equal runs; those from ``start`` on get the remainder.

    >>> equal_parts(7, 3).tolist(), equal_parts(7, 3, start=2).tolist()
    ([0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 2])
    """
    sizes = np.full(clients, count // clients)
    sizes[(start + np.arange(count % clients)) % clients] += 1
    return np.repeat(np.arange(clients), sizes)


def shuffled_by_class(y: Ints, stream: Stream) -> tuple[Ints, Ints]:
    """Return rows grouped by label and shuffled within each, and the rows of each label; empty labels are omitted."""
    order = stream.permutation(len(y))
    counts = np.bincount(y)
    # 8- and 16-bit keys sort several times faster
    narrow = y.astype(np.min_scalar_type(len(counts)))
    return order[np.argsort(narrow[order], kind="stable")], counts[counts > 0]


def log_gammas(alpha: float, shape: tuple[int, ...], generator: np.random.Generator) -> Floats:
    """Return logarithms of independent Gamma(alpha) numbers; divided by their sum, these are Dirichlet(alpha).

    For small alpha the numbers themselves all underflow to zero (a share is then 0/0). Their logarithms do not:
    Gamma(a) = Gamma(a + 1) * U^(1/a) in distribution, and -log U is exponential.
    """
    from scipy.special import gammaincinv

    # Beyond these ends the shares are exactly one-hot, or equal, in floating point.
    alpha = min(max(alpha, 1e-12), 1e15)
    # By inverse CDF and not by rejection: for one stream every number moves continuously with alpha, and a search of
    # alpha (target.py) can come arbitrarily near to a level.
    uniform = np.maximum(generator.random(shape), 2.0**-60)
    logs: Floats = (
        np.log(gammaincinv(alpha + 1, uniform)) - generator.standard_exponential(shape) / alpha
    )
    return logs


def apportion(total: int, log_weights: Floats, offset: float) -> Ints:
    """Return ``total`` rows in proportion to the weights, each count within one of its exact share.

    The interval 0 … total is divided at the cumulative shares, shifted by ``offset`` in [0, 1) and rounded down. For
    a uniform offset the mean of each count is its exact share: plain rounding would favour the same clients in every
    class.

    >>> apportion(10, np.log([0.5, 0.25, 0.25]), offset=0.5).tolist()
    [5, 3, 2]
    """
    weights = np.exp(log_weights - log_weights.max())
    ends = np.cumsum(weights)
    whole: Ints = np.minimum(np.floor(ends / ends[-1] * total + offset), total).astype(np.int64)
    return np.diff(whole, prepend=0)


def spread(limits: Ints, total: int, stream: Stream) -> Ints:
    """Divide ``total`` as evenly as the ``limits`` allow; the stream decides where the remainder goes.

    >>> spread(np.array([1, 9, 9]), 7, Stream(0, "demo")).tolist()
    [1, 3, 3]
    """
    low = 0
    high = int(limits.max())
    while low < high:  # the highest common level whose sum does not exceed the total
        middle = (low + high + 1) // 2
        if int(np.minimum(limits, middle).sum()) <= total:
            low = middle
        else:
            high = middle - 1
    shares = np.minimum(limits, low)
    above = np.flatnonzero(limits > low)
    shares[above[stream.sample(len(above), total - int(shares.sum()))]] += 1
    return shares


def at_least(sizes: Ints, min_size: int, stream: Stream) -> Ints:
    """Return sizes of the same sum, none below ``min_size``: the largest give what the small ones lack.

    >>> at_least(np.array([0, 2, 8]), 2, Stream(0, "demo")).tolist()
    [2, 2, 6]
    """
    lack = np.maximum(min_size - sizes, 0)
    return spread(sizes, int(sizes.sum() - lack.sum()), stream) + lack


def move_rows(owner: Ints, sizes: Ints, wanted: Ints, stream: Stream) -> Ints:
    """Move random rows of the clients above their target size to those below it."""
    surplus = np.maximum(sizes - wanted, 0)
    if not surplus.any():
        return owner
    # All rows of the clients that give some, client by client, shuffled within each
    giving = np.flatnonzero(surplus[owner] > 0)
    giving = giving[substream(stream, 0).permutation(len(giving))]
    giving = giving[np.argsort(owner[giving], kind="stable")]
    donors = np.flatnonzero(surplus)
    firsts = np.cumsum(sizes[donors]) - sizes[donors]
    place_at_donor = np.arange(len(giving)) - np.repeat(firsts, sizes[donors])
    moving = giving[place_at_donor < np.repeat(surplus[donors], sizes[donors])]
    moving = moving[substream(stream, 1).permutation(len(moving))]
    moved = owner.copy()
    moved[moving] = np.repeat(np.arange(len(sizes)), np.maximum(wanted - sizes, 0))
    return moved
