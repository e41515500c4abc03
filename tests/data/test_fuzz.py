"""Every reader on damaged files: it reads them or rejects them in one line, quickly and without a warning."""

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from fedskew.core.errors import FedskewError

pytest.importorskip("pyarrow")
_spec = importlib.util.spec_from_file_location("mutants", Path(__file__).with_name("mutants.py"))
assert _spec is not None
assert _spec.loader is not None
mutants = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutants)


@pytest.fixture(params=mutants.READERS)
def reader(request: pytest.FixtureRequest, data_root: Path) -> tuple[Path, Callable[[], Any]]:
    return data_root, mutants.prepare(request.param, data_root)


def refusal(read: Callable[[], Any]) -> str:
    """Return the error message, or nothing if the file is read."""
    try:
        read()
    except FedskewError as refused:
        return str(refused)
    return ""


@seed(0)
@settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(number=st.integers(0, 2**32))
def test_a_damaged_file_is_read_or_refused(
    reader: tuple[Path, Callable[[], Any]], number: int
) -> None:
    place, read = reader
    with mutants.damaged(place, random.Random(number)):
        line = refusal(read)
    assert "\n" not in line
    assert len(line) < 2_000


def test_the_good_files_are_read(reader: tuple[Path, Callable[[], Any]]) -> None:
    reader[1]()
