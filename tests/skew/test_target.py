"""Skews with a target level: levels and seeds, every kind of parameter, unreachable levels, and bad spellings."""

import numpy as np
import pytest

import fedskew
from fedskew.core.errors import FedskewError
from fedskew.data import listing
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.heterogeneity.heterogeneity import measure
from fedskew.skew.partitioning import partition_rows
from fedskew.skew.skews import skews, treatments
from fedskew.skew.target import PARAMETERS, Found, Target, find


@pytest.fixture(scope="module")
def digits() -> Rows:
    return fedskew.load("digits").train


@pytest.fixture(scope="module")
def har() -> Rows:
    states = {entry.name: entry.state for entry in listing()}
    if states["uci-har"] == "missing":  # the training part is enough
        pytest.skip("uci-har is missing: set FEDSKEW_DATA to a folder that has it")
    return fedskew.load("uci-har:part=train,split=random").train


def blobs(count: int = 1_200, groups: int = 6) -> Rows:
    """Return three labels, four features that depend on them, and groups."""
    random = np.random.default_rng(0)
    y = random.integers(0, 3, count)
    x = random.standard_normal((count, 4)) * np.array([4, 1, 1, 1]) + y[:, None]
    return Rows(x.astype(np.float32), y, random.integers(0, groups, count))


def check(found: Found, rows: Rows, clients: int, seed: int, tolerance: float = 0.01) -> None:
    """Check that the level is that of ``measure``, within tolerance, and that the spelling repeats the partition."""
    again = partition_rows(found.spec, rows, clients, seed)
    assert again.partition == found.partition
    view, name = (
        measure(again.rows, again.partition, chance=False).views[found.target.of],
        found.target.distance,
    )
    assert view[name].mean == pytest.approx(found.level, abs=1e-12)
    assert abs(found.level - found.target.level) <= tolerance
    assert found.trials <= 40


LEVELS = ("0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8")


@pytest.mark.parametrize("seed", range(10))
def test_dirichlet_reaches_every_level_on_digits(digits: Rows, seed: int):
    for level in LEVELS:
        check(find("dirichlet", digits, 10, seed, f"hellinger={level}"), digits, 10, seed)


@pytest.mark.parametrize("seed", range(10))
def test_dirichlet_reaches_every_level_on_uci_har(har: Rows, seed: int):
    misses = [
        abs(find("dirichlet:min_size=1", har, 10, seed, f"hellinger={level}").level - float(level))
        for level in LEVELS
    ]
    assert max(misses) <= 0.01


@pytest.mark.parametrize(
    "target",
    ["jensen-shannon=0.5", "wasserstein=0.2", "total_variation=0.4", "labels.hellinger=0.35"],
)
def test_other_distances(digits: Rows, target: str):
    check(find("dirichlet", digits, 10, 0, target), digits, 10, 0)


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        ("vop", "features.wasserstein=0.08"),
        ("vop:column=1", "features.hellinger=0.3"),
        ("feature-dirichlet", "features.hellinger=0.25"),
        ("lds", "hellinger=0.5"),
        ("lds", "features.jensen-shannon=0.25"),
        ("sldf", "features.wasserstein=0.05"),
        ("wgc:clusters=4", "features.hellinger=0.2"),
        ("noise", "features.hellinger=0.25"),
        ("dirichlet:alpha=1 + noise", "features.hellinger=0.3"),
        ("dirichlet + noise:sigma=0.5", "hellinger=0.3"),
        ("dirichlet:by=group,min_size=10", "features.hellinger=0.2"),
        ({"name": "dirichlet", "min-size": 20}, "hellinger=0.3"),
    ],
)
def test_every_parameter_is_searched(spec: object, target: str):
    check(find(spec, blobs(), 5, 3, target), blobs(), 5, 3)


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        ("iid + relabel", "labels-given-features.hellinger=0.53"),
        ("iid + noise", "features-given-label.hellinger=0.4"),
    ],
)
def test_conditional_levels(digits: Rows, spec: str, target: str):
    """P(y|x) by permuted labels, P(x|y) by noise: rows of the same features or labels differ, labels do not."""
    found = find(spec, digits, 4, 0, target, tolerance=0.03)
    made = partition_rows(found.spec, digits, 4, 0)
    measured = measure(made.rows, made.partition, chance=False)
    assert measured.views[found.target.of]["hellinger"].mean == pytest.approx(
        found.level, abs=1e-12
    )
    assert abs(found.level - found.target.level) <= 0.03
    assert measured.labels["hellinger"].mean < 0.15 or "relabel" in spec


