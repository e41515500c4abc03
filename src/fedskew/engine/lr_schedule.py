"""Learning rates over rounds: the factor on the local learning rate in round t of T."""

import math
from collections.abc import Callable
from typing import Annotated, TypeAlias

from fedskew.core.registry import AtLeastOne, Positive, Registry, Share

Schedule: TypeAlias = Callable[..., float]
schedules: Registry[Schedule] = Registry("schedule", "fedskew.engine")


@schedules.register("constant")
def constant(round: int, rounds: int, /) -> float:
    """Keep the learning rate constant."""
    return 1.0


@schedules.register("cosine")
def cosine(round: int, rounds: int, /, *, floor: Annotated[float, Share] = 0.0) -> float:
    """Decrease along half a cosine from 1 in the first round to the floor after the last.

    Args:
        floor: the factor it falls to

    >>> cosine(0, 10), round(cosine(5, 10), 3)
    (1.0, 0.5)
    """
    return floor + (1 - floor) * (1 + math.cos(math.pi * round / rounds)) / 2


@schedules.register("step")
def step(
    round: int,
    rounds: int,
    /,
    *,
    every: Annotated[int, AtLeastOne] = 10,
    factor: Annotated[float, Positive] = 0.5,
) -> float:
    """Multiply by a factor after every so many rounds.

    Args:
        every: rounds between two changes
        factor: what the rate is multiplied by

    >>> step(19, 100, every=10, factor=0.5)
    0.5
    """
    return factor ** (round // every)


@schedules.register("exponential")
def exponential(round: int, rounds: int, /, *, factor: Annotated[float, Positive] = 0.99) -> float:
    """Multiply by a factor after every round.

    Args:
        factor: what the rate is multiplied by

    >>> exponential(2, 100, factor=0.5)
    0.25
    """
    return factor**round
