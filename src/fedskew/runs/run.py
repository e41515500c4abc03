"""A finished run: just trained, or opened from its folder."""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch import nn

from fedskew.core.config import read_file
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.notebook import facts_as_html, one_line
from fedskew.core.trees import Tensors
from fedskew.data.federation import MOST_LISTED
from fedskew.data.partition import Partition
from fedskew.data.schema import Pipeline
from fedskew.engine.sharing import WHOLE
from fedskew.inference.encoded_rows import refuse_rows_of
from fedskew.inference.prediction import predict
from fedskew.models.parameters import load_weights
from fedskew.runs import folder as on_disk
from fedskew.runs.folder import FORMAT, Row, RunFolder
from fedskew.runs.goals import GOAL, SCORE
from fedskew.runs.run_sources import Confusion, InMemory, OnDisk
from fedskew.server.server import Server
from fedskew.tasks.scores import class_table
from fedskew.tasks.task import Task
from fedskew.tasks.thresholds import Threshold

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Run:
    """A finished run: its tables, its summary, its settings and its models.

    ``train`` and ``resume`` return it, and ``open_run`` reads it from its folder. ``folder`` is None if none was
    written.
    """

    summary: Row
    folder: Path | None
    _source: InMemory | OnDisk  # where its facts come from

    def __repr__(self) -> str:
        return one_line("Run", said_of(self.summary, self.folder))

    def _repr_html_(self) -> str:
        return facts_as_html("Run", facts_of(self.summary, self.folder))

    @property
    def format(self) -> int:
        """Return the format of the run folder."""
        return self._source.format

    @property
    def config(self) -> dict[str, Any]:
        """Return all settings, as ``config.toml`` has them."""
        return self._source.config

    @property
    def server(self) -> Server:
        """Return the server that has trained. A run that was opened from its folder has none."""
        return self._source.server

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """Return one row per round, with its seconds."""
        return self._frame(on_disk.ROUNDS).merge(self._frame(on_disk.TIMING), on="round")

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """Return one row per client and round; read from the folder, if there is one, as there may be very many."""
        return self._frame(on_disk.CLIENTS)

    @cached_property
    def final_clients(self) -> "pd.DataFrame":
        """Return one row per client about its model at the end."""
        return self._frame(on_disk.FINAL_CLIENTS)

    @cached_property
    def unseen_clients(self) -> "pd.DataFrame":
        """Return one row per client that took no part in training, with the scores of the models it could use."""
        return self._frame(on_disk.UNSEEN_CLIENTS)

    def _frame(self, table: str) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame(self._source.rows(table))

    @property
    def tables(self) -> dict[str, list[Row]]:
        """Return the rows of the rounds, of their timing and of the final clients."""
        return {
            "rounds": self._source.rows(on_disk.ROUNDS),
            "timing": self._source.rows(on_disk.TIMING),
            "final": self._source.rows(on_disk.FINAL_CLIENTS),
        }

    @cached_property
    def partition(self) -> Partition:
        """Return the rows of each client."""
        return self._source.partition

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """Return the names of the clients, or their numbers if they have none."""
        return self._source.client_names

    @cached_property
    def weights(self) -> Tensors:
        """Return weights and buffers of the global model, by name."""
        return self._source.weights

    @cached_property
    def model(self) -> nn.Module:
        """Return the trained global model in evaluation mode.

        A model from Python cannot be built from a run folder: use ``weights``.
        """
        return self._source.model

    @cached_property
    def shared_model(self) -> str:
        """Return ``whole``, or why clients share no whole model."""
        return self._source.shared_model

    @property
    def personalised(self) -> bool:
        """Return whether clients have models, or parts of them, of their own."""
        return self._source.personalised

    def predict(
        self, data: Any, client: "int | str | None" = None, proba: bool = False
    ) -> "pd.DataFrame":
        """Apply the trained model to new rows, and return the predictions with the names of the classes.

        Args:
            data: a data frame with the columns of the training table, or an array where the data were arrays; raw
                rows, not those of ``fed.test.x``, which are standardised already
            client: name or number of a client, to use its own model; by default the global one
            proba: also return the probability of each class, which is not calibrated after training with class weights
        """
        if isinstance(self._source, InMemory):
            refuse_rows_of(self._source.server.fed, data)
        return predict(self, data, client, proba)

    def model_of(self, client: "int | str") -> nn.Module:
        """Return the model that a client uses: the global one, or its own where the method has such."""
        own = self._source.own_weights(self._client_number(client))
        model = copy.deepcopy(self.model)
        if own is not None:
            load_weights(model, own)
        return model.eval()

    def _client_number(self, client: int | str) -> int:
        if isinstance(client, int) and 0 <= client < len(self.client_names):
            return client
        if client in self.client_names:
            return self.client_names.index(str(client))
        kind = "client"
        if self.folder is not None:
            kind = f"client of {self.folder}"
        raise unknown(kind, str(client), self.client_names[:MOST_LISTED])

    def model_in_use(self, client: "int | str | None") -> nn.Module:
        """Return the model of a client, or the global one, if clients share a whole one."""
        if client is not None:
            return self.model_of(client)
        if self.shared_model != WHOLE:
            raise no_global_model(self.shared_model, self.client_names)
        return copy.deepcopy(self.model)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Return how new data become features."""
        return self._source.pipeline

    @cached_property
    def task(self) -> Task:
        """Return the task of the run."""
        return self._source.task

    @property
    def threads(self) -> int:
        """Return how many threads the run computed with."""
        return self._source.threads

    @cached_property
    def threshold(self) -> Threshold | None:
        """Return the chosen threshold of the global model, if the run has one."""
        return self._source.threshold

    @cached_property
    def confusion(self) -> "pd.DataFrame | None":
        """Test rows by their true class (down) and the class that the model predicts (across); None for other tasks."""
        return confusion_frame(self._source.confusion)

    @cached_property
    def own_confusion(self) -> "pd.DataFrame | None":
        """The sum over clients of such tables of their own models, on the same test rows; None without own models."""
        return confusion_frame(self._source.own_confusion)

    @cached_property
    def classes(self) -> "pd.DataFrame | None":
        """Rows, predictions, precision, recall and F1 of every class, of the global model; None for other tasks."""
        if self.confusion is None:
            return None
        return class_frame(self.confusion)


@overload
def open_run(folder: "str | os.PathLike[str]") -> Run: ...


@overload
def open_run(folder: "list[str | os.PathLike[str]]") -> "pd.DataFrame": ...


def open_run(
    folder: "str | os.PathLike[str] | list[str | os.PathLike[str]]",
) -> "Run | pd.DataFrame":
    """Read a finished run: tables, summary, configuration, partition and model. Several folders give one table.

    Files are verified where the folder has checksums (from format 2 on).

    Args:
        folder: the run folder, or several, whose summaries are then returned as the rows of a data frame
    """
    if isinstance(folder, (str, os.PathLike)):
        return _verified(Path(folder))
    import pandas as pd

    rows = []
    for one in folder:
        rows.append({"folder": str(one), **_verified(Path(one)).summary})
    return pd.DataFrame(rows)


def _verified(folder: Path) -> Run:
    """Return a finished run of a format that is known, whose files are as they were written."""
    disk = RunFolder.open(folder)
    version = disk.read_json(on_disk.ENVIRONMENT).get("format", 1)
    if version not in range(1, FORMAT + 1):
        raise FedskewError(
            f"{folder} has the format {version}, and this version of fedskew reads 1 to {FORMAT}: use a newer one"
        )
    if not disk.finished:
        raise FedskewError(
            f"{folder} is not finished: resume it ({on_disk.resume_command(disk.path)})"
        )
    if version > 1:
        disk.verify_start()
        disk.verify(disk.manifest(on_disk.FINAL)["files"])
        for round in disk.checkpoints.rounds()[:1]:
            files = disk.checkpoints.needed(round)
            disk.verify({name: digest for name, digest in files.items() if "/" not in name})
    return run_on_disk(disk, disk.read_json(on_disk.SUMMARY), version)


def run_on_disk(disk: RunFolder, summary: Row, version: int = FORMAT) -> Run:
    """Return what a folder says of a run, without verifying it; ``summary`` may be that of a run that goes on."""
    config = read_file(disk.path / on_disk.CONFIG)
    return Run(summary, disk.path, OnDisk(disk, version, config, summary))


def said_of(summary: Row, folder: Path | None) -> str:
    """Return what a run found, in one line."""
    said = f"{summary['algorithm']} on {summary['data']}, {summary['skew']}: {summary['rounds']} rounds"
    score = _score_of(summary)
    if score is not None:
        said += f", {score} {summary[score]:.4g}"
    if folder:
        said += f"; {folder}"
    return said


def _score_of(summary: Row) -> str | None:
    """Return which entry of a summary says how good a run is; None where nothing was scored on rows of nobody's.

    A summary of an older version does not say which.
    """
    metric = summary.get("metric", "accuracy")
    for name in (summary.get(SCORE), f"test_{metric}_last", f"own_test_{metric}_last"):
        if name is not None and summary.get(name) is not None:
            return str(name)
    return None


def facts_of(summary: Row, folder: Path | None) -> Row:
    """Return what a person wants to know of a run first."""
    metric = summary.get("metric", "accuracy")
    names = ["algorithm", "data", "skew", "model", "clients", "rounds", GOAL]
    score = _score_of(summary)
    if score is not None:
        names.append(score)
    for part in ("test", "own_test"):
        names.append(f"{part}_{metric}_last")
    names += [
        f"client_{metric}_mean",
        f"client_{metric}_row_weighted_mean",
        f"client_{metric}_worst_10_percent",
        "gini_of_client_weights",
    ]
    names += ["excluded_updates", "dropped_updates", "late_updates", "bytes_down", "bytes_up"]
    names += ["simulated_seconds", "seconds"]
    facts = {name: summary.get(name) for name in names}
    return {**facts, "folder": folder}


def class_frame(confusion: "pd.DataFrame") -> "pd.DataFrame":
    """Rows, predictions, precision, recall and F1 of every class, from a confusion matrix."""
    import pandas as pd

    matrix = confusion.to_numpy()
    columns = {"rows": matrix.sum(1), "predicted": matrix.sum(0), **class_table(matrix)}
    return pd.DataFrame(columns, index=pd.Index(confusion.index, name="class"))


def no_global_model(reason: str, names: Sequence[str]) -> FedskewError:
    """Return the error for a prediction of a global model where clients share no whole one, for this reason."""
    listed = ", ".join(names[:5])
    if len(names) > 5:
        listed += ", …"
    return FedskewError(f"{reason}: say whose to use, client= one of {listed}")


def confusion_frame(found: Confusion | None) -> "pd.DataFrame | None":
    """Return a confusion matrix, if there is one, with the names of the classes on both sides."""
    import pandas as pd

    if found is None:
        return None
    names, counts = found
    true = pd.Index(list(names), name="true")
    predicted = pd.Index(list(names), name="predicted")
    return pd.DataFrame(counts, index=true, columns=predicted)
