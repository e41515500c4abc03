"""Sample schedules: properties of all, small ones by hand, frequencies of choices, and Algorithm 1 as printed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints, Stream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.sample_schedules.holdings import Holdings
from fedskew.sample_schedules.label_schedule import label_schedule
from fedskew.sample_schedules.sample_schedule import (
    SampleSchedule,
    longest_run,
    schedule_batches,
    schedule_clients,
    schedule_singles,
)
from fedskew.skew.dirichlet import dirichlet

seeds = st.integers(0, 2**63)
selections = st.sampled_from(["uniform", "weighted"])


@dataclass
class Case:
    """Clients with so many rows of each placeholder, with random row numbers, and the facts about each row."""

    counts: list[list[int]]
    seed: int = 0

    def __post_init__(self) -> None:
        counts = np.array(self.counts)
        clients, placeholders = np.indices(counts.shape)
        mixed = np.random.default_rng(self.seed).permutation(int(counts.sum()))
        self.owner = np.repeat(clients.ravel(), counts.ravel())[mixed]
        self.label = np.repeat(placeholders.ravel(), counts.ravel())[mixed]

    @cached_property
    def holdings(self) -> Holdings:
        return Holdings.of(
            Partition.from_owner(self.owner, len(self.counts)), self.label, len(self.counts[0])
        )

    def single(
        self, schedule: list[int], chunk: int, selection: str = "uniform", seed: int = 0
    ) -> SampleSchedule:
        return schedule_singles(
            self.holdings,
            ints(schedule),
            selection=selection,
            chunk=chunk,
            stream=Stream(seed, "test"),
        )

    def batch(
        self, schedule: list[int], size: int, selection: str = "uniform", seed: int = 0
    ) -> SampleSchedule:
        return schedule_batches(
            self.holdings,
            ints(schedule),
            selection=selection,
            batch_size=size,
            stream=Stream(seed, "test"),
        )


@st.composite
def cases(draw: st.DrawFn, least: int = 0, most: int = 5) -> Case:
    """Return a few clients, of which some hold nothing and at least one holds rows."""
    width = draw(st.integers(1, 5))
    cell = st.one_of(st.just(0), st.integers(max(least, 1), most))
    counts = draw(st.lists(st.lists(cell, min_size=width, max_size=width), min_size=1, max_size=6))
    counts[0][0] = counts[0][0] or most
    return Case(counts, draw(st.integers(0, 1000)))


def ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def some_schedule(case: Case, data: st.DataObject, most: int) -> list[int]:
    return data.draw(
        st.lists(st.integers(0, len(case.counts[0]) - 1), max_size=most), label="schedule"
    )


def sound(walk: SampleSchedule, case: Case) -> None:
    """Check that rows are unique and at their owners, and that steps and visits cover the schedule, none empty."""
    assert len(set(walk.rows.tolist())) == len(walk.rows) == len(walk.clients)
    assert case.owner[walk.rows].tolist() == walk.clients.tolist()
    for ends in (walk.ends, walk.visits):
        assert ends.tolist() == sorted(set(ends.tolist()))
        assert (ends[0] > 0 and ends[-1] == len(walk.rows)) if len(ends) else not len(walk.rows)


def visits_are_maximal(walk: SampleSchedule) -> None:
    """Check that visits are maximal: between two visits to one client, another client was asked for a row."""
    visits = np.split(walk.clients, walk.visits)[:-1]
    assert all(len(set(visit.tolist())) == 1 for visit in visits)
    assert sum(
        one[0] == other[0] for one, other in zip(visits[1:], visits[:-1], strict=True)
    ) <= len(walk.idle)


@settings(deadline=None)
@given(cases(), st.data(), st.integers(1, 7), selections, seeds)
def test_every_placeholder_comes_as_often_as_scheduled_or_as_there_are_rows(
    case: Case, data: st.DataObject, size: int, selection: str, seed: int
):
    schedule = some_schedule(case, data, most=40)
    there = np.array(case.counts).sum(axis=0)
    wanted = np.minimum(np.bincount(schedule, minlength=len(there)), there).tolist()
    single, batch = (
        case.single(schedule, size, selection, seed),
        case.batch(schedule, size, selection, seed),
    )
    for walk in (single, batch):
        sound(walk, case)
        assert np.bincount(case.label[walk.rows], minlength=len(there)).tolist() == wanted
        assert walk.returned >= len(walk.idle)
    visits_are_maximal(single)
    assert single.ends.tolist() == list(range(1, len(single.rows) + 1))
    assert batch.visits.tolist() == batch.ends.tolist()


@settings(deadline=None)
@given(cases(), st.data(), st.integers(1, 7), selections, seeds)
def test_batches_keep_to_the_schedule_whoever_serves_it(
    case: Case, data: st.DataObject, size: int, selection: str, seed: int
):
    length = data.draw(st.integers(0, len(case.label)), label="length")
    schedule = np.random.default_rng(case.seed + 1).permutation(case.label)[:length].tolist()
    walk = case.batch(schedule, size, selection, seed)
    assert case.label[walk.rows].tolist() == schedule
    assert walk.ends.tolist() == [*range(size, length, size), *([length] if length else [])]


@settings(deadline=None)
@given(cases(least=30, most=40), st.data(), st.integers(1, 7), selections, seeds)
def test_without_exhaustion_the_schedule_is_kept(
    case: Case, data: st.DataObject, size: int, selection: str, seed: int
):
    held = np.flatnonzero(np.array(case.counts).sum(axis=0)).tolist()
    schedule = data.draw(st.lists(st.sampled_from(held), max_size=30), label="schedule")
    for walk in (
        case.single(schedule, size, selection, seed),
        case.batch(schedule, size, selection, seed),
    ):
        assert case.label[walk.rows].tolist() == schedule
        assert (walk.returned, len(walk.idle)) == (0, 0)


@settings(deadline=None)
@given(cases(), st.data(), st.integers(1, 7), selections, seeds)
def test_with_reuse_all_is_served_and_rows_come_in_turns(
    case: Case, data: st.DataObject, size: int, selection: str, seed: int
):
    held = np.flatnonzero(np.array(case.counts).sum(axis=0)).tolist()
    schedule = data.draw(st.lists(st.sampled_from(held), max_size=60), label="schedule")
    options = {"selection": selection, "stream": Stream(seed, "test"), "reuse": True}
    for walk in (
        schedule_singles(case.holdings, ints(schedule), chunk=size, **options),
        schedule_batches(case.holdings, ints(schedule), batch_size=size, **options),
    ):
        assert case.label[walk.rows].tolist() == schedule
        assert case.owner[walk.rows].tolist() == walk.clients.tolist()
        assert (walk.returned, len(walk.idle)) == (0, 0)
        for client, counts in enumerate(case.counts):
            for placeholder, there in enumerate(counts):
                mine = walk.rows[
                    (walk.clients == client) & (case.label[walk.rows] == placeholder)
                ].tolist()
                turns = [
                    mine[first : first + there] for first in range(0, len(mine), max(there, 1))
                ]
                # None twice before all came once
                assert all(len(set(turn)) == len(turn) for turn in turns)


def test_every_turn_is_a_new_shuffle():
    case = Case([[3]])
    walks = [
        schedule_batches(
            case.holdings,
            ints([0] * 6),
            selection="uniform",
            batch_size=2,
            stream=Stream(k, "test"),
            reuse=True,
        )
        for k in range(3000)
    ]
    second = Counter(tuple(walk.rows[3:].tolist()) for walk in walks)
    both = Counter(walk.rows[:3].tolist() == walk.rows[3:].tolist() for walk in walks)
    assert chisquare([second[order] for order in permutations(range(3))]).pvalue > 1e-3
    assert chisquare([both[True], both[False]], [500, 2500]).pvalue > 1e-3


def algorithm_1(pools: Mapping[int, set[int]], chunk: list[int], i: int) -> tuple[set[int], int]:
    """Return the clients of Algorithm 1, lines 7-22: the greatest conseqLen at position i of a chunk, and its end."""
    length = dict.fromkeys(pools[chunk[i]], 0)
    for client in length:
        next_i = i
        while True:
            next_i = min(next_i + 1, len(chunk) - 1)
            if client not in pools[chunk[next_i]]:
                break
            length[client] += 1
            if next_i == len(chunk) - 1:
                break
    longest = max(length.values())
    return {client for client in length if length[client] == longest}, min(
        i + longest + 1, len(chunk)
    )


@given(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=6), st.data())
def test_candidates_are_those_of_algorithm_1_as_printed(pools: list[set[int]], data: st.DataObject):
    chunk = data.draw(st.lists(st.integers(0, len(pools) - 1), min_size=1, max_size=12))
    start = data.draw(st.integers(0, len(chunk) - 1))
    candidates, length = longest_run(
        dict(enumerate(sum(1 << client for client in pool) for pool in pools)), chunk[start:]
    )
    expected, end = algorithm_1(dict(enumerate(pools)), chunk, start)
    assert {client for client in range(10) if candidates >> client & 1} == expected
    assert start + length == end


@settings(deadline=None)
@given(cases(least=30, most=40), st.data(), st.integers(1, 9), selections, seeds)
def test_a_walk_goes_where_algorithm_1_as_printed_may_go(
    case: Case, data: st.DataObject, size: int, selection: str, seed: int
):
    pools = [set(np.flatnonzero(held).tolist()) for held in np.array(case.counts).T]
    held = [placeholder for placeholder, pool in enumerate(pools) if pool]
    schedule = data.draw(st.lists(st.sampled_from(held), max_size=30), label="schedule")
    walk = case.single(schedule, size, selection, seed)
    for start in range(0, len(schedule), size):
        chunk, i = schedule[start : start + size], 0
        while i < len(chunk):
            candidates, end = algorithm_1(dict(enumerate(pools)), chunk, i)
            (client,) = set(walk.clients[start + i : start + end].tolist())
            assert client in candidates
            i = end


class Book:
    """Algorithms 1 to 4 as printed, in lists, sets and loops, with the library's random numbers only."""

    def __init__(
        self, case: Case, selection: str, seed: int, retain: int | None = None, reuse: bool = False
    ) -> None:
        self.counts, self.weighted, self.retain, self.reuse, self.seed = (
            case.counts,
            selection == "weighted",
            retain,
            reuse,
            seed,
        )
        self.numbers = (
            u for block in count() for u in Stream(seed, "test", 1, block).uniform(1024).tolist()
        )
        clients, placeholders = range(len(case.counts)), range(len(case.counts[0]))
        self.avail = {p: {c for c in clients if case.counts[c][p]} for p in placeholders}
        known = list(zip(case.owner.tolist(), case.label.tolist(), strict=True))
        self.mine = {
            (c, p): [r for r, of in enumerate(known) if of == (c, p)]
            for c in clients
            for p in placeholders
        }
        everything = [(cell, row) for cell, rows in self.mine.items() for row in rows]
        self.shelf: dict[tuple[int, int], list[int]] = {cell: [] for cell in self.mine}
        for position in Stream(seed, "test", 0).permutation(len(everything)).tolist():
            cell, row = everything[position]
            self.shelf[cell].append(row)
        self.refills = 0
        self.trail: list[tuple[int, int]] = []
        self.visits: list[list[int]] = []  # client and samples, in a chain
        self.returned = 0

    def select(self, clients: set[int], p: int) -> int:
        chances = {c: self.counts[c][p] if self.weighted else 1 for c in sorted(clients)}
        point = next(self.numbers) * sum(chances.values())
        return next(
            c
            for c in chances
            if point < sum(chance for other, chance in chances.items() if other <= c)
        )

    def retained(self, p: int) -> set[int]:
        if self.retain is None or len(self.avail[p]) <= self.retain:
            return self.avail[p].copy()
        kept: set[int] = set()
        while len(kept) < self.retain:
            kept.add(self.select(self.avail[p] - kept, p))
        return kept

    def extract(self, c: int, p: int) -> int | None:
        shelf = self.shelf[c, p]
        if not shelf and self.reuse and self.mine[c, p]:
            self.refills += 1
            order = Stream(self.seed, "test", 0, self.refills).permutation(len(self.mine[c, p]))
            shelf += [self.mine[c, p][place] for place in order.tolist()]
        return shelf.pop(0) if shelf else None

    def algorithm_3(self, sls: list[int], chunk_size: int) -> None:
        queue: list[tuple[int, list[int]]] = []
        while sls or queue:
            if len(queue) < 2 and sls:
                chunk, sls = [p for p in sls[:chunk_size] if self.avail[p]], sls[chunk_size:]
                pools, i = {p: self.retained(p) for p in dict.fromkeys(chunk)}, 0
                while i < len(chunk):
                    longest, end = algorithm_1(pools, chunk, i)
                    queue.append((self.select(longest, chunk[i]), chunk[i:end]))
                    i = end
            if queue:
                client, wanted = queue.pop(0)
                if not self.visits or self.visits[-1][0] != client:
                    self.visits.append([client, 0])
                for p in wanted:
                    row = self.extract(client, p)
                    if row is not None:
                        self.trail.append((client, row))
                        self.visits[-1][1] += 1
                    else:
                        sls.insert(int(next(self.numbers) * (len(sls) + 1)), p)
                        self.avail[p].discard(client)
                        self.returned += 1

    def algorithm_4(self, sls: list[int], batch_size: int) -> list[int]:
        ends = []
        while sls:
            batch, sls = sls[:batch_size], sls[batch_size:]
            found: dict[int, tuple[int, int]] = {}
            waiting = dict(enumerate(batch))
            while waiting:
                asked = {
                    i: self.select(self.avail[p], p) if self.avail[p] else None
                    for i, p in waiting.items()
                }
                # One after the other in the library, where shelves and draws alternate; the numbers are the same.
                answers = {
                    i: None if c is None else self.extract(c, waiting[i]) for i, c in asked.items()
                }
                found |= {i: (asked[i], row) for i, row in answers.items() if row is not None}
                refused = {
                    i: waiting[i] for i, c in asked.items() if c is not None and answers[i] is None
                }
                for i, p in refused.items():
                    self.avail[p].discard(asked[i])
                    self.returned += 1
                waiting = refused
            self.trail += [found[i] for i in sorted(found)]
            if found:
                ends.append(len(self.trail))
        return ends


