"""``measure`` against loops over SciPy's distances; its invariances; samples, chance, limits, bad input."""

import json
import math
import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance

import fedskew
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.heterogeneity.coded import STEPS
from fedskew.heterogeneity.fairness import gini
from fedskew.heterogeneity.heterogeneity import levels, measure
from fedskew.heterogeneity.pairs import choose_pairs, standard_error
from fedskew.heterogeneity.result import VIEWS
from fedskew.skew.partitioning import partition_rows

DISTANCES = ("hellinger", "jensen-shannon", "total-variation", "wasserstein")


def table(count: int = 1_500, features: int = 5, classes: int = 4, seed: int = 0) -> Rows:
    """Return features whose means depend on the label; the second is constant, the third has five values."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, count)
    x = random.standard_normal((count, features)) + 0.8 * y[:, None]
    x[:, 1] = 3.0
    x[:, 2] = random.integers(0, 5, count)
    return Rows(x.astype(np.float32), y.astype(np.int64))


def unlike(count: int, clients: int, seed: int = 1) -> Partition:
    """Return random owners with very different numbers of rows, none empty."""
    random = np.random.default_rng(seed)
    owner = np.minimum(random.geometric(2 / clients, count) - 1, clients - 1)
    owner[random.choice(count, clients, replace=False)] = np.arange(clients)
    return Partition.from_owner(owner, clients)


def hellinger(p: np.ndarray, q: np.ndarray) -> float:
    return math.sqrt(float(((np.sqrt(p) - np.sqrt(q)) ** 2).sum()) / 2)


def four(p: np.ndarray, q: np.ndarray, wasserstein: float) -> list[float]:
    return [
        hellinger(p, q),
        float(jensenshannon(p, q, base=2)),
        float(np.abs(p - q).sum()) / 2,
        wasserstein,
    ]


def labels_by_hand(a: np.ndarray, b: np.ndarray, classes: int) -> list[float]:
    p, q = (np.bincount(y, minlength=classes) / len(y) for y in (a, b))
    return four(p, q, wasserstein_distance(a / (classes - 1), b / (classes - 1)))


def features_by_hand(
    a: np.ndarray, b: np.ndarray, everything: np.ndarray, bins: int = 20
) -> list[float]:
    each = []
    for column in range(everything.shape[1]):
        low, high = (
            float(end) for end in (everything[:, column].min(), everything[:, column].max())
        )
        if low < high:
            p, q = ((part[:, column].astype(np.float64) - low) / (high - low) for part in (a, b))
            shares = [np.histogram(part, bins=bins, range=(0, 1))[0] / len(part) for part in (p, q)]
            each.append(four(*shares, wasserstein_distance(p, q)))
    return np.mean(each, axis=0).tolist()


def means(found) -> list[float]:
    return [found[name].mean for name in DISTANCES]


@pytest.fixture(scope="module")
def rows() -> Rows:
    return table()


@pytest.fixture(scope="module")
def partition(rows: Rows) -> Partition:
    return unlike(len(rows), 6)


@pytest.fixture(scope="module")
def found(rows: Rows, partition: Partition):
    return measure(rows, partition)


def test_labels_are_those_of_a_loop_over_scipy(rows: Rows, partition: Partition, found):
    held = [rows.y[partition.of(client)] for client in range(6)]
    pairs = np.array([labels_by_hand(a, b, 4) for a, b in combinations(held, 2)])
    pooled = np.array([labels_by_hand(own, rows.y, 4) for own in held])
    for line, name in enumerate(DISTANCES):
        spread = found.labels[name]
        assert spread.mean == pytest.approx(pairs[:, line].mean())
        assert spread.worst == pytest.approx(pairs[:, line].max())
        assert spread.pooled == pytest.approx(np.average(pooled[:, line], weights=partition.sizes))
        assert spread.pooled_worst == pytest.approx(pooled[:, line].max())
        assert (spread.standard_error, spread.pairs) == (0, 15)


def test_features_are_those_of_a_loop_over_scipy(rows: Rows, partition: Partition, found):
    held = [rows.x[partition.of(client)] for client in range(6)]
    pairs = np.array([features_by_hand(a, b, rows.x) for a, b in combinations(held, 2)])
    pooled = np.array([features_by_hand(own, rows.x, rows.x) for own in held])
    for line, name in enumerate(DISTANCES):
        spread = found.features[name]
        assert spread.mean == pytest.approx(pairs[:, line].mean())
        assert spread.worst == pytest.approx(pairs[:, line].max())
        assert spread.pooled == pytest.approx(np.average(pooled[:, line], weights=partition.sizes))
        assert spread.pooled_worst == pytest.approx(pooled[:, line].max())


def test_features_given_the_label_are_those_of_a_loop(rows: Rows, partition: Partition):
    found = measure(rows, partition, min_rows=45).views["features given label"]
    by_pair = []
    for a, b in combinations(range(6), 2):
        shared = []
        for label in range(4):
            own = [partition.of(client)[rows.y[partition.of(client)] == label] for client in (a, b)]
            if min(map(len, own)) >= 45:
                shared.append(features_by_hand(rows.x[own[0]], rows.x[own[1]], rows.x))
        if shared:
            by_pair.append(np.mean(shared, axis=0))
    assert 0 < len(by_pair) < 15
    assert means(found) == pytest.approx(np.mean(by_pair, axis=0))
    assert [found[name].worst for name in DISTANCES] == pytest.approx(np.max(by_pair, axis=0))
    assert found["hellinger"].pairs == len(by_pair)


def test_ten_clients_with_one_label_each():
    y = np.repeat(np.arange(10), 7)
    found = measure(Rows(np.zeros((70, 1), np.float32), y), Partition.from_owner(y, 10)).labels
    assert [found[name].mean for name in DISTANCES[:3]] == [1, 1, 1]
    assert found["wasserstein"].mean == pytest.approx(11 / 27)  # the mean of |i - j| / 9
    assert (found["wasserstein"].worst, found["hellinger"].worst) == (1, 1)


def test_the_order_of_clients_and_of_rows_does_not_matter(rows: Rows, partition: Partition, found):
    shuffle = np.random.default_rng(3)
    turned = [shuffle.permutation(partition.of(client)) for client in (4, 2, 0, 5, 1, 3)]
    again = measure(rows, Partition.from_lists(turned))
    assert means(again.labels) == pytest.approx(means(found.labels))
    assert means(again.features) == pytest.approx(means(found.features))
    assert again.sizes == pytest.approx(found.sizes)


def test_renaming_labels_changes_wasserstein_of_labels_alone(
    rows: Rows, partition: Partition, found
):
    renamed = measure(Rows(rows.x, np.array([2, 0, 3, 1])[rows.y]), partition)
    assert means(renamed.labels)[:3] == pytest.approx(means(found.labels)[:3])
    assert means(renamed.labels)[3] != pytest.approx(means(found.labels)[3], rel=0.01)
    for view in ("features", "features given label"):
        assert means(renamed.views[view]) == pytest.approx(means(found.views[view]))
    assert means(renamed.views["labels given features"])[:3] == pytest.approx(
        means(found.views["labels given features"])[:3]
    )
    assert renamed.label_entropy == pytest.approx(found.label_entropy)


def test_scaling_and_moving_a_feature_changes_nothing(rows: Rows, partition: Partition, found):
    moved = Rows((rows.x * np.array([4, 1, -2, 0.5, 8], np.float32)).astype(np.float32), rows.y)
    assert means(measure(moved, partition).features)[3] == pytest.approx(
        means(found.features)[3], abs=1e-6
    )


def test_dealt_at_random_it_is_what_chance_gives_and_falls_with_the_size():
    few, many = (
        measure(one, partition_rows("iid", one, 10, seed=0).partition)
        for one in (table(1_000), table(40_000))
    )
    for found in (few, many):
        for view in found.views.values():
            assert view["hellinger"].mean == pytest.approx(view["hellinger"].by_chance, rel=0.25)
    # Two samples of n rows over B bins that are all in use: the mean square is about (B - 1) / 8 * 2 / n.
    assert few.labels["hellinger"].mean == pytest.approx(math.sqrt(3 / 8 * 2 / 100), rel=0.25)
    assert many.labels["hellinger"].mean < 0.02
    assert many.labels["wasserstein"].mean < 0.01
    assert many.features["wasserstein"].mean < 0.01
    assert many.features["hellinger"].mean < 0.06


def test_what_differs_shows_where_it_differs():
    random = np.random.default_rng(0)
    y = random.integers(0, 4, 8_000)
    x = (random.standard_normal((8_000, 2)) * 0.1 + np.stack([y // 2, y % 2], axis=1)).astype(
        np.float32
    )
    rows = Rows(x, y)

    def above_chance(spec: str) -> dict[str, bool]:
        made = partition_rows(spec, rows, 5, seed=0)
        views = measure(made.rows, made.partition).views
        return {
            view: view_["hellinger"].mean > view_["hellinger"].by_chance + 0.1
            for view, view_ in views.items()
        }

    labels, features, given_label, given_features = (
        "labels",
        "features",
        "features given label",
        "labels given features",
    )
    assert above_chance("iid") == {
        labels: False,
        features: False,
        given_label: False,
        given_features: False,
    }
    assert above_chance("dirichlet:alpha=0.5") == {
        labels: True,
        features: True,
        given_label: False,
        given_features: False,
    }
    assert above_chance("sldf") == {
        labels: False,
        features: True,
        given_label: True,
        given_features: False,
    }
    assert above_chance("relabel:fraction=0.6") == {
        labels: False,
        features: False,
        given_label: True,
        given_features: True,
    }


def test_sampled_pairs_are_within_the_stated_error():
    rows = table(6_000)
    partition = partition_rows("dirichlet:alpha=0.3", rows, 120, seed=0).partition
    exact = measure(rows, partition, chance=False)
    assert exact.labels["hellinger"].pairs == 7_140
    for seed in range(5):
        sampled = measure(rows, partition, pairs=800, chance=False, seed=seed)
        for view in ("labels", "features"):
            for name in DISTANCES:
                one, all_ = sampled.views[view][name], exact.views[view][name]
                assert 0 < one.standard_error < 0.02
                assert abs(one.mean - all_.mean) < 4 * one.standard_error
                assert one.worst <= all_.worst
                assert one.pooled == pytest.approx(all_.pooled)
        assert any("800 of 7140 pairs" in line for line in sampled.definition)


def test_sampled_features_are_within_the_stated_error():
    rows = table(2_000, features=80)
    partition = unlike(len(rows), 5)
    exact = measure(rows, partition, features=None, chance=False)
    for seed in range(5):
        sampled = measure(rows, partition, features=20, chance=False, seed=seed)
        for name in DISTANCES:
            one = sampled.features[name]
            assert 0 < one.standard_error < 0.02
            assert abs(one.mean - exact.features[name].mean) < 4 * one.standard_error
        assert any("20 random ones of 79" in line for line in sampled.definition)


def test_wasserstein_on_steps_is_never_above_the_exact_and_at_most_a_step_below(
    monkeypatch: pytest.MonkeyPatch,
):
    rows = table(3_000)
    partition = partition_rows("dirichlet:alpha=0.3", rows, 8, seed=0).partition
    exact = measure(rows, partition)
    monkeypatch.setattr("fedskew.heterogeneity.coded._CELLS_EXACT", 1)
    steps = measure(rows, partition)
    for view in ("features", "features given label"):
        one, other = steps.views[view]["wasserstein"], exact.views[view]["wasserstein"]
        assert 0 <= other.mean - one.mean <= 1 / STEPS
        assert other.mean - one.mean < 1e-3  # far better than promised
        assert 0 <= other.worst - one.worst <= 1 / STEPS
        assert steps.views[view]["hellinger"] == exact.views[view]["hellinger"]
    assert any(f"in 3 on {STEPS} steps" in line for line in steps.definition)
    assert any("exact in 4 features." in line for line in exact.definition)


def test_little_memory_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, rows: Rows, partition: Partition, found
):
    for name in (
        "coded._CELLS_AT_ONCE",
        "coded._VALUES_AT_ONCE",
        "distances._CELLS_AT_ONCE",
        "study._VALUES_AT_ONCE",
    ):
        monkeypatch.setattr(f"fedskew.heterogeneity.{name}", 50)
    monkeypatch.setattr("fedskew.heterogeneity.regions._VALUES_AT_ONCE", 50)
    again = measure(rows, partition).as_dict()
    flat = [(path, value) for path, value in _leaves(found.as_dict()) if not isinstance(value, str)]
    assert [path for path, _ in flat] == [
        path for path, value in _leaves(again) if not isinstance(value, str)
    ]
    assert [value for _, value in flat] == pytest.approx(
        [value for _, value in _leaves(again) if not isinstance(value, str)]
    )


def _leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _leaves(item, (*path, place))
    elif value is not None:
        yield path, value


def test_many_clients_take_no_table_of_clients_by_clients():
    rows = table(60_000, features=3)
    partition = Partition.from_owner(np.arange(60_000) % 20_000, 20_000)
    tracemalloc.start()
    found = measure(rows, partition, chance=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 600e6  # the table would have 3.2e9 bytes
    assert found.labels["hellinger"].pairs == 20_000
    assert 0 < found.labels["hellinger"].standard_error < 0.005
    assert "features given label" not in found.views
    assert any(line.startswith("features given label: not measured") for line in found.definition)


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 7, 10])
def test_every_pair_has_one_number(clients: int):
    pairs = choose_pairs(clients, 10**6, Stream(0, "test"))
    both = {
        frozenset(pair) for pair in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    }
    assert both == {frozenset(pair) for pair in combinations(range(clients), 2)}
    assert len(pairs.first) == pairs.total == clients * (clients - 1) // 2
    assert pairs.exact


def test_pairs_of_a_million_clients_are_drawn_at_once():
    pairs = choose_pairs(10**6, 20_000, Stream(0, "test"))
    assert len(set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))) == 20_000
    assert np.all(pairs.first != pairs.second)
    assert not pairs.exact


def test_standard_error():
    assert standard_error(np.arange(5.0), 5) == 0
    assert standard_error(np.arange(5.0), 10) == pytest.approx(
        np.std(np.arange(5), ddof=1) / math.sqrt(5) * math.sqrt(0.5)
    )
    assert math.isnan(standard_error(np.array([1.0]), 10))


def test_levels_are_the_numbers_of_measure(rows: Rows, partition: Partition, found):
    for of in VIEWS:
        assert list(levels(rows, partition, of).values()) == pytest.approx(
            means(found.views[of]), abs=1e-12
        )


def test_entropy_and_sizes(rows: Rows, partition: Partition, found):
    shares = [
        np.bincount(rows.y[partition.of(client)], minlength=4) / partition.sizes[client]
        for client in range(6)
    ]
    each = [-sum(p * math.log(p) for p in line if p > 0) / math.log(4) for line in shares]
    assert found.label_entropy == pytest.approx(
        {"mean": np.mean(each), "least": min(each), "most": max(each)}
    )
    assert found.sizes["ratio"] == partition.sizes.max() / partition.sizes.min()
    assert found.sizes["gini"] == gini(partition.sizes)


def test_the_most_skewed_feature_is_named():
    random = np.random.default_rng(0)
    x = random.standard_normal((500, 4)).astype(np.float32)
    rows = Rows(x, np.zeros(500, np.int64))
    assert (
        measure(rows, Partition.from_owner((x[:, 2] > 0).astype(np.int64), 2)).most_skewed_feature
        == 2
    )


def test_a_federation_is_measured_by_its_training_rows_and_classes():
    fed = fedskew.split(fedskew.load("digits"), "dirichlet:alpha=0.2", clients=5, client_test=0.2)
    found = measure(fed)
    assert (found.clients, found.rows, found.classes) == (5, len(fed.partition.rows), 10)
    direct = measure(fed.train, fed.partition)
    assert means(found.labels) == means(direct.labels)


def test_json_table_and_text(found):
    read = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert read["labels"]["hellinger"]["mean"] == found.labels["hellinger"].mean
    assert read["features_given_label"]["wasserstein"]["pairs"] > 0
    assert read["definition"] == list(found.definition)
    lines = found.table()
    assert len(lines) == 16
    assert lines[0] == {"of": "labels", "distance": "hellinger"} | read["labels"]["hellinger"]
    assert "standard error" in str(found)
    assert str(found).count("\n") == 18 + len(found.definition)


def test_the_same_twice(rows: Rows, partition: Partition, found):
    assert measure(rows, partition) == found
    assert (
        measure(rows, partition, seed=1).labels["hellinger"].by_chance
        != found.labels["hellinger"].by_chance
    )


def test_data_without_differences():
    rows = Rows(np.ones((30, 3), np.float32), np.zeros(30, np.int64))
    found = measure(rows, Partition.from_owner(np.arange(30) % 3, 3), min_rows=5)
    assert means(found.labels) == means(found.features) == [0, 0, 0, 0]
    assert found.most_skewed_feature is None
    assert found.label_entropy == {"mean": 0, "least": 0, "most": 0}
    assert "labels given features" not in found.views


def test_a_single_client_has_nobody_to_differ_from():
    found = measure(table(50), Partition.from_owner(np.zeros(50, np.int64), 1))
    assert means(found.labels) == [0, 0, 0, 0]
    assert found.labels["hellinger"].pooled == 0
    assert found.labels["hellinger"].pairs == 0


def test_clients_that_share_rows():
    rows = table(100)
    both = Partition.from_lists([np.arange(60), np.arange(40, 100)])
    assert measure(rows, both).rows == 120


def test_images_are_flattened():
    random = np.random.default_rng(0)
    images = random.standard_normal((60, 3, 4, 4)).astype(np.float32)
    y, partition = np.arange(60) % 3, Partition.from_owner(np.arange(60) % 2, 2)
    flat = measure(Rows(images.reshape(60, -1), y), partition)
    assert measure(Rows(images, y), partition) == flat


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bins": 1}, "measure: bins=1 is out of range, it must be >= 2"),
        ({"features": 0}, "measure: features=0 is out of range, it must be >= 1"),
        ({"pairs": 0}, "measure: pairs=0 is out of range, it must be >= 1"),
        ({"min_rows": 0}, "measure: min_rows=0 is out of range, it must be >= 1"),
        (
            {"classes": 2},
            "measure: 2 classes, but there is a row of class 3: use classes=4 or more",
        ),
        (
            {"partition": None},
            "measure needs what fedskew.split returns, or rows and their partition; got Rows",
        ),
        (
            {"partition": Partition(np.arange(4), np.array([0, 4, 4]))},
            "client 1 has no rows (1 of 2 clients have none): use fewer clients or a milder skew",
        ),
    ],
)
def test_bad_input_is_refused_in_a_line(
    rows: Rows, partition: Partition, change: dict, message: str
):
    with pytest.raises(FedskewError) as problem:
        measure(rows, **{"partition": partition} | change)
    assert str(problem.value) == message


def test_nan_is_refused(rows: Rows, partition: Partition):
    x = rows.x.copy()
    x[7, 3] = np.nan
    with pytest.raises(FedskewError, match="feature 3 holds NaN or infinity"):
        measure(Rows(x, rows.y), partition)


def test_a_federation_with_another_partition_is_refused(partition: Partition):
    fed = fedskew.split(fedskew.load("digits"), "iid", clients=5)
    with pytest.raises(FedskewError, match="a federation has its own partition"):
        measure(fed, partition)


# -- as FedArtML makes one number of many pairs ------------------------------------------------------------------------


def test_the_convention_of_fedartml_by_hand():
    """Check three clients of one label each, two of them equal: Hellinger distances are 0, 1, 1.

    Shares are (1, 0, 0), (1, 0, 0), (0, 0, 1): taken as samples these are the same, and FedArtML's distance is 0.
    """
    y = np.array([0, 0, 0, 0, 2, 2])
    rows = Rows(
        np.array(
            [[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0], [4.0, 1.0], [4.0, 4.0]], np.float32
        ),
        y,
    )
    partition = Partition.from_owner(np.array([0, 0, 1, 1, 2, 2]), clients=3)
    plain = measure(rows, partition, classes=3, bins=2, chance=False)
    theirs = measure(rows, partition, classes=3, bins=2, chance=False, convention="fedartml")
    assert plain.labels["hellinger"].mean == pytest.approx(2 / 3)
    assert theirs.labels["hellinger"].mean == pytest.approx(math.sqrt(2 / 3))
    assert plain.labels["wasserstein"].mean == pytest.approx(2 / 3)
    assert theirs.labels["wasserstein"].mean == 0
    # Feature 0 as the labels. Feature 1, in bins below and above 2.5: (1, 0), (0, 1), (1/2, 1/2): by size, the first
    # two are the same, and the third is 1/2 from both in either share.
    half = 1 - math.sqrt(0.5)
    hellinger = [math.sqrt(2 / 3), math.sqrt((1 + half + half) / 3)]
    assert theirs.features["hellinger"].mean == pytest.approx(np.mean(hellinger))
    assert theirs.features["wasserstein"].mean == pytest.approx(
        (0 + math.sqrt((0 + 1 / 2 + 1 / 2) / 3)) / 2
    )
    assert set(theirs.features) == set(theirs.labels) == {"hellinger", "wasserstein"}
    assert any("FedArtML" in sentence for sentence in theirs.definition)
    for of in ("labels", "features"):
        found = levels(rows, partition, of, classes=3, convention="fedartml")
        if of == "labels":
            assert found == {name: spread.mean for name, spread in theirs.labels.items()}
        assert set(found) == {"hellinger", "wasserstein"}


def test_the_convention_is_that_of_the_package():
    theirs = pytest.importorskip("fedartml.function_base")
    draw = np.random.default_rng(0)
    for _ in range(100):
        clients, classes = draw.integers(2, 9), draw.integers(2, 12)
        counts = draw.integers(0, 20, (clients, classes))
        counts[:, 0] += 1  # nobody is without rows
        y = np.concatenate([np.repeat(np.arange(classes), line) for line in counts])
        partition = Partition.from_owner(np.repeat(np.arange(clients), counts.sum(1)), clients)
        rows = Rows(np.zeros((len(y), 1), np.float32), y)
        found = levels(rows, partition, "labels", classes=classes, convention="fedartml")
        shares = counts / counts.sum(1, keepdims=True)
        assert found["hellinger"] == pytest.approx(theirs.hellinger_distance(shares), abs=1e-12)
        assert found["wasserstein"] == pytest.approx(
            theirs.earth_movers_distance(shares), abs=1e-12
        )


def test_one_class_each_is_no_distance_in_fedartml():
    rows = Rows(np.zeros((4, 1), np.float32), np.array([0, 0, 9, 9]))
    partition = Partition.from_owner(np.array([0, 0, 1, 1]), clients=2)
    assert levels(rows, partition, "labels", classes=10, convention="fedartml")["wasserstein"] == 0
    assert levels(rows, partition, "labels", classes=10)["wasserstein"] == 1


def test_its_numbers_are_at_most_one():
    draw = np.random.default_rng(0)
    rows = Rows(draw.normal(size=(300, 4)).astype(np.float32), draw.integers(0, 3, 300))
    partition = Partition.from_owner(draw.integers(0, 5, 300), clients=5)
    plain, theirs = (
        measure(rows, partition, convention=convention) for convention in ("mean", "fedartml")
    )
    for view, found in theirs.views.items():
        assert plain.views[view]["hellinger"].mean <= found["hellinger"].mean <= 1
        assert 0 < found["wasserstein"].mean <= 1
        assert all(spread.by_chance is not None for spread in found.values())
    sampled = measure(rows, partition, features=2, convention="fedartml").features["hellinger"]
    assert math.isnan(sampled.standard_error)


def test_an_unknown_convention():
    rows, partition = (
        Rows(np.zeros((2, 1), np.float32), np.array([0, 1])),
        Partition.from_owner(np.array([0, 1]), clients=2),
    )
    with pytest.raises(FedskewError, match="unknown convention of measure 'fedart'"):
        measure(rows, partition, convention="fedart")
