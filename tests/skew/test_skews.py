"""Properties of every skew: complete, disjoint, repeatable, no empty client, and each one's own property."""

import tomllib
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare

import fedskew
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.assignment import log_gammas
from fedskew.skew.partitioning import SkewSpec, partition_rows
from fedskew.skew.skews import skews

alphas = st.sampled_from([1e-300, 1e-6, 0.01, 0.1, 0.5, 1.0, 10.0, 1e6, 1e18])
seeds = st.integers(0, 2**63)


def rows_of(y: np.ndarray, group: np.ndarray | None = None) -> Rows:
    features = np.random.default_rng(0).standard_normal((len(y), 4), dtype=np.float32)
    return Rows(features, np.asarray(y, np.int64), group)


def cut_rows(spec: SkewSpec, rows: Rows, clients: int | None, seed: int) -> Partition:
    return partition_rows(spec, rows, clients, seed).partition


@st.composite
def labels(draw: st.DrawFn, least: int = 1) -> np.ndarray:
    """Return labels with gaps and very different counts, at least so many kinds of them."""
    kinds = draw(st.lists(st.integers(0, 11), min_size=least, max_size=6, unique=True))
    return np.array(kinds[:least] + draw(st.lists(st.sampled_from(kinds), max_size=120)))


def clients_for(y: np.ndarray, k: int) -> list[int]:
    """Return all numbers of clients that can hold k labels each."""
    counts = np.bincount(y)
    counts = counts[counts > 0]
    return [
        n for n in range(-(-len(counts) // k), len(y) + 1) if np.minimum(counts, n).sum() >= n * k
    ]


def table(partition: Partition, y: np.ndarray) -> np.ndarray:
    counts = partition.counts(y, int(y.max()) + 1)
    return counts[:, np.bincount(y) > 0]


@settings(deadline=None, max_examples=150)
@given(labels(), st.data(), alphas, seeds)
def test_dirichlet_and_quantity_always_end_and_keep_every_row_once(
    y: np.ndarray, data: st.DataObject, alpha: float, seed: int
):
    clients = data.draw(st.integers(1, len(y)))
    min_size = data.draw(st.integers(1, len(y) // clients))
    kinds = [
        {"name": "dirichlet"},
        {"name": "dirichlet", "balance": True},
        {"name": "quantity"},
        {"name": "feature-dirichlet"},
    ]
    options = data.draw(st.sampled_from(kinds))
    assume(options["name"] != "feature-dirichlet" or len(y) > 1)  # one row does not vary
    spec = options | {"alpha": alpha, "min_size": min_size}
    partition = cut_rows(spec, rows_of(y), clients, seed)
    assert sorted(partition.rows.tolist()) == list(range(len(y)))
    assert partition.clients == clients
    assert partition.sizes.min() >= min_size
    assert partition == cut_rows(spec, rows_of(y), clients, seed)


@settings(deadline=None, max_examples=150)
@given(labels(), st.data(), seeds)
def test_classes_gives_exactly_k_labels_and_deals_each_evenly(
    y: np.ndarray, data: st.DataObject, seed: int
):
    counts = np.bincount(y)
    counts = counts[counts > 0]
    k = data.draw(st.integers(1, len(counts)))
    assume(clients_for(y, k))
    clients = data.draw(st.sampled_from(clients_for(y, k)))
    partition = cut_rows(f"classes:k={k}", rows_of(y), clients, seed)
    held = table(partition, y)
    assert sorted(partition.rows.tolist()) == list(range(len(y)))
    assert np.all((held > 0).sum(axis=1) == k)
    for column in held.T:
        shares = column[column > 0]
        assert shares.max() - shares.min() <= 1
    holders = (held > 0).sum(axis=0)
    full = holders == np.minimum(counts, clients)
    assert np.all(holders[full] <= holders.max())
    if not full.all():
        assert holders.max() - holders[~full].min() <= 1
    assert partition == cut_rows(f"classes:k={k}", rows_of(y), clients, seed)


@settings(deadline=None, max_examples=100)
@given(labels(least=2), st.data(), alphas, st.sampled_from(["equal", "unequal"]), seeds)
def test_two_class_dirichlet_gives_two_labels(
    y: np.ndarray, data: st.DataObject, alpha: float, sizes: str, seed: int
):
    assume(clients_for(y, 2))
    clients = data.draw(st.sampled_from(clients_for(y, 2)))
    spec = {"name": "two-class-dirichlet", "alpha": alpha, "sizes": sizes}
    partition = cut_rows(spec, rows_of(y), clients, seed)
    assert sorted(partition.rows.tolist()) == list(range(len(y)))
    assert np.all((table(partition, y) > 0).sum(axis=1) == 2)


@settings(deadline=None)
@given(st.integers(1, 200), st.data(), seeds)
def test_iid_sizes_are_even(count: int, data: st.DataObject, seed: int):
    clients = data.draw(st.integers(1, count))
    partition = cut_rows("iid", rows_of(np.zeros(count)), clients, seed)
    assert partition.sizes.max() - partition.sizes.min() <= 1
    assert sorted(partition.rows.tolist()) == list(range(count))


@settings(deadline=None)
@given(st.lists(st.integers(0, 15), min_size=1, max_size=80), st.data(), seeds)
def test_natural_never_splits_a_group(group: list[int], data: st.DataObject, seed: int):
    groups = np.array(group)
    present = np.unique(groups)
    rows = rows_of(np.zeros(len(groups)), groups)
    alone = cut_rows("natural", rows, None, seed)
    assert [np.unique(groups[alone.of(client)]).tolist() for client in range(alone.clients)] == [
        [name] for name in present
    ]
    assert (
        alone == cut_rows("natural", rows, len(present), seed) == cut_rows("natural", rows, 0, seed)
    )
    clients = data.draw(st.integers(1, len(present)))
    merged = cut_rows("natural", rows, clients, seed)
    assert merged.clients == clients
    holders = [
        len({client for client in range(clients) if name in groups[merged.of(client)]})
        for name in present
    ]
    assert holders == [1] * len(present)
    # Largest first to the least loaded: the gap between two clients is never more than the largest group.
    assert merged.sizes.max() - merged.sizes.min() <= np.bincount(groups).max()


@settings(deadline=None)
@given(st.lists(st.integers(0, 15), min_size=1, max_size=80), st.data(), seeds)
def test_some_groups_of_many_as_clients(group: list[int], data: st.DataObject, seed: int):
    groups = np.array(group)
    present = np.unique(groups)
    count = data.draw(st.integers(1, len(present)))
    rows = rows_of(np.zeros(len(groups)), groups)
    few = cut_rows(f"natural:groups={count}", rows, None, seed)
    names = [np.unique(groups[few.of(client)]).tolist() for client in range(few.clients)]
    assert len(names) == count
    assert all(len(name) == 1 for name in names)
    assert names == sorted(names)
    # Whole groups
    assert few.rows.tolist() == [row for name in names for row in np.flatnonzero(groups == name[0])]
    assert few == cut_rows(f"natural:groups={count}", rows, count, seed)
    clients = data.draw(st.integers(1, count))
    packed = cut_rows(f"natural:groups={count}", rows, clients, seed)
    assert packed.clients == clients
    assert sorted(packed.rows.tolist()) == sorted(few.rows.tolist())  # the same groups
    if count == len(present):
        assert few == cut_rows("natural", rows, None, seed)


def test_groups_are_drawn_with_the_seed():
    taken = np.zeros(50)
    for seed in range(300):
        taken[
            np.unique(BALANCED.group[cut_rows("natural:groups=10", BALANCED, None, seed).rows])
        ] += 1
    assert taken.sum() == 3000
    assert chisquare(taken).pvalue > 1e-3


def test_a_run_on_some_of_the_groups():
    data = fedskew.split((BALANCED.x, BALANCED.y, BALANCED.group), "natural").data
    fed = fedskew.split(data, "natural:groups=6 + noise:sigma=0.5", client_test=0.2)
    assert fed.clients == 6
    assert (len(fed.partition.rows) + len(fed.held_out.rows)) == np.isin(
        data.train.group, data.train.group[fed.partition.rows]
    ).sum()
    unheld = np.setdiff1d(
        np.arange(len(data.train)), np.concatenate([fed.partition.rows, fed.held_out.rows])
    )
    assert len(unheld)
    assert np.array_equal(fed.train.x[unheld], data.train.x[unheld])
    assert not np.array_equal(fed.train.x[fed.partition.of(5)], data.train.x[fed.partition.of(5)])
    run = fedskew.train(fed, "logreg", rounds=1, folder=False, device="cpu", threads=1)
    assert sorted(run.clients["client"]) == list(range(6))
    assert fedskew.measure(fed)
    packed = fedskew.split(data, "natural:groups=6", clients=2)
    assert sorted(np.concatenate([fed.partition.rows, fed.held_out.rows])) == sorted(
        packed.partition.rows
    )


BALANCED = rows_of(np.repeat(np.arange(10), 100), np.repeat(np.arange(50), 20))


DRAWN = (
    "iid",
    "dirichlet",
    "feature-dirichlet",
    "quantity",
    "quantity:law=lognormal",
    "two-class-dirichlet",
    "lds",
    "shards",
)
# The rest is dealt at random
RULED = ("vop:strength=0.5", "sldf:strength=0.5", "sfdl:strength=0.5", "wgc:clusters=4")


@pytest.mark.parametrize(
    "spec",
    [*DRAWN, *RULED, "classes:k=3", "classes:k=3,deal=random", "domains:k=3", "domains:alone=4"],
)
def test_the_seed_changes_the_cut(spec: str):
    cuts = {cut_rows(spec, BALANCED, 20, seed).digest for seed in range(5)}
    assert len(cuts) == 5


def test_every_skew_ends_with_a_checked_partition():
    others = {"flower", "fedscale"}  # those of other tools, which need a name or a file
    for name in set(skews) - others:
        required = {"k": 2} if "k" in skews.options(name) else {}
        clients = {"domains": 25, "wgc": 4}.get(name, 10)
        assert len(cut_rows({"name": name, **required}, BALANCED, clients, seed=3).rows) == 1000


def test_iid_shuffles():
    mixed = table(cut_rows("iid", BALANCED, 10, seed=0), BALANCED.y)
    # Labels are stored in order: contiguous blocks would give one label a client
    assert mixed.min() > 0


def test_dirichlet_shares_have_the_mean_and_variance_of_a_dirichlet():
    clients, alpha = 5, 0.5
    shares = np.stack(
        [
            table(cut_rows(f"dirichlet:alpha={alpha}", BALANCED, clients, seed), BALANCED.y) / 100
            for seed in range(300)
        ]
    )
    assert np.allclose(shares.mean(axis=(0, 2)), 1 / clients, atol=0.015)
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert shares.var() == pytest.approx(variance, rel=0.05)


def test_rounding_favours_nobody():
    """Check that with one row per class and equal shares all clients get rows equally often, unlike plain rounding."""
    rows = rows_of(np.arange(40))
    totals = sum(cut_rows("dirichlet:alpha=1e9", rows, 4, seed).sizes for seed in range(200))
    assert np.allclose(totals / totals.sum(), 0.25, atol=0.02)


def test_huge_alpha_gives_equal_mixtures():
    held = table(cut_rows("dirichlet:alpha=1e6", BALANCED, 10, seed=1), BALANCED.y)
    assert np.abs(held - 10).max() <= 1
    sizes = cut_rows("quantity:alpha=1e9", BALANCED, 10, seed=1).sizes
    assert np.abs(sizes - 100).max() <= 1


def test_tiny_alpha_puts_a_class_on_one_client():
    partition = cut_rows("dirichlet:alpha=1e-6,min_size=1", BALANCED, 10, seed=1)
    held = table(partition, BALANCED.y)
    assert np.all(held.max(axis=0) >= 100 - 10)  # all but what fills up the empty clients
    sizes = cut_rows("quantity:alpha=1e-6", BALANCED, 10, seed=1).sizes
    assert sorted(sizes.tolist()) == [1] * 9 + [991]


def test_filling_up_takes_from_the_largest_only():
    free = cut_rows("dirichlet:alpha=0.3,min_size=1", BALANCED, 20, seed=4)
    filled = cut_rows("dirichlet:alpha=0.3,min_size=30", BALANCED, 20, seed=4)
    assert free.sizes.min() < 30
    grown = free.sizes < filled.sizes
    shrunk = free.sizes > filled.sizes
    assert np.all(filled.sizes[grown] == 30)
    assert filled.sizes[shrunk].max() - filled.sizes[shrunk].min() <= 1
    assert filled.sizes[~grown & ~shrunk].max() <= filled.sizes[shrunk].max()
    for client in np.flatnonzero(~shrunk):
        assert set(free.of(client)) <= set(filled.of(client))


@pytest.mark.parametrize("name", ["dirichlet", "feature-dirichlet"])
@pytest.mark.parametrize(
    ("clients", "least"), [(10, 10), (50, 10), (60, 8), (250, 2), (500, 2), (501, 1), (1, 10)]
)
def test_the_smallest_client_has_ten_rows_or_half_a_share_but_two(
    name: str, clients: int, least: int
):
    rows = rows_of(np.arange(1000) % 7)
    partition = cut_rows(f"{name}:alpha=0.001", rows, clients, seed=0)
    assert partition.settled == {"min_size": least}
    assert partition.sizes.min() == (1000 if clients == 1 else least)
    assert cut_rows(f"{name}:alpha=0.001,min_size=1", rows, clients, seed=0).settled == {
        "min_size": 1
    }


def test_what_was_settled_stands_in_the_record(tmp_path):
    fed = fedskew.split(fedskew.load("digits"), "dirichlet:alpha=0.1", clients=100, client_test=0.2)
    assert fed.recipe["skew"]["min_size"] == 7  # half of 1438 / 100
    run = fedskew.train(fed, "logreg", rounds=1, folder=tmp_path / "run", device="cpu", threads=1)
    assert tomllib.loads((tmp_path / "run/config.toml").read_text())["skew"]["min_size"] == 7
    assert run.summary["skew"] == "dirichlet:alpha=0.1,min_size=7"
    assert fedskew.resume(tmp_path / "run").server.fed.partition == fed.partition
    found = fedskew.split(fedskew.load("digits"), "dirichlet", clients=10, target="hellinger=0.5")
    assert found.recipe["skew"]["min_size"] == 10


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([0.3, 0.5, 1.0, 100.0]), st.booleans(), st.integers(1, 40), seeds)
def test_redrawing_changes_no_row_of_a_draw_that_is_large_enough(
    alpha: float, balance: bool, least: int, seed: int
):
    options = {"name": "dirichlet", "alpha": alpha, "balance": balance}
    drawn = cut_rows({**options, "min_size": least, "min_rule": "redraw"}, BALANCED, 10, seed)
    assert drawn.sizes.min() >= least
    first = cut_rows({**options, "min_size": 1}, BALANCED, 10, seed)
    if first.sizes.min() >= max(least, 2):  # no client was filled up
        assert drawn == first
    elif first.sizes.min() < least:
        assert drawn != first


def test_redraws_are_the_next_draws_of_the_stream():
    """Check by hand, from the same random numbers: redraws until each client has ten rows, as in NIID-Bench."""
    clients, alpha, draws = 10, 0.1, []
    for seed in range(6):
        numbers, sizes, drawn = (
            Stream(seed, "partition", 1).generator(),
            np.zeros(clients, dtype=int),
            0,
        )
        while sizes.min() < 10:
            sizes, drawn = np.zeros(clients, dtype=int), drawn + 1
            for _ in range(10):
                logs = log_gammas(alpha, (clients,), numbers)
                ends = np.cumsum(np.exp(logs - logs.max()))
                ends = np.floor(ends / ends[-1] * 100 + numbers.random()).clip(max=100)
                sizes += np.diff(ends, prepend=0).astype(int)
        found = cut_rows(f"dirichlet:alpha={alpha},min_rule=redraw", BALANCED, clients, seed)
        assert found.sizes.tolist() == sizes.tolist()
        draws.append(drawn)
    assert max(draws) > 1


def test_redraws_end():
    with pytest.raises(
        FedskewError,
        match=r"in 1,000 draws no partition had 10 rows at every client, the smallest had at most 0: use a larger",
    ):
        cut_rows("dirichlet:alpha=0.001,min_rule=redraw", BALANCED, 20, seed=0)
    with pytest.raises(
        FedskewError,
        match=r"the smallest had at most (\d+): use min_size <= \1, a larger alpha, fewer clients",
    ):
        cut_rows("dirichlet:alpha=1,min_rule=redraw,min_size=50", BALANCED, 20, seed=0)


def niid_bench(labels: int, clients: int, k: int, draw: np.random.Generator) -> list[list[int]]:
    """Return NIID-Bench's label skew as in its code: client i has label i mod K and draws others until it has k."""
    contain = []
    for i in range(clients):
        current = [i % labels]
        while len(current) < k:
            label = int(draw.integers(labels))
            if label not in current:
                current.append(label)
        contain.append(current)
    return contain


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 6), st.data(), seeds)
def test_clients_draw_their_labels(labels: int, data: st.DataObject, seed: int):
    k = data.draw(st.integers(1, labels))
    clients = data.draw(st.integers(-(-labels // k), 12))
    y = np.repeat(np.arange(labels) * 2, 24)  # with gaps
    partition = cut_rows(f"classes:k={k},deal=random", rows_of(y), clients, seed)
    held = table(partition, y)
    assert sorted(partition.rows.tolist()) == list(range(len(y)))
    assert np.all((held > 0).sum(axis=1) == k)
    assert np.all(held[np.arange(clients), np.arange(clients) % labels] > 0)
    for column in held.T:
        assert np.ptp(column[column > 0]) <= 1


def test_drawn_labels_have_the_holders_of_niid_bench():
    """Check how many clients hold a label, and the variation of sizes, over many draws."""
    rows, clients, k = BALANCED, 10, 3
    draw = np.random.default_rng(0)
    holders, theirs, sizes = Counter[int](), Counter[int](), []
    for seed in range(600):
        partition = cut_rows(f"classes:k={k},deal=random", rows, clients, seed)
        holders.update((table(partition, rows.y) > 0).sum(axis=0).tolist())
        theirs.update(
            Counter(label for held in niid_bench(10, clients, k, draw) for label in held).values()
        )
        sizes.append(partition.sizes.std() / 100)
    assert (
        chi2_contingency([[each[n] for n in range(1, 7)] for each in (holders, theirs)]).pvalue
        > 1e-3
    )
    assert np.mean(sizes) > 0.15
    assert np.ptp(cut_rows(f"classes:k={k}", rows, clients, 0).sizes) <= 3


def test_labels_that_nobody_drew_find_a_holder():
    held = [
        table(cut_rows("classes:k=4,deal=random", BALANCED, 3, seed), BALANCED.y) > 0
        for seed in range(200)
    ]
    assert all(one.any(axis=0).all() and (one.sum(axis=1) == 4).all() for one in held)
    late = sum(one[:, 3:] for one in held)
    assert late.min() > 200 * 0.2  # labels 3 … 9 are at every client now and then


def test_too_many_drew_a_rare_label():
    y = np.repeat([0, 1, 2], [100, 100, 2])
    with pytest.raises(
        FedskewError,
        match=r"clients drew a label that has 2 rows: use fewer clients, .*deal=balanced",
    ):
        cut_rows("classes:k=2,deal=random", rows_of(y), 12, seed=0)
    assert cut_rows("classes:k=2", rows_of(y), 12, seed=0).clients == 12


def test_balance_stops_at_the_equal_share():
    """Check that a client exceeds its share by at most one class, because a full client gets nothing more."""
    free = cut_rows("dirichlet:alpha=0.1", BALANCED, 10, seed=2)
    balanced = cut_rows("dirichlet:alpha=0.1,balance=true", BALANCED, 10, seed=2)
    assert balanced.sizes.max() < 100 + 100
    assert balanced.sizes.std() < free.sizes.std()


def test_labels_are_held_at_random():
    """Check over many seeds that all pairs of labels are equally frequent for clients with two of five labels."""
    rows = rows_of(np.repeat(np.arange(5), 40))
    pairs = np.zeros((5, 5))
    for seed in range(300):
        held = (table(cut_rows("classes:k=2", rows, 10, seed), rows.y) > 0).astype(int)
        pairs += held.T @ held
    off = pairs[~np.eye(5, dtype=bool)] / (300 * 10)
    assert np.allclose(off, 1 / 10, atol=0.015)


def test_two_class_sizes():
    """Check the standard deviation over the mean: 0.1 by default, 1 with unequal sizes, for sampling by size."""
    rows = rows_of(np.repeat(np.arange(10), 4800))
    variation = {}
    for sizes in ("equal", "unequal"):
        cuts = [
            cut_rows(f"two-class-dirichlet:sizes={sizes}", rows, 250, seed) for seed in range(10)
        ]
        variation[sizes] = np.mean([cut.sizes.std() / cut.sizes.mean() for cut in cuts])
    assert variation["equal"] == pytest.approx(0.095, abs=0.02)
    assert variation["unequal"] == pytest.approx(1.0, abs=0.05)
    alike = cut_rows("two-class-dirichlet", rows, 250, seed=0)
    assert alike == cut_rows("two-class-dirichlet:sizes=equal", rows, 250, seed=0)
    shares = table(alike, rows.y).max(axis=1) / alike.sizes
    # The larger part of a Dirichlet(1/2, 1/2) has mean 1/2 + 1/pi.
    assert shares.mean() == pytest.approx(0.5 + 1 / np.pi, abs=0.02)
    with pytest.raises(FedskewError, match="sizes=unlike is not one of equal, unequal"):
        skews.choose("two-class-dirichlet:sizes=unlike")


@pytest.mark.parametrize(
    ("spec", "clients", "says"),
    [
        (
            "iid",
            1001,
            "1000 rows are too few for 1001 clients with at least 1 each: use at most 1000 clients",
        ),
        ("iid", 0, "0 clients, at least 1"),
        ("quantity", -1, "at least 1 is needed"),
        ("dirichlet:alpha=0", 5, "alpha=0 is out of range, it must be > 0"),
        ("dirichlet:alpha=-1", 5, "alpha=-1 is out of range"),
        ("dirichlet:alpha=nan", 5, "out of range"),
        ("dirichlet:min_size=11", 100, "use at most 90 clients or min_size <= 10"),
        ("dirichlet:min_size=2000", 1, "use more rows or min_size <= 1000"),
        ("quantity:min_size=501", 2, "use at most 1 clients or min_size <= 500"),
        ("classes", 5, "needs k="),
        (
            "classes:k=2,deal=random",
            4,
            "cannot have all 10 labels: use at least 5 clients or k >= 3",
        ),
        ("classes:k=11", 5, "11 labels a client, but the data has only 10: use k <= 10"),
        ("classes:k=2", 4, "cannot have all 10 labels: use at least 5 clients or k >= 3"),
        ("classes:k=2", 600, "use at most 500 clients or choose a smaller k"),
        ("two-class-dirichlet", 4, "cannot have all 10 labels: use at least 5 clients"),
        ("two-class-dirichlet", 501, "use at most 500 clients"),
        ("natural", 51, "51 clients, but the data has 50 groups: use 1 to 50 clients"),
        ("natural", -2, "use 1 to 50 clients, or 0"),
        (
            "natural:groups=51",
            0,
            "groups=51, but the data has 50 groups with training rows: use groups <= 50",
        ),
        (
            "natural:groups=7",
            8,
            "8 clients, but groups=7 takes 7 of the groups: use 1 to 7 clients",
        ),
        ("natural:groups=0", 0, "groups=0 is out of range"),
        ("dirichlt", 5, "did you mean 'dirichlet'"),
        (3, 5, "write it as text, name:key=value, or as a table with a name"),
        (lambda rows, clients, stream: [1], 5, "must return a Partition, got list"),
        (
            lambda rows, clients, stream: Partition.from_lists([np.arange(5)]),
            5,
            "row 5 is held by 0 clients",
        ),
    ],
)
def test_the_impossible_is_refused_in_one_line(spec, clients: int, says: str):
    with pytest.raises(FedskewError) as caught:
        cut_rows(spec, BALANCED, clients, seed=0)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_number_of_clients_fits():
    with pytest.raises(FedskewError, match="leave the rarest labels out or choose a smaller k"):
        cut_rows("classes:k=3", rows_of(np.arange(10)), 4, seed=0)


def test_one_label_is_too_few_for_two():
    with pytest.raises(FedskewError, match="2 labels a client, but the data has only 1"):
        cut_rows("two-class-dirichlet", rows_of(np.zeros(9)), 3, seed=0)


def test_natural_needs_groups():
    with pytest.raises(FedskewError, match="the data has no groups"):
        cut_rows("natural", rows_of(np.zeros(9)), 3, seed=0)


def test_a_function_is_a_skew():
    def halves(rows: Rows, clients: int, stream: Stream) -> Partition:
        assert stream.purpose == "partition"
        return Partition.from_owner(np.arange(len(rows)) * clients // len(rows), clients)

    assert cut_rows(halves, BALANCED, 4, seed=0).sizes.tolist() == [250] * 4


def test_many_clients_cost_little():
    """Check a partition for which a table of clients x rows would need 20 billion cells."""
    rows = rows_of(np.arange(200_000) % 10)
    for spec in ("iid", "dirichlet:alpha=0.1", "quantity", "classes:k=1", "two-class-dirichlet"):
        assert cut_rows(spec, rows, 100_000, seed=0).clients == 100_000
    assert cut_rows("classes:k=2,deal=random", rows, 50_000, seed=0).clients == 50_000
