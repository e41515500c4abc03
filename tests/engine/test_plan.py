"""The plan: every client's shuffles, batches and last batches, independent of the other clients."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.core.streams import bits
from fedskew.engine.plan import Plan

CLIENTS, SIZES = np.array([4, 11, 2, 900_000]), np.array([9, 4, 1, 7])
BATCH, EPOCHS = np.array([4, 4, 8, 2]), np.array([2, 1, 3, 2])


def draw(
    seed: int = 0, round: int = 0, order: tuple[int, ...] = (0, 1, 2, 3), least: int = 1
) -> Plan:
    pick = np.array(order)
    return Plan.draw(seed, round, CLIENTS[pick], SIZES[pick], BATCH[pick], EPOCHS[pick], least)


def visits(plan: Plan, client: int) -> list[int]:
    """Return the positions that a client uses, from the table, without padding."""
    positions, counts = plan.table()
    i = plan.clients.tolist().index(client)
    return [
        p for step in range(len(counts)) for p in positions[step, i, : counts[step, i]].tolist()
    ]


def test_every_epoch_is_a_permutation_of_the_clients_rows():
    plan = draw()
    for client, size, epochs in zip(CLIENTS, SIZES, EPOCHS, strict=True):
        seen = np.array(visits(plan, client)).reshape(epochs, size)
        assert (np.sort(seen, axis=1) == np.arange(size)).all()
    first, second = np.array(visits(plan, 4)).reshape(2, 9)
    assert not np.array_equal(first, second)  # an epoch has its own shuffle
    assert not np.array_equal(first, np.arange(9))


def test_steps_and_counts_by_hand():
    plan = draw()
    _, counts = plan.table()
    assert plan.steps.tolist() == [6, 1, 3, 8]
    assert counts.T.tolist() == [
        [4, 4, 1, 4, 4, 1, 0, 0],
        [4, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [2, 2, 2, 1, 2, 2, 2, 1],
    ]


def test_a_batch_smaller_than_least_is_left_out():
    plan = Plan.draw(0, 0, CLIENTS, np.array([9, 4, 2, 7]), BATCH, EPOCHS, least=2)
    _, counts = plan.table()
    assert plan.steps.tolist() == [4, 1, 3, 6]
    assert counts.T.tolist() == [
        [4, 4, 4, 4, 0, 0],
        [4, 0, 0, 0, 0, 0],
        [2, 2, 2, 0, 0, 0],
        [2, 2, 2, 2, 2, 2],
    ]
    # The second epoch starts with its own shuffle, not with the row that the first one left out.
    full, short = draw().table()[0], plan.table()[0]
    assert short[2, 0, :4].tolist() == full[3, 0, :4].tolist()


def test_padding_repeats_the_first_row_of_the_batch():
    positions, counts = draw().table()
    assert positions.shape == (8, 4, 4)  # batches are never wider than the largest that is used
    for step, client in np.argwhere(counts > 0):
        batch, count = positions[step, client], counts[step, client]
        assert len(set(batch[:count])) == count
        assert set(batch[count:]) <= {batch[0]}
    assert (positions < SIZES[:, None]).all()
    assert (positions >= 0).all()


def test_first_batches_are_those_of_the_table():
    plan = draw()
    first, sizes = plan.first()
    positions, counts = plan.table()
    assert sizes.tolist() == counts[0].tolist()
    assert np.array_equal(first, positions[0])  # padding too


@pytest.mark.parametrize("order", [(3, 1, 0, 2), (2, 0), (1,)])
def test_a_client_does_not_depend_on_the_others(order: tuple[int, ...]):
    whole, alone, cut = draw(), draw(order=order), draw().only(np.array(order))
    assert cut.clients.tolist() == CLIENTS[list(order)].tolist()
    for name in ("sizes", "batch", "epochs", "order", "offsets", "steps"):
        assert np.array_equal(getattr(cut, name), getattr(alone, name)), name
    for client in cut.clients:
        assert visits(cut, client) == visits(whole, client)


def test_the_address_decides_the_bits():
    base, size = draw(seed=7, round=3), np.array([50])
    assert (base.seed, base.round) == (7, 3)
    assert np.array_equal(base.order, draw(seed=7, round=3).order)
    assert not np.array_equal(base.order, draw(seed=8, round=3).order)
    assert not np.array_equal(base.order, draw(seed=7, round=4).order)
    one, other = (Plan.draw(0, 0, np.array([c]), size, size, np.array([1])).order for c in (0, 1))
    assert not np.array_equal(one, other)


def test_a_probe_draws_batches_of_its_own():
    training = draw()
    probe = replace(training, purpose="probe")
    assert probe.streams("probe") != probe.streams("batches")
    assert not np.array_equal(probe.order[:9], training.order[:9])
    assert probe.order.tolist() == plainly_shuffled(probe)


def test_plans_of_different_clients_are_one_plan_whatever_their_epochs():
    numbers = {"mu": np.array([0.1, 0.2, 0.3, 0.4])}
    whole = replace(draw(), numbers=numbers)
    parts = [whole.only(np.array(members)) for members in ([0], [1, 2], [3])]
    joined = Plan.together(parts)
    for name in ("clients", "sizes", "batch", "epochs", "order", "offsets", "steps"):
        assert np.array_equal(getattr(joined, name), getattr(whole, name)), name
    assert joined.epochs.tolist() == [2, 1, 3, 2]
    assert joined.numbers["mu"].tolist() == [0.1, 0.2, 0.3, 0.4]
    later = [replace(part, round=number) for number, part in enumerate(parts, 5)]
    assert Plan.together(later).round == 5  # what they share is that of the first


def test_first_positions_are_uniform():
    clients, size = 6000, 6
    ones = np.ones(clients, dtype=np.int64)
    order = Plan.draw(1, 0, np.arange(clients), size * ones, ones, ones).order.reshape(
        clients, size
    )
    for slot in (0, size - 1):
        counts = np.bincount(order[:, slot], minlength=size)
        assert (
            (counts - 1000) ** 2 / 1000
        ).sum() < 20.5  # chi-square, 5 degrees of freedom: one seed in a thousand is above
    follows = np.bincount(order[:, 0] * size + order[:, 1], minlength=size * size).reshape(
        size, size
    )
    assert (follows.diagonal() == 0).all()
    # 29 degrees of freedom
    assert ((follows[~np.eye(size, dtype=bool)] - 200) ** 2 / 200).sum() < 58.3


def plainly_shuffled(plan: Plan) -> list[int]:
    """Return the definition: positions by the high 40 bits of their hashes, ascending where these are equal."""
    found = []
    for client, size, epochs in zip(
        plan.clients.tolist(), plan.sizes.tolist(), plan.epochs.tolist(), strict=True
    ):
        for epoch in range(epochs):
            words = bits(
                plan.seed, plan.purpose, plan.round, client, epoch, np.arange(size)
            ).tolist()
            found += sorted(range(size), key=lambda position: words[position] >> 24)
    return found


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 40), st.integers(1, 3)), max_size=12),
    st.integers(0, 2**63 - 1),
    st.integers(0, 5),
    st.booleans(),
)
def test_the_order_is_the_plain_definition(clients: list, seed: int, round: int, large: bool):
    numbers, sizes, epochs = np.array(clients, dtype=np.int64).reshape(-1, 3).T
    plan = Plan(seed, round, numbers, sizes, np.ones_like(sizes), epochs)
    with pytest.MonkeyPatch.context() as patch:
        if large:  # as for clients with more rows than a key has room for
            patch.setattr("fedskew.engine.plan._LARGEST", 1)
        order = plan.order
    assert order.dtype == np.int64
    assert order.tolist() == plainly_shuffled(plan)


def test_rows_with_equal_hashes_stay_in_their_order(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "fedskew.engine.plan.longer", lambda words, part: np.zeros(len(words), dtype=np.uint64)
    )
    assert draw(order=(0, 1)).order.tolist() == [*range(9), *range(9), *range(4)]
