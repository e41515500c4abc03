"""Row numbers and image moves drawn with tensors are those that are drawn with NumPy, to the bit."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.engine.augment import draw_moves, moves_of
from fedskew.engine.plan import Plan
from fedskew.engine.tables import move_words, row_table, stream_words

CLIENTS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=6
)


def plan_of(
    clients: list[tuple[int, int, int]], seed: int, least: int
) -> tuple[Plan, torch.Tensor, np.ndarray]:
    sizes, batch, epochs = (np.array(column) for column in zip(*clients, strict=True))
    sizes = np.maximum(sizes, least)
    numbers = 7 * np.arange(len(sizes)) + seed
    plan = Plan.draw(seed, seed % 5, numbers, sizes, np.maximum(batch, least), epochs, least)
    first = np.cumsum(sizes) - sizes
    columns = [plan.clients, first, plan.sizes, plan.batch, plan.steps, plan.steps_per_epoch]
    return plan, torch.from_numpy(np.stack(columns)), first


@settings(max_examples=60, deadline=None)
@given(CLIENTS, st.integers(0, 2**40), st.integers(1, 2), st.integers(0, 3))
def test_rows_are_those_of_the_plan(
    clients: list[tuple[int, int, int]], seed: int, least: int, more: int
):
    plan, columns, first = plan_of(clients, seed, least)
    positions, counts = plan.table()
    rows = torch.arange(int(plan.sizes.sum())) * 3 + 1
    room = (
        len(counts) + more,
        positions.shape[2] + more,
        int(plan.epochs.max()) + more,
        int(plan.sizes.max()) + more,
    )
    found, count = row_table(columns, torch.tensor(stream_words(plan, "batches")), rows, *room)
    assert (count[: len(counts)].numpy() == counts).all()
    assert not count[len(counts) :].any()
    there = counts[..., None] > 0
    expected = np.where(there, (positions + first[:, None]) * 3 + 1, 0)
    assert (
        np.where(there, found[: len(counts), :, : positions.shape[2]].numpy(), 0) == expected
    ).all()


@settings(max_examples=20, deadline=None)
@given(CLIENTS, st.integers(0, 2**40))
def test_moves_of_images_are_those_of_the_plan(clients: list[tuple[int, int, int]], seed: int):
    plan, columns, _ = plan_of(clients, seed, 1)
    expected = draw_moves("crop+flip", plan, torch.device("cpu"))
    assert expected is not None
    words = move_words(columns, torch.tensor(stream_words(plan, "augment")), *expected.shape[1:4:2])
    assert torch.equal(moves_of(words, "crop+flip"), expected)
