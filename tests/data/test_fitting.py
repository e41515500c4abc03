"""A schema from sums: equal to pooled rows and to scikit-learn, whatever the order of clients, and stored as JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedskew.core.errors import FedskewError
from fedskew.data.cells import MISSING, OTHER
from fedskew.data.differences import factor_between
from fedskew.data.fitting import BINS, ColumnFacts, Moments, Request, fit, keys_of
from fedskew.data.schema import Categories, Label, Numeric, Schema
from fedskew.data.silo import LocalSilos, TableSilo

numbers = st.one_of(
    st.floats(-1e6, 1e6, allow_subnormal=False),
    st.integers(-5, 5).map(float),
    st.just(0.0),
    st.just(-0.0),
    st.just(math.nan),
)


def silo(name: str, columns: Mapping[str, Sequence[Any]], rows: int | None = None) -> TableSilo:
    frame = pd.DataFrame(columns)
    frame["y"] = np.arange(len(frame)) % 2
    return TableSilo(name, frame, np.arange(len(frame) if rows is None else rows), ("y",))


def fitted(silos: Sequence[TableSilo], **request: Any) -> Schema:
    return fit("made", LocalSilos(silos), Request("y", **request)).schema


def test_a_column_with_numbers_in_test_rows_only_is_refused_by_name() -> None:
    columns = {"a": [1.0, 2.0, 3.0, 4.0], "b": [math.nan, math.nan, 5.0, 6.0]}
    with pytest.raises(FedskewError, match="column 'b' has no value in any training row; drop=b"):
        fitted([silo("s", columns, rows=2)])


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(numbers, min_size=2, max_size=12), min_size=1, max_size=5),
    st.sampled_from([0, 1e9, -1e9]),
)
@example([[0.0, 8e-06]], 1e9)  # a spread of some roundings of the mean
def test_sums_equal_pooled_rows(parts: list[list[float]], offset: float) -> None:
    parts = [[value + offset for value in part] for part in parts]
    pooled = np.concatenate(parts)
    silos = [
        silo(f"s{place}", {"a": np.array(part, dtype=float)}) for place, part in enumerate(parts)
    ]
    if np.isnan(pooled).all():
        with pytest.raises(FedskewError, match="column 'a' has no value in any training row"):
            fitted(silos)
        return
    (column,) = fitted(silos).columns
    assert isinstance(column, Numeric)
    assert column.fill == np.nanmedian(pooled)  # exact, to the last bit
    filled = np.where(np.isnan(pooled), column.fill, pooled)
    spread = (filled - filled[0]).std()  # free of the offset's rounding
    assert column.mean == pytest.approx(filled.mean(), rel=1e-9, abs=1e-9)
    vanishes = spread < 1e-150  # squares are too small numbers then, as where all numbers are equal
    assert column.deviation == pytest.approx(spread, rel=1e-9) or (
        vanishes and column.deviation == 1.0
    )
    assert filled.min() < filled.max() or column.deviation == 1.0
    other = fitted(silos[::-1]).columns
    assert other == (column,)


def test_one_silo_has_the_bits_of_numpy() -> None:
    values = np.random.default_rng(0).lognormal(3, 2, 1001)
    (column,) = fitted([silo("s", {"a": values})]).columns
    assert column == Numeric(
        "a", float(np.median(values)), float(values.mean()), float(values.std())
    )


def test_as_scikit_learn_on_pooled_rows(hospitals: dict[str, pd.DataFrame]) -> None:
    frames = list(hospitals.values())
    silos = [
        TableSilo(name, frame, np.arange(len(frame)), ("outcome",))
        for name, frame in hospitals.items()
    ]
    schema = fit("made", LocalSilos(silos), Request("outcome")).schema
    pooled = pd.concat(frames, ignore_index=True)
    found = np.concatenate([schema.encode(frame) for frame in frames])
    titles = {name: place for place, name in enumerate(schema.features)}
    numeric = ["age", "creatinine", "bmi"]
    scaled = StandardScaler().fit_transform(
        SimpleImputer(strategy="median").fit_transform(pooled[numeric])
    )
    np.testing.assert_allclose(found[:, [titles[name] for name in numeric]], scaled, atol=1e-6)
    scaler = StandardScaler().fit(SimpleImputer(strategy="median").fit_transform(pooled[numeric]))
    columns = {column.name: column for column in schema.columns}
    for place, name in enumerate(numeric):
        column = columns[name]
        assert isinstance(column, Numeric)
        assert column.mean == pytest.approx(scaler.mean_[place], rel=1e-9)
        assert column.deviation == pytest.approx(scaler.scale_[place], rel=1e-9)
    for name in ("sex", "ward"):
        text = pooled[[name]].fillna("missing")
        encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(text)
        column = columns[name]
        assert isinstance(column, Categories)
        assert column.values == tuple(encoder.categories_[0])
        places = [titles[f"{name}={value}"] for value in column.values]
        np.testing.assert_array_equal(found[:, places], encoder.transform(text))


class Counting:
    """A silo that counts its messages and their numbers, and knows nothing but a silo's three answers."""

    def __init__(self, inner: TableSilo) -> None:
        self.inner, self.name, self.asked, self.sent = inner, inner.name, 0, 0

    def describe(self, request: Request) -> Any:
        return self.inner.describe(request)

    def count(self, intervals: Any) -> Any:
        self.asked += 1
        found = self.inner.count(intervals)
        self.sent = max(self.sent, sum(len(one) for each in found.values() for one in each))
        return found

    def add_up(self, fills: Any) -> Any:
        return self.inner.add_up(fills)


