"""The end of a run: the few numbers that sum it up, and its last files.

A metric is always named: whose, on what, last or best.

What is said of accuracy in classification is said of the task's first metric, its headline, in any other task.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedskew.algorithms.contract import overridden
from fedskew.algorithms.topologies import Scheduled
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, size_in_bytes
from fedskew.data.federation import Federation, shown_clients
from fedskew.engine.stacked import Stacked
from fedskew.heterogeneity.fairness import gini, rounds_to_share, worst_share_mean
from fedskew.models.low_rank import found_factors
from fedskew.models.parameters import frozen
from fedskew.runs import folder as on_disk
from fedskew.runs.choices import brief
from fedskew.runs.goals import goal_entries, usual_goal
from fedskew.runs.newcomers import newcomer_rows, newcomer_summary
from fedskew.runs.summary_reading import (
    ADAPTED,
    CHOSEN_BY_LOSS,
    CLIENT_MODEL,
    SHARED_MODEL,
)
from fedskew.server.cautions import cautions
from fedskew.server.evaluated_rows import Score
from fedskew.server.final_evaluation import TEST_ROWS, one_class_rate
from fedskew.server.models_in_use import chooses
from fedskew.server.score_names import CLIENT_NAMES, CLIENT_TEST, NAMES
from fedskew.server.server import Server
from fedskew.tasks.classification import Classification
from fedskew.tasks.scores import class_table
from fedskew.tasks.task import Headline, Task
from fedskew.tasks.thresholds import Threshold

Row = dict[str, Any]

ONE_CLASS = 0.99  # share of the rows from which on a model is said to predict one class
FEW_ROWS = 10  # held-out rows of a class below which a score says little about it
MOST_CLASSES = 5  # that a warning names
_MOST_WARNINGS = 20  # about differences between clients
LATE_ROUNDS = 15  # over which late oscillation is measured


def summarise(
    rounds: Sequence[Row],
    clients: Iterable[Row],
    final: Sequence[Row],
    population: int,
    held_out: bool,
    task: Task | None = None,
    metric: str | None = None,
) -> Row:
    """Return the summary of a run with at least one round; ``population`` is the number of clients.

    ``metric`` is the headline, by default the task's first metric.
    """
    task = task or Classification()
    headline = task.headline(metric)
    summary: Row = {"rounds": len(rounds)}
    for part in (*NAMES, *CLIENT_NAMES):
        summary |= _last_and_best(rounds, part, task, headline)
    for which in ("best", "best_round"):
        # The best round of test rows is chosen by what it is to be judged by
        summary.pop(f"{CLIENT_TEST}_{headline.name}_{which}", None)
    summary |= _late_oscillation(rounds, f"test_{headline.name}")
    summary |= _late_oscillation_of_losses(rounds)
    if headline.sign > 0:
        summary |= _until_90_percent(rounds, "test", headline.name)
        summary |= _until_90_percent(rounds, "calibrated_test", headline.name)
    summary |= _over_clients(final, held_out, task, headline)
    summary |= _held_out_rows(final)
    summary |= _of_own_models(final, task)
    summary |= _over_all_rounds(clients, population)
    summary["updates"] = _total(rounds, "clients")
    for fate in ("excluded", "dropped", "late"):
        summary[f"{fate}_updates"] = _total(rounds, fate)
    for name in ("bytes_down", "bytes_up"):
        summary[name] = _total(rounds, name)
    summary["simulated_seconds"] = rounds[-1]["clock"]
    attacked = _scored(rounds, "backdoor_success")
    if attacked:
        summary["backdoor_success_last"] = attacked[-1]["backdoor_success"]
    return summary


def _total(rounds: Sequence[Row], name: str) -> Any:
    return sum(row[name] for row in rounds)


def _scored(rows: Sequence[Row], column: str) -> list[Row]:
    """Return the rows that have a value in this column."""
    return [row for row in rows if row.get(column) is not None]


def _last_and_best(rounds: Sequence[Row], part: str, task: Task, headline: Headline) -> Row:
    """The headline in the last and in the best round, and the other metrics and the loss in the last."""
    column = f"{part}_{headline.name}"
    scored = _scored(rounds, column)
    if not scored:
        return {}

    def good(row: Row) -> float:
        value = headline.sign * float(row[column])
        if math.isnan(value):
            return -math.inf
        return value

    last = scored[-1]
    best = max(scored, key=good)
    scores = {
        f"{column}_last": last[column],
        f"{column}_best": best[column],
        f"{column}_best_round": best["round"],
    }
    for name in (*task.metric_names, "loss"):
        if name != headline.name and f"{part}_{name}" in last:
            scores[f"{part}_{name}_last"] = last[f"{part}_{name}"]
    return scores


def _late_oscillation(rounds: Sequence[Row], column: str) -> Row:
    """The standard deviation (n - 1) of a score over the last rounds; None where too few were scored."""
    late = [row[column] for row in _scored(rounds[-LATE_ROUNDS:], column)]
    spread = None
    if len(late) > 2:
        spread = float(np.std(late, ddof=1))
    return {f"{column}_std_of_last_{LATE_ROUNDS}_rounds": spread}


def _late_oscillation_of_losses(rounds: Sequence[Row]) -> Row:
    """The same of the losses that were scored."""
    found: Row = {}
    for part in ("test", "validation", "train"):
        if _scored(rounds, f"{part}_loss"):
            found |= _late_oscillation(rounds, f"{part}_loss")
    return found


def _until_90_percent(rounds: Sequence[Row], part: str, metric: str) -> Row:
    """What it took until the global model first had 90 % of its last, and of its best, score; bytes are both ways."""
    column = f"{part}_{metric}"
    scored = _scored(rounds, column)
    if not scored and part != "test":
        return {}
    values = [row[column] for row in scored]
    goals = {"last": -1.0, "best": -1.0}
    if values:
        goals = {"last": values[-1], "best": _highest(values)}
    costs: Row = {}
    for which, goal in goals.items():
        reached = None
        if goal >= 0:  # there is no share of less than nothing
            place = rounds_to_share(values, 0.9, goal)
            if place is not None:
                reached = scored[place - 1]
        for what, value in _spent_until(rounds, reached).items():
            costs[f"{what}_to_90_percent_of_{which}_{column}"] = value
    return costs


def _highest(values: Sequence[float]) -> float:
    """Return the highest number, wherever NaN stands among them; NaN if there is no other.

    >>> _highest([math.nan, 0.5, 0.9]), _highest([0.5, 0.9, math.nan])
    (0.9, 0.9)
    """
    highest = math.nan
    for value in values:
        if not highest >= value and not math.isnan(value):
            highest = value
    return highest


def _spent_until(rounds: Sequence[Row], reached: Row | None) -> Row:
    """What all rounds up to one took; None of everything if there is no such round."""
    if reached is None:
        return dict.fromkeys(("rounds", "simulated_seconds", "bytes"))
    sent = 0
    for row in rounds:
        if row["round"] <= reached["round"]:
            sent += row["bytes_down"] + row["bytes_up"]
    return {"rounds": reached["round"], "simulated_seconds": reached["clock"], "bytes": sent}


def _over_clients(final: Sequence[Row], held_out: bool, task: Task, headline: Headline) -> Row:
    """Return means over the clients of every metric, and over their worst tenth for the row metric and the headline."""
    means: Row = {}
    row_metric = task.row_metric or "loss"
    row_sign = -1
    if task.row_metric and task.higher_is_better:
        row_sign = 1
    signs = {headline.name: headline.sign, row_metric: row_sign}
    for name in dict.fromkeys((row_metric, *task.metric_names, "majority_rate", "one_class_rate")):
        known = _known(final, name)
        if len(known):
            means[f"client_{name}_mean"] = float(known.mean())
            if name in signs:
                lowest = worst_share_mean(signs[name] * known, 0.1)
                means[f"client_{name}_worst_10_percent"] = signs[name] * float(lowest)
            if name == row_metric:
                means[f"client_{name}_rows"] = _rows_of_clients(held_out)
            if name in task.metric_names:
                means |= _row_weighted(final, name)
        chosen_by = _known(final, f"validation_{name}")
        if len(chosen_by):
            means[f"client_validation_{name}_mean"] = float(chosen_by.mean())
        shared = _known(final, f"global_{name}")
        if len(shared):
            means[f"client_{name}_of_global_model_mean"] = float(shared.mean())
    return means


def _row_weighted(final: Sequence[Row], name: str) -> Row:
    """Return the mean over the clients of a metric, each counting by the rows that it holds out; empty without such."""
    weights = []
    values = []
    for row in final:
        value = row.get(name)
        if TEST_ROWS in row and value is not None and math.isfinite(value):
            weights.append(row[TEST_ROWS])
            values.append(value)
    if not values:
        return {}
    return {f"client_{name}_row_weighted_mean": float(np.average(values, weights=weights))}


def _held_out_rows(final: Sequence[Row]) -> Row:
    """Return how many of the clients hold rows out, and how many rows the median of these; empty if none can."""
    held = [row[TEST_ROWS] for row in final if TEST_ROWS in row]
    if not held:
        return {}
    some = [rows for rows in held if rows]
    entries: Row = {"client_test_clients": len(some)}
    if some:
        entries["client_test_rows_median"] = float(np.median(some))
    return entries


def _of_own_models(final: Sequence[Row], task: Task) -> Row:
    """Return means over the clients of the metrics of their own models on the test rows."""
    means: Row = {}
    for name in (*task.metric_names, "one_class_rate"):
        column = f"own_test_{name}"
        own = [row[column] for row in _scored(final, column)]
        if own:
            means[f"{column}_mean"] = float(np.mean(own))
    return means


def _rows_of_clients(held_out: bool) -> str:
    if held_out:
        return "held-out rows of each client"
    return "training rows of each client"


def _known(final: Sequence[Row], name: str) -> Floats:
    """Return the finite values of a column."""
    values = np.array([row[name] for row in _scored(final, name)], dtype=np.float64)
    return values[np.isfinite(values)]


def facts(server: Server, config: Mapping[str, Any]) -> Row:
    """Return the entries of the summary about the set-up."""
    fed, algorithm, task = server.fed, server.algorithm, server.job.task
    facts: Row = {}
    for name in ("data", "skew", "model", "algorithm", "task", "fleet"):
        facts[name] = brief(name, config[name])
    facts["clients"] = fed.clients
    facts["clients_per_round"] = server.per_round
    facts["test_rows"] = len(fed.test)
    if fed.validation is not None:
        facts["validation_rows"] = len(fed.validation)
    facts["seed"] = server.settings.seed
    facts["metric"] = server.headline.name
    facts[SHARED_MODEL] = server.job.shared_model
    facts |= _client_model(server)
    weights_of_classes = getattr(task, "class_weights", None)
    if weights_of_classes is not None:
        facts["class_weights"] = list(weights_of_classes)
    if server.protocol:
        facts["label_protocol_seconds"] = server.protocol.seconds
        facts["label_protocol_bytes"] = sum(server.protocol.bytes_sent.values())
    if isinstance(algorithm.topology(0), Scheduled):
        facts["weights"] = "samples"
    else:
        of_clients = algorithm.weighting.name.format(base=server.weights)
        facts["weights"] = algorithm.aggregator.name or of_clients
    for part, rate in majority_rates(fed).items():
        facts[f"{part}_majority_rate"] = rate
    facts["parameters"] = sum(value.numel() for value in server.state.params.values())
    return {**facts, **_frozen(server)}


def _frozen(server: Server) -> Row:
    """Return how large a model is whose parameters are not all trained, by kind; empty for any other."""
    fixed = frozen(server.job.model)
    if not fixed:
        return {}
    trained: Tensors = {}
    sent_once = found_factors(server.job.model)
    for name, value in server.state.model().items():
        if name not in sent_once:
            trained[name] = value
    return {
        "frozen_parameters": sum(value.numel() for value in fixed.values()),
        "trained_bytes": size_in_bytes({"": trained}),
        "frozen_bytes": size_in_bytes({"": fixed}),
    }


def _client_model(server: Server) -> Row:
    """Return how the model that a client uses comes about, where it is more than the shared one with its own parts."""
    algorithm = server.algorithm
    if algorithm.adaptation is not None:
        return {CLIENT_MODEL: ADAPTED}
    sent_along = algorithm.broadcast(server.state.server_state)
    if algorithm.no_shared_model and chooses(server.job, sent_along):
        return {CLIENT_MODEL: CHOSEN_BY_LOSS}
    if overridden(algorithm, "client_model"):
        return {CLIENT_MODEL: "made by the method"}
    return {}


def majority_rates(fed: Federation) -> dict[str, float]:
    """Return the share of the most frequent class among training and test rows: what always predicting it would score.

    Empty where the targets are not classes.
    """
    if fed.data.target != "class":
        return {}
    labels = {"train": fed.train.y[fed.partition.rows]}
    if fed.test is not None:
        labels["test"] = fed.test.y
    rates = {}
    for part, y in labels.items():
        if len(y):
            rates[part] = float(np.bincount(y).max() / len(y))
    return rates


@dataclass(frozen=True)
class Ending:
    """What a server finds out after its last round: one row per client, confusion matrices, a threshold.

    ``newcomers`` has one row per client that took no part in training.

    ``last`` are scores of the model of the last round, ``calibrated`` are scores and cost of a new head.
    """

    server: Server
    last: Row
    calibrated: Row
    clients: list[Row]
    newcomers: list[Row]
    own_confusion: Ints | None
    confusion: Ints | None
    threshold: tuple[Threshold, dict[str, Score]] | None

    @classmethod
    def of(cls, server: Server) -> "Ending":
        """Let a server score its last models."""
        last = server.last_scores()  # before a new head: what the rounds are about
        calibrated = server.calibrate()
        clients, own_confusion = server.final_clients()
        return cls(
            server,
            last,
            calibrated,
            clients,
            newcomer_rows(server),
            own_confusion,
            server.confusion(),
            server.threshold(),
        )

    def summary(self, config: Mapping[str, Any], numbers: Row, seconds: float) -> Row:
        """Return the summary of a run: its set-up, the ``numbers`` of its rounds, and what was found at the end."""
        numbers = dict(numbers)
        for name, value in self.last.items():
            numbers.setdefault(name, value)
        for name in ("bytes_down", "bytes_up", "simulated_seconds"):
            numbers[name] += self.calibrated.get(f"calibration_{name}", 0)
        summary = {**facts(self.server, config), **numbers, **self.calibrated}
        summary |= self.server.adaptation_cost()
        summary |= self.server.participation.profile_privacy()
        summary |= newcomer_summary(self.newcomers, self.server.headline)
        if self.confusion is not None:
            most = int(self.confusion.sum(0).argmax())
            summary["test_one_class_rate"] = one_class_rate(self.confusion)
            summary["test_one_class"] = self.server.fed.data.classes[most]
        summary |= self._thresholded()
        summary |= goal_entries(usual_goal(self.server), summary)
        scarce = held_out_of_each_class(self.server.fed)
        if scarce:
            summary["client_test_rarest_class"] = list(scarce[0])
        warned = [
            *cautions(self.server),
            *predictions_of_one_class(summary),
            *scarce_classes(scarce),
        ]
        if warned:
            summary["warnings"] = warned
        about_data = data_warnings(self.server.fed)
        if about_data:
            summary["data_warnings"] = about_data
        summary["seconds"] = seconds
        engine = self.server.engine
        if isinstance(engine, Stacked) and engine.not_captured:
            reasons = [f"{part}: {why}" for why, part in engine.not_captured.items()]
            summary["not_captured"] = "; ".join(reasons)
        return summary

    def _thresholded(self) -> Row:
        """Return the chosen threshold and its scores, if there is one."""
        if self.threshold is None:
            return {}
        threshold, by_part = self.threshold
        entries = {"threshold": threshold.probability}
        for part, scores in by_part.items():
            for name, value in scores.items():
                entries[f"thresholded_{part}_{name}"] = value
        return entries

    def files(self, weights: bytes) -> dict[str, bytes]:
        """Return the last files of a run, with the file of its weights, by their names."""
        fed = self.server.fed
        files = {on_disk.FINAL_CLIENTS: _with_all_columns(self.clients), on_disk.MODEL: weights}
        if self.newcomers:
            files[on_disk.UNSEEN_CLIENTS] = _with_all_columns(self.newcomers)
        matrices = {}
        if self.confusion is not None:
            matrices["global"] = self.confusion
            files[on_disk.CONFUSION] = on_disk.matrix_to_csv(self.confusion, fed.data.classes)
        if self.own_confusion is not None:
            matrices["own"] = self.own_confusion
            files[on_disk.OWN_CONFUSION] = on_disk.matrix_to_csv(
                self.own_confusion, fed.data.classes
            )
        if matrices:
            files[on_disk.CLASSES] = _classes_file(matrices, fed.data.classes)
        files[on_disk.CLIENT_CLASSES] = _client_classes_file(fed)
        if self.threshold:
            threshold = self.threshold[0]
            chosen = {
                **vars(threshold),
                "probability": threshold.probability,
                "class": fed.data.classes[1],
            }
            files[on_disk.THRESHOLDS] = (on_disk.to_json(chosen, indent=2) + "\n").encode()
        return files


def _with_all_columns(rows: Sequence[Row]) -> bytes:
    """Return rows as CSV; a row that lacks a column of another row has an empty cell there."""
    columns: Row = {}
    for row in rows:
        columns |= dict.fromkeys(row)
    return on_disk.to_csv([{**columns, **row} for row in rows], header=True)


def _classes_file(matrices: Mapping[str, Ints], names: Sequence[str]) -> bytes:
    """Return a table of the classes from confusion matrices by model."""
    rows = []
    for model, matrix in matrices.items():
        columns = {"rows": matrix.sum(1), "predicted": matrix.sum(0), **class_table(matrix)}
        for number, name in enumerate(names):
            row = {"model": model, "class": name}
            for column, values in columns.items():
                row[column] = values[number].item()
            rows.append(row)
    return on_disk.to_csv(rows, header=True)


def _client_classes_file(fed: Federation) -> bytes:
    """Return how many training rows of each class the clients hold, of some at even steps where there are many."""
    columns = fed.label_columns
    clients = shown_clients(fed.clients)
    names = [fed.client_names[client] for client in clients]
    counts = columns.counts(fed.partition, clients)
    return on_disk.counts_to_csv(f"client/{columns.title}", names, columns.names, counts)


def data_warnings(fed: Federation) -> list[str]:
    """Return how files were understood, and differences between the data of clients: training would not show it."""
    differences = fed.data.differences
    lines = [*fed.data.doubts, *differences[:_MOST_WARNINGS]]
    more = len(differences) - _MOST_WARNINGS
    if more > 0:
        lines.append(f"{more} more differences between clients (fedskew data check)")
    return lines


def predictions_of_one_class(summary: Row) -> list[str]:
    """Return a warning for models that predict nearly always the same class, while the rows have others."""
    own = "own_test_one_class_rate_mean" in summary
    rate_name, accuracy_name = "test_one_class_rate", "test_accuracy_last"
    if own:
        rate_name, accuracy_name = "own_test_one_class_rate_mean", "own_test_accuracy_mean"
    majority, rate = summary.get("test_majority_rate"), summary.get(rate_name)
    if majority is None or rate is None or rate < ONE_CLASS or rate <= majority:
        return []
    if own:
        who_predicts = f"the clients' own models of {summary['algorithm']} predict one class"
    else:
        who_predicts = f"{summary['algorithm']} predicts one class, {summary['test_one_class']},"
    return [
        f"{who_predicts} for {math.floor(1000 * rate) / 10:g} % of the test rows: the accuracy of "
        f"{summary[accuracy_name]:.1%} says nothing more (the most frequent class: {majority:.1%}); judge by "
        "metric=balanced_accuracy, and try class_weights=balanced"
    ]


class HeldOutClass(NamedTuple):
    """A class, its held-out rows at all clients together, and how many clients hold fewer than 10 of them out."""

    name: str
    rows: int
    scarce_at: int


def held_out_of_each_class(fed: Federation) -> list[HeldOutClass]:
    """Return the classes by their held-out rows, the rarest first; empty where none are, or targets are not classes."""
    if fed.tested_on is None or fed.data.target != "class":
        return []
    rows, split = fed.tested_on
    counts = split.counts(rows.y, len(fed.data.classes))
    total = counts.sum(axis=0)
    scarce_at = (counts < FEW_ROWS).sum(axis=0)
    found = []
    for number in np.argsort(total, kind="stable").tolist():
        name = fed.data.classes[number]
        found.append(HeldOutClass(name, int(total[number]), int(scarce_at[number])))
    return found


def scarce_classes(held_out: Sequence[HeldOutClass]) -> list[str]:
    """Return a warning for classes of which so few rows are held out that a score says little about them.

    >>> scarce_classes([HeldOutClass("rare", 3, 4), HeldOutClass("common", 80, 0)])
    ['clients hold out few rows of some classes (rare: 3): scores say little about these; raise client_test']
    """
    few = [f"{entry.name}: {entry.rows}" for entry in held_out if entry.rows < FEW_ROWS]
    if not few:
        return []
    listed = ", ".join(few[:MOST_CLASSES])
    if len(few) > MOST_CLASSES:
        listed += ", …"
    return [
        f"clients hold out few rows of some classes ({listed}): scores say little about these; raise client_test"
    ]


def _over_all_rounds(clients: Iterable[Row], population: int) -> Row:
    """How the clients shared the weight of all rounds, and how long each trained on the simulated clock."""
    weights, slowest, work = _accumulated(clients, population)
    found: Row = {
        "training_seconds_of_a_client": float(work.mean()),
        "gini_of_client_weights": float(gini(weights)),
        "clients_without_weight": int((weights == 0).sum()),
    }
    if weights.any():
        found["weight_share_of_slowest_third"] = float(weights[slowest].sum() / weights.sum())
    return found


def _accumulated(clients: Iterable[Row], population: int) -> tuple[Floats, Ints, Floats]:
    """Return each client's sum of weights over all rounds, 0 for those never chosen, the slowest clients, and the work.

    The slowest are a third of all: those whose local training took longest in any round. Work is each client's time
    for local training in all rounds, on the simulated clock.
    """
    total = np.zeros(population)
    work = np.zeros(population)
    longest = np.zeros(population)
    for row in clients:
        client = row["client"]
        total[client] += row["weight"]
        seconds = row.get("training_seconds") or 0.0
        work[client] += seconds
        longest[client] = max(longest[client], seconds)
    order = np.argsort(-longest, kind="stable")
    return total, order[: max(population // 3, 1)], work
