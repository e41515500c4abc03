"""The columns of the table of results: their titles, what they mean, and which of them a table has."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedskew.runs.folder import Row


class SummaryColumn(NamedTuple):
    """A column of the table: by what its numbers are multiplied, and how many digits after the point they have."""

    title: str
    meaning: str
    scale: float = 100
    digits: int = 1


_USUAL = {  # by name in the summary
    "test_accuracy_last": SummaryColumn(
        "test last", "accuracy of the global model on the test rows after the last round, in %"
    ),
    "test_accuracy_best": SummaryColumn(
        "test best", "accuracy of the global model on the test rows in its best round, in %"
    ),
    "test_balanced_accuracy_last": SummaryColumn(
        "balanced", "balanced accuracy: the mean over the classes of the accuracy on each, in %"
    ),
    "test_balanced_accuracy_best": SummaryColumn(
        "balanced best", "balanced accuracy in its best round, in %"
    ),
    "test_majority_rate": SummaryColumn(
        "majority", "accuracy of always predicting the most frequent class, in %"
    ),
    "thresholded_test_balanced_accuracy": SummaryColumn(
        "at threshold",
        "balanced accuracy with the threshold that was chosen on the validation rows, in %",
    ),
    "calibrated_test_accuracy": SummaryColumn(
        "calibrated", "accuracy of the calibrated model after the last round, in %"
    ),
    "backdoor_success_last": SummaryColumn(
        "backdoor",
        "share of the test rows of other classes, with the trigger, that are taken for the attackers' target, in %",
    ),
    "own_test_accuracy_mean": SummaryColumn(
        "own test", "mean accuracy of the personal models on the test rows, in %"
    ),
    "own_test_balanced_accuracy_mean": SummaryColumn(
        "own balanced", "mean balanced accuracy of the personal models on the test rows, in %"
    ),
    "client_accuracy_mean": SummaryColumn(
        "clients",
        "mean over the clients of the accuracy of the model that each uses, on its held-out rows, or on its training "
        "rows if it holds none out (--client-test), in %",
    ),
    "client_balanced_accuracy_mean": SummaryColumn(
        "clients balanced",
        "mean over the clients of the balanced accuracy, on the rows of the column clients, in %",
    ),
    "client_majority_rate_mean": SummaryColumn(
        "clients majority",
        "mean over the clients of the accuracy of predicting each one's most frequent class, in %",
    ),
    "client_accuracy_worst_10_percent": SummaryColumn(
        "worst 10 %", "mean accuracy of the worst 10 % of the clients on their own rows, in %"
    ),
    "client_balanced_accuracy_worst_10_percent": SummaryColumn(
        "worst balanced",
        "mean balanced accuracy of the worst 10 % of the clients on their own rows, in %",
    ),
    "unseen_shared_accuracy_mean": SummaryColumn(
        "unseen",
        "mean over the clients that took no part of the accuracy of the shared model on their held-out rows, in %",
    ),
    "unseen_tuned_accuracy_mean": SummaryColumn(
        "unseen tuned",
        "mean over the clients that took no part, after fine-tuning on the rows of each, in %",
    ),
    "unseen_method_accuracy_mean": SummaryColumn(
        "unseen method",
        "mean over the clients that took no part, of the model that the method gives to new clients, in %",
    ),
    "rounds_to_90_percent_of_last_test_accuracy": SummaryColumn(
        "to 90 %", "rounds until 90 % of the last test accuracy", scale=1, digits=0
    ),
    "rounds_to_target": SummaryColumn(
        "to target",
        "rounds until the target is reached, of the seeds that reach it",
        scale=1,
        digits=0,
    ),
    "weights": SummaryColumn("weights", "aggregation weights of the clients (--weights)"),
    "gini_of_client_weights": SummaryColumn(
        "Gini", "Gini coefficient of the clients' total weights over all rounds", scale=1, digits=3
    ),
    "bytes": SummaryColumn("MB", "megabytes sent, both ways", scale=1e-6, digits=2),
    "simulated_seconds": SummaryColumn(
        "simulated s", "simulated seconds on the fleet (--fleet)", scale=1
    ),
    "seconds": SummaryColumn("s", "seconds of real time", scale=1),
}
_AFTER_OTHERS = "calibrated_test_accuracy"  # before it stand the columns of other metrics

# Of the summary, about metrics other than accuracy: title, meaning
_OTHERS = {
    r"test_(?!loss)(\w+)_last": (
        "{} last",
        "{} of the global model on the test rows after the last round",
    ),
    r"test_(\w+)_best": ("{} best", "{} of the global model on the test rows in its best round"),
    r"own_test_(\w+)_mean": ("own {}", "mean {} of the personal models on the test rows"),
    r"client_(mae)_mean": (
        "clients {}",
        "mean over the clients of the {} of the model that each uses, on its own rows",
    ),
    r"client_(\w+)_worst_10_percent": (
        "worst {}",
        "mean {} of the worst 10 % of the clients on their own rows",
    ),
}


def column_meanings() -> dict[str, str]:
    """Return what the columns mean, by title; METRIC stands for any metric other than accuracy."""
    meanings = {}
    for column in _USUAL.values():
        meanings[column.title] = column.meaning
    for title, meaning in _OTHERS.values():
        meanings[title.format("METRIC")] = meaning.format("METRIC")
    return meanings


def columns_of(rows: "Sequence[Row]") -> dict[str, SummaryColumn]:
    """Return the columns that a table of these rows has: those in which a row has a value.

    Those of the metric that decides (``--metric``) come first. The weights, where all rows have the same ones, are left
    out.
    """
    columns = {}
    for key, column in _all_columns(rows).items():
        if any(row.get(key) is not None for row in rows):
            columns[key] = column
    if len(rows) > 1 and len({row.get("weights") for row in rows}) == 1:
        columns.pop("weights", None)
    return columns


def _all_columns(rows: "Sequence[Row]") -> dict[str, SummaryColumn]:
    """Return the usual columns and, after those of accuracy, one for every other metric that was followed."""
    columns: dict[str, SummaryColumn] = {}
    for key, column in _USUAL.items():
        if key == _AFTER_OTHERS:
            columns |= _other_columns(rows)
        columns[key] = column
    decides = f"test_{rows[0].get('metric', 'accuracy')}_"
    return dict(sorted(columns.items(), key=lambda item: not item[0].startswith(decides)))


def _other_columns(rows: "Sequence[Row]") -> dict[str, SummaryColumn]:
    """Return the columns of metrics other than accuracy.

    For classes, metrics that the user did not ask for (``--metrics``) are in summary.json only.
    """
    columns = {}
    for row in rows:
        task = str(row.get("task", "classification")).split(":")[0]
        predicts_classes = task in ("classification", "binary")
        for key in row:
            for pattern, (title, meaning) in _OTHERS.items():
                match = re.fullmatch(pattern, key)
                if match is None or key in _USUAL:
                    continue
                metric = match[1]
                if not predicts_classes or f"train_{metric}_last" in row:
                    columns[key] = SummaryColumn(
                        title.format(metric), meaning.format(metric), scale=1, digits=4
                    )
    return columns