retentions = st.sampled_from([None, 1, 2, 3])


@settings(deadline=None)
@given(cases(), st.data(), st.integers(1, 7), selections, retentions, st.booleans(), seeds)
def test_a_chain_is_algorithms_1_and_3_on_the_same_random_numbers(
    case: Case,
    data: st.DataObject,
    size: int,
    selection: str,
    retain: int | None,
    reuse: bool,
    seed: int,
):
    schedule = some_schedule(case, data, most=40)
    book = Book(case, selection, seed, retain, reuse)
    book.algorithm_3(schedule.copy(), size)
    walk = schedule_singles(
        case.holdings,
        ints(schedule),
        selection=selection,
        chunk=size,
        stream=Stream(seed, "test"),
        retain=retain,
        reuse=reuse,
    )
    assert list(zip(walk.clients.tolist(), walk.rows.tolist(), strict=True)) == book.trail
    assert walk.returned == book.returned
    assert (
        walk.visits.tolist()
        == np.cumsum([samples for _, samples in book.visits if samples]).tolist()
    )
    assert walk.idle.tolist() == [client for client, samples in book.visits if not samples]


@settings(deadline=None)
@given(cases(), st.data(), st.integers(1, 7), selections, st.booleans(), seeds)
def test_lockstep_is_algorithms_2_and_4_on_the_same_random_numbers(
    case: Case, data: st.DataObject, size: int, selection: str, reuse: bool, seed: int
):
    schedule = some_schedule(case, data, most=40)
    book = Book(case, selection, seed, reuse=reuse)
    ends = book.algorithm_4(schedule.copy(), size)
    walk = schedule_batches(
        case.holdings,
        ints(schedule),
        selection=selection,
        batch_size=size,
        stream=Stream(seed, "test"),
        reuse=reuse,
    )
    assert list(zip(walk.clients.tolist(), walk.rows.tolist(), strict=True)) == book.trail
    assert (walk.returned, walk.ends.tolist()) == (book.returned, ends)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), seeds)
