"""Metrics equal scikit-learn's, or a plain loop, also with ties, absent classes, one row or one class."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from fedskew.core.errors import FedskewError
from fedskew.tasks.binary import Binary
from fedskew.tasks.classification import Classification
from fedskew.tasks.multilabel import Multilabel
from fedskew.tasks.ranks import ranked
from fedskew.tasks.regression import Regression
from fedskew.tasks.scores import CLASS_METRICS, class_table, softmax
from fedskew.tasks.task import Task

SAME = {"rel": 1e-10, "abs": 1e-12, "nan_ok": True}
CASES = st.tuples(
    st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from([None, 0, 1])
)


def drawn(
    rows: int, width: int, seed: int, decimals: int | None
) -> tuple[np.random.Generator, np.ndarray]:
    """Return outputs, rounded so that there are ties among and within rows."""
    draw = np.random.default_rng(seed)
    outputs = draw.normal(size=(rows, width)) * 2
    return draw, outputs if decimals is None else outputs.round(decimals)


def some_classes(draw: np.random.Generator, rows: int, classes: int) -> np.ndarray:
    """Return targets from some of the classes only."""
    present = draw.choice(classes, size=draw.integers(1, classes + 1), replace=False)
    return draw.choice(present, size=rows)


def quiet(function, *args, **options) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(function(*args, **options))


def plain_ece(probabilities: np.ndarray, targets: np.ndarray) -> float:
    total = 0.0
    for place in range(15):
        low, high, confidence, right, count = place / 15, (place + 1) / 15, 0.0, 0, 0
        for row, target in zip(probabilities, targets, strict=True):
            if low < row.max() <= high:
                confidence, right, count = (
                    confidence + row.max(),
                    right + int(row.argmax() == target),
                    count + 1,
                )
        if count:
            total += count / len(targets) * abs(right / count - confidence / count)
    return total


@settings(max_examples=300, deadline=None)
@given(CASES)
@example((1, 1, 0, None))
@example((1, 5, 0, 0))
@example((40, 2, 0, 0))
def test_classification(case):
    draw, outputs = drawn(*case)
    targets = some_classes(draw, len(outputs), outputs.shape[1])
    found, predicted, shares = (
        Classification().evaluate(outputs, targets),
        outputs.argmax(1),
        softmax(outputs),
    )
    assert tuple(found) == Classification().metric_names == CLASS_METRICS
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(targets, predicted), **SAME)
    assert found["balanced_accuracy"] == pytest.approx(
        quiet(sk.balanced_accuracy_score, targets, predicted), **SAME
    )
    assert found["macro_f1"] == pytest.approx(
        quiet(sk.f1_score, targets, predicted, average="macro"), **SAME
    )
    assert found["ece"] == pytest.approx(plain_ece(shares, targets), **SAME)
    present = np.unique(targets)
    if len(present) == 1:
        assert math.isnan(found["auc"])
    elif outputs.shape[1] == 2:
        assert found["auc"] == pytest.approx(
            sk.roc_auc_score(targets, outputs[:, 1] - outputs[:, 0]), **SAME
        )
    else:
        each = [sk.roc_auc_score(targets == label, shares[:, label]) for label in present]
        assert found["auc"] == pytest.approx(np.mean(each), **SAME)
        each = [sk.average_precision_score(targets == label, shares[:, label]) for label in present]
        assert found["average_precision"] == pytest.approx(np.mean(each), **SAME)
        if len(present) == outputs.shape[1]:
            assert found["auc"] == pytest.approx(
                sk.roc_auc_score(targets, shares, multi_class="ovr"), **SAME
            )
    matrix, expected = (
        Classification().confusion(outputs, targets, outputs.shape[1]),
        np.zeros((outputs.shape[1],) * 2),
    )
    np.add.at(expected, (targets, predicted), 1)
    assert (matrix == expected).all()
    by_class = sk.precision_recall_fscore_support(
        targets, predicted, labels=range(outputs.shape[1]), zero_division=np.nan
    )
    for (name, values), due in zip(class_table(matrix).items(), by_class[:3], strict=True):
        assert values.tolist() == pytest.approx(due.tolist(), **SAME), name


@settings(max_examples=200, deadline=None)
@given(CASES)
@example((1, 1, 0, None))
def test_binary(case):
    draw, outputs = drawn(case[0], 1, *case[2:])
    targets = some_classes(draw, len(outputs), 2)
    found, share, predicted = (
        Binary().evaluate(outputs, targets),
        1 / (1 + np.exp(-outputs[:, 0])),
        outputs[:, 0] > 0,
    )
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(targets, predicted), **SAME)
    assert found["balanced_accuracy"] == pytest.approx(
        quiet(sk.balanced_accuracy_score, targets, predicted), **SAME
    )
    assert found["macro_f1"] == pytest.approx(
        quiet(sk.f1_score, targets, predicted, average="macro"), **SAME
    )
    assert found["ece"] == pytest.approx(
        plain_ece(np.stack([1 - share, share], 1), targets), **SAME
    )
    precision = sk.average_precision_score(targets, outputs[:, 0]) if targets.any() else math.nan
    assert found["average_precision"] == pytest.approx(precision, **SAME)
    expected = (
        sk.roc_auc_score(targets, outputs[:, 0]) if len(np.unique(targets)) == 2 else math.nan
    )
    assert found["auc"] == pytest.approx(expected, **SAME)
    assert (
        Binary().confusion(outputs, targets)
        == sk.confusion_matrix(targets, predicted, labels=[0, 1])
    ).all()


@settings(max_examples=200, deadline=None)
@given(CASES)
@example((1, 1, 0, None))
def test_multilabel(case):
    draw, outputs = drawn(*case)
    targets = (draw.random(outputs.shape) < draw.random(outputs.shape[1]) * 1.4 - 0.2).astype(
        np.float32
    )
    found, predicted, truth = (
        Multilabel().evaluate(outputs, targets),
        (outputs > 0).astype(int),
        targets.astype(int),
    )
    assert found["accuracy"] == pytest.approx(1 - sk.hamming_loss(truth, predicted), **SAME)
    assert found["exact_match"] == pytest.approx(sk.accuracy_score(truth, predicted), **SAME)
    if outputs.shape[1] > 1:  # one column is a binary problem for scikit-learn
        for name, average in (("macro_f1", "macro"), ("micro_f1", "micro")):
            assert found[name] == pytest.approx(
                quiet(sk.f1_score, truth, predicted, average=average), **SAME
            )
    both = np.flatnonzero((truth.min(0) == 0) & (truth.max(0) == 1))
    each = [sk.roc_auc_score(truth[:, label], outputs[:, label]) for label in both]
    assert found["auc"] == pytest.approx(np.mean(each) if each else math.nan, **SAME)
    each = [
        sk.average_precision_score(truth[:, k], outputs[:, k]) for k in np.flatnonzero(truth.max(0))
    ]
    assert found["average_precision"] == pytest.approx(np.mean(each) if each else math.nan, **SAME)


@settings(max_examples=200, deadline=None)
@given(CASES, st.booleans())
@example((1, 1, 0, None), False)
@example((5, 1, 0, 0), True)
def test_regression(case, constant):
    draw, outputs = drawn(case[0], 1, *case[2:])
    targets = (
        np.full(len(outputs), 3.0) if constant else draw.normal(size=len(outputs)) + outputs[:, 0]
    )
    found = Regression().evaluate(outputs, targets)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(targets, outputs), **SAME)
    assert found["rmse"] == pytest.approx(
        math.sqrt(sk.mean_squared_error(targets, outputs)), **SAME
    )
    assert found["r2"] == pytest.approx(quiet(sk.r2_score, targets, outputs), **SAME)
    assert math.isnan(found["r2"]) == (len(targets) < 2)


def test_targets_that_are_all_alike():
    assert Regression().evaluate(np.full((3, 1), 2.0), np.full(3, 2.0))["r2"] == 1
    assert Regression().evaluate(np.zeros((3, 1)), np.full(3, 2.0))["r2"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_accuracies_have_the_bits_that_they_had(seed):
    draw, outputs = drawn(997, 10, seed, None)
    logits, targets = torch.from_numpy(outputs.astype(np.float32)), some_classes(draw, 997, 10)
    right = (logits.argmax(1) == torch.from_numpy(targets)).double().numpy()
    counts = np.bincount(targets)
    recall = np.bincount(targets, weights=right)[counts > 0] / counts[counts > 0]
    found = Classification().evaluate(logits.numpy(), targets, ("accuracy", "balanced_accuracy"))
    assert found == {"accuracy": float(right.mean()), "balanced_accuracy": float(recall.mean())}


@pytest.mark.parametrize(
    ("task", "outputs", "targets"),
    [
        (Classification(), (30, 4), np.arange(30) % 4),
        (Binary(), (30, 1), np.arange(30) % 2),
        (Multilabel(), (30, 4), np.arange(120).reshape(30, 4) % 3 == 0),
        (Regression(), (30, 1), np.arange(30.0)),
    ],
)
def test_the_metric_of_the_rows_is_a_mean_of_row_scores(task: Task, outputs, targets):
    logits = np.random.default_rng(0).normal(size=outputs)
    each = task.row_scores(torch.from_numpy(logits), torch.from_numpy(targets))
    found = task.evaluate(logits, targets)
    assert found[str(task.row_metric)] == pytest.approx(float(each.double().mean()), rel=1e-12)
    assert task.evaluate(logits, targets, [task.metric_names[-1]]) == {
        task.metric_names[-1]: found[task.metric_names[-1]]
    }
    nothing = task.evaluate(logits[:0], targets[:0])
    assert tuple(nothing) == task.metric_names
    assert all(math.isnan(value) for value in nothing.values())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("columns", [2, 3])
def test_diverged_outputs_have_no_auc_and_no_calibration(bad, columns):
    outputs, targets = np.random.default_rng(0).normal(size=(12, columns)), np.arange(12) % columns
    outputs[3] = bad
    found = Classification().evaluate(outputs, targets)
    assert math.isnan(found["auc"])
    assert math.isnan(found["ece"])
    assert 0 <= found["macro_f1"] <= 1
    outputs[3] = np.nan
    assert math.isnan(Multilabel().evaluate(outputs, (outputs > 0.1) * 1.0)["auc"])
    assert all(
        math.isnan(value) for value in Regression().evaluate(outputs[:, :1], np.ones(12)).values()
    )


def test_saturated_logits_are_still_ranked():
    outputs = np.array([[0.0, 800.0], [0.0, 900.0], [0.0, 1000.0], [0.0, 1100.0]])
    assert Classification().evaluate(outputs, np.array([0, 0, 1, 1]), ["auc"]) == {"auc": 1.0}


def test_average_precision_by_hand():
    # In the order of the scores: hit (1/1), two rows of equal score with one hit (2/3), miss.
    scores, positive = np.array([4.0, 3.0, 3.0, 1.0]), np.array([True, False, True, False])
    assert ranked(scores, positive).average_precision == pytest.approx((1 + 2 / 3) / 2, abs=1e-15)
    assert ranked(np.zeros(5), np.arange(5) < 2).average_precision == 0.4
    assert ranked(np.zeros(3), np.ones(3, dtype=bool)).average_precision == 1
    assert math.isnan(ranked(np.zeros(3), np.zeros(3, dtype=bool)).average_precision)
    assert math.isnan(ranked(np.array([1.0, np.nan]), np.array([True, False])).average_precision)


def test_auc_by_hand():
    assert ranked(np.array([1.0, 1.0, 1.0]), np.array([True, False, True])).auc == 0.5
    assert ranked(np.array([2.0, 1.0]), np.array([True, False])).auc == 1
    assert math.isnan(ranked(np.array([2.0, 1.0]), np.array([True, True])).auc)


def test_a_class_that_is_none_is_refused():
    with pytest.raises(FedskewError, match=r"target 3 is not one of 3 classes \(0 to 2\)"):
        Classification().confusion(np.zeros((2, 3)), np.array([0, 3]), 3)


def test_metrics_do_not_import_scikit_learn():
    code = (
        "import sys, numpy as np; from fedskew.tasks.task import resolve, tasks; list(tasks);"
        "resolve('classification').evaluate(np.eye(3), np.arange(3)); assert 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_confidence_between_two_bins_is_in_the_lower_one():
    outputs, targets = np.array([[0.0, 0.0, 0.0], [0.1, 0.0, 0.0]]), np.array([0, 1])
    third, more = softmax(outputs).max(1)
    assert third == 5 / 15 < more < 6 / 15
    assert Classification().evaluate(outputs, targets, ["ece"])["ece"] == pytest.approx(
        ((1 - third) + more) / 2
    )
