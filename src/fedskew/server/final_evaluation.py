"""The evaluation after the last round: one row for each client, with the scores of the model that it uses."""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.server.evaluated_rows import EvaluatedRows, Found, OwnModel, Score, own_columns
from fedskew.server.rows_of_clients import ClientRows, at_even_steps, scored_clients
from fedskew.tasks.task import Task

TEST_ROWS = "test_rows"  # column of the rows that a client holds out and is scored on
RATES = ("majority_rate", "one_class_rate")  # columns of shares of rows, where targets are classes


class FinalClients(NamedTuple):
    """The clients at the end: one row for each, and the sum of their own models' confusion matrices on test rows."""

    table: list[dict[str, Any]]
    confusion: Ints | None


def one_class_rate(confusion: Ints) -> float:
    """Return the largest share of the rows for which one and the same class is predicted; NaN without rows.

    >>> import numpy as np
    >>> one_class_rate(np.array([[6, 0], [3, 1]]))
    0.9
    """
    if confusion.any():
        return float(confusion.sum(0).max() / confusion.sum())
    return float("nan")


def confusion_of(task: Task, found: Found, classes: int) -> Ints:
    """Return how many rows of each class (down) were predicted as each (across), for a task that has such a count."""
    count: Callable[..., Ints] = getattr(task, "confusion")  # noqa: B009 - tasks of other targets have none
    return count(*found.arrays(), classes)


def total_confusion(matrices: list[Ints]) -> Ints | None:
    """Return the sum of confusion matrices; None if there are none."""
    if not matrices:
        return None
    return sum(matrices[1:], matrices[0])


def final_columns(
    task: Task, metrics: Iterable[str], personal: bool, common: bool, tested: bool
) -> tuple[str, ...]:
    """Return the columns of a client in the last table, after its number and its rows; see ``FinalEvaluation``.

    ``tested`` says that clients' own models are also evaluated on test rows, by these ``metrics``.
    """
    own = own_columns(personal, common, task.row_metric)
    more = [name for name in task.metric_names if name not in own]
    majority: list[str] = []
    one_class: list[str] = []
    if hasattr(task, "confusion"):
        majority.append(RATES[0])
        one_class.append(RATES[1])
    more += one_class
    columns = [*own, *majority, *more]
    if personal and common:
        columns += [f"global_{name}" for name in more]
    if personal and tested:
        columns += [f"own_test_{name}" for name in (*metrics, *one_class)]
    return tuple(columns)


