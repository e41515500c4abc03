"""Metrics on NumPy arrays, equal to scikit-learn's, which take up to five times as long and a second to import."""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.tasks.ranks import Flags, Ranked, mean_ranked, ranked

BINS = 15  # of the expected calibration error
CLASS_METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "average_precision", "ece")
LABEL_METRICS = ("accuracy", "exact_match", "macro_f1", "micro_f1", "auc", "average_precision")
_ROUNDING = 1e-9  # by which a computed number may be outside of its range


class Range(NamedTuple):
    """The numbers that a loss or a metric may be; one that is ``undefined`` for some rows may also be NaN.

    >>> Range(0, 1).holds(0.5), Range(0, 1).holds(7.0), Range(0, 1).holds(math.nan), Range(0).holds(math.inf)
    (True, False, False, False)
    """

    low: float = -math.inf
    high: float = math.inf
    undefined: bool = False

    def holds(self, value: float) -> bool:
        """Return whether the value is a finite number in the range, or NaN where that may be."""
        if math.isnan(value):
            return self.undefined
        return math.isfinite(value) and self.low - _ROUNDING <= value <= self.high + _ROUNDING

    def __str__(self) -> str:
        ends = {"from": self.low, "to": self.high}
        return " ".join(
            [
                "a finite number",
                *(f"{word} {end:g}" for word, end in ends.items() if math.isfinite(end)),
            ]
        )


# Of rows of one class there is none
_RANKED = dict.fromkeys(("auc", "average_precision"), Range(0, 1, undefined=True))
CLASS_RANGES = {"loss": Range(0), **dict.fromkeys(CLASS_METRICS, Range(0, 1)), **_RANKED}
LABEL_RANGES = {"loss": Range(0), **dict.fromkeys(LABEL_METRICS, Range(0, 1)), **_RANKED}
NUMBER_RANGES = {
    "loss": Range(0),
    "mae": Range(0),
    "rmse": Range(0),
    "r2": Range(high=1, undefined=True),
}
TOKEN_RANGES = {"loss": Range(0), "accuracy": Range(0, 1), "perplexity": Range(1)}
SURVIVAL_RANGES = {"loss": Range(0), "concordance": Range(0, 1, undefined=True)}


def softmax(logits: Floats) -> Floats:
    """Return the probabilities of the classes, row by row."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    result: Floats = powers / powers.sum(1, keepdims=True)
    return result


def balanced_accuracy(right: Floats, targets: Ints) -> float:
    """Return the mean, over the classes that occur, of the accuracy on each.

    >>> balanced_accuracy(np.array([1.0, 1.0, 0.0, 1.0]), np.array([0, 0, 0, 2])).__round__(3)
    0.833
    """
    counts = np.bincount(targets)
    recall = np.bincount(targets, weights=right)[counts > 0] / counts[counts > 0]
    return float(recall.mean())


def macro_f1(targets: Ints, predicted: Ints) -> float:
    """Return the mean of the F1 scores of the classes that occur among the targets or the predictions.

    >>> macro_f1(np.array([0, 0, 3]), np.array([0, 3, 3])).__round__(3)
    0.667
    """
    classes = int(max(targets.max(), predicted.max())) + 1
    both = np.bincount(targets, minlength=classes) + np.bincount(predicted, minlength=classes)
    hits = np.bincount(targets[targets == predicted], minlength=classes)
    return float((2 * hits[both > 0] / both[both > 0]).mean())


def confusion(targets: Ints, predicted: Ints, classes: int) -> Ints:
    """Return how many rows of each class (down) were predicted as each class (across).

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    for what, found in (("target", targets), ("prediction", predicted)):
        bad = found[(found < 0) | (found >= classes)]
        if len(bad):
            raise FedskewError(
                f"confusion: {what} {bad[0]} is not one of {classes} classes (0 to {classes - 1})"
            )
    return np.bincount(targets * classes + predicted, minlength=classes**2).reshape(
        classes, classes
    )


def macro_ranked(shares: Floats, logits: Floats, targets: Ints) -> Ranked:
    """Return AUC and average precision, each the mean over the classes that occur, of one class against the rest.

    Two classes have one of each, that of class 1 by the difference of the logits.

    Args:
        shares: the probability of every class, row by row
        logits: from which they follow
        targets: the class of every row
    """
    if logits.shape[1] == 2:
        return ranked(logits[:, 1] - logits[:, 0], targets == 1)
    present = np.flatnonzero(np.bincount(targets))
    columns = np.ascontiguousarray(shares.T[present])
    return mean_ranked(columns, targets == present[:, None])


