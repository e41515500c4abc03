"""``measure(each=True)``: which column differs where, by how much; verdicts on made federations with known answers."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.heterogeneity import findings as module
from fedskew.heterogeneity.contrasts import Compared, Variable, in_units, strength_of
from fedskew.heterogeneity.effects import Sample, cramers_v_interval, hedges_g
from fedskew.heterogeneity.findings import Findings
from fedskew.heterogeneity.two_sample import clients_to_test

Frames = Mapping[str, pd.DataFrame]


def sites(sizes: tuple[int, ...] = (300, 300, 300), **changes: Any) -> dict[str, pd.DataFrame]:
    """Return tables of the same distribution; ``changes`` alters one: site=function of its table."""
    draw, result = np.random.default_rng(5), {}
    for name, size in zip("abcdefgh", sizes, strict=False):
        frame = pd.DataFrame(
            {"age": draw.normal(60, 10, size), "dose": draw.lognormal(1, 0.3, size)}
        )
        frame["ward"] = draw.choice(["x", "y", "z"], size, p=[0.5, 0.3, 0.2])
        frame["ill"] = np.where(draw.random(size) < 0.3, "yes", "no")
        result[name] = changes.get(name, lambda table: table)(frame)
    return result


def found_in(frames: Frames, **options: Any) -> Findings:
    found = fs.measure(
        fs.split(fs.load(dict(frames), label="ill", test=0.01)), each=True, **options
    ).findings
    assert found is not None
    return found


def test_equal_clients_differ_in_nothing():
    found = found_in(sites())
    assert found.verdict[0] == "verdict: no difference between the clients beyond chance"
    assert found.verdict[1].startswith("labels: no clear difference; over all clients V = 0.0")
    assert found.verdict[2] == "features: no clear difference in any of 3 columns"
    assert (
        found.verdict[3] == "a classifier cannot tell the rows of any of 3 clients from the others'"
    )
    assert all(one.strength == "no" for one in found.columns)


@pytest.mark.parametrize("seed", range(3))
def test_false_alarms_are_rare(seed: int):
    draw = np.random.default_rng(seed)
    rows = Rows(draw.normal(size=(800, 20)).astype(np.float32), draw.integers(0, 3, 800))
    found = fs.measure(rows, Partition.from_owner(np.arange(800) % 10, 10), each=True).findings
    assert found is not None
    assert found.verdict[0] == "verdict: no difference between the clients beyond chance"


def test_the_hospitals(hospitals: Frames):
    """Made data: one silo without a class, one without a column, one with creatinine in other units."""
    fed = fs.split(fs.load(dict(hospitals), label="outcome"))
    found = fs.measure(fed, each=True)
    assert found.findings is not None
    first, verdict = found.findings.columns[0], found.findings.verdict
    assert (first.column, found.findings.names[first.client]) == ("creatinine", "hospital_D")
    assert first.strength == "strong"
    assert first.factor == pytest.approx(88.4, rel=0.1)
    assert first.effect > first.low > 2
    assert "strong feature shift" in verdict[0]
    assert (
        f"creatinine of hospital_D is {first.factor:.3g} times the others' (median " in verdict[2]
    )
    assert "; another unit?)" in verdict[2]
    by_name = {one.name: one for one in found.findings.clients}
    assert by_name["hospital_B"].absent == ("transferred",)
    assert "hospital_B" in verdict[1]
    assert "has no 'transferred'" in verdict[1]
    assert by_name["hospital_D"].auc is not None
    assert by_name["hospital_D"].auc.low > 0.95
    rows = len(fed.partition.of(fed.client_names.index("hospital_A")))
    assert by_name["hospital_A"].rows == rows
    silo = next(one for one in fed.data.silos if one.name == "hospital_A")
    assert by_name["hospital_A"].missing["bmi"] == silo.columns["bmi"].missing > 0
    written = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert written["verdict"] == list(verdict)
    assert {one["name"] for one in written["by_client"]} == set(hospitals)
    assert written["by_column"][0]["factor"] == first.factor
    assert "hospital_D" in str(found)


def test_numbers_are_those_of_the_file():
    frames = sites(b=lambda table: table.assign(age=table["age"] + 12))
    found = found_in(frames)
    first = found.columns[0]
    assert (first.column, found.names[first.client], first.factor) == ("age", "b", None)
    fed = fs.split(fs.load(dict(frames), label="ill", test=0.01))
    assert fed.data.schema is not None
    age = next(column for column in fed.data.schema.columns if column.name == "age")
    values = (
        fed.train.x[:, fed.data.features.index("age")].astype(np.float64) * age.unit[0] + age.mean
    )
    mine = fed.partition.of(1)
    rest = np.setdiff1d(fed.partition.rows, mine)
    due = hedges_g(Sample.of(values[mine]), Sample.of(values[rest]))
    assert (first.effect, first.low, first.high) == pytest.approx(tuple(due), rel=1e-6)
    assert (first.here, first.others) == pytest.approx(
        (np.median(values[mine]), np.median(values[rest])), rel=1e-6
    )
    assert 65 < first.here < 79
    assert first.words().startswith("higher (median 7")
    assert found.verdict[0] == "verdict: strong feature shift"
    assert 0 < first.surely < first.low  # for all columns at once


def test_categories_have_their_own_effect():
    found = found_in(
        sites(c=lambda table: table.assign(ward=np.where(np.arange(len(table)) % 2, "x", "z")))
    )
    first = found.columns[0]
    assert (first.column, found.names[first.client], first.kind) == ("ward", "c", "category")
    assert first.category in ("y", "z")
    assert first.strength in ("weak", "medium")
    assert first.words() in (
        f"less often 'y' ({first.here:.1%} against {first.others:.1%})",
        f"more often 'z' ({first.here:.1%} against {first.others:.1%})",
    )


def test_label_skew_is_called_so_with_shares_and_sizes():
    found = found_in(
        sites(
            (400, 400, 100),
            a=lambda table: table.assign(ill=np.where(np.arange(400) % 20, "yes", "no")),
        )
    )
    assert found.verdict[0].startswith("verdict: strong label skew")
    assert "sizes that differ 4" in found.verdict[0]
    assert found.verdict[1].startswith("labels: strong skew: a is ")
    one = found.clients[0]
    assert one.label_shares["yes"] == pytest.approx(0.95, abs=0.01)
    assert sum(one.label_shares.values()) == pytest.approx(1)
    assert one.label is not None
    counts = np.array(
        [
            [round(share * client.rows) for share in client.label_shares.values()]
            for client in found.clients
        ]
    )
    due = cramers_v_interval(np.stack([counts[0], counts[1:].sum(0)]))
    assert (one.label.effect, one.label.low, one.label.high) == pytest.approx(tuple(due), abs=1e-9)
    assert found.label_v == pytest.approx(cramers_v_interval(counts), abs=1e-9)


def test_labels_that_mean_something_else_are_concept_shift():
    fed = fs.split(fs.load("digits"), "iid + relabel:fraction=0.5", clients=6)
    found = fs.measure(fed, each=True).findings
    assert found is not None
    assert found.verdict[0] == "verdict: strong concept shift"
    assert "the same features have other labels" in found.verdict[4]


def test_images_are_compared_by_channel():
    fed = fs.split(fs.load("digits"), "iid + noise:sigma=2", clients=5)
    found = fs.measure(fed, each=True).findings
    assert found is not None
    assert {one.column for one in found.columns} == {"mean of channel 0", "deviation of channel 0"}
    assert (found.columns[0].column, found.names[found.columns[0].client]) == (
        "deviation of channel 0",
        "client 4",
    )
    assert found.verdict[0] == "verdict: strong feature shift"


def test_a_shift_that_no_single_column_shows():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1200, 2)).astype(np.float32)
    owner = np.arange(1200) % 3
    x[owner == 2, 1] = x[owner == 2, 0]  # the same as the others in each column, but not in both
    rows = Rows(x, draw.integers(0, 2, 1200))
    found = fs.measure(rows, Partition.from_owner(owner, 3), each=True).findings
    assert found is not None
    assert found.verdict[0] == "verdict: strong feature shift in several columns together"
    assert "client 2 (AUC " in found.verdict[3]


def test_targets_that_are_numbers_or_several_labels():
    numbers = fs.measure(fs.split(fs.load("diabetes"), "lds", 3, bins=5), each=True).findings
    assert numbers is not None
    assert numbers.label_v is not None
    plain = fs.split(fs.load("diabetes"), "iid", clients=3)
    found = fs.measure(plain, each=True).findings
    assert found is not None
    assert found.label_v is None
    assert found.clients[0].label is not None
    assert found.clients[0].label.kind == "number"
    assert found.clients[0].label.here == pytest.approx(
        np.median(plain.train.y[plain.partition.of(0)])
    )
    draw = np.random.default_rng(0)
    several = fs.split(
        (draw.normal(size=(200, 3)), draw.integers(0, 2, (200, 2))), "iid", 2, task="multilabel"
    )
    labels = fs.measure(several, each=True).findings
    assert labels is not None
    assert labels.clients[0].label is not None
    assert labels.clients[0].label.column.startswith("label ")


@pytest.mark.parametrize("clients", [1, 2])
def test_few_clients_and_constant_columns(clients: int):
    rows = Rows(np.ones((30, 2), np.float32), np.zeros(30, np.int64))
    found = fs.measure(rows, Partition.from_owner(np.arange(30) % clients, clients), each=True)
    assert found.findings is not None
    assert found.findings.verdict[0] == "verdict: no difference between the clients beyond chance"
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_column_that_is_constant_at_each_client_is_infinitely_far():
    x = np.repeat([0.0, 1.0], 20)[:, None].astype(np.float32)
    found = fs.measure(
        Rows(x, np.zeros(40, np.int64)), Partition.from_owner(np.arange(40) // 20, 2), each=True
    )
    assert found.findings is not None
    assert np.isinf(found.findings.columns[0].effect)
    assert found.findings.columns[0].strength == "strong"
    assert (
        json.loads(json.dumps(found.as_dict(), allow_nan=False))["by_column"][0]["effect"] is None
    )


def test_many_clients_and_columns_are_sampled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_CLIENTS", 4)
    draw = np.random.default_rng(0)
    rows = Rows(draw.normal(size=(600, 30)).astype(np.float32), draw.integers(0, 2, 600))
    found = fs.measure(
        rows, Partition.from_owner(np.arange(600) % 10, 10), each=True, features=12
    ).findings
    assert found is not None
    assert [one.client for one in found.clients] == [0, 3, 6, 9]
    assert len(found.columns) == 12
    assert found.verdict[0].endswith("(4 of 10 clients looked at)")
    sizes = np.array([5, 10, 100, 9, *[20] * 60])
    tested = clients_to_test(np.arange(len(sizes)), sizes)
    assert len(tested) <= 20
    assert not {0, 3} & set(tested.tolist())
    assert clients_to_test(np.array([0, 1, 2]), sizes).tolist() == [1, 2]


def test_the_same_call_gives_the_same_numbers_and_the_order_of_clients_does_not_matter():
    frames = sites(b=lambda table: table.assign(dose=table["dose"] * 40))
    one, again = found_in(frames), found_in(frames)
    assert one.as_dict() == again.as_dict()
    turned = found_in(dict(reversed(frames.items())))
    first, other = one.columns[0], turned.columns[0]
    assert (
        (first.column, one.names[first.client])
        == (other.column, turned.names[other.client])
        == ("dose", "b")
    )
    assert other.effect == pytest.approx(first.effect, rel=0.05)  # test rows are drawn by position
    assert first.factor == pytest.approx(40, rel=0.15)


def test_a_variable_divided_among_clients_by_hand():
    values = np.array([1.0, 2.0, 3.0, 10.0, 11.0, 1.5, 2.5])
    compared = Compared(Variable("v", values), np.array([0, 3, 5, 7]), np.arange(3))
    mine, rest = values[3:5], np.delete(values, [3, 4])
    due = hedges_g(Sample.of(mine), Sample.of(rest))
    found = compared.contrast(1, 0.95)
    assert (found.effect, found.low, found.high) == pytest.approx(tuple(due))
    assert found.surely == pytest.approx(due.low)
    assert compared.sizes[1] == pytest.approx(due.value / 0.8)
    assert (found.here, found.others) == (10.5, 2.0)
    shifted = Compared(Variable("v", values + 1e9), np.array([0, 3, 5, 7]), np.arange(3)).contrast(
        1, 0.95
    )
    assert shifted.effect == pytest.approx(found.effect, rel=1e-6)
    assert [strength_of(value, "number") for value in (0.1, 0.2, -0.5, 0.8)] == [
        "no",
        "weak",
        "medium",
        "strong",
    ]


def test_without_being_asked_nothing_is_examined():
    assert fs.measure(fs.split(fs.load("digits"), "iid", clients=3)).findings is None


def test_values_are_those_of_the_file():
    """Check that cholesterol 0, which stands for a missing one, is printed as 0, and 0.3 as 0.3."""
    draw = np.random.default_rng(0)
    frames = {}
    for name in "abc":
        frame = pd.DataFrame({"cholesterol": draw.normal(245, 55, 200).round()})
        frame["oldpeak"] = draw.choice([0.0, 0.3, 1.4, 2.6], 200)
        frame["ill"] = draw.choice(["no", "yes"], 200)
        frames[name] = frame
    frames["c"]["cholesterol"] = 0.0
    frames["c"]["oldpeak"] = 0.3
    found = found_in(frames)
    first = found.columns[0]
    assert (first.column, found.names[first.client], first.here) == ("cholesterol", "c", 0.0)
    oldpeak = {one.column: one for one in found.clients[2].columns}["oldpeak"]
    assert oldpeak.here == 0.3
    assert "cholesterol of c is lower (median 0 against 2" in found.verdict[2]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_numbers_of_many_digits_keep_those_that_single_precision_has(scale: float):
    values = scale * np.random.default_rng(0).normal(3, 1, 1000)
    mean, deviation = float(values.mean()), float(values.std())
    standardised = ((values - mean) / deviation).astype(np.float32)
    found = in_units(standardised, mean, deviation)
    np.testing.assert_allclose(found, values, rtol=0, atol=2e-6 * deviation)


def test_a_column_that_a_client_lacks_is_missing_and_no_shift():
    found = found_in(sites(c=lambda table: table.drop(columns="dose")))
    # And no feature shift: by the filled entries, the AUC was 1.00
    assert found.verdict[0] == "verdict: missing entries that differ"
    assert found.verdict[2] == "features: no clear difference in any of 3 columns"
    assert found.verdict[3] == "missing: dose of c in 100.0% of the rows against 0.0%"
    lacking = found.clients[2]
    assert "dose" not in [one.column for one in lacking.columns]
    assert lacking.missing == {"dose": lacking.rows}
    for one in found.clients:
        assert one.surely < 0.5
    dose = {one.column: one for one in found.columns}["dose"]
    assert found.names[dose.client] in ("a", "b")
    assert found.as_dict()["by_missing"][0]["here"] == 1.0


def gappy(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which every other dose is missing: the even rows."""
    return table.assign(dose=table["dose"].where(np.arange(len(table)) % 2 == 1))


