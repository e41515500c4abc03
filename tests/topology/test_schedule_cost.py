"""What is left of a schedule: steps with enough rows or clients, samples before a deadline, and visits, by hand."""

import numpy as np
import pytest

from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.topology.schedule_cost import (
    ScheduleCost,
    before,
    first_samples,
    per_client,
    request_bytes,
    with_rows,
    with_several_clients,
)


def schedule() -> SampleSchedule:
    """Return three steps, of one, three and two samples; client 4 is visited first, then 2, then 7."""
    return SampleSchedule(
        rows=np.array([10, 11, 12, 13, 14, 15]),
        clients=np.array([4, 2, 2, 7, 7, 7]),
        ends=np.array([1, 4, 6]),
        visits=np.array([1, 3, 6]),
    )


def test_steps_with_too_few_rows_are_left_out_with_their_visits() -> None:
    kept = with_rows(schedule(), 2)
    assert kept.rows.tolist() == [11, 12, 13, 14, 15]
    assert kept.clients.tolist() == [2, 2, 7, 7, 7]
    assert kept.ends.tolist() == [3, 5]
    assert kept.visits.tolist() == [2, 5]  # the visit to client 4 has no sample any more
    assert with_rows(schedule(), 1).rows.tolist() == [10, 11, 12, 13, 14, 15]
    assert len(with_rows(schedule(), 4).rows) == 0


def test_steps_of_one_client_are_left_out() -> None:
    kept = with_several_clients(schedule())
    assert (kept.rows.tolist(), kept.ends.tolist()) == ([11, 12, 13], [3])
    nothing = with_rows(schedule(), 9)
    assert with_several_clients(nothing) is nothing


def test_the_first_samples() -> None:
    first = first_samples(schedule(), 4)
    assert first.rows.tolist() == [10, 11, 12, 13]
    assert (first.ends.tolist(), first.visits.tolist()) == ([1, 4], [1, 3])


@pytest.mark.parametrize(
    ("deadline", "count"), [(None, 3), (0.5, 0), (1.0, 1), (2.5, 2), (3.0, 3), (9.0, 3)]
)
def test_times_before_a_deadline(deadline: float | None, count: int) -> None:
    assert before(deadline, np.array([1.0, 2.0, 3.0])) == count


@pytest.mark.parametrize(("visits", "length"), [([0, 1], 6.0), ([2, 1], 2.0), ([0, 0], 6.0)])
def test_the_samples_of_a_visit(visits: list[int], length: float) -> None:
    none = np.zeros(2)
    zero = np.zeros(2, dtype=np.int64)
    cost = ScheduleCost(schedule(), 1.0, np.array(visits), none, none, 0, zero, zero)
    assert cost.run_length == length


def test_values_of_each_client() -> None:
    found = per_client(np.array([2, 0, 2]), np.array([1.0, 2.0, 4.0]), 4)
    assert found.tolist() == [2.0, 0.0, 5.0, 0.0]


def test_a_request_names_a_label_only_where_there_is_one() -> None:
    assert (request_bytes("none"), request_bytes("counts"), request_bytes("shares")) == (0, 8, 8)