class FinalEvaluation:
    """Evaluates the models that clients use at the end, each on the rows of its client.

    Where data comes with its clients, these are the client's test rows. Up to 200 clients, at even steps, also have all
    metrics on their own rows, and those of their own models on the test rows.
    """

    def __init__(
        self,
        fed: Federation,
        metrics: tuple[str, ...],
        seed: int,
        train: EvaluatedRows,
        test: EvaluatedRows | None,
    ) -> None:
        self.fed = fed
        self.task = train.task
        self.metrics = metrics
        self.seed = seed
        self.train = train
        self.test = test
        self._classifies = hasattr(self.task, "confusion")

    @property
    def holds_out(self) -> bool:
        """Return whether clients are evaluated on rows that they do not train on."""
        return self.fed.tested_on is not None

    @cached_property
    def scored(self) -> ClientRows:
        """The rows on which the models that clients use are scored: those held out, or else their training rows."""
        fed = self.fed
        if fed.tested_on is None:
            return self._rows_of(self.train, fed.partition)
        _, split = fed.tested_on
        if fed.held_out is not None:
            return self._rows_of(self.train, split)
        assert self.test
        return self._rows_of(self.test, split)

    @cached_property
    def validation(self) -> ClientRows | None:
        """The rows that clients set aside to choose numbers by, if they do."""
        if self.fed.client_validation is None:
            return None
        return self._rows_of(self.train, self.fed.client_validation)

    def _rows_of(self, rows: EvaluatedRows, split: Partition) -> ClientRows:
        return ClientRows(rows, split, scored_clients(self.fed.clients, self.seed))

    def clients(self, state: Tensors | None, own: OwnModel | None) -> FinalClients:
        """Return one row for each client (a random sample above 10,000) with the scores of its final model on its rows.

        The confusion matrix is the sum over the clients whose models are evaluated on the test rows.
        """
        table = self._table(self.scored.rows, state, own, self.scored.split)
        names = [name for name in self.task.metric_names if name not in table[0]]
        matrices: list[Ints] = []
        some = table[at_even_steps(len(table))]
        of_shared: list[Score] = [{}] * len(some)
        if state:
            of_shared = []
            for found in self.scored.found(state, None, _numbers(some)):
                of_shared.append(self._metrics_of(found, names))
        for entry, metrics in zip(some, of_shared, strict=True):
            if own is None:
                entry |= metrics
            else:
                self._add_own(entry, own(entry["client"]), names, metrics, matrices)
        if self.validation is not None:
            self._add_validation(table, self.validation, state, own, names)
        return FinalClients(table, total_confusion(matrices))

    def _add_own(
        self,
        entry: dict[str, Any],
        used: Tensors,
        names: list[str],
        of_shared: Score,
        matrices: list[Ints],
    ) -> None:
        """Add the metrics of the model that a client uses, then those of the shared one, on its rows and test rows."""
        mine = self.scored.split.of(entry["client"])
        entry |= self._metrics_of(self.scored.rows.found(used, mine), names)
        for name, value in of_shared.items():
            entry[f"global_{name}"] = value
        if self.test:
            self._add_on_test(entry, self.test.found(used), matrices)

    def _add_validation(
        self,
        table: list[dict[str, Any]],
        mine: ClientRows,
        state: Tensors | None,
        own: OwnModel | None,
        names: list[str],
    ) -> None:
        """Add the scores of the model that each client uses on the rows that it set aside to choose numbers by."""
        for name, values in mine.used(state, own).items():
            for entry, value in zip(table, values.tolist(), strict=True):
                entry[f"validation_{name}"] = value
        some = table[at_even_steps(len(table))]
        for entry, found in zip(some, mine.found(state, own, _numbers(some)), strict=True):
            metrics = self._metrics_of(found, names)
            for name in names:
                entry[f"validation_{name}"] = metrics[name]

    def _table(
        self,
        rows: EvaluatedRows,
        state: Tensors | None,
        own: OwnModel | None,
        split: Partition,
    ) -> list[dict[str, Any]]:
        """Return the rows of the table, with the scores of the clients' models on their own rows."""
        clients = self.scored.clients
        found = rows.own_scores(state, own, clients, split)
        table: list[dict[str, Any]] = []
        for i, client in enumerate(clients):
            entry: dict[str, Any] = {"client": int(client)}
            entry["rows"] = int(self.fed.partition.sizes[client])
            if self.holds_out:
                entry[TEST_ROWS] = int(split.sizes[client])
            for name, values in found.items():
                entry[name] = float(values[i])
            table.append(entry)
        if self._classifies:
            counts = split.counts(rows.y.cpu().numpy(), len(self.fed.data.classes), clients)
            _add_majority_rates(table, counts)
        return table

    def _add_on_test(self, entry: dict[str, Any], on_test: Found, matrices: list[Ints]) -> None:
        """Add the scores of a client's model on the test rows, and its confusion matrix to the others."""
        score = on_test.score(self.task, self.metrics)
        for name in self.metrics:
            entry[f"own_test_{name}"] = score[name]
        if self._classifies:
            matrices.append(confusion_of(self.task, on_test, len(self.fed.data.classes)))
            entry["own_test_one_class_rate"] = one_class_rate(matrices[-1])

    def _metrics_of(self, found: Found, names: list[str]) -> Score:
        """Return these metrics of a model on a client's rows, and how often it predicts one class; NaN for no rows."""
        metrics = dict(self.task.measured(*found.arrays(), names))
        if self._classifies:
            confusion = confusion_of(self.task, found, len(self.fed.data.classes))
            metrics["one_class_rate"] = one_class_rate(confusion)
        return metrics


def _numbers(table: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of the clients in a table."""
    return [entry["client"] for entry in table]


def _add_majority_rates(table: list[dict[str, Any]], counts: Ints) -> None:
    """Add the share of each client's most frequent class among the rows on which it is evaluated."""
    for entry, of_client in zip(table, counts, strict=True):
        rows = int(of_client.sum())
        entry["majority_rate"] = float("nan")
        if rows:
            entry["majority_rate"] = int(of_client.max()) / rows