def test_a_schedule_is_its_labels_in_the_order_of_the_stream(wanted: list[int], seed: int):
    labels = [label for label, often in enumerate(wanted) for _ in range(often)]
    order = Stream(seed, "test").permutation(len(labels)).tolist()
    assert label_schedule(ints(wanted), Stream(seed, "test")).tolist() == [
        labels[place] for place in order
    ]


@pytest.mark.parametrize("selection", ["uniform", "weighted"])
def test_who_is_retained_is_drawn_uniformly_or_by_shares(selection: str):
    """Check one retained holder of three for a pair of labels: with one for each label, runs rarely agree."""
    case = Case(COUNTS)
    walk = schedule_singles(
        case.holdings,
        ints([0] * 3000),
        selection=selection,
        chunk=1,
        stream=Stream(0, "test"),
        retain=1,
    )
    share = np.array([1, 1, 1] if selection == "uniform" else [1, 2, 3])
    assert (
        chisquare(np.bincount(walk.clients, minlength=3), share / share.sum() * 3000).pvalue > 1e-3
    )


def test_a_chunk_is_planned_before_its_clients_report():
    """Check by hand, for every stream: clients 0 and 2 hold placeholder 0, and only client 0 can continue with 1.

    Client 0 has a single row of placeholder 0. The third chunk is planned before a second row is requested from it, so
    a third one is requested as well; both placeholders are returned and served by client 2 in the end.
    """
    case = Case([[1, 5, 0], [0, 0, 2], [4, 0, 0]])
    for seed in range(20):
        walk = case.single([2, 0, 1, 2, 0, 1, 0, 1, 1], chunk=3, seed=seed)
        assert case.label[walk.rows].tolist() == [2, 0, 1, 2, 1, 1, 1, 0, 0]
        assert walk.clients.tolist() == [1, 0, 0, 1, 0, 0, 0, 2, 2]
        assert walk.visits.tolist() == [1, 3, 4, 7, 9]
        assert (walk.returned, walk.idle.tolist()) == (2, [])


