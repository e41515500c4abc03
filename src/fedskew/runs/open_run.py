"""A finished run read from its folder, for all formats of run folders; several runs as one table."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from torch import nn

from fedskew.core.config import read_file
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors
from fedskew.data.partition import Partition
from fedskew.models.build import build
from fedskew.models.parameters import load_weights
from fedskew.runs import folder as on_disk
from fedskew.runs.choices import from_python
from fedskew.runs.folder import FORMAT, Row, RunFolder, read_manifest
from fedskew.runs.run import class_frame, confusion_frame

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Record:
    """A finished run on disk: ``format`` is that of its folder, ``config`` its settings, ``summary`` its result."""

    folder: Path
    format: int
    config: dict[str, Any]
    summary: Row

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
        return confusion_frame(*on_disk.matrix_from_csv(path)) if path.exists() else None

    @cached_property
    def own_confusion(self) -> "pd.DataFrame | None":
        """The sum over clients of such tables of their own models; None without own models."""
        path = self.folder / on_disk.OWN_CONFUSION
        return confusion_frame(*on_disk.matrix_from_csv(path)) if path.exists() else None

    @cached_property
    def classes(self) -> "pd.DataFrame | None":
        """Rows, predictions, precision, recall and F1 of every class, of the global model; None for other tasks."""
        return None if self.confusion is None else class_frame(self.confusion)

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
        model = build(self.config["model"], tuple(facts["shape"]), facts["outputs"], seed=0)
        load_weights(model, self.weights)
        return model.eval()

    def _table(self, name: str) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame(RunFolder(self.folder).table(name))


@overload
def open_run(folder: "str | os.PathLike[str]") -> Record: ...


@overload
def open_run(folder: "list[str | os.PathLike[str]]") -> "pd.DataFrame": ...


def open_run(folder: "str | os.PathLike[str] | list[str | os.PathLike[str]]") -> "Record | pd.DataFrame":
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
        raise FedskewError(f"{folder} is not finished: resume it ({on_disk.resume_command(disk.path)})")
    if version > 1:
        disk.verify_start()
        disk.verify(read_manifest(disk.path / on_disk.FINAL)["files"])
        for round in disk.checkpoints()[:1]:
            files = read_manifest(disk.checkpoint(round, "json"))["files"]
            disk.verify({name: digest for name, digest in files.items() if "/" not in name})
    return Record(disk.path, version, read_file(disk.path / on_disk.CONFIG), disk.read_json(on_disk.SUMMARY))