def class_table(matrix: Ints) -> dict[str, Floats]:
    """Return precision, recall and F1 of every class from a confusion matrix (true down, predicted across).

    NaN where one is undefined: the recall of a class without rows, the precision of one that is never predicted, the
    F1 of one that is both.

    >>> {name: values.round(2).tolist() for name, values in class_table(np.array([[3, 1], [0, 0]])).items()}
    {'precision': [1.0, 0.0], 'recall': [0.75, nan], 'f1': [0.86, 0.0]}
    """
    hits = np.diagonal(matrix).astype(np.float64)
    true = matrix.sum(1)
    predicted = matrix.sum(0)
    with np.errstate(invalid="ignore"):
        return {
            "precision": hits / predicted,
            "recall": hits / true,
            "f1": 2 * hits / (true + predicted),
        }


def calibration_error(shares: Floats, predicted: Ints, right: Floats) -> float:
    """Return the expected calibration error: the gap of confidence and accuracy, averaged over bins by their rows.

    The confidence is the probability of the predicted class. The bins have equal widths, and each holds its upper end
    and not its lower one (Guo et al. 2017).
    """
    confidence = shares[np.arange(len(shares)), predicted]
    bin_of = np.searchsorted(np.arange(1, BINS) / BINS, confidence, "left")
    gaps = np.bincount(bin_of, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(shares))


def class_measures(logits: Floats, targets: Ints) -> Mapping[str, Callable[[], float]]:
    """Return the ``CLASS_METRICS`` of logits ``[rows, classes]``, each as a function."""
    predicted = logits.argmax(1)
    right = (predicted == targets).astype(np.float64)

    @cache
    def shares() -> Floats:
        return softmax(logits)

    @cache
    def ranks() -> Ranked:
        return macro_ranked(shares(), logits, targets)

    return {
        "accuracy": lambda: float(right.mean()),
        "balanced_accuracy": lambda: balanced_accuracy(right, targets),
        "macro_f1": lambda: macro_f1(targets, predicted),
        "auc": lambda: ranks().auc,
        "average_precision": lambda: ranks().average_precision,
        "ece": lambda: calibration_error(shares(), predicted, right),
    }


def label_measures(logits: Floats, targets: Flags) -> Mapping[str, Callable[[], float]]:
    """Return the metrics of labels, each as a function; a label is predicted where its logit is above 0."""
    predicted = logits > 0

    @cache
    def doubled() -> tuple[Ints, Ints]:
        return 2 * (predicted & targets).sum(0), predicted.sum(0) + targets.sum(0)

    def macro() -> float:
        hits, both = doubled()
        return float((hits / np.maximum(both, 1)).mean())

    def micro() -> float:
        hits, both = doubled()
        return float(hits.sum() / max(both.sum(), 1))

    @cache
    def over_labels(most: int) -> Ranked:
        """Return the means over the labels that at least one row has, and at most so many."""
        counts = targets.sum(0)
        counted = np.flatnonzero((counts > 0) & (counts <= most))
        if np.isnan(logits).any() or not len(counted):
            return Ranked(math.nan, math.nan)
        return mean_ranked(np.ascontiguousarray(logits.T[counted]), targets.T[counted])

    return {
        "accuracy": lambda: float((predicted == targets).mean()),
        "exact_match": lambda: float((predicted == targets).all(1).mean()),
        "macro_f1": macro,
        "micro_f1": micro,
        "auc": lambda: over_labels(len(targets) - 1).auc,
        "average_precision": lambda: over_labels(len(targets)).average_precision,
    }


def r2(outputs: Floats, targets: Floats) -> float:
    """Return the coefficient of determination, the explained part of the variance; NaN for fewer than two rows.

    Equal targets give 1 if all predictions are exact and 0 otherwise, as in scikit-learn.

    >>> r2(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
    0.5
    """
    if len(targets) < 2:
        return float("nan")
    missed = np.square(targets - outputs).sum()
    spread = np.square(targets - targets.mean()).sum()
    if spread == 0 and not np.isnan(missed):
        return float(missed == 0)
    return float(1 - missed / spread)