def test_a_client_that_has_nothing_left_is_no_visit():
    """Check by hand: client 0 has no second row, and no other client has that placeholder, so it is dropped."""
    case = Case([[1, 0], [0, 2]])
    for seed in range(20):
        walk = case.single([0, 1, 0, 1], chunk=1, seed=seed)
        assert walk.clients.tolist() == [0, 1, 1]
        assert walk.visits.tolist() == [1, 2, 3]  # the model left client 1 and came back
        assert (walk.returned, walk.idle.tolist()) == (1, [0])


def test_what_nobody_has_is_dropped():
    """Check by hand: one client, two rows, five requests. Once it has no rows left, no more are requested from it."""
    case = Case([[2, 1]])
    single = case.single([0, 0, 0, 0, 0], chunk=1)
    assert (single.clients.tolist(), single.visits.tolist(), single.returned) == ([0, 0], [2], 1)
    assert single.idle.tolist() == []
    batch = case.batch([0, 0, 0, 0, 0, 1], size=2)
    assert (case.label[batch.rows].tolist(), batch.ends.tolist()) == ([0, 0, 1], [2, 3])
    assert batch.returned == 2  # of the second batch, requested at once
    assert batch.idle.tolist() == [0]
    empty = case.holdings.without(ints([])), ints([])
    nothing = schedule_singles(*empty, selection="uniform", chunk=3, stream=Stream(0, "test"))
    assert [
        len(part)
        for part in (nothing.rows, nothing.clients, nothing.ends, nothing.visits, nothing.idle)
    ] == [0] * 5


