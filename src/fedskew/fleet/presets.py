"""Fleets by name: machines that are all alike, and machines that are not."""

from typing import Annotated, TypeAlias, Unpack

import numpy as np

from fedskew.core.registry import AtLeastOne, Bounds, NonNegative, PartialShare, Positive
from fedskew.core.streams import Ints
from fedskew.fleet.availability import DAY, Windows
from fedskew.fleet.machines import Fleet, Machines, Rules, preset, shares

Speed: TypeAlias = Annotated[float, Positive]
Latency: TypeAlias = Annotated[float, NonNegative]
Overhead: TypeAlias = Annotated[float, NonNegative]
Dropout: TypeAlias = Annotated[float, PartialShare]


def _unlike(
    clients: Ints,
    seed: int,
    slow: float,
    rows_per_second: float,
    seconds_per_step: float,
    down: float,
    up: float,
    latency: float,
    dropout: float,
) -> Machines:
    """Machines up to ``slow`` times worse than the given one, log-uniformly; computers and lines are drawn apart."""
    computer = slow ** -shares(seed, "fleet computer", clients)
    line = slow ** -shares(seed, "fleet line", clients)
    # Between 0 and twice the chance, so that it is the mean; narrower where twice the chance would be more than 1.
    spread = min(dropout, 1 - dropout) * (2 * shares(seed, "fleet dropout", clients) - 1)
    steps = seconds_per_step / computer
    return Machines(rows_per_second * computer, steps, down * line, up * line, latency / line, dropout + spread)


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
    """Every client is the same machine on the same line, and always there.

    Args:
        rows_per_second: training rows a client works through in a second
        seconds_per_step: what every step takes on top of its rows, so that small batches cost more
        mbit_per_second: bandwidth of its line, both ways
        latency: seconds until a message arrives
        dropout: chance of a client to vanish during a round

    >>> uniform(3, 0, mbit_per_second=8.0).machines(np.array([1, 2])).up
    array([8., 8.])
    """
    machine = (rows_per_second, seconds_per_step, mbit_per_second, mbit_per_second, latency, dropout)
    return Fleet(clients, lambda some: Machines(*(np.full(len(some), value) for value in machine)), **rules)


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
    """Hospitals, banks, plants: few, fast, on a gigabit line and always there; ``uniform`` with other defaults.

    Args:
        rows_per_second: training rows a client works through in a second
        seconds_per_step: what every step takes on top of its rows, so that small batches cost more
        mbit_per_second: bandwidth of its line, both ways
        latency: seconds until a message arrives
        dropout: chance of a client to vanish during a round

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
    """Random computers on random lines, the worst ``slow`` times worse than the best; always there unless they drop out.

    Speed and bandwidth lie between 1/slow of the best and the best, log-uniformly and drawn apart; the latency is as many times
    longer as the line is slower, and each client has its own chance to drop out. AFL-CP assigns "varying computational
    capacities and network stability" without numbers: this is a reading, on lines that suit small models; see ``edge``.

    Args:
        slow: how many times slower than the best a client can be, 1 for all alike
        rows_per_second: training rows that the fastest client works through in a second
        seconds_per_step: what every step of the fastest client takes on top of its rows, so that small batches cost more
        mbit_per_second: bandwidth of the fastest line, both ways
        latency: seconds until a message arrives on the fastest line
        dropout: mean chance to vanish during a round; a client's own lies between 0 and twice that

    >>> fleet = mixed(1000, 0, slow=4.0)
    >>> some = fleet.machines(np.arange(1000)).rows_per_second
    >>> bool(some.min() > 250), bool(some.max() <= 1000), round(float(np.median(some)), -2)
    (True, True, 500.0)
    """
    machine = (rows_per_second, seconds_per_step, mbit_per_second, mbit_per_second, latency, dropout)
    return Fleet(clients, lambda some: _unlike(some, seed, slow, *machine), **rules)


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
    """Edge machines on lines that carry a network of some million weights in seconds; ``mixed`` with other defaults.

    The LEAF network for FEMNIST has 6.6 million weights, 26 MB each way: on the lines of ``mixed`` most clients spend minutes
    sending it and miss any deadline that their training would meet.

    Args:
        slow: how many times slower than the best a client can be, 1 for all alike
        rows_per_second: training rows that the fastest client works through in a second
        seconds_per_step: what every step of the fastest client takes on top of its rows, so that small batches cost more
        mbit_per_second: bandwidth of the fastest line, both ways
        latency: seconds until a message arrives on the fastest line
        dropout: mean chance to vanish during a round; a client's own lies between 0 and twice that

    >>> bool(edge(100, 0).machines(np.arange(100)).down.min() > 50)
    True
    """
    computer = {"slow": slow, "rows_per_second": rows_per_second, "seconds_per_step": seconds_per_step}
    line = {"mbit_per_second": mbit_per_second, "latency": latency, "dropout": dropout}
    return mixed(clients, seed, **computer, **line, **rules)


@preset("phones")
def phones(
    clients: int,
    seed: int,
    /,
    *,
    share: Annotated[float, Bounds(0, 1, above=True)] = 0.3,
    slow: Annotated[float, AtLeastOne] = 10.0,
    rows_per_second: Speed = 200.0,
    seconds_per_step: Overhead = 0.01,
    down_mbit: Speed = 50.0,
    up_mbit: Speed = 10.0,
    latency: Latency = 0.1,
    dropout: Dropout = 0.1,
    **rules: Unpack[Rules],
) -> Fleet:
    """Phones on 4G or wifi: slow, unlike, quicker to receive than to send, there for a part of the day.

    Machines are drawn as for ``mixed``, a line's two directions together. Every client has its own window, the same every day,
    that opens at a random second of it.

    Args:
        share: part of the day in which a client is there, 1 for always
        slow: how many times slower than the best a client can be, 1 for all alike
        rows_per_second: training rows that the fastest client works through in a second
        seconds_per_step: what every step of the fastest client takes on top of its rows, so that small batches cost more
        down_mbit: bandwidth of the fastest line towards the client
        up_mbit: bandwidth of the fastest line towards the server
        latency: seconds until a message arrives on the fastest line
        dropout: mean chance to vanish during a round; a client's own lies between 0 and twice that

    >>> fleet = phones(10_000, 0, share=0.25)
    >>> round(float(fleet.available(clock=0.0).mean()), 2)
    0.25
    """
    machine = (rows_per_second, seconds_per_step, down_mbit, up_mbit, latency, dropout)
    length = max(1, round(share * DAY))
    start = np.floor(DAY * shares(seed, "fleet window", np.arange(clients))).astype(np.int64)
    windows = Windows(start, np.full(clients, length)) if length < DAY else None
    return Fleet(clients, lambda some: _unlike(some, seed, slow, *machine), windows, **rules)
