"""The unit in which a number is shown."""

import pytest

from fedskew.core.units import SIZES, TIMES, unit_for


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [
        (0.0, "s"),
        (119.0, "s"),
        (120.0, "min"),
        (7199.0, "min"),
        (3 * 3600.0, "h"),
        (5 * 86400.0, "days"),
    ],
)
def test_units_of_time(seconds: float, unit: str) -> None:
    assert unit_for(seconds, TIMES) == unit


@pytest.mark.parametrize(
    ("sent", "unit"), [(700, "kB"), (5 * 10**6, "MB"), (7 * 10**9, "GB"), (9 * 10**12, "TB")]
)
def test_units_of_what_was_sent(sent: int, unit: str) -> None:
    assert unit_for(sent, SIZES) == unit