def test_a_returned_placeholder_goes_anywhere_in_the_rest_of_the_schedule():
    """Check by hand: client 0 has one of two requested rows of placeholder 0; the other follows among the next four."""
    case = Case([[1, 2, 0], [0, 0, 4], [1, 0, 0]])
    places = Counter[int]()
    for seed in range(2000):
        walk = case.single([0, 1, 0, 1, 2, 2, 2, 2], chunk=2, seed=seed)
        labels = case.label[walk.rows].tolist()
        assert (labels[:3], walk.returned) == ([0, 1, 1], 1)
        places[labels[3:].index(0)] += 1
    assert chisquare([places[k] for k in range(5)]).pvalue > 1e-3


@pytest.mark.parametrize(("size", "expected"), [(1, 0.5), (3, 0.625)])
def test_a_batch_is_asked_for_at_once(size: int, expected: float):
    """Check three draws between client 0 with one row and client 1 with many; excess requests of client 0 are returned.

    At once: twice with chance 3/8 and three times with 1/8, so 3/8 + 2/8. One by one it leaves when it first fails:
    4/8.
    """
    case = Case([[1], [3]])
    walks = [case.batch([0, 0, 0], size, seed=seed) for seed in range(4000)]
    returned = np.array([walk.returned for walk in walks])
    assert abs(returned.mean() - expected) < 4 * 0.7 / np.sqrt(4000)
    served = Counter(tuple(sorted(walk.clients.tolist())) for walk in walks)
    assert served.keys() == {(0, 1, 1), (1, 1, 1)}
    assert abs(served[1, 1, 1] / 4000 - 1 / 8) < 4 * 0.34 / np.sqrt(4000)
    idle = np.array([len(walk.idle) for walk in walks])
    assert idle.tolist() == (returned if size == 1 else 0 * returned).tolist()


