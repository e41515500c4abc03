"""Daily windows of availability by hand, also past midnight."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.streams import Stream
from fedskew.fleet.availability import DAY, Members, Windows

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
            assert not any(
                found.open(between).any()
                for between in np.linspace(clock, then, 20, endpoint=False)
            )
            assert then - clock <= DAY


STARTS = st.lists(
    st.one_of(st.integers(0, DAY - 1), st.sampled_from([0, 1, DAY - 1])), min_size=1, max_size=20
)
CLOCKS = st.one_of(st.floats(0, 1e7), st.integers(0, 10 * DAY).map(float))


@given(STARTS, st.integers(1, DAY - 1), st.booleans(), CLOCKS, st.data())
def test_members_are_those_with_open_windows_that_are_not_busy(
    starts: list, length: int, same: bool, clock: float, data: st.DataObject
):
    lengths = (
        np.full(len(starts), length) if same else (length + 7919 * np.arange(len(starts))) % DAY + 1
    )
    found = Windows(np.array(starts), lengths)
    busy = np.array(
        data.draw(st.lists(st.integers(0, len(starts) - 1), unique=True)), dtype=np.int64
    )
    expected = set(np.flatnonzero(found.open(clock)).tolist()) - set(busy.tolist())
    members = found.members(clock, busy)
    assert len(members) == len(expected)
    assert set(members.numbers().tolist()) == expected
    assert members[np.arange(len(members))[::-1]].tolist() == members.numbers()[::-1].tolist()


@given(STARTS, st.integers(1, DAY - 1), CLOCKS)
def test_windows_open_next_when_the_first_of_all_does(starts: list, length: int, clock: float):
    found = Windows(np.array(starts), np.full(len(starts), length))
    now = clock % DAY
    ahead = min(start if start > now else start + DAY for start in starts)
    assert found.next_open(clock) == (clock if found.open(clock).any() else clock - now + ahead)


def test_all_clients_but_the_busy_ones_keep_their_order():
    members = Members(None, 0, 8, np.array([6, 0, 3]))
    assert members.numbers().tolist() == [1, 2, 4, 5, 7]


def test_every_available_client_has_the_same_chance():
    """Check draws by position among the open windows against the definition, a mask over all clients."""
    draw = np.random.default_rng(1)
    found = Windows(draw.integers(0, DAY, 60), np.full(60, DAY // 3))
    clock, busy, draws, count = 1000.5, np.array([2, 3, 5, 7, 11, 13]), 6000, 4
    mask = found.open(clock)
    mask[busy] = False
    members = found.members(clock, busy)
    hits = np.zeros(60)
    for seed in range(draws):
        hits[members[Stream(seed, "select").sample(len(members), count)]] += 1
    assert hits[~mask].sum() == 0
    expected, free = draws * count / mask.sum(), int(mask.sum())
    assert 15 < free < 20
    # Chi-square with 14 to 19 degrees of freedom, 0.1 %; draws without replacement vary a little less.
    assert ((hits[mask] - expected) ** 2 / expected).sum() < 43.8