def test_medians_take_few_messages() -> None:
    rng = np.random.default_rng(1)
    silos = [
        Counting(silo(f"s{place}", {f"c{k}": rng.normal(10**k, 1, 501) for k in range(6)}))
        for place in range(3)
    ]
    fit("made", LocalSilos(silos), Request("y"))
    assert silos[0].asked <= 6
    assert silos[0].sent <= 2 * 6 * BINS


def test_only_training_rows_count() -> None:
    (column,) = fitted([silo("s", {"a": [1.0, 2.0, 3.0, 1000.0]}, rows=3)]).columns
    assert column == Numeric("a", 2.0, 2.0, float(np.std([1, 2, 3])))


def test_keys_keep_the_order() -> None:
    values = np.array([-math.inf, -1e300, -1.0, -5e-324, 0.0, 5e-324, 1.0, 1e300, math.inf])
    assert np.all(np.diff(keys_of(values).astype(object)) > 0)
    assert keys_of(np.array([-0.0])) == keys_of(np.array([0.0]))


def test_numbers_too_large_to_add_up_are_refused() -> None:
    silos = [silo("a", {"a": [1e308, 1.5e308]}), silo("b", {"a": [-1e308, 1.7e308]})]
    with pytest.raises(FedskewError, match="column 'a' holds numbers too large to add up; drop=a"):
        fitted(silos)


def test_merging_needs_the_error_of_the_mean() -> None:
    values = 1e9 + np.random.default_rng(2).normal(size=3000)
    parts = [Moments.of(part) for part in np.split(np.sort(values), 3)]
    exact = (values - 1e9).std()
    assert Moments.merged(parts).deviation == pytest.approx(exact, rel=1e-11)
    careless = [Moments(part.count, part.mean, 0.0, part.squares) for part in parts]
    assert abs(Moments.merged(careless).deviation / exact - 1) > 1e-11


def test_a_column_of_different_texts_stays_where_it_is() -> None:
    names = silo("b", {"who": [f"person {number}" for number in range(100)]})
    facts = names.describe(Request("y", compared=True)).columns["who"]
    assert (facts.counts, facts.texts, facts.example) == ({}, 100, "")
    with pytest.raises(
        FedskewError, match="made: b: column 'who' has 100 texts in 100 training rows; drop=who"
    ):
        fitted([silo("a", {"who": ["x"] * 5}), names], compared=True)


def test_a_schema_survives_json() -> None:
    columns = (Numeric("a", 0.1, 1 / 3, 1e-9, True), Categories("b", ("x", "y"), 3))
    schema = Schema(columns, Label(("y",), "class", ("no", "yes")), 5, 2)
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    with pytest.raises(FedskewError, match="a schema of format 99"):
        Schema.from_json({**schema.to_json(), "format": 99})
    damaged = schema.to_json()
    del damaged["columns"][0]["fill"]
    with pytest.raises(FedskewError, match="the schema is damaged"):
        Schema.from_json(damaged)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"b": ["x"]}, "new.csv lacks column 'a', on which the model was trained; it has b"),
        (
            {"a": ["?"], "b": ["x"]},
            r"new.csv: column 'a' holds text \('\?'\), and the training rows have numbers",
        ),
        (
            {"a": [1.0], "b": [7]},
            r"new.csv: column 'b' holds numbers \('7'\), and the training rows have categories",
        ),
    ],
)
def test_what_does_not_fit_a_schema(columns: dict[str, Any], message: str) -> None:
    schema = Schema(
        (Numeric("a", 0, 0, 1), Categories("b", ("x", "y"), 0)), Label(("y",), "class", ("0", "1"))
    )
    with pytest.raises(FedskewError, match=message):
        schema.check("new.csv", pd.DataFrame(columns))


@pytest.mark.parametrize("factor", [2.54, 10, 88.4, 1000, 1 / 88.4])
def test_a_factor_is_found(factor: float) -> None:
    rng = np.random.default_rng(3)
    here, there = rng.lognormal(0, 0.3, 200) * factor, rng.lognormal(0, 0.3, 250)
    quartiles = [tuple(np.quantile(each, [0.25, 0.5, 0.75]).tolist()) for each in (here, there)]
    assert factor_between(*quartiles) == pytest.approx(factor, rel=0.15)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("here", "why"),
    [
        ((1.3, 1.6, 2.0), "too small a factor"),
        ((9.8, 10.0, 10.2), "a shift, not a factor: the spread stays"),
        ((-4.0, 0.1, 4.0), "about zero"),
        ((5.0, 5.0, 5.0), "constant"),
    ],
)
def test_other_differences_are_no_units(here: tuple[float, float, float], why: str) -> None:
    assert factor_between(here, (0.8, 1.0, 1.2)) is None, why


def test_categories_of_five_rows_are_named_and_of_four_are_not():
    facts = ColumnFacts(
        "text", "", 3, counts={"five": 5, "four": 4, "one": 1, MISSING: 3}, texts=3
    ).without_rare()
    assert facts.counts == {"five": 5, MISSING: 3, OTHER: 5}
    assert facts.rare == 2
    nothing_rare = ColumnFacts("text", "", 0, counts={"five": 5, OTHER: 9}, texts=2)
    assert nothing_rare.without_rare() == nothing_rare
