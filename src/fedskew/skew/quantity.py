"""Clients that differ in their number of rows, and in nothing else."""

from typing import Annotated, Literal

import numpy as np

from fedskew.core.registry import AtLeastOne, NonNegative, Positive
from fedskew.core.streams import Stream, substream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.assignment import apportion, at_least, check_clients, log_gammas
from fedskew.skew.skews import skews


@skews.register("quantity")
def quantity(
    rows: Rows,
    clients: int,
    stream: Stream,
    /,
    *,
    alpha: Annotated[float, Positive] = 0.5,
    min_size: Annotated[int, AtLeastOne] = 1,
    law: Literal["dirichlet", "lognormal"] = "dirichlet",
    sigma: Annotated[float, NonNegative] = 1.0,
) -> Partition:
    """Quantity skew: the sizes are Dirichlet(alpha), the rows shuffled (NIID-Bench).

    With ``law=lognormal`` the sizes are in proportion to exp(sigma * Z), Z standard normal: a few large clients and
    many small ones, as user counts often are. Clients below ``min_size`` get rows of the largest.

    Args:
        alpha: with law=dirichlet, small for very different sizes, large for equal ones
        min_size: minimum rows of a client
        law: distribution of the sizes
        sigma: with law=lognormal, 0 for equal sizes, large for very different ones
    """
    check_clients("quantity", len(rows), clients, min_size)
    generator = substream(stream, 0).generator()
    if law == "dirichlet":
        logs = log_gammas(alpha, (clients,), generator)
    else:
        logs = sigma * generator.standard_normal(clients)
    sizes = at_least(apportion(len(rows), logs, generator.random()), min_size, substream(stream, 1))
    owner = np.empty(len(rows), dtype=np.int64)
    owner[substream(stream, 2).permutation(len(rows))] = np.repeat(np.arange(clients), sizes)
    return Partition.from_owner(owner, clients)
