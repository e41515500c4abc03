"""The whole protocol: correct placeholders, counts and shares, for any label counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedskew.core.streams import Stream
from fedskew.label_privacy.agreement import Agreement, agree

pytest.importorskip("tenseal")

Holdings = Sequence[Mapping[int, int]]


def run(holdings: Holdings, label_range: int, **options: Any) -> Agreement:
    return agree(holdings, label_range=label_range, stream=Stream(5, "test"), **options)


def totals(holdings: Holdings) -> Counter[int]:
    return sum((Counter(held) for held in holdings), Counter[int]())


def check(holdings: Holdings, found: Agreement) -> None:
    """Compare with the result from all labels in the clear."""
    wanted = totals(holdings)
    placeholder_of = {label: held[label] for held in found.placeholders for label in held}
    assert sorted(placeholder_of) == sorted(wanted)
    assert sorted(placeholder_of.values()) == list(range(len(wanted)))
    for held, mine in zip(holdings, found.placeholders, strict=True):
        assert mine == {label: placeholder_of[label] for label in held}
    assert found.holders == {
        placeholder_of[label]: [k for k, held in enumerate(holdings) if label in held]
        for label in sorted(wanted, key=placeholder_of.__getitem__)
    }
    if found.shares is None:
        assert found.counts == {placeholder_of[label]: count for label, count in wanted.items()}
        return
    assert found.counts is None
    for held, shares in zip(holdings, found.shares, strict=True):
        assert shares.keys() == {placeholder_of[label] for label in held}
        for label, count in held.items():
            assert (
                abs(shares[placeholder_of[label]] - max(count / wanted[label], 0.001)) <= 0.000501
            )


def deal(classes: int, clients: int, each: int, seed: int = 0) -> list[dict[int, int]]:
    generator = np.random.default_rng(seed)
    return [
        {
            int(label): int(generator.integers(1, 6000))
            for label in generator.choice(classes, each, replace=False)
        }
        for _ in range(clients)
    ]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 12), st.integers(1, 10**6), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
    st.booleans(),
)
def test_any_labels(holdings: Holdings, weighted: bool, blind: bool):
    check(holdings, run(holdings, 13, weighted=weighted, blind=blind))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("classes", "clients", "each"), [(10, 10, 2), (100, 20, 50)])
def test_sizes_of_the_paper(classes: int, clients: int, each: int, weighted: bool):
    holdings = deal(classes, clients, each)
    check(holdings, run(holdings, classes, weighted=weighted))


def test_neighbours_and_ends_of_the_greatest_range():
    edges = [0, 1, 1030, 1031, 1032, 2061, 2062, 2**20 - 2, 2**20 - 1]
    holdings = [
        {label: 1 + k for k, label in enumerate(edges[::2])},
        dict.fromkeys(edges, 9),
        {2**20 - 1: 2, 0: 2**31},
    ]
    check(holdings, run(holdings, 2**20))


def test_more_labels_than_a_tile_or_a_block_has_room_for():
    holdings = deal(300, 3, 150, seed=1)
    check(holdings, run(holdings, 300))


def test_more_labels_than_a_vector_has_room_for():
    holdings = [{label: label + 1 for label in range(4200)}, {4199: 10, 4500: 1}]
    check(holdings, run(holdings, 5000))


def test_the_only_label_there_is():
    holdings = [{0: 3}, {0: 4}]
    check(holdings, run(holdings, 1))


def test_numpy_numbers_are_numbers():
    check([{3: 2}], run([{np.int64(3): np.int32(2)}], 5))


def test_a_simulation_repeats_and_its_stream_names_the_placeholders():
    holdings = deal(30, 4, 8)
    first, second = run(holdings, 30), run(holdings, 30)
    assert (first.placeholders, first.counts) == (second.placeholders, second.counts)
    other = agree(holdings, label_range=30, stream=Stream(6, "test"))
    assert other.placeholders != first.placeholders
    check(holdings, other)


def test_a_small_share_is_not_nothing():
    found = run([{0: 1}, {0: 10**6}], 3, weighted=True)
    assert found.shares == ({0: 0.001}, {0: 1.0})


def test_seconds_and_bytes_are_told():
    found = run([{3: 20, 5: 1}, {5: 7}], 10)
    assert set(found.seconds) == {"keys", "mapping", "unique list", "counts"}
    assert min(found.seconds.values()) > 0
    vectors_sent = {name: round(size / 393_216, 1) for name, size in found.bytes_sent.items()}
    # A vector takes 393,216 bytes. Client 0: labels, new labels, counts; client 1: labels, counts; the server: one
    # comparison, for client 1, and the total.
    assert vectors_sent == {"client 0": 3.0, "client 1": 2.0, "server": 2.0}


def test_totals_beyond_a_limb_and_beyond_the_prime():
    holdings = [{0: 2**31, 1: 65_535}, {0: 2**31, 1: 65_535}, {0: 2**31 - 1, 1: 3}]
    assert set(run(holdings, 2).counts.values()) == {3 * 2**31 - 1, 2 * 65_535 + 3}
