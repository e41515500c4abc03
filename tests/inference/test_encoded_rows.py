"""Rows that are standardised already are refused where that can be told, and raw rows never are."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats
from fedskew.inference.encoded_rows import _are_features, _Given

SAID = "these rows are standardised already.*give the raw rows"


def patients(rows: int = 300) -> pd.DataFrame:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"age": random.normal(60, 12, rows).round()})
    frame["pressure"] = random.normal(130, 18, rows).round(1)
    frame["creatinine"] = random.lognormal(0, 0.35, rows).round(2)
    frame["sex"] = random.choice(["f", "m"], rows)
    frame["sick"] = (frame["age"] + random.normal(0, 9, rows) > 62).astype(int)
    return frame


def trained_on(data: Any, **settings: Any) -> tuple[fs.Federation, fs.Run]:
    fed = fs.split(data, "iid", clients=3)
    return fed, fs.train(fed, "logreg", rounds=1, **{"folder": False, **settings})


@pytest.mark.parametrize("rows", [1, 5, 60])
def test_features_of_a_table_are_refused_and_its_rows_are_not(tmp_path: Path, rows: int):
    frame = patients()
    fed, run = trained_on(fs.load(frame, label="sick"), folder=tmp_path / "run")
    assert fed.test is not None
    encoded = pd.DataFrame(fed.test.x[:rows], columns=list(fed.data.features))
    encoded["sex"] = "f"
    for used in (run, fs.open_run(tmp_path / "run")):
        with pytest.raises(FedskewError, match=f"the data: {SAID}"):
            used.predict(encoded)
        assert len(used.predict(frame[:rows])) == rows


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_arrays_of_the_data_set_are_refused_whatever_their_scale(name: str):
    fed, run = trained_on(fs.load(name))
    assert fed.test is not None
    for mistaken in (fed.test.x, fed.train.x[:3], fed.test.x[::2]):
        with pytest.raises(FedskewError, match=SAID):
            run.predict(mistaken)


def test_arrays_that_are_not_scaled_are_rows_as_well():
    random = np.random.default_rng(0)
    x = random.normal(size=(90, 3)).astype(np.float32)
    _, run = trained_on((x, (x[:, 0] > 0).astype(np.int64)))
    assert len(run.predict(x)) == 90


def test_the_rows_of_another_unit_are_not_taken_for_standardised():
    frame = pd.DataFrame({"height": np.random.default_rng(0).normal(170, 10, 200)})
    frame["tall"] = (frame["height"] > 172).astype(int)
    _, run = trained_on(fs.load(frame, label="tall"))
    assert len(run.predict(frame[["height"]] / 100)) == 200


def drawn(random: np.random.Generator, kind: int, rows: int) -> Floats:
    """Return numbers of mean 0 and deviation 1: normal, skewed, or of two values."""
    if kind == 0:
        return random.normal(size=rows)
    if kind == 1:
        return (random.lognormal(0, 0.8, rows) - 1.377) / 1.308
    return (random.random(rows) < 0.1) / 0.3 - 1 / 3


@pytest.mark.parametrize("rows", [1, 3, 20, 200])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_false_alarms_are_rare_even_where_a_client_is_unlike_the_others(rows: int, width: int):
    """Draw tables of any scale; of shifted clients all columns have another mean and a spread of 1/4 to 4 times."""
    random = np.random.default_rng(rows * 100 + width)
    alarms = {"alike": 0, "shifted": 0}
    for _ in range(400):
        for which in alarms:
            columns = []
            for _ in range(width):
                deviation = np.exp(random.uniform(np.log(0.05), np.log(1000)))
                mean = deviation * random.normal() * random.choice([0, 1, 5])
                values = drawn(random, int(random.integers(3)), rows)
                if which == "shifted":
                    values = values * np.exp(random.uniform(-1.4, 1.4)) + random.uniform(-3, 3)
                columns.append(_Given(mean + deviation * values, mean, deviation))
            alarms[which] += _are_features(columns)
    assert alarms["alike"] <= 1
    assert alarms["shifted"] <= 4


@pytest.mark.parametrize(
    ("mean", "deviation"), [(0.1, 1.1), (0.0, 0.5), (0.3, 0.6), (0.0, 1.0), (-1.0, 2.0)]
)
def test_nothing_is_said_where_the_scales_are_near_each_other(mean: float, deviation: float):
    values = np.random.default_rng(0).normal(size=100)
    for rows in (values, mean + deviation * values):
        assert not _are_features([_Given(rows, mean, deviation)] * 6)


def test_whole_numbers_are_raw_whatever_their_size():
    values = np.random.default_rng(0).integers(-2, 3, 100)
    for given in (values, values.astype(np.float64)):
        assert not _are_features([_Given(given, 60.0, 12.0)] * 4)
    assert _are_features([_Given(values * 0.99, 60.0, 12.0)] * 4)