COUNTS = [[3000, 2900], [6000, 0], [9000, 2800]]


@pytest.mark.parametrize("selection", ["uniform", "weighted"])
@pytest.mark.parametrize("kind", ["single", "batch"])
def test_holders_are_drawn_uniformly_or_by_their_shares(kind: str, selection: str):
    case = Case(COUNTS)
    schedule = label_schedule(ints([4000, 2000]), Stream(1, "test")).tolist()
    walk = (
        case.single(schedule, 1, selection)
        if kind == "single"
        else case.batch(schedule, 32, selection)
    )
    shares = {"uniform": ([1, 1, 1], [1, 0, 1]), "weighted": ([3, 6, 9], [29, 0, 28])}[selection]
    for placeholder, share in enumerate(shares):
        seen = np.bincount(walk.clients[case.label[walk.rows] == placeholder], minlength=3)
        expected = np.array(share) / sum(share) * seen.sum()
        assert chisquare(seen[expected > 0], expected[expected > 0]).pvalue > 1e-3
        assert seen[expected == 0].sum() == 0


@pytest.mark.parametrize("selection", ["uniform", "weighted"])
def test_of_the_longest_runs_one_is_drawn(selection: str):
    """Check chunks 0, 1: clients 0 and 2 can serve both, client 1 one; weighted by the first placeholder, 1 to 3."""
    case = Case(COUNTS)
    walk = case.single([0, 1] * 2000, 2, selection)
    seen = np.bincount(walk.clients[::2], minlength=3)
    assert seen[1] == 0
    share = np.array([1, 1] if selection == "uniform" else [1, 3])
    assert chisquare(seen[[0, 2]], share / share.sum() * 2000).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["single", "batch"])
def test_the_next_row_is_any_of_those_left(kind: str):
    case = Case([[3], [0]])
    walks = [
        case.single([0] * 3, 2, seed=k) if kind == "single" else case.batch([0] * 3, 2, seed=k)
        for k in range(3000)
    ]
    orders = Counter(tuple(walk.rows.tolist()) for walk in walks)
    assert chisquare([orders[order] for order in permutations(range(3))]).pvalue > 1e-3


