"""Thresholds of two classes against trying every one of them, with scikit-learn's metrics."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from fedskew.tasks.thresholds import Threshold, ThresholdMetric, choose_threshold, margins

KNOWN = {
    "accuracy": sk.accuracy_score,
    "balanced_accuracy": sk.balanced_accuracy_score,
    "macro_f1": lambda y, found: sk.f1_score(y, found, average="macro"),
}


def score(metric: str, targets: np.ndarray, predicted: np.ndarray) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(KNOWN[metric](targets, predicted))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 30), st.integers(0, 2**32 - 1), st.sampled_from([None, 0, 1]), st.sampled_from([1, 2]),
    st.sampled_from(sorted(KNOWN)),
)  # fmt: skip
def test_no_other_threshold_is_better(
    rows: int, seed: int, decimals: int | None, width: int, metric: ThresholdMetric
) -> None:
    draw = np.random.default_rng(seed)
    outputs = draw.normal(size=(rows, width)) * 2
    outputs = outputs if decimals is None else outputs.round(decimals)
    targets = (draw.random(rows) < draw.random()).astype(np.int64)
    chosen, margin = choose_threshold(outputs, targets, metric), margins(outputs)
    found = chosen.scores(outputs, targets)
    for name in KNOWN:
        assert found[name] == pytest.approx(
            score(name, targets, chosen.predict(outputs)), abs=1e-12
        )
    every = [score(metric, targets, margin > limit) for limit in [*margin, margin.min() - 1]]
    assert found[metric] == pytest.approx(max(every), abs=1e-12)
    plain = score(metric, targets, margin > 0)
    assert chosen.logit == 0 or found[metric] > plain - 1e-12
    if plain == max(every):
        assert chosen.logit == 0


def test_by_hand() -> None:
    # Nine rows of class 0 and one of class 1, which has the largest output, and all outputs are below 0.
    outputs, targets = np.arange(-10.0, 0.0)[:, None], np.arange(10) // 9
    chosen = choose_threshold(outputs, targets, "balanced_accuracy")
    assert chosen == Threshold("balanced_accuracy", -1.5)
    assert chosen.probability == pytest.approx(1 / (1 + np.exp(1.5)))
    assert chosen.scores(outputs, targets)["balanced_accuracy"] == 1
    assert Threshold("accuracy", 0.0).scores(outputs, targets) == {
        "accuracy": 0.9, "balanced_accuracy": 0.5, "macro_f1": pytest.approx(0.9 / 1.9)
    }  # fmt: skip


def test_outputs_without_a_number_leave_the_plain_prediction() -> None:
    assert choose_threshold(np.full((4, 2), np.nan), np.array([0, 1, 0, 1]), "macro_f1").logit == 0
    assert np.isnan(
        Threshold("accuracy", 0.0).scores(np.zeros((0, 2)), np.zeros(0, np.int64))["accuracy"]
    )


def test_a_threshold_separates_neighbouring_numbers():
    # The middle of two neighbours is rounded to either of them
    for low in (1.0, np.nextafter(1.0, 2)):
        outputs = np.array([[low], [np.nextafter(low, 2)]])
        chosen = choose_threshold(outputs, np.array([0, 1]), "accuracy")
        assert chosen.predict(outputs).tolist() == [0, 1]
