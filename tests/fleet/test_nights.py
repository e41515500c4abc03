"""Nights in time zones against windows that are written out, and orders against their inverse."""

import numpy as np
import pytest

from fedskew.fleet.availability import DAY, Windows
from fedskew.fleet.nights import HOUR, Nights, Scrambled

NOBODY = np.zeros(0, dtype=np.int64)


def nights(clients: int, zones: int, length: int, first: int = 22 * HOUR) -> Nights:
    return Nights(Scrambled.draw(clients, seed=3), zones, first, length)


@pytest.mark.parametrize("count", [1, 2, 7, 24, 1000, 86_400, 100_003])
def test_an_order_has_every_number_once_and_knows_their_places(count: int):
    order = Scrambled.draw(count, seed=1)
    everybody = order[np.arange(count)]
    assert len(order) == count
    np.testing.assert_array_equal(np.sort(everybody), np.arange(count))
    np.testing.assert_array_equal(order.place(everybody), np.arange(count))


def test_a_billion_clients_are_numbers_and_no_arrays():
    order = Scrambled.draw(10**9, seed=0)
    some = np.array([0, 17, 10**9 - 1])
    np.testing.assert_array_equal(order.place(order[some]), some)


@pytest.mark.parametrize("clients", [1, 5, 24, 997])
@pytest.mark.parametrize("zones", [1, 3, 24])
@pytest.mark.parametrize("length", [1, 2 * HOUR, 7 * HOUR + 13, 23 * HOUR])
def test_those_who_are_there_are_those_whose_windows_are_open(
    clients: int, zones: int, length: int
):
    here = nights(clients, zones, length)
    start = here.openings(np.arange(clients))
    written = Windows(start, np.full(clients, length))
    draw = np.random.default_rng(0)
    clocks = [0.0, float(start[0]), float(start[0]) + length, *draw.uniform(0, 4 * DAY, 40)]
    for clock in clocks:
        found = np.sort(here.members(clock, NOBODY).numbers())
        np.testing.assert_array_equal(found, np.flatnonzero(written.open(clock)))
        np.testing.assert_array_equal(here.open(clock), written.open(clock))
        assert here.next_open(clock) == written.next_open(clock)
        busy = draw.permutation(clients)[: clients // 2]
        free = np.sort(here.members(clock, busy).numbers())
        np.testing.assert_array_equal(free, np.setdiff1d(found, busy))


def test_zones_have_equally_many_clients_and_open_in_their_hour():
    here = nights(2400, 24, HOUR)
    hours = here.openings(np.arange(2400)) // HOUR
    assert np.bincount(hours, minlength=24).tolist() == [100] * 24
    country = nights(600, 2, HOUR).openings(np.arange(600)) // HOUR
    assert np.bincount(country, minlength=24)[[22, 23]].tolist() == [300, 300]
