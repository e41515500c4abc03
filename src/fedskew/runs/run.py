"""A finished run in memory."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedskew.core.errors import FedskewError
from fedskew.core.notebook import facts_as_html, one_line
from fedskew.data.readers.user_files import Separator
from fedskew.data.schema import Pipeline
from fedskew.inference.prediction import predict, separator_of
from fedskew.models.parameters import load_weights
from fedskew.runs import folder as on_disk
from fedskew.runs.folder import Row, RunFolder
from fedskew.server.server import Server
from fedskew.tasks.scores import class_table
from fedskew.tasks.task import Task
from fedskew.tasks.thresholds import Threshold

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run:
    """A finished run: tables, the summary, the trained model and its folder (None if it was not written)."""

    summary: Row
    model: nn.Module
    folder: Path | None
    tables: Mapping[str, list[Any]]
    server: Server

    def __repr__(self) -> str:
        return one_line("Run", said_of(self.summary, self.folder))

    def _repr_html_(self) -> str:
        return facts_as_html("Run", facts_of(self.summary, self.folder))

    @property
    def rounds(self) -> "pd.DataFrame":
        """Return one row per round, with its seconds."""
        return _frame(self.tables["rounds"]).merge(_frame(self.tables["timing"]), on="round")

    @property
    def clients(self) -> "pd.DataFrame":
        """Return one row per client and round; read from the folder, if there is one, as there may be very many."""
        if self.folder is None:
            return _frame([*chain.from_iterable(self.tables["clients"])])
        return _frame(RunFolder(self.folder).table(on_disk.CLIENTS))

    @property
    def final_clients(self) -> "pd.DataFrame":
        """Return one row per client about its model at the end."""
        return _frame(self.tables["final"])

    def predict(
        self, data: Any, client: "int | str | None" = None, proba: bool = False
    ) -> "pd.DataFrame":
        """Apply the trained model to new rows, and return the predictions with the names of the classes.

        Args:
            data: a data frame with the columns of the training table, or an array where the data were arrays
            client: name or number of a client, to use its own model; by default the global one
            proba: also return the probability of each class
        """
        return predict(self, data, client, proba)

    def model_of(self, client: "int | str") -> nn.Module:
        """Return the model that a client uses: the global one, or its own where the method has such."""
        number = self.server.fed.client_number(client)
        model = copy.deepcopy(self.model)
        if self.personalised:
            load_weights(model, self.server.client_model(number))
        return model.eval()

    @property
    def personalised(self) -> bool:
        """Return whether clients have models, or parts of them, of their own."""
        return self.server.personalised

    def model_in_use(self, client: "int | str | None") -> nn.Module:
        """Return the model of a client, or the global one, if clients share a whole one."""
        if client is not None:
            return self.model_of(client)
        if not self.server.has_common_model:
            raise no_global_model(self.server.job.shared_model, self.server.fed.client_names)
        return copy.deepcopy(self.model)

    @property
    def pipeline(self) -> Pipeline:
        """Return how new data become features."""
        return self.server.fed.data.pipeline

    @property
    def task(self) -> Task:
        """Return the task of the run."""
        return self.server.job.task

    @property
    def threads(self) -> int:
        """Return how many threads the run computed with."""
        return self.server.threads

    @property
    def separator(self) -> Separator:
        """Return what is between the columns of its CSV files."""
        return separator_of(self.server.fed.recipe)

    @cached_property
    def threshold(self) -> Threshold | None:
        """Return the chosen threshold of the global model, if the run has one."""
        found = self.server.threshold()
        if found:
            return found[0]
        return None

    @cached_property
    def confusion(self) -> "pd.DataFrame | None":
        """Test rows by their true class (down) and the class that the model predicts (across); None for other tasks."""
        matrix = self.server.confusion()
        if matrix is None:
            return None
        return confusion_frame(self.server.fed.data.classes, matrix)

    @cached_property
    def own_confusion(self) -> "pd.DataFrame | None":
        """The sum over clients of such tables of their own models, on the same test rows; None without own models."""
        matrix = self.server.final_clients().confusion
        if matrix is None:
            return None
        return confusion_frame(self.server.fed.data.classes, matrix)

    @cached_property
    def classes(self) -> "pd.DataFrame | None":
        """Rows, predictions, precision, recall and F1 of every class, of the global model; None for other tasks."""
        if self.confusion is None:
            return None
        return class_frame(self.confusion)


def said_of(summary: Row, folder: Path | None) -> str:
    """Return what a run found, in one line."""
    metric = summary.get("metric", "accuracy")
    column = next(
        (f"{part}_{metric}" for part in ("test", "own_test") if f"{part}_{metric}_last" in summary),
        None,
    )
    if column:
        score = (
            f", {column} {summary[f'{column}_last']:.4g} last, {summary[f'{column}_best']:.4g} best"
        )
    else:
        score = ""
    said = f"{summary['algorithm']} on {summary['data']}, {summary['skew']}: {summary['rounds']} rounds{score}"
    return said + (f"; {folder}" if folder else "")


def facts_of(summary: Row, folder: Path | None) -> Row:
    """Return what a person wants to know of a run first."""
    metric = summary.get("metric", "accuracy")
    names = ["algorithm", "data", "skew", "model", "clients", "rounds"]
    for part in ("test", "own_test"):
        for which in ("last", "best", "best_round"):
            names.append(f"{part}_{metric}_{which}")
    names += [
        f"client_{metric}_mean",
        f"client_{metric}_worst_10_percent",
        "gini_of_client_weights",
    ]
    names += ["excluded_updates", "dropped_updates", "late_updates", "bytes_down", "bytes_up"]
    return {
        **{name: summary.get(name) for name in [*names, "simulated_seconds", "seconds"]},
        "folder": folder,
    }


def class_frame(confusion: "pd.DataFrame") -> "pd.DataFrame":
    """Rows, predictions, precision, recall and F1 of every class, from a confusion matrix."""
    import pandas as pd

    matrix = confusion.to_numpy()
    columns = {"rows": matrix.sum(1), "predicted": matrix.sum(0), **class_table(matrix)}
    return pd.DataFrame(columns, index=pd.Index(confusion.index, name="class"))


def no_global_model(reason: str, names: Sequence[str]) -> FedskewError:
    """Return the error for a prediction of a global model where clients share no whole one, for this reason."""
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return FedskewError(f"{reason}: say whose to use, client= one of {listed}")


def confusion_frame(names: Sequence[str], matrix: Any) -> "pd.DataFrame":
    """A confusion matrix with the names of the classes on both sides."""
    import pandas as pd

    true, predicted = (pd.Index(list(names), name=side) for side in ("true", "predicted"))
    return pd.DataFrame(matrix, index=true, columns=predicted)


def _frame(rows: list[Row]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(rows)
