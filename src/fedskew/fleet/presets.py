"""Fleets by name, with identical or with heterogeneous machines."""

from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, TypeAlias, Unpack

import numpy as np

from fedskew.core.registry import AtLeastOne, Bounds, NonNegative, PartialShare, Positive
from fedskew.core.streams import Floats, Ints
from fedskew.fleet.ai_benchmark import measured_phones
from fedskew.fleet.availability import DAY, Windows
from fedskew.fleet.machines import Fleet, Machines, Rules, preset, shares
from fedskew.fleet.nights import HOUR, Nights, Scrambled

EVENING = 22 * HOUR  # when phones of the first time zone begin to charge

Speed: TypeAlias = Annotated[float, Positive]
Latency: TypeAlias = Annotated[float, NonNegative]
Overhead: TypeAlias = Annotated[float, NonNegative]
Dropout: TypeAlias = Annotated[float, PartialShare]


class _Machine(NamedTuple):
    """One machine and its connection, see ``Machines``."""

    rows_per_second: float
    seconds_per_step: float
    down: float
    up: float
    latency: float
    dropout: float


def _heterogeneous(clients: Ints, seed: int, slow: float, best: _Machine) -> Machines:
    """Return machines up to ``slow`` times worse than the best, log-uniformly; speed and bandwidth independent."""
    computer = slow ** -shares(seed, "fleet computer", clients)
    line = slow ** -shares(seed, "fleet line", clients)
    return Machines(
        rows_per_second=best.rows_per_second * computer,
        seconds_per_step=best.seconds_per_step / computer,
        down=best.down * line,
        up=best.up * line,
        latency=best.latency / line,
        dropout=_dropout(clients, seed, best.dropout),
    )


def _dropout(clients: Ints, seed: int, mean: float) -> Floats:
    """Return each client's probability: between 0 and twice the mean; narrower where that would be more than 1."""
    widest = min(mean, 1 - mean)
    spread = widest * (2 * shares(seed, "fleet dropout", clients) - 1)
    return np.asarray(mean + spread)


@preset("uniform")
def uniform(
    clients: int,
    seed: int,
    /,
    *,
    rows_per_second: Speed = 1000.0,
    seconds_per_step: Overhead = 0.002,
    mbit_per_second: Speed = 20.0,
    latency: Latency = 0.05,
    dropout: Dropout = 0.0,
    **rules: Unpack[Rules],
) -> Fleet:
    """Identical machines and connections, always available.

    Args:
        rows_per_second: training rows per second of a client
        seconds_per_step: time of every step beside that of its rows, so that small batches cost more
        mbit_per_second: bandwidth, both ways
        latency: seconds until a message arrives
        dropout: probability of a client to drop out of a round

    >>> uniform(3, 0, mbit_per_second=8.0).machines(np.array([1, 2])).up
    array([8., 8.])
    """
    machine = _Machine(
        rows_per_second,
        seconds_per_step,
        mbit_per_second,
        mbit_per_second,
        latency,
        dropout,
    )

    @lru_cache(maxsize=1)
    def equal(count: int) -> Machines:
        return Machines(*(np.broadcast_to(value, count) for value in machine))

    return Fleet(clients, lambda some: equal(len(some)), **rules)


@preset("silos")
def silos(
    clients: int,
    seed: int,
    /,
    *,
    rows_per_second: Speed = 10_000.0,
    seconds_per_step: Overhead = 0.001,
    mbit_per_second: Speed = 1000.0,
    latency: Latency = 0.01,
    dropout: Dropout = 0.0,
    **rules: Unpack[Rules],
) -> Fleet:
    """Hospitals, banks, plants: few and fast, with gigabit connections, always available.

    Args:
        rows_per_second: training rows per second of a client
        seconds_per_step: time of every step beside that of its rows, so that small batches cost more
        mbit_per_second: bandwidth, both ways
        latency: seconds until a message arrives
        dropout: probability of a client to drop out of a round

    >>> silos(4, 0).machines(np.array([3])).down
    array([1000.])
    """
    computer = {"rows_per_second": rows_per_second, "seconds_per_step": seconds_per_step}
    line = {"mbit_per_second": mbit_per_second, "latency": latency, "dropout": dropout}
    return uniform(clients, seed, **computer, **line, **rules)


@preset("mixed")
def mixed(
    clients: int,
    seed: int,
    /,
    *,
    slow: Annotated[float, AtLeastOne] = 10.0,
    rows_per_second: Speed = 1000.0,
    seconds_per_step: Overhead = 0.002,
    mbit_per_second: Speed = 20.0,
    latency: Latency = 0.05,
    dropout: Dropout = 0.0,
    **rules: Unpack[Rules],
) -> Fleet:
    """Heterogeneous machines and connections, the worst ``slow`` times worse than the best; always available.

    Speed and bandwidth are between 1/slow of the best and the best, log-uniform and independent; the latency grows in
    proportion as the bandwidth falls, and each client has its own drop-out probability. AFL-CP assigns "varying
    computational capacities and network stability" without numbers: this is a reading, with bandwidths for small
    models; see ``edge``.

    Args:
        slow: how many times slower than the best a client can be, 1 for identical machines
        rows_per_second: training rows per second of the fastest client
        seconds_per_step: time of every step of the fastest client beside that of its rows, so that small batches cost
            more
        mbit_per_second: highest bandwidth, both ways
        latency: seconds until a message arrives at the highest bandwidth
        dropout: mean probability of dropping out of a round; a client's own is between 0 and twice that

    >>> fleet = mixed(1000, 0, slow=4.0)
    >>> some = fleet.machines(np.arange(1000)).rows_per_second
    >>> bool(some.min() > 250), bool(some.max() <= 1000), round(float(np.median(some)), -2)
    (True, True, 500.0)
    """
    best = _Machine(
        rows_per_second,
        seconds_per_step,
        mbit_per_second,
        mbit_per_second,
        latency,
        dropout,
    )
    return Fleet(clients, lambda some: _heterogeneous(some, seed, slow, best), **rules)


