"""Clients as machines: how long a round would take in the world. Time is computed, never slept."""

from collections.abc import Callable
from typing import Annotated, TypeAlias

from fedskew.registry import NonNegative, Positive, Registry
from fedskew.streams import Floats, Ints

Fleet: TypeAlias = Callable[..., Floats]  # (rows_processed, bytes_down, bytes_up, *, options) -> seconds of each client
fleets: Registry[Fleet] = Registry("fleet", "fedskew.fleet")


@fleets.register("uniform")
def uniform(
    rows: Ints,
    bytes_down: int,
    bytes_up: int,
    /,
    *,
    rows_per_second: Annotated[float, Positive] = 1000.0,
    mbit_per_second: Annotated[float, Positive] = 20.0,
    latency: Annotated[float, NonNegative] = 0.05,
) -> Floats:
    """Every client is the same machine on the same line, and always there.

    A client takes ``latency + bits / bandwidth`` to receive, ``rows / speed`` to train and the same again to send.

    Args:
        rows_per_second: training rows a client works through in a second
        mbit_per_second: bandwidth of its line, both ways
        latency: seconds until a message arrives

    >>> import numpy as np
    >>> uniform(np.array([500]), 1_000_000, 1_000_000, mbit_per_second=8.0, latency=0.0)
    array([2.5])
    """
    bits = 8.0 * (bytes_down + bytes_up)
    return 2 * latency + rows / rows_per_second + bits / (mbit_per_second * 1e6)
