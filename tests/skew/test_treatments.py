"""Treatments change the rows of the right clients by the right amount, and nothing else; compositions are parsed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedskew
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice, Composition
from fedskew.core.streams import Stream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.skew.partitioning import partition_rows
from fedskew.skew.skews import skews, treatments

seeds = st.integers(0, 2**63)


def rows_of(count: int, shape: tuple[int, ...] = (40,), labels: int = 5) -> Rows:
    random = np.random.default_rng(0)
    return Rows(
        random.normal(size=(count, *shape)).astype(np.float32), random.integers(0, labels, count)
    )


@pytest.mark.parametrize("shape", [(40,), (2, 5, 4)])
def test_noise_grows_with_the_number_of_the_client(shape: tuple[int, ...]):
    rows = rows_of(2000, shape)
    result = partition_rows("dirichlet:alpha=1 + noise:sigma=0.5", rows, 4, seed=1)
    assert result.partition == partition_rows("dirichlet:alpha=1", rows, 4, seed=1).partition
    assert np.array_equal(result.rows.y, rows.y)
    added = result.rows.x - rows.x
    for client in range(4):
        mine = added[result.partition.of(client)]
        assert mine.std() == pytest.approx(0.5 * (client + 1) / 4, rel=0.05)
        assert abs(mine.mean()) < 5 * mine.std() / np.sqrt(mine.size)
    again = partition_rows("dirichlet:alpha=1 + noise:sigma=0.5", rows, 4, seed=1).rows
    assert np.array_equal(again.x, result.rows.x)
    assert not np.array_equal(
        partition_rows("noise:sigma=0.5", rows, 4, seed=2).rows.x, result.rows.x
    )


def test_no_noise_changes_nothing():
    rows = rows_of(50)
    assert np.array_equal(partition_rows("noise:sigma=0", rows, 4, seed=1).rows.x, rows.x)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.floats(0, 1), st.integers(2, 6), seeds)
def test_relabel_permutes_the_labels_of_some_clients(
    clients: int, fraction: float, labels: int, seed: int
):
    rows = rows_of(300, (2,), labels)
    rows = Rows(rows.x, rows.y * 3)  # gaps between the labels
    result = partition_rows({"name": "relabel", "fraction": fraction}, rows, clients, seed)
    assert np.array_equal(result.rows.x, rows.x)
    changed = []
    for client in range(clients):
        old, new = rows.y[result.partition.of(client)], result.rows.y[result.partition.of(client)]
        pairs = np.unique(np.stack([old, new]), axis=1)
        assert len(np.unique(pairs[0])) == len(np.unique(pairs[1])) == pairs.shape[1]  # one to one
        assert set(new) <= set(rows.y)
        assert np.all(old == new) or np.all(old != new)
        changed.append(bool(np.any(old != new)))
    expected = max(round(fraction * clients), 1) if fraction else 0
    assert sum(changed) == expected


def test_clients_have_permutations_of_their_own():
    rows = rows_of(4000, (1,), 8)
    result = partition_rows("relabel:fraction=1", rows, 6, seed=0)
    found = set()
    for client in range(6):
        held = result.partition.of(client)
        found.add(tuple(int(result.rows.y[held][rows.y[held] == label][0]) for label in range(8)))
    assert len(found) == 6


@pytest.mark.parametrize(("labels", "permutations"), [(3, 2), (4, 6), (8, 3), (8, 50)])
@pytest.mark.parametrize("seed", range(4))
def test_a_few_permutations_are_all_different(labels: int, permutations: int, seed: int):
    rows = rows_of(4000, (1,), labels)
    spec = f"relabel:fraction=1,permutations={permutations}"
    result = partition_rows(spec, rows, 8, seed=seed)
    found = set()
    for client in range(8):
        held = result.partition.of(client)
        table = [int(result.rows.y[held][rows.y[held] == label][0]) for label in range(labels)]
        found.add(tuple(table))
    assert len(found) == min(permutations, 8)


def test_more_permutations_than_there_are_are_refused():
    rows = rows_of(400, (1,), 3)
    with pytest.raises(FedskewError, match=r"permutations=3 of 3 labels .* use permutations=2 or"):
        partition_rows("relabel:fraction=1,permutations=3", rows, 6, seed=0)


@pytest.mark.parametrize("kind", ["symmetric", "by-class"])
@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
def test_label_noise_is_at_the_rate_and_of_its_kind(kind: str, rate: float):
    rows = rows_of(6000, (1,), 4)
    rows = Rows(rows.x, rows.y * 3)  # gaps between the labels
    treated = partition_rows(f"label-noise:rate={rate},kind={kind}", rows, 5, seed=1)
    assert np.array_equal(treated.rows.x, rows.x)
    old, new = rows.y, treated.rows.y
    assert set(new) <= set(old)
    assert (old != new).mean() == pytest.approx(rate, abs=0.02)
    for label in np.unique(old):
        wrong = new[(old == label) & (new != old)]
        found, counts = np.unique(wrong, return_counts=True)
        if not rate:
            assert not len(wrong)
        elif kind == "by-class":
            assert found.tolist() == [(label + 3) % 12]
        else:
            assert found.tolist() == [other for other in (0, 3, 6, 9) if other != label]
            assert counts / len(wrong) == pytest.approx(np.full(3, 1 / 3), abs=0.08)


def test_label_noise_of_rows_of_no_client_and_of_other_targets():
    rows = rows_of(400)
    treat = treatments.get("label-noise")
    partition = Partition.from_lists([np.arange(100), np.arange(100, 200)])
    changed = treat(rows, partition, Stream(0, "noise"), rate=1.0).y != rows.y
    assert changed[:200].all()
    assert not changed[200:].any()
    with pytest.raises(FedskewError, match="label-noise confuses classes"):
        treat(Rows(rows.x, rows.x[:, 0]), partition, Stream(0, "noise"))
    with pytest.raises(FedskewError, match="only 1 label"):
        treat(Rows(rows.x, 0 * rows.y), partition, Stream(0, "noise"))


def test_treatments_follow_in_order():
    rows = rows_of(400)
    both = partition_rows("lds + noise:sigma=0.3 + relabel:fraction=0.5", rows, 4, seed=0)
    assert np.array_equal(
        both.rows.x, partition_rows("lds + noise:sigma=0.3", rows, 4, seed=0).rows.x
    )
    assert (both.rows.y != rows.y).any()
    twice = partition_rows("lds + noise:sigma=0.3 + noise:sigma=0.3", rows, 4, seed=0)
    assert (twice.rows.x - rows.x)[twice.partition.of(3)].std() == pytest.approx(
        0.3 * 2**0.5, rel=0.05
    )


def test_groups_and_series_are_carried_along():
    rows = rows_of(40)
    rows = Rows(rows.x, rows.y, np.arange(40) % 3, np.arange(40) // 2)
    treated = partition_rows("noise + relabel", rows, 4, seed=0).rows
    assert treated.group is rows.group
    assert treated.series is rows.series


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("noise", "iid + noise"),
        ("noise:sigma=0.5", "iid + noise:sigma=0.5"),
        ("dirichlet:alpha=0.3  +  noise:sigma=0.10", "dirichlet:alpha=0.3 + noise:sigma=0.1"),
        ("noise + vop", "vop + noise"),
        ({"name": "relabel", "fraction": 1}, "iid + relabel:fraction=1.0"),
        (Choice("noise", {"sigma": "2"}), "iid + noise:sigma=2.0"),
    ],
)
def test_compositions_are_read_and_spelled(spec, canonical: str):
    choice = skews.choose(spec)
    assert isinstance(choice, Composition)
    assert str(choice) == canonical
    assert skews.choose(choice) == skews.choose(canonical) == choice
    full = skews.full(choice)
    assert skews.choose(str(full)) == full
    assert str(skews.brief(full)) == str(skews.brief(choice))


def test_a_single_cut_stays_a_plain_choice():
    assert skews.choose("dirichlet:alpha=0.3") == Choice("dirichlet", {"alpha": 0.3})
    assert skews.brief(skews.full(skews.choose("vop"))) == Choice("vop", {})


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "vop + lds",
            "vop and lds both partition the rows: keep one; what may be added are treatments "
            "(label-noise, noise, relabel)",
        ),
        ("dirichlet + nois:sigma=1", "unknown skew 'nois': did you mean 'noise'?"),
        (
            "dirichlet + noise:sigma=-1",
            "treatment noise: sigma=-1 is out of range, it must be >= 0",
        ),
        ("dirichlet + noise:size=1", "unknown option of treatment noise 'size'"),
        ("relabel:fraction=2", "fraction=2 is out of range"),
        ("dirichlet + ", "empty skew"),
        (" + noise", "empty skew"),
        ("", "empty skew"),
        (
            "wgc:overlap=true + noise",
            "with overlap=true a row has several clients, and noise treats it for one",
        ),
    ],
)
def test_a_bad_composition_is_refused_before_anything_is_computed(spec: str, says: str):
    with pytest.raises(FedskewError) as caught:
        partition_rows(spec, None, 4, seed=0)  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_treatment_has_a_summary_and_keeps_the_partition():
    rows = rows_of(100)
    for name in treatments:
        assert treatments.summary(name)
        assert (
            partition_rows(name, rows, 5, seed=0).partition
            == partition_rows("iid", rows, 5, seed=0).partition
        )


def test_a_federation_shows_the_treated_rows_and_keeps_the_data():
    data = fedskew.load("digits")
    fed = fedskew.split(data, "dirichlet:alpha=0.3 + noise:sigma=0.1", clients=5, client_test=0.2)
    assert fed.data is data
    assert fed.held_out is not None
    difference = fed.train.x - data.train.x
    # Its own test rows have its noise
    assert difference[fed.held_out.of(4)].std() == pytest.approx(0.1, rel=0.05)
    assert np.array_equal(fed.test.x, data.test.x)
    assert (
        fed.recipe["skew"]
        == "dirichlet:alpha=0.3,min_size=10,min_rule=fill,balance=false,by=label + noise:sigma=0.1"
    )
    plain = fedskew.split(data, "dirichlet:alpha=0.3", clients=5, client_test=0.2)
    assert plain.partition == fed.partition
    assert plain.fingerprint != fed.fingerprint
    assert plain.train is data.train


def test_a_composed_run_can_be_resumed(tmp_path):
    def stop(result, rounds):
        raise KeyboardInterrupt

    fed = fedskew.split(fedskew.load("digits"), "dirichlet:alpha=0.3 + noise:sigma=0.1", clients=3)
    settings = {"rounds": 2, "threads": 1, "device": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        fedskew.train(fed, "logreg", folder=tmp_path / "run", callbacks=[stop], **settings)
    resumed = fedskew.resume(tmp_path / "run")
    straight = fedskew.train(fed, "logreg", folder=False, **settings)
    assert resumed.summary["test_loss_last"] == straight.summary["test_loss_last"]
    assert resumed.summary["skew"] == "dirichlet:alpha=0.3,min_size=10 + noise"