@preset("edge")
def edge(
    clients: int,
    seed: int,
    /,
    *,
    slow: Annotated[float, AtLeastOne] = 10.0,
    rows_per_second: Speed = 1000.0,
    seconds_per_step: Overhead = 0.002,
    mbit_per_second: Speed = 500.0,
    latency: Latency = 0.02,
    dropout: Dropout = 0.1,
    **rules: Unpack[Rules],
) -> Fleet:
    """Edge devices with the bandwidth for some million weights in seconds; ``mixed`` with other defaults.

    The LEAF network for FEMNIST has 6.6 million weights, 26 MB each way: with the bandwidths of ``mixed`` most
    clients spend minutes sending it and miss any deadline that their training would meet.

    Args:
        slow: how many times slower than the best a client can be, 1 for identical machines
        rows_per_second: training rows per second of the fastest client
        seconds_per_step: time of every step of the fastest client beside that of its rows, so that small batches cost
            more
        mbit_per_second: highest bandwidth, both ways
        latency: seconds until a message arrives at the highest bandwidth
        dropout: mean probability of dropping out of a round; a client's own is between 0 and twice that

    >>> bool(edge(100, 0).machines(np.arange(100)).down.min() > 50)
    True
    """
    computer = {
        "slow": slow,
        "rows_per_second": rows_per_second,
        "seconds_per_step": seconds_per_step,
    }
    line = {"mbit_per_second": mbit_per_second, "latency": latency, "dropout": dropout}
    return mixed(clients, seed, **computer, **line, **rules)


@preset("phones")
def phones(
    clients: int,
    seed: int,
    /,
    *,
    source: Literal["made-up", "ai-benchmark"] = "made-up",
    share: Annotated[float, Bounds(0, 1, above=True)] = 0.3,
    zones: Annotated[int, Bounds(1, 24)] = 24,
    slow: Annotated[float, AtLeastOne] = 10.0,
    rows_per_second: Speed = 200.0,
    seconds_per_step: Overhead = 0.01,
    down_mbit: Speed = 50.0,
    up_mbit: Speed = 10.0,
    latency: Latency = 0.1,
    dropout: Dropout = 0.1,
    **rules: Unpack[Rules],
) -> Fleet:
    """Phones on 4G or Wi-Fi: slow, heterogeneous, faster to receive than to send, available for a part of the day.

    Machines are drawn as for ``mixed``, with one draw for both directions. Every client has its own window, the same
    every day, that opens at a random second.

    With ``source=ai-benchmark`` every client is one of the 307 phones of AI-Benchmark, all equally frequent, and as
    fast in proportion to the fastest as its score; its line is drawn from one of FLASH's 19 network profiles. It is
    available when it charges at night: windows open in the hour from 22:00 of each time zone. Nothing is stored per
    client.

    Args:
        source: made-up numbers, or the measured ones of the files below the data folder (ai-benchmark)
        zones: with source=ai-benchmark, in how many adjacent time zones clients live, equally many in each
        share: share of the day in which a client is available, 1 for always
        slow: how many times slower than the best a client can be, 1 for identical machines; made-up only
        rows_per_second: training rows per second of the fastest client
        seconds_per_step: time of every step of the fastest client beside that of its rows, so that small batches cost
            more
        down_mbit: highest bandwidth towards the client; made-up only
        up_mbit: highest bandwidth towards the server; made-up only
        latency: seconds until a message arrives at the highest bandwidth
        dropout: mean probability of dropping out of a round; a client's own is between 0 and twice that

    >>> fleet = phones(10_000, 0, share=0.25)
    >>> round(len(fleet.available(0.0, busy=np.zeros(0, dtype=np.int64))) / 10_000, 2)
    0.25
    """
    best = _Machine(rows_per_second, seconds_per_step, down_mbit, up_mbit, latency, dropout)
    length = max(1, round(share * DAY))
    if source == "ai-benchmark":
        return _measured(clients, seed, best, zones, length, rules)
    start = np.floor(DAY * shares(seed, "fleet window", np.arange(clients))).astype(np.int64)
    windows = None
    if length < DAY:
        windows = Windows(start, np.broadcast_to(length, clients))
    return Fleet(clients, lambda some: _heterogeneous(some, seed, slow, best), windows, **rules)


def _measured(
    clients: int, seed: int, best: _Machine, zones: int, length: int, rules: Rules
) -> Fleet:
    """Return the fleet of measured phones, available for so many seconds of each night."""
    known = measured_phones()

    def draw(some: Ints) -> Machines:
        speed = known.speed(some, seed)
        down, up = known.mbit(some, seed)
        return Machines(
            rows_per_second=best.rows_per_second * speed,
            seconds_per_step=best.seconds_per_step / speed,
            down=down,
            up=up,
            latency=np.full(len(some), best.latency),
            dropout=_dropout(some, seed, best.dropout),
        )

    windows = None
    if length < DAY:
        windows = Nights(Scrambled.draw(clients, seed), zones, EVENING, length)
    return Fleet(clients, draw, windows, **rules)
