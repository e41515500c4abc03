"""A finished run read from its folder, for all formats of run folders; several runs as one table."""

import copy
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from torch import nn

from fedskew.core.config import read_file
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.files import reading
from fedskew.core.notebook import facts_as_html, one_line
from fedskew.core.trees import Tensors
from fedskew.data.federation import MOST_LISTED
from fedskew.data.partition import Partition
from fedskew.data.readers.user_files import Separator
from fedskew.data.schema import Pipeline, pipeline_from
from fedskew.engine.job import WHOLE, shared_model
from fedskew.inference.prediction import predict, separator_of
from fedskew.models.build import build
from fedskew.models.parameters import load_weights
from fedskew.runs import folder as on_disk
from fedskew.runs.checkpoint import own_part
from fedskew.runs.choices import from_python
from fedskew.runs.folder import FORMAT, Row, RunFolder, read_manifest
from fedskew.runs.run import class_frame, confusion_frame, facts_of, no_global_model, said_of
from fedskew.runs.summary import SHARED_MODEL
from fedskew.server.clients import models_away
from fedskew.tasks.task import Task, resolve
from fedskew.tasks.thresholds import Threshold

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Record:
    """A finished run on disk: ``format`` is that of its folder, ``config`` its settings, ``summary`` its result."""

    folder: Path
    format: int
    config: dict[str, Any]
    summary: Row

    def __repr__(self) -> str:
        return one_line("Record", said_of(self.summary, self.folder))

    def _repr_html_(self) -> str:
        return facts_as_html("Record", facts_of(self.summary, self.folder))

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """Return one row per round, with its seconds."""
        return self._table(on_disk.ROUNDS).merge(self._table(on_disk.TIMING), on="round")

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """Return one row per client and round."""
        return self._table(on_disk.CLIENTS)

    @cached_property
    def final_clients(self) -> "pd.DataFrame":
        """Return one row per client about its model at the end."""
        return self._table(on_disk.FINAL_CLIENTS)

    @cached_property
    def confusion(self) -> "pd.DataFrame | None":
        """Test rows by their true class (down) and the predicted one (across); None where the run has no such table."""
        path = self.folder / on_disk.CONFUSION
        if path.exists():
            return confusion_frame(*on_disk.matrix_from_csv(path))
        return None

    @cached_property
    def own_confusion(self) -> "pd.DataFrame | None":
        """The sum over clients of such tables of their own models; None without own models."""
        path = self.folder / on_disk.OWN_CONFUSION
        if path.exists():
            return confusion_frame(*on_disk.matrix_from_csv(path))
        return None

    @cached_property
    def classes(self) -> "pd.DataFrame | None":
        """Rows, predictions, precision, recall and F1 of every class, of the global model; None for other tasks."""
        if self.confusion is None:
            return None
        return class_frame(self.confusion)

    @cached_property
    def weights(self) -> Tensors:
        """Return weights and buffers of the global model, by name."""
        path = self.folder / on_disk.MODEL
        try:
            return dict(tensors_from_bytes(path.read_bytes()))
        except (OSError, SafetensorError) as problem:
            raise FedskewError(f"{path} cannot be read: {problem}") from None

    @cached_property
    def partition(self) -> Partition:
        """Return the rows of each client."""
        return Partition.load(self.folder / on_disk.PARTITION)

    @cached_property
    def model(self) -> nn.Module:
        """Return the trained global model in evaluation mode; for a model from Python, use ``weights``."""
        facts = RunFolder(self.folder).read_json(on_disk.ENVIRONMENT)
        if from_python(self.config["model"]) or "shape" not in facts:
            raise FedskewError(
                f"{self.folder}: its model cannot be built from the folder alone: build it, and load the tensors in "
                "weights"
            )
        model = self._built(0)
        load_weights(model, self.weights)
        return model.eval()

    def _built(self, seed: int) -> nn.Module:
        """Return a model with the initial weights of a seed, in the precision of the trained ones."""
        facts = RunFolder(self.folder).read_json(on_disk.ENVIRONMENT)
        model = build(self.config["model"], tuple(facts["shape"]), facts["outputs"], seed=seed)
        return model.to(
            next(value.dtype for value in self.weights.values() if value.is_floating_point())
        )

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
        part = own_part(RunFolder(self.folder), self._client_number(client))
        model = copy.deepcopy(self.model)
        if part.away:
            raise models_away(self.client_names[self._client_number(client)])
        if part.names:
            own = part.tensors
            if own is None:  # it never took part
                fresh = self._built(self.config["seed"])
                own = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
            load_weights(model, {**self.weights, **{name: own[name] for name in part.names}})
        return model.eval()

    @cached_property
    def shared_model(self) -> str:
        """Return ``whole``, or why clients share no whole model."""
        if SHARED_MODEL in self.summary:
            return str(self.summary[SHARED_MODEL])
        if not any(
            name.startswith("own_test_") or name.endswith("_of_global_model_mean")
            for name in self.summary
        ):
            return WHOLE  # an older version wrote it, and its clients have no models of their own
        with suppress(FedskewError):
            part = own_part(RunFolder(self.folder), 0)
            if part.names:
                return shared_model(part.kept)
        return (
            "an older version of fedskew wrote the run, and its checkpoints do not say whether clients share a whole "
            "model"
        )

    @property
    def personalised(self) -> bool:
        """Return whether clients have models, or parts of them, of their own."""
        return bool(own_part(RunFolder(self.folder), 0).names)

    def model_in_use(self, client: "int | str | None") -> nn.Module:
        """Return the model of a client, or the global one, if clients share a whole one."""
        if client is not None:
            return self.model_of(client)
        if self.shared_model != WHOLE:
            raise no_global_model(self.shared_model, self.client_names)
        return copy.deepcopy(self.model)

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """Return the names of the clients, or their numbers if they have none."""
        return tuple(self._stored.get("clients") or map(str, range(self.partition.clients)))

    def _client_number(self, client: int | str) -> int:
        if isinstance(client, int) and 0 <= client < len(self.client_names):
            return client
        if client not in self.client_names:
            raise unknown(f"client of {self.folder}", str(client), self.client_names[:MOST_LISTED])
        return self.client_names.index(str(client))

    @cached_property
    def _stored(self) -> Row:
        """The content of pipeline.json."""
        if not (self.folder / on_disk.PIPELINE).is_file():
            raise FedskewError(
                f"{self.folder} has no {on_disk.PIPELINE}: an older version of fedskew wrote it; train again to predict"
            )
        return RunFolder(self.folder).read_json(on_disk.PIPELINE)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Return how new data become features."""
        return pipeline_from(self._stored)

    @cached_property
    def task(self) -> Task:
        """Return the task of the run."""
        spec = self.config.get("task", "classification")
        if from_python(spec):
            raise FedskewError(
                f"{self.folder}: its task was a Python object: predict with what train returned"
            )
        return resolve(spec)

    @property
    def threads(self) -> int:
        """Return how many threads the run computed with."""
        return int(RunFolder(self.folder).read_json(on_disk.ENVIRONMENT).get("threads", 1))

    @property
    def separator(self) -> Separator:
        """Return what is between the columns of its CSV files."""
        return separator_of(self.config)

    @property
    def threshold(self) -> Threshold | None:
        """Return the chosen threshold of the global model, if the run has one."""
        return threshold_in(self.folder)

    def _table(self, name: str) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame(RunFolder(self.folder).table(name))


@overload
def open_run(folder: "str | os.PathLike[str]") -> Record: ...


@overload
def open_run(folder: "list[str | os.PathLike[str]]") -> "pd.DataFrame": ...


def open_run(
    folder: "str | os.PathLike[str] | list[str | os.PathLike[str]]",
) -> "Record | pd.DataFrame":
    """Read a finished run: tables, summary, configuration, partition and model; of several runs one table.

    Files are verified where the folder has checksums (from format 2 on).

    Args:
        folder: the run folder; or several, and then the summaries are returned as the rows of a data frame
    """
    if isinstance(folder, (str, os.PathLike)):
        return _open(Path(folder))
    import pandas as pd

    return pd.DataFrame([{"folder": str(one), **_open(Path(one)).summary} for one in folder])


def _open(folder: Path) -> Record:
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
        disk.verify(read_manifest(disk.path / on_disk.FINAL)["files"])
        for round in disk.checkpoints()[:1]:
            files = read_manifest(disk.checkpoint(round, "json"))["files"]
            disk.verify({name: digest for name, digest in files.items() if "/" not in name})
    return Record(
        disk.path, version, read_file(disk.path / on_disk.CONFIG), disk.read_json(on_disk.SUMMARY)
    )


def threshold_in(folder: Path) -> Threshold | None:
    """Return the threshold that a run chose and wrote into its folder, if it did."""
    path = folder / on_disk.THRESHOLDS
    if not path.is_file():
        return None
    with reading(path):
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Threshold(stored["metric"], float(stored["logit"]))
