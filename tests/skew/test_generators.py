"""Properties of the skews by feature, by sorted label and by cluster, over random tables with many equal values."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, wasserstein_distance

import fedskew
from fedskew.api import load
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream, substream
from fedskew.data.dataset import Rows, Split
from fedskew.data.partition import Partition
from fedskew.data.readers.arrays import Arrays
from fedskew.skew.assignment import assign_rest, equal_parts, placed
from fedskew.skew.clusters import row_clusters
from fedskew.skew.columns import most_variable, ranks
from fedskew.skew.partitioning import partition_rows
from fedskew.skew.wasserstein import feature_clusters, feature_distances

seeds = st.integers(0, 2**63)
STRENGTHS = ("vop", "wgc", "lds", "sldf", "sfdl")


@st.composite
def tables(draw: st.DrawFn, most_rows: int = 60, least_labels: int = 1) -> Rows:
    """Return tables with discrete, smooth, long-tailed and constant columns, at least one varying; gaps in labels."""
    count, width = draw(st.integers(2, most_rows)), draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    makers: list[Callable[[], np.ndarray]] = [
        lambda: random.integers(0, 3, count),
        lambda: random.normal(size=count) * 10.0 ** random.integers(-3, 4),
        lambda: np.exp(3 * random.normal(size=count)),
        lambda: np.full(count, 7.0),
    ]
    x = np.stack([makers[draw(st.integers(0, 3))]() for _ in range(width)], axis=1).astype(
        np.float32
    )
    x[0, 0], x[1, 0] = -1, 5  # the first column varies
    kinds = draw(st.lists(st.integers(0, 6), min_size=least_labels, max_size=4, unique=True))
    y = random.choice(kinds, count)
    y[:least_labels] = kinds[:least_labels]
    return Rows(x, y.astype(np.int64), random.integers(0, 4, count))


def some_clients(rows: Rows, data: st.DataObject, most: int | None = None) -> int:
    return data.draw(st.integers(1, min(len(rows), most or len(rows))), label="clients")


def whole(partition: Partition, rows: Rows) -> bool:
    return sorted(partition.rows.tolist()) == list(range(len(rows)))


def top_column(rows: Rows) -> np.ndarray:
    """Return the feature of greatest variance by a reference calculation."""
    variance = rows.x.astype(np.float64).var(axis=0)
    return rows.x[:, int(np.argmax(variance >= variance.max() * (1 - 1e-5)))]


@settings(deadline=None, max_examples=100)
@given(tables(), st.data(), seeds)
def test_vop_clients_are_intervals_of_the_widest_feature(
    rows: Rows, data: st.DataObject, seed: int
):
    clients = some_clients(rows, data)
    partition = partition_rows("vop", rows, clients, seed).partition
    assert whole(partition, rows)
    assert partition.sizes.max() - partition.sizes.min() <= 1
    values = [top_column(rows)[partition.of(client)] for client in range(clients)]
    for left, right in pairwise(values):
        assert left.max() <= right.min()  # they can share only the value at which they are cut
    assert partition == partition_rows("vop", rows, clients, seed).partition


def test_vop_takes_the_column_it_is_given_and_the_first_of_equals():
    x = np.stack([np.arange(8), np.arange(8)[::-1], np.arange(8) * 0.5], axis=1).astype(np.float32)
    rows = Rows(x, np.arange(8) % 2)
    assert partition_rows("vop", rows, 2, 0).partition.of(0).tolist() == [0, 1, 2, 3]
    assert partition_rows("vop:column=1", rows, 2, 0).partition.of(0).tolist() == [4, 5, 6, 7]
    standardised = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    assert most_variable(standardised, np.ones(3)) == 0
    assert most_variable(standardised, x.std(axis=0)) == 0
    assert most_variable(standardised, np.array([1.0, 1.0, 1.1])) == 2
    assert most_variable(np.ones((4, 3), np.float32), np.ones(3)) is None


@pytest.mark.parametrize("skew", ["vop", "sldf", "feature-dirichlet"])
@pytest.mark.parametrize("window", ["", ",window=2"])
def test_variances_are_those_of_the_file_whatever_the_model_trains_on(
    tmp_path: Path, skew: str, window: str
):
    """Check that variances are those of the file, where the second column varies most; standardised, all are equal."""
    draw = np.random.default_rng(0)
    y = np.arange(400) // 2 % 2
    a, b, c = (
        np.where(y, 0.1, 1) * draw.normal(size=400),
        50 + 9 * draw.normal(size=400),
        np.where(y, 2, 0.1) * draw.normal(size=400),
    )
    columns = {"a": a, "b": b, "c": c}
    kinds = draw.choice(["red", "green"], 400)
    lines = [
        f"{a},{b},{c},{kind},{label}"
        for a, b, c, kind, label in zip(*columns.values(), kinds, y, strict=True)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,kind,y", *lines]))
    raw, scaled = (
        load(f"{tmp_path / 't.csv'}:label=y,standardize={flag}{window}").train
        for flag in ("false", "true")
    )
    assert raw.x[:, 1].std() > 5
    assert scaled.x[:, 1].std() == pytest.approx(1, abs=0.1)
    assert (
        partition_rows(skew, scaled, 4, seed=0).partition
        == partition_rows(skew, raw, 4, seed=0).partition
    )


def test_arrays_are_cut_by_raw_variances_too():
    draw = np.random.default_rng(0)
    x = (draw.normal(size=(200, 3)) * [1, 2, 30]).astype(np.float32)
    made = Arrays(
        Rows(x, np.arange(200) % 2),
        Split("test", 0.2, 0),
        ("a", "b"),
        scaled=np.array([True, True, True]),
    )
    train = made.build("made up", None).train
    first = partition_rows("vop", train, 2, seed=0).partition.of(0)
    assert np.sort(train.x[:, 2])[: len(first)].max() == train.x[first, 2].max()
    assert train.unit == pytest.approx(x.std(axis=0), rel=0.2)


def test_equal_values_are_cut_at_random():
    """Check that a constant range of the feature, stored by label, does not become a label skew."""
    rows = Rows(
        np.repeat([[0.0], [1.0]], 200, axis=0).astype(np.float32), np.repeat([0, 1, 0, 1], 100)
    )
    held = partition_rows("vop", rows, 4, seed=0).partition.counts(rows.y, 2)
    assert held.min() > 30


@settings(deadline=None, max_examples=100)
@given(tables(least_labels=2), st.data(), seeds)
def test_lds_clients_are_runs_of_the_sorted_labels(rows: Rows, data: st.DataObject, seed: int):
    clients = some_clients(rows, data)
    partition = partition_rows("lds", rows, clients, seed).partition
    assert whole(partition, rows)
    assert partition.sizes.max() - partition.sizes.min() <= 1
    assert np.concatenate(
        [np.sort(rows.y[partition.of(client)]) for client in range(clients)]
    ).tolist() == sorted(rows.y)


def test_lds_by_frequency_gives_the_commonest_label_to_the_first_clients():
    y = np.repeat([0, 1, 2], [10, 20, 70])[Stream(0, "test").permutation(100)]
    rows = Rows(np.zeros((100, 1), np.float32), y)
    counts = partition_rows("lds:order=frequency", rows, 4, seed=0).partition.counts(y, 3)
    assert counts.tolist() == [[0, 0, 25], [0, 0, 25], [0, 5, 20], [10, 15, 0]]
    assert partition_rows("lds", rows, 4, seed=0).partition.counts(y, 3).tolist() == [
        [10, 15, 0],
        [0, 5, 20],
        [0, 0, 25],
        [0, 0, 25],
    ]


@settings(deadline=None, max_examples=100)
@given(tables(), st.data(), seeds)
def test_sldf_has_like_labels_and_intervals_within_each(rows: Rows, data: st.DataObject, seed: int):
    clients = some_clients(rows, data)
    partition = partition_rows("sldf", rows, clients, seed).partition
    assert whole(partition, rows)
    counts = partition.counts(rows.y, 7)
    assert np.all(counts.max(axis=0) - counts.min(axis=0) <= 1)
    assert partition.sizes.max() - partition.sizes.min() <= 1
    owner = partition.owner
    for label in np.unique(rows.y):
        mine = rows.take(np.flatnonzero(rows.y == label))
        values = top_column(mine)
        assert np.all(
            np.diff(owner[rows.y == label][np.lexsort((owner[rows.y == label], values))]) >= 0
        )


@settings(deadline=None, max_examples=60)
@given(tables(least_labels=2), st.data(), seeds)
def test_shards_are_dealt_equally(rows: Rows, data: st.DataObject, seed: int):
    clients = some_clients(rows, data)
    per_client = data.draw(st.integers(1, len(rows) // clients))
    partition = partition_rows(f"shards:per_client={per_client}", rows, clients, seed).partition
    assert whole(partition, rows)
    assert partition.sizes.max() - partition.sizes.min() <= per_client
    # Sorted by label and cut, s shards lie across s - 1 borders at most.
    kinds = len(np.unique(rows.y))
    held = (partition.counts(rows.y, 7) > 0).sum()
    assert held <= clients * per_client + kinds - 1


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=5), st.data(), seeds)
def test_sfdl_cuts_each_cluster_equally_in_stored_order(
    sizes: list[int], data: st.DataObject, seed: int
):
    """Check clusters that are far apart, so that the clustering is unambiguous."""
    random = np.random.default_rng(0)
    cluster = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = 100 * np.stack([np.cos(cluster), np.sin(cluster)], axis=1)
    x = (centres + random.uniform(0, 1e-3, centres.shape)).astype(np.float32)
    rows = Rows(x, np.arange(len(cluster)) % 3)
    clients = some_clients(rows, data)
    partition = partition_rows(f"sfdl:clusters={len(sizes)}", rows, clients, seed).partition
    assert whole(partition, rows)
    counts = partition.counts(cluster, len(sizes))
    assert np.all(counts.max(axis=0) - counts.min(axis=0) <= 1)
    assert partition.sizes.max() - partition.sizes.min() <= 1
    for number in range(len(sizes)):
        assert np.all(np.diff(partition.owner[cluster == number]) >= 0)


@settings(deadline=None, max_examples=30)
@given(tables(least_labels=2), st.data(), seeds)
def test_sfdl_takes_any_table(rows: Rows, data: st.DataObject, seed: int):
    clients = some_clients(rows, data)
    partition = partition_rows("sfdl", rows, clients, seed).partition
    assert whole(partition, rows)
    assert partition.sizes.max() - partition.sizes.min() <= 1
    assert partition == partition_rows("sfdl", rows, clients, seed).partition


def test_sfdl_finds_the_number_of_clusters():
    random = np.random.default_rng(1)
    for wanted in (3, 5):
        angle = 2 * np.pi * np.arange(wanted) / wanted
        centres = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        truth = random.integers(0, wanted, 600)
        x = (centres[truth] + 0.05 * random.normal(size=(600, 2))).astype(np.float32)
        found = row_clusters(x, None, Stream(0, "test"))
        assert len(np.unique(found)) == wanted
        assert len(np.unique(found * wanted + truth)) == wanted  # one to one


@settings(deadline=None, max_examples=60)
@given(tables(), st.data(), seeds)
def test_wgc_gives_every_row_once_to_where_it_is_most_extreme(
    rows: Rows, data: st.DataObject, seed: int
):
    varying = np.flatnonzero(np.ptp(rows.x, axis=0) > 0)
    clients = some_clients(rows, data, most=len(varying))
    quantile = data.draw(st.sampled_from([0.1, 0.25, 0.5]))
    partition = partition_rows({"name": "wgc", "quantile": quantile}, rows, clients, seed).partition
    assert whole(partition, rows)
    assert (
        partition
        == partition_rows({"name": "wgc", "quantile": quantile}, rows, clients, seed).partition
    )
    extreme = np.stack(
        [
            np.max(
                [
                    np.abs(
                        2 * (rankdata(rows.x[:, column].astype(np.float64)) - 0.5) / len(rows) - 1
                    )
                    for column in members
                ],
                axis=0,
            )
            for members in feature_clusters(rows.x, clients)
        ]
    )
    best = extreme.max(axis=0)
    decided = best >= 1 - 2 * quantile + 1e-9
    misplaced = decided & (extreme[partition.owner, np.arange(len(rows))] < best - 1e-9)
    # A client that the rule leaves empty gets one row of the largest; it may be empty if no row is most extreme there
    # alone (ties are broken at random, and a row that is extreme nowhere goes anywhere).
    alone = decided & ((extreme > best - 1e-9).sum(axis=0) == 1)
    assert misplaced.sum() <= clients - len(np.unique(np.argmax(extreme, axis=0)[alone]))


@settings(deadline=None, max_examples=60)
@given(tables(), st.data(), seeds)
def test_wgc_overlap_is_the_literal_text(rows: Rows, data: st.DataObject, seed: int):
    varying = np.flatnonzero(np.ptp(rows.x, axis=0) > 0)
    clients = some_clients(rows, data, most=len(varying))
    partition = partition_rows("wgc:overlap=true", rows, clients, seed).partition
    for client, members in enumerate(feature_clusters(rows.x, clients)):
        low, high = np.quantile(rows.x[:, members], [0.25, 0.75], axis=0)
        expected = ((rows.x[:, members] <= low) | (rows.x[:, members] >= high)).any(axis=1)
        assert partition.of(client).tolist() == np.flatnonzero(expected).tolist()


def test_wgc_matches_clusters_and_clients():
    random = np.random.default_rng(0)
    rows = Rows(random.normal(size=(400, 6)).astype(np.float32), random.integers(0, 2, 400))
    by_cluster = partition_rows("wgc", rows, 6, seed=0).partition.owner
    merged = partition_rows("wgc:clusters=6", rows, 3, seed=0).partition
    extreme = np.abs(2 * np.stack([ranks(column) for column in rows.x.T]) - 1)
    sure = extreme.max(axis=0) >= 0.5  # the others are dealt at random
    assert np.array_equal(merged.owner[sure], by_cluster[sure] % 3)
    two = partition_rows("wgc:clusters=2", rows, 6, seed=0).partition
    coarse = partition_rows("wgc", rows, 2, seed=0).partition.owner
    assert np.array_equal(two.owner[sure] % 2, coarse[sure])
    for number in range(2):
        shares = np.bincount(two.owner[sure & (coarse == number)] // 2, minlength=3)
        assert shares.max() - shares.min() <= 1


def test_features_are_clustered_by_their_distributions():
    random = np.random.default_rng(3)
    normal, tailed = random.normal(size=(3, 500)), np.exp(2 * random.normal(size=(2, 500)))
    table = np.stack(
        [normal[0], tailed[0], normal[1], np.full(500, 3.0), tailed[1] * 1e6, normal[2]], axis=1
    ).astype(np.float32)
    assert [members.tolist() for members in feature_clusters(table, 2)] == [[0, 2, 5], [1, 4]]
    varying = np.delete(table, 3, axis=1)
    scaled = (varying - varying.min(axis=0)) / np.ptp(varying, axis=0)
    expected = [[wasserstein_distance(a, b) for a in scaled.T] for b in scaled.T]
    np.testing.assert_allclose(feature_distances(varying), expected, atol=1e-6)


def test_quantiles_stand_for_many_rows():
    random = np.random.default_rng(4)
    table = np.stack([random.uniform(size=50_000), random.beta(2, 5, size=50_000)], axis=1).astype(
        np.float32
    )
    scaled = (table - table.min(axis=0)) / np.ptp(table, axis=0)
    assert feature_distances(table)[0, 1] == pytest.approx(
        wasserstein_distance(*scaled.T), abs=1e-3
    )


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30))
def test_ranks_are_mid_ranks(values: list[int]):
    expected = (rankdata(values) - 0.5) / len(values)
    np.testing.assert_allclose(ranks(np.array(values, np.float32)), expected)


@settings(deadline=None, max_examples=60)
@given(tables(), st.data(), seeds)
def test_feature_dirichlet_never_parts_a_bin_at_the_extreme(
    rows: Rows, data: st.DataObject, seed: int
):
    """Check that with a tiny alpha every bin is at one client, but for rows that fill empty clients."""
    clients, bins = some_clients(rows, data), data.draw(st.integers(2, 12))
    spec = {"name": "feature-dirichlet", "alpha": 1e-9, "bins": bins, "min_size": 1}
    partition = partition_rows(spec, rows, clients, seed).partition
    assert whole(partition, rows)
    bin_of = (ranks(top_column(rows)) * bins).astype(int)
    assert len(np.unique(bin_of)) > 1
    assert (partition.counts(bin_of, bins) > 0).sum() <= len(np.unique(bin_of)) + clients


@settings(deadline=None, max_examples=60)
@given(tables(), st.data(), seeds)
def test_domains_gives_exactly_k_groups(rows: Rows, data: st.DataObject, seed: int):
    assert rows.group is not None
    counts = np.bincount(rows.group)
    counts = counts[counts > 0]
    k = data.draw(st.integers(1, len(counts)))
    possible = [
        n
        for n in range(-(-len(counts) // k), len(rows) + 1)
        if np.minimum(counts, n).sum() >= n * k
    ]
    assume(possible)
    clients = data.draw(st.sampled_from(possible))
    partition = partition_rows(f"domains:k={k}", rows, clients, seed).partition
    held = partition.counts(rows.group, 4)
    assert whole(partition, rows)
    assert np.all((held > 0).sum(axis=1) == k)
    for column in held.T[np.bincount(rows.group, minlength=4) > 0]:
        shares = column[column > 0]
        assert shares.max() - shares.min() <= 1


def in_groups(counts: list[int], labels: int = 3) -> Rows:
    group = np.repeat(np.arange(len(counts)), counts)
    return Rows(np.zeros((len(group), 1), np.float32), np.arange(len(group)) % labels, group)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 30), min_size=2, max_size=5), st.data(), seeds)
def test_one_domain_alone_and_the_others_shared(counts: list[int], data: st.DataObject, seed: int):
    """Check Table V of Stratify: the first client has all of one group, the others share every other group equally."""
    held = [group for group, count in enumerate(counts) if count]
    assume(len(held) > 1)
    alone = data.draw(st.sampled_from(held))
    rows = in_groups(counts)
    clients = data.draw(st.integers(2, sum(counts) - counts[alone] + 1))
    partition = partition_rows(f"domains:alone={alone}", rows, clients, seed).partition
    assert whole(partition, rows)
    table = partition.counts(rows.group, len(counts))
    assert table[0].tolist() == [
        count if group == alone else 0 for group, count in enumerate(counts)
    ]
    assert table[1:, alone].sum() == 0
    assert (np.ptp(table[1:], axis=0) <= 1).all()
    assert np.ptp(table[1:].sum(axis=1)) <= 1


def test_a_domain_by_its_name():
    rows = in_groups([30, 20, 10])
    names = np.array(["photo", "art", "sketch"])[rows.group]
    fed = fedskew.split((rows.x, rows.y, names), "domains:alone=sketch", clients=4)
    groups = fed.data.train.group
    assert {fed.data.groups[group] for group in groups[fed.partition.of(0)]} == {"sketch"}
    assert {
        fed.data.groups[group] for client in (1, 2, 3) for group in groups[fed.partition.of(client)]
    } == {
        "photo",
        "art",
    }
    with pytest.raises(
        FedskewError,
        match="alone=sktch is not a group of the training rows: use the name of one, or 0, 1, 2",
    ):
        fedskew.split((rows.x, rows.y, names), "domains:alone=sktch", clients=4)


@pytest.mark.parametrize(
    ("spec", "counts", "clients", "says"),
    [
        ("domains", [3, 3], 2, "skew domains needs k=, the groups of each client, or alone="),
        ("domains:k=1,alone=0", [3, 3], 2, "skew domains needs k="),
        (
            "domains:alone=2",
            [3, 3],
            2,
            "alone=2 is not a group of the training rows: use the name of one, or 0, 1",
        ),
        (
            "domains:alone=0",
            [3, 3],
            1,
            "1 clients, of which the first has group 0 and the others share 3 rows: use 2 to 4",
        ),
        ("domains:alone=0", [3, 3], 5, "use 2 to 4 clients"),
        ("domains:alone=0", [3], 2, "the data has no other group"),
    ],
)
def test_no_domain_can_be_alone(spec: str, counts: list[int], clients: int, says: str):
    with pytest.raises(FedskewError, match=says):
        partition_rows(spec, in_groups(counts), clients, seed=0)


def test_dirichlet_by_group_mixes_groups_and_not_labels():
    group = np.repeat(np.arange(5), 200)
    rows = Rows(np.zeros((1000, 1), np.float32), np.tile(np.arange(10), 100), group)
    partition = partition_rows(
        "dirichlet:alpha=0.05,by=group,min_size=20", rows, 5, seed=0
    ).partition
    by_group, by_label = partition.counts(group, 5), partition.counts(rows.y, 10)
    assert (by_group.max(axis=0) / 200).mean() > 0.7
    assert (by_label / partition.sizes[:, None]).max() < 0.35
    same = partition_rows(
        "dirichlet:alpha=0.05,min_size=20", Rows(rows.x, group), 5, seed=0
    ).partition
    assert same == partition


def test_lognormal_sizes():
    rows = Rows(np.zeros((200_000, 1), np.float32), np.zeros(200_000, np.int64))
    sizes = partition_rows("quantity:law=lognormal,sigma=1.2", rows, 400, seed=0).partition.sizes
    assert np.log(sizes).std() == pytest.approx(1.2, rel=0.1)
    equal = partition_rows("quantity:law=lognormal,sigma=0", rows, 400, seed=0).partition.sizes
    assert equal.min() >= 499
    assert equal.max() <= 501


# -- strength ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRENGTHS)
@settings(deadline=None, max_examples=25)
@given(rows=tables(least_labels=2), data=st.data(), strength=st.floats(0, 1), seed=seeds)
def test_any_strength_keeps_every_row_once(
    name: str, rows: Rows, data: st.DataObject, strength: float, seed: int
):
    most = len(np.flatnonzero(np.ptp(rows.x, axis=0) > 0)) if name == "wgc" else None
    clients = some_clients(rows, data, most)
    partition = partition_rows({"name": name, "strength": strength}, rows, clients, seed).partition
    assert whole(partition, rows)
    if name != "wgc":
        assert partition.sizes.max() - partition.sizes.min() <= 1


def skewed_table() -> tuple[Rows, np.ndarray]:
    random = np.random.default_rng(5)
    x = (random.normal(size=(4000, 5)) * [1, 2, 9, 3, 1]).astype(np.float32)
    y = random.permutation(np.repeat(np.arange(4), 1000))
    x[:, 0] += 4 * y
    order = np.argsort(y, kind="stable")  # so that stored order means something to sfdl
    return Rows(x[order], y[order]), (x[order, 2] > np.median(x[order, 2])).astype(int)


def deviation(partition: Partition, rows: Rows, high: np.ndarray) -> float:
    """Return the largest distance of clients from the pooled data: labels, halves of the top feature, and clusters."""
    kinds = (rows.y, high, (np.abs(2 * ranks(rows.x[:, 4]) - 1) > 0.5).astype(int))
    worst = []
    for kind in kinds:
        counts = partition.counts(kind, int(kind.max()) + 1)
        shares = counts / counts.sum(axis=1, keepdims=True)
        worst.append(np.abs(shares - np.bincount(kind) / len(kind)).max())
    return max(worst)


@pytest.mark.parametrize("name", STRENGTHS)
def test_strength_goes_from_alike_to_the_rule(name: str):
    rows, high = skewed_table()
    levels = [
        deviation(
            partition_rows(f"{name}:strength={strength}", rows, 4, seed=1).partition, rows, high
        )
        for strength in (0, 0.5, 1)
    ]
    assert levels[0] < 0.06  # 1,000 rows a client, drawn at random
    assert levels[0] < 0.6 * levels[1] < levels[1] < levels[2]
    assert (
        partition_rows(f"{name}:strength=1", rows, 4, seed=1).partition
        == partition_rows(name, rows, 4, seed=1).partition
    )


def test_strength_adds_rows_to_those_placed_before():
    stream = Stream(3, "test")
    few, more = placed(100, 0.3, stream), placed(100, 0.8, stream)
    assert len(few) == 30
    assert set(few.tolist()) < set(more.tolist())
    assert placed(100, 1.0, stream).tolist() == list(range(100))


def test_vop_of_half_strength_places_half():
    rows, _ = skewed_table()
    partition = partition_rows("vop:strength=0.5", rows, 4, seed=2).partition
    kept = placed(4000, 0.5, substream(Stream(2, "partition"), 0))
    values = [rows.x[np.intersect1d(partition.of(client), kept), 2] for client in range(4)]
    for left, right in pairwise(values):
        assert left.max() <= right.min()
    assert [len(part) for part in values] == [500] * 4


def test_overlap_of_half_strength():
    rows, _ = skewed_table()
    partition = partition_rows("wgc:overlap=true,strength=0.5", rows, 4, seed=2).partition
    kept = placed(4000, 0.5, substream(Stream(2, "partition"), 0))
    held = np.bincount(partition.rows, minlength=4000)
    others = np.setdiff1d(np.arange(4000), kept)
    assert np.all(held[others] == 1)
    assert held[kept].max() > 1
    assert held[kept].min() == 0


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 50))
def test_equal_parts_are_runs_of_equal_size(count: int, clients: int, start: int):
    owner = equal_parts(count, clients, start)
    sizes = np.bincount(owner, minlength=clients)
    assert np.all(np.diff(owner) >= 0)
    assert len(owner) == count
    assert sizes.max() - sizes.min() <= 1


@settings(deadline=None)
@given(st.lists(st.integers(-1, 4), max_size=40))
def test_the_rest_is_dealt_equally(owners: list[int]):
    before = np.array(owners, dtype=np.int64)
    after = assign_rest(before, 5, Stream(0, "test"))
    assert np.array_equal(after[before >= 0], before[before >= 0])
    gained = np.bincount(after[before < 0], minlength=5)
    assert gained.max() - gained.min() <= 1
    held = np.bincount(before[before >= 0], minlength=5)
    if gained.max() > gained.min():
        assert held[gained == gained.max()].max() <= held[gained == gained.min()].min()


# -- what is refused ---------------------------------------------------------------------------------------------------

VARIED = Rows(np.arange(24, dtype=np.float32).reshape(8, 3) % 7, np.arange(8) % 2)
CONSTANT = Rows(np.ones((8, 3), np.float32), np.arange(8) % 2)
ONE_LABEL = Rows(VARIED.x, np.zeros(8, np.int64))


@pytest.mark.parametrize(
    ("spec", "rows", "clients", "says"),
    [
        *(
            (f"{name}", VARIED, 9, f"skew {name}: 8 rows are too few for 9 clients")
            for name in (*STRENGTHS, "shards")
        ),
        *(
            (name, CONSTANT, 2, "all 3 features are constant: use a skew by label")
            for name in ("vop", "sldf", "feature-dirichlet")
        ),
        (
            "sfdl",
            CONSTANT,
            2,
            "the features have 1 different rows: they are constant, use a skew by label",
        ),
        (
            "wgc",
            CONSTANT,
            2,
            "2 clusters of features, but only 0 features vary: use a skew by label",
        ),
        *(
            (name, ONE_LABEL, 2, "the data has only 1 label")
            for name in ("lds", "shards", "sfdl", "iid + relabel")
        ),
        ("vop:column=3", VARIED, 2, "column=3, but the columns are 0 … 2"),
        ("vop:column=-1", VARIED, 2, "column=-1 is out of range"),
        ("feature-dirichlet:column=1", CONSTANT, 2, "column=1 is constant: choose another"),
        ("feature-dirichlet:bins=1", VARIED, 2, "bins=1 is out of range, it must be >= 2"),
        ("wgc", VARIED, 4, "4 clusters of features, but only 3 features vary: use clusters <= 3"),
        (
            "wgc:clusters=5",
            VARIED,
            2,
            "5 clusters of features, but only 3 features vary: use clusters <= 3",
        ),
        (
            "wgc:clusters=2,overlap=true",
            VARIED,
            3,
            "leaves 1 of 3 clients without one: use clusters >= 3",
        ),
        ("wgc:quantile=0.6", VARIED, 2, "quantile=0.6 is out of range"),
        (
            "sfdl:clusters=9",
            VARIED,
            2,
            "9 clusters, but the features have 7 different rows: use clusters <= 7",
        ),
        ("sfdl:clusters=1", VARIED, 2, "clusters=1 is out of range, it must be >= 2"),
        (
            "shards:per_client=5",
            VARIED,
            2,
            "8 rows cannot be divided into 10 shards, 5 for each of 2 clients: use per_client <= 4",
        ),
        ("domains:k=1", VARIED, 2, "skew domains: the data has no groups"),
        ("dirichlet:by=group", VARIED, 2, "skew dirichlet:by=group: the data has no groups"),
        ("vop:strength=1.5", VARIED, 2, "strength=1.5 is out of range, it must be >= 0 and <= 1"),
        ("quantity:law=cauchy", VARIED, 2, "law=cauchy is not one of dirichlet, lognormal"),
    ],
)
def test_the_impossible_is_refused_in_one_line(spec: str, rows: Rows, clients: int, says: str):
    with pytest.raises(FedskewError) as caught:
        partition_rows(spec, rows, clients, seed=0)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_k_larger_than_the_groups():
    rows = Rows(VARIED.x, VARIED.y, np.arange(8) % 3)
    with pytest.raises(
        FedskewError, match="4 groups a client, but the data has only 3: use k <= 3"
    ):
        partition_rows("domains:k=4", rows, 2, seed=0)


def test_too_many_features_for_pairs():
    with pytest.raises(FedskewError, match="4097 are too many"):
        partition_rows(
            "wgc",
            Rows(np.random.default_rng(0).normal(size=(3, 4097)).astype(np.float32), np.arange(3)),
            2,
            seed=0,
        )


@pytest.mark.parametrize("name", [*STRENGTHS, "feature-dirichlet"])
def test_features_of_any_shape(name: str):
    random = np.random.default_rng(6)
    images = Rows(random.normal(size=(60, 2, 3, 4)).astype(np.float32), random.integers(0, 3, 60))
    flat = Rows(images.x.reshape(60, 24), images.y)
    assert (
        partition_rows(name, images, 4, seed=0).partition
        == partition_rows(name, flat, 4, seed=0).partition
    )