def test_a_view_that_cannot_be_compared_is_named():
    rows = blobs()
    with pytest.raises(FedskewError, match="no two clients have 20 rows of one label"):
        find("lds", rows, len(rows) // 5, 0, "features-given-label.hellinger=0.5")


def test_whole_numbers_are_found_where_one_has_the_level(digits: Rows):
    for k in (1, 2, 3, 5, 8, 9):
        level = (
            measure(digits, partition_rows(f"classes:k={k}", digits, 10, 0).partition, chance=False)
            .labels["hellinger"]
            .mean
        )
        found = find("classes", digits, 10, 0, f"hellinger={level:.4f}")
        assert found.spec == f"classes:k={k}"
        check(found, digits, 10, 0)
    per_client = find("shards", digits, 10, 0, "hellinger=0.7", tolerance=0.05)
    assert per_client.spec.startswith("shards:per_client=")
    assert find("domains", blobs(), 6, 0, "features.hellinger=0.13", tolerance=0.1).spec.startswith(
        "domains:k="
    )


def test_a_whole_number_that_the_skew_refuses_is_passed_over(digits: Rows):
    found = find("classes", digits, 5, 0, "hellinger=1")  # k=1 cannot hold ten labels
    assert found.spec == "classes:k=2"


def test_the_same_twice_and_with_its_classes(digits: Rows):
    one, two = (find("dirichlet", digits, 10, 4, "hellinger=0.45") for _ in range(2))
    assert (one.spec, one.level, one.trials, one.partition) == (
        two.spec,
        two.level,
        two.trials,
        two.partition,
    )
    wide = find("dirichlet", digits, 10, 4, "wasserstein=0.1", classes=20)
    assert measure(digits, wide.partition, classes=20, chance=False).labels[
        "wasserstein"
    ].mean == pytest.approx(wide.level)


def test_the_mild_crossing_is_taken(digits: Rows):
    """Check seed 1, where one client gets nearly all rows for small alpha and the level falls: two alphas have 0.7."""
    alpha = float(find("dirichlet", digits, 10, 1, "hellinger=0.7").spec.partition("=")[2])
    assert alpha > 0.05


def test_every_parameter_belongs_to_its_skew():
    for name, parameter in PARAMETERS.items():
        assert parameter.option in (treatments if name in treatments else skews).options(name)
    assert {name for name in skews if "strength" in skews.options(name)} <= set(PARAMETERS)


@pytest.mark.parametrize(
    ("spec", "target", "words"),
    [
        (
            "classes",
            "hellinger=0.3",
            (
                "no classes partition of 5 clients with seed 0",
                "k 1 … 3 reaches",
                "nearest",
                "classes:k=",
            ),
        ),
        (
            "sldf",
            "hellinger=0.5",
            (
                "has labels.hellinger=0.5 within 0.01",
                "strength 0 … 1 reaches 0.0",
                "another skew or seed",
            ),
        ),
        ("noise", "hellinger=0.5", ("sigma 0.001 … 1000 reaches",)),
        ("lds", "hellinger=0.99", ("nearest", "with lds:strength=1.0")),
        ("dirichlet:min_size=200", "hellinger=0.9", ("alpha 0.001 … 10000 reaches",)),
    ],
)
def test_what_cannot_be_reached_is_named(spec: str, target: str, words: tuple[str, ...]):
    with pytest.raises(FedskewError) as problem:
        find(spec, blobs(), 5, 0, target)
    for part in words:
        assert part in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "hellinger",
            "target 'hellinger': write distance=level, such as hellinger=0.6 or features.wasserstein=0.1",
        ),
        (
            "=0.6",
            "target '=0.6': write distance=level, such as hellinger=0.6 or features.wasserstein=0.1",
        ),
        ("hellinger=much", "target 'hellinger=much': 'much' is not a number"),
        ("hellinger=1.2", "target 'hellinger=1.2': 1.2 is out of range, it must be >= 0 and <= 1"),
        ("hellinger=nan", "target 'hellinger=nan': nan is out of range, it must be >= 0 and <= 1"),
        (
            "helinger=0.6",
            "unknown distance of a target 'helinger': did you mean 'hellinger'? "
            "Known: hellinger, jensen-shannon, total-variation, wasserstein",
        ),
        (
            "feature.hellinger=0.6",
            "unknown view of a target 'feature': did you mean 'features'? Known: features, features-given-label, "
            "labels, labels-given-features",
        ),
    ],
)
def test_bad_spelling_is_refused_in_a_line(target: str, message: str):
    with pytest.raises(FedskewError) as problem:
        Target.parse(target)
    assert str(problem.value) == message


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "dirichlet:alpha=0.2",
            "skew dirichlet:alpha=0.2: a target is reached by alpha: leave it out, or leave the target out",
        ),
        (
            "iid",
            "skew iid has no parameter that a target could set: use one of classes, dirichlet, domains",
        ),
        (
            "dirichlet + noise",
            "skew dirichlet + noise: alpha of dirichlet and sigma of noise are both open, and a target can only set "
            "one: give",
        ),
        ("dirichlt", "unknown skew 'dirichlt': did you mean 'dirichlet'?"),
        ("dirichlet:alfa=3", "unknown option of skew dirichlet 'alfa': did you mean 'alpha'?"),
        ("domains", "skew domains: the data has no groups"),
        (
            lambda rows, clients, stream: Partition.from_owner(rows.y, 3),
            "a target needs a skew by name",
        ),
        (3, "skew 3: write it as text, name:key=value, or as a table with a name"),
    ],
)
def test_a_skew_without_an_open_parameter_is_refused(spec: object, message: str):
    rows = blobs()
    with pytest.raises(FedskewError) as problem:
        find(spec, Rows(rows.x, rows.y), 5, 0, "hellinger=0.3")
    assert str(problem.value).startswith(message)
    assert "\n" not in str(problem.value)


def test_a_level_that_goes_to_and_fro_is_still_found():
    """Check three classes and four clients, one of a few rows: the level jumps at every alpha at which it gains one."""
    rows = Rows(np.zeros((3644, 1), np.float32), np.repeat([0, 1, 2], [1113, 1200, 1331]))
    for seed in range(4):
        found = find("dirichlet", rows, 4, seed, "hellinger=0.5")
        assert abs(found.level - 0.5) <= 0.01
        assert found.trials <= 100
