"""Decision thresholds of two classes: chosen on validation rows, for a metric other than plain accuracy, say."""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Floats, Ints
from fedskew.tasks.scores import balanced_accuracy, macro_f1

ThresholdMetric: TypeAlias = Literal["accuracy", "balanced_accuracy", "macro_f1"]


@dataclass(frozen=True)
class Threshold:
    """Class 1 is predicted where its logit, less that of class 0, is above ``logit``; 0 is the plain prediction.

    >>> Threshold("accuracy", 0.0).probability
    0.5
    >>> Threshold("accuracy", -1.0).predict(np.array([[0.0, -0.5], [0.0, -1.5]])).tolist()
    [1, 0]
    """

    metric: str
    logit: float

    @property
    def probability(self) -> float:
        """Return the probability of class 1 above which it is predicted."""
        return float(np.exp(-np.logaddexp(0, -self.logit)))

    def predict(self, outputs: NDArray[Any]) -> Ints:
        """Return the classes from the outputs of a model: two logits, or the one logit of class 1."""
        return (margins(outputs) > self.logit).astype(np.int64)

    def scores(self, outputs: NDArray[Any], targets: Ints) -> dict[str, float]:
        """Return the metrics of these predictions; NaN without rows."""
        if not len(targets):
            return dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1"), math.nan)
        predicted = self.predict(outputs)
        right = (predicted == targets).astype(np.float64)
        return {
            "accuracy": float(right.mean()),
            "balanced_accuracy": balanced_accuracy(right, targets),
            "macro_f1": macro_f1(targets, predicted),
        }


def margins(outputs: NDArray[Any]) -> Floats:
    """Return the logit of class 1 less that of class 0, row by row."""
    logits = np.asarray(outputs, dtype=np.float64)
    if logits.ndim == 2 and logits.shape[1] == 2:
        return logits[:, 1] - logits[:, 0]
    return logits.reshape(len(logits))


def choose_threshold(outputs: NDArray[Any], targets: Ints, metric: ThresholdMetric) -> Threshold:
    """Return the threshold with the best metric on these rows; of several, the one nearest to the plain prediction.

    Tried are 0, the middle between any two neighbouring margins, and one beyond either end.

    >>> choose_threshold(np.array([[-3.0], [-2.0], [-1.0]]), np.array([0, 1, 1]), "accuracy").logit
    -2.5
    """
    margin = margins(outputs)
    values = np.unique(margin[np.isfinite(margin)])
    if not len(values):
        return Threshold(metric, 0.0)
    middle = (values[:-1] + values[1:]) / 2
    # There is none between neighbouring numbers
    middle = np.where(middle < values[1:], middle, values[:-1])
    tried = np.concatenate([[0.0, values[0] - 1, values[-1] + 1], middle])
    above = []
    for part in (_sorted(margin, targets == k) for k in (0, 1)):
        above.append(len(part) - np.searchsorted(part, tried, "right"))
    found = _metric(
        metric, above[1], above[0], int((targets == 1).sum()), int((targets == 0).sum())
    )
    best = np.flatnonzero(found == found.max())
    return Threshold(metric, float(tried[best[np.argmin(np.abs(tried[best]))]]))


def _sorted(margin: Floats, chosen: NDArray[np.bool_]) -> Floats:
    return np.sort(margin[chosen])


def _metric(metric: ThresholdMetric, hits: Ints, false: Ints, ones: int, zeros: int) -> Floats:
    """Return a metric from how many rows of class 1, and of class 0, are predicted as class 1, for many thresholds."""
    rejected = zeros - false
    if metric == "accuracy":
        right: Floats = (hits + rejected) / (ones + zeros)
        return right
    if metric == "balanced_accuracy":
        recalls = []
        for part, count in ((hits, ones), (rejected, zeros)):
            if count:
                recalls.append(part / count)
        mean: Floats = np.mean(recalls, axis=0)
        return mean
    wrong = ones - hits + false
    both = np.stack([2 * hits, 2 * rejected]).astype(np.float64)
    occurs = both + wrong > 0
    found: Floats = np.where(occurs, both / np.maximum(both + wrong, 1), 0).sum(0) / occurs.sum(0)
    return found