@pytest.mark.parametrize("selection", ["uniform", "weighted"])
@pytest.mark.parametrize("kind", ["single", "batch"])
def test_the_numbers_of_the_clients_do_not_matter(kind: str, selection: str):
    """Check the end of a schedule, where some clients have no rows left: relabelled clients train as much."""
    counts = [[4, 0, 2], [1, 6, 0], [3, 3, 3], [1, 1, 8]]
    renumbered = [2, 3, 1, 0]  # client k is called renumbered[k]
    cases = Case(counts), Case([counts[renumbered.index(k)] for k in range(4)])
    seen = np.zeros((2, 4), dtype=np.int64)
    for which, case in enumerate(cases):
        for seed in range(1500):
            schedule = label_schedule(ints([7, 8, 9]), Stream(seed, "schedule", which)).tolist()
            draw = case.single if kind == "single" else case.batch
            late = draw(schedule, 3, selection, seed).clients[
                18
            ]  # one sample from each schedule: those of one schedule are dependent
            seen[which, late if which == 0 else renumbered.index(late)] += 1
    assert chi2_contingency(seen).pvalue > 1e-3


def test_a_stream_decides_everything():
    case = Case([[20, 30], [40, 10]])
    schedule = [0, 1] * 30

    def walks(seed: int) -> list[SampleSchedule]:
        whole = schedule_clients(case.holdings, epochs=2, batch_size=7, stream=Stream(seed, "test"))
        return [case.single(schedule, 3, seed=seed), case.batch(schedule, 7, seed=seed), whole]

    for first, again, other in zip(walks(1), walks(1), walks(2), strict=True):
        assert first.rows.tolist() == again.rows.tolist()
        assert first.clients.tolist() == again.clients.tolist()
        assert first.visits.tolist() == again.visits.tolist()
        assert first.rows.tolist() != other.rows.tolist()


def moves(holdings: Holdings, chunk: int, seed: int, retain: int | None = None) -> int:
    """Return how often the model is sent to a client in an epoch of all rows."""
    schedule = label_schedule(holdings.counts.sum(axis=0), Stream(seed, "schedule"))
    walk = schedule_singles(
        holdings,
        schedule,
        selection="uniform",
        chunk=chunk,
        stream=Stream(seed, "walk"),
        retain=retain,
    )
    return len(walk.visits) + len(walk.idle)


@pytest.mark.parametrize(("balance", "low", "high"), [(False, 0.42, 0.53), (True, 0.34, 0.46)])
def test_chunks_spare_transfers(balance: bool, low: float, high: float):
    """Check ten clients, ten labels of 5,000 rows, Dirichlet(0.5); Stratify, V-F: about 35 % with chunks of 5.

    Its splits follow NIID-Bench, which gives nothing more to a client that holds its equal share (``balance``): 40 %
    on average there, from 35 to 47 % over splits; 47 % without, where nearly every client holds every label. Where
    four holders of each label are retained for a chunk, it is 35 %.
    """
    y = np.arange(50_000) % 10
    rows = Rows(np.zeros((len(y), 1), dtype=np.float32), y)
    spared: dict[int, list[float]] = {2: [], 5: [], 20: []}
    few: list[float] = []
    for seed in range(4):
        partition = dirichlet(
            rows, 10, Stream(seed, "cut"), alpha=0.5, balance=balance, min_size=10
        )
        holdings = Holdings.of(partition, y, 10)
        naive = moves(holdings, 1, seed)
        for chunk, parts in spared.items():
            parts.append(1 - moves(holdings, chunk, seed) / naive)
        few.append(1 - moves(holdings, 5, seed, retain=4) / naive)
    at_2, at_5, at_20 = (np.mean(parts) for parts in spared.values())
    assert low < at_5 < high
    assert np.mean(few) == pytest.approx(0.354 if balance else 0.405, abs=0.02)
    assert at_2 < at_5 - 0.05
    assert 0.01 < at_20 - at_5 < 0.08


