"""The uniform fleet by hand."""

import numpy as np
import pytest

from fedskew.fleet.uniform import fleets, uniform


def test_by_hand():
    rows = np.array([0, 500, 2000])
    seconds = uniform(rows, 3_000_000, 1_000_000, rows_per_second=250.0, mbit_per_second=16.0, latency=0.25)
    assert seconds.tolist() == [0.5 + 2.0, 0.5 + 2.0 + 2.0, 0.5 + 2.0 + 8.0]


def test_defaults():
    assert uniform(np.array([100]), 0, 0).tolist() == pytest.approx([0.1 + 0.1])


def test_it_is_registered_with_its_options():
    choice = fleets.choose("uniform:latency=0,mbit_per_second=8")
    assert fleets.get(choice.name)(np.array([0]), 500_000, 500_000, **choice.options).tolist() == [1.0]
    assert fleets.options("uniform").keys() == {"rows_per_second", "mbit_per_second", "latency"}