def test_a_column_is_compared_by_the_entries_that_are_there():
    frames = sites(a=gappy)
    fed = fs.split(fs.load(dict(frames), label="ill", test=0.01))
    found = fs.measure(fed, each=True).findings
    assert found is not None
    doses = []
    for client in range(3):
        rows = fed.partition.of(client)
        numbers = fed.train.x[rows, fed.data.features.index("dose")].astype(np.float64)
        gaps = fed.train.gaps
        assert gaps is not None
        doses.append(numbers[~gaps[rows, 1]])
    assert len(doses[0]) == pytest.approx(len(doses[1]) / 2, abs=4)
    others = Sample.of(np.concatenate(doses[1:]))
    wanted = hedges_g(Sample.of(doses[0]), others)
    dose = {one.column: one for one in found.clients[0].columns}["dose"]
    assert (dose.effect, dose.low, dose.high) == pytest.approx(wanted, abs=1e-5)
    assert dose.here == pytest.approx(frames["a"]["dose"].median(), rel=0.02)
    (missing,) = found.gaps
    assert missing.category == "missing"
    assert missing.here == pytest.approx(0.5, abs=0.01)
    assert missing.others == 0.0
    assert "missing: dose of a in" in "\n".join(found.verdict)


def test_gaps_go_with_their_rows():
    frames = sites(b=gappy)
    data = fs.load(dict(frames), label="ill", test=0.2, validation=0.2)
    for rows in (data.train, data.test, data.validation):
        assert rows is not None
        assert rows.gaps is not None
        filled = rows.x[rows.gaps[:, 1], 1]
        assert len(np.unique(filled)) == 1
        assert set(rows.group[rows.gaps[:, 1]].tolist()) == {1}
        taken = rows.take(np.arange(len(rows))[::-3])
        np.testing.assert_array_equal(taken.gaps, rows.gaps[::-3])