def test_sfl_by_hand():
    """Check clients of 3, 0, 4 and 1 rows, with two epochs in batches of 2."""
    case = Case([[1, 2], [0, 0], [4, 0], [0, 1]])
    orders = Counter[tuple[int, ...]]()
    shuffles = Counter[tuple[int, ...]]()
    for seed in range(3000):
        walk = schedule_clients(case.holdings, epochs=2, batch_size=2, stream=Stream(seed, "test"))
        clients, ends, visits, done = list[int](), list[int](), list[int](), 0
        order = list(dict.fromkeys(walk.clients.tolist()))
        for client in order:
            size = {0: 3, 2: 4, 3: 1}[client]
            own = np.flatnonzero(case.owner == client).tolist()
            for _ in range(2):
                assert sorted(walk.rows[done : done + size].tolist()) == own
                clients += [client] * size
                ends += {1: [done + 1], 3: [done + 2, done + 3], 4: [done + 2, done + 4]}[size]
                done += size
            visits.append(done)
            if client == 0:
                first, second = (
                    walk.rows[done - 6 : done - 3].tolist(),
                    walk.rows[done - 3 : done].tolist(),
                )
                shuffles[
                    (*[own.index(row) for row in first], *[own.index(row) for row in second])
                ] += 1
        assert (walk.clients.tolist(), walk.ends.tolist(), walk.visits.tolist()) == (
            clients,
            ends,
            visits,
        )
        assert (done, walk.returned, len(walk.idle)) == (len(walk.rows), 0, 0)
        orders[tuple(order)] += 1
    assert chisquare([orders[order] for order in permutations([0, 2, 3])]).pvalue > 1e-3
    both = [(*one, *other) for one in permutations(range(3)) for other in permutations(range(3))]
    assert chisquare([shuffles[pair] for pair in both]).pvalue > 1e-3


def test_absent_clients_are_not_asked():
    case = Case([[5, 5], [5, 5], [5, 5]])
    holdings = case.holdings.without(ints([1]))
    stream = Stream(0, "test")
    schedule = label_schedule(holdings.counts.sum(axis=0), stream)
    single = schedule_singles(holdings, schedule, selection="uniform", chunk=2, stream=stream)
    batch = schedule_batches(holdings, schedule, selection="weighted", batch_size=4, stream=stream)
    for walk in (single, batch, schedule_clients(holdings, epochs=1, batch_size=3, stream=stream)):
        sound(walk, case)
        assert np.bincount(walk.clients).tolist() == [10, 0, 10]


def test_what_is_refused():
    case, stream = Case([[1]]), Stream(0, "test")
    with pytest.raises(FedskewError, match="chunk=0 is too small: use 1 or more"):
        case.single([0], chunk=0)
    with pytest.raises(FedskewError, match="retain=0 is too small: use 1 or more"):
        schedule_singles(
            case.holdings, ints([0]), selection="uniform", chunk=1, retain=0, stream=stream
        )
    with pytest.raises(FedskewError, match="batch_size=0 is too small: use 1 or more"):
        case.batch([0], size=0)
    with pytest.raises(FedskewError, match="batch_size=-1 is too small"):
        schedule_clients(case.holdings, epochs=1, batch_size=-1, stream=stream)
    with pytest.raises(FedskewError, match="epochs=0 is too small"):
        schedule_clients(case.holdings, epochs=0, batch_size=1, stream=stream)
    no_rows = case.holdings.without(ints([0]))
    with pytest.raises(FedskewError, match="no client has any rows"):
        schedule_clients(no_rows, epochs=1, batch_size=1, stream=stream)
    with pytest.raises(FedskewError, match="no client has any rows"):
        schedule_batches(no_rows, ints([0]), selection="uniform", batch_size=1, stream=stream)
    with pytest.raises(FedskewError, match="no client has any rows"):
        schedule_singles(no_rows, ints([0]), selection="uniform", chunk=1, stream=stream)
