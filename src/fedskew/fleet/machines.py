"""The contract of a fleet: the machine of each client, its availability, and the deadline of the server."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, TypeAlias, TypedDict, TypeVar, get_type_hints

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Bounds, Positive, Registry
from fedskew.core.streams import Floats, Ints, bits
from fedskew.fleet.availability import Members, Windows
from fedskew.fleet.nights import Nights


@dataclass(frozen=True)
class Machines:
    """The machines and connections of some clients: one entry per client in every array."""

    rows_per_second: Floats  # training rows, in a step that is large enough
    seconds_per_step: Floats  # on top of its rows, whatever the size of the batch
    down: Floats  # Mbit/s
    up: Floats  # Mbit/s
    latency: Floats  # seconds until a message arrives
    dropout: Floats  # probability of dropping out of a round


@dataclass(frozen=True)
class Fleet:
    """The machines of all clients. ``draw`` returns those of given clients, at a cost independent of the total number.

    With a ``deadline`` the server waits at most so many seconds; with ``partial`` a client that would miss it does as
    many epochs as fit. With ``enough`` it waits only until that share of the invited clients has answered.
    """

    clients: int
    draw: Callable[[Ints], Machines]
    windows: Windows | Nights | None = None  # None: all clients are always available
    deadline: float | None = None
    partial: bool = False
    enough: float = 1.0

    def __post_init__(self) -> None:
        if self.partial and self.deadline is None:
            raise FedskewError(
                "fleet: partial=true needs a deadline to fit epochs into: add deadline=SECONDS"
            )

    def machines(self, clients: Ints) -> Machines:
        """Return the machines of these clients."""
        return self.draw(clients)

    def capacity(self, clients: Ints) -> Floats:
        """Return the speed of these clients relative to the fastest machine of the whole fleet: in (0, 1]."""
        return self.machines(clients).rows_per_second / self._fastest

    @cached_property
    def _fastest(self) -> float:
        return self.most(lambda machines: machines.rows_per_second)

    def most(self, number: Callable[[Machines], Floats]) -> float:
        """Return the largest of a number of all clients, of so many at a time that memory is bounded."""
        largest = -np.inf
        for first in range(0, self.clients, _AT_ONCE):
            some = np.arange(first, min(first + _AT_ONCE, self.clients))
            largest = max(largest, float(number(self.machines(some)).max()))
        return largest

    def available(self, clock: float, busy: Ints) -> Members:
        """Return the clients that are available at this simulated second and not ``busy``."""
        if self.windows:
            return self.windows.members(clock, busy)
        return Members(None, 0, self.clients, busy)

    def next_available(self, clock: float) -> float:
        """Return the first second from ``clock`` on at which some client is available."""
        if self.windows:
            return self.windows.next_open(clock)
        return clock


Builder: TypeAlias = Callable[..., Fleet]  # (clients, seed, /, *, options) -> Fleet
fleets: Registry[Builder] = Registry("fleet", "fedskew.fleet")


class Rules(TypedDict, total=False):
    """Options that every preset accepts beside its own, and passes to its ``Fleet``."""

    deadline: Annotated[float | None, Positive]
    partial: bool
    enough: Annotated[float, Bounds(0, 1, above=True)]


_HELP = """Args:
    deadline: most seconds that the server waits in a round, none for no limit
    partial: whether a client that would be late does as many epochs as fit (FedProx); needs a deadline
    enough: share of the invited clients for whose updates the server waits, below 1 for over-selection
"""
_DEFAULTS = {"deadline": None, "partial": False, "enough": 1.0}
_AT_ONCE = 1 << 20  # clients
F = TypeVar("F", bound=Builder)


def preset(name: str) -> Callable[[F], F]:
    """Decorator: register a builder with its ``**rules`` expanded, so that help and validation include ``Rules``."""

    def keep(build: F) -> F:
        signature = inspect.signature(build)
        own = []
        for parameter in signature.parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                own.append(parameter)
        hints = get_type_hints(Rules, include_extras=True)
        shared = []
        for key in hints:
            shared.append(
                inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[key])
            )
        build.__signature__ = signature.replace(parameters=own + shared)  # type: ignore[attr-defined]
        build.__annotations__ = {**build.__annotations__, **hints}
        build.__doc__ = inspect.cleandoc(build.__doc__ or "").replace("Args:\n", _HELP, 1)
        fleets.register(name)(build)
        return build

    return keep


def shares(seed: int, purpose: str, *path: int | Ints) -> Floats:
    """Return a number in [0, 1) for every address: that of ``Stream.uniform``, for many streams at once."""
    return (bits(seed, purpose, *path) >> np.uint64(11)).astype(np.float64) * 2.0**-53
