"""Daily windows of availability by hand, also past midnight."""

import numpy as np
import pytest

from fedskew.fleet.availability import DAY, Windows

HOUR = 3600


def windows(*hours: tuple[int, int]) -> Windows:
    start, length = np.array(hours).T * HOUR
    return Windows(start, length)


def test_open_by_hand():
    found = windows((8, 4), (22, 8), (0, 24))
    for hour, wanted in {
        0: (False, True, True),
        5.99: (False, True, True),
        6: (False, False, True),
        8: (True, False, True),
        11.99: (True, False, True),
        12: (False, False, True),
        21.99: (False, False, True),
        22: (False, True, True),
    }.items():
        for day in (0, 1, 400):
            assert tuple(found.open(day * DAY + hour * HOUR).tolist()) == wanted


@pytest.mark.parametrize(
    ("clock", "wanted"),
    [
        (0, 0),
        (2, 8),  # the second one closes at 2 in the night
        (7.5, 8),
        (8, 8),
        (9.25, 9.25),
        (10, 20),
        (21, 21),
        (25, 25),
        (26, 32),
        (24 * 1000 + 3, 24 * 1000 + 8),
    ],
)
def test_next_open_by_hand(clock: float, wanted: float):
    assert windows((8, 2), (20, 6)).next_open(clock * HOUR) == wanted * HOUR


def test_the_next_day():
    assert windows((8, 2)).next_open(10.0 * HOUR) == 32 * HOUR


def test_somebody_is_there_when_it_says_so_however_odd_the_clock():
    draw = np.random.default_rng(0)
    for _ in range(500):
        count = int(draw.integers(1, 4))
        found = Windows(draw.integers(0, DAY, count), draw.integers(1, 50, count))
        clock = float(draw.uniform(0, 1e9))
        then = found.next_open(clock)
        assert then >= clock
        assert found.open(then).any()
        # The first such second: no client is available just before, and none in between.
        if then > clock:
            assert not found.open(np.nextafter(then, 0)).any()
            assert not any(found.open(between).any() for between in np.linspace(clock, then, 20, endpoint=False))
            assert then - clock <= DAY
