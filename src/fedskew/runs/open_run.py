"""A finished run read back from its folder: what was set, what came of it, and the weights; of any format there ever was."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes

from fedskew.core.config import read_file
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors
from fedskew.runs import folder as on_disk
from fedskew.runs.folder import FORMAT, Row, RunFolder, read_manifest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Record:
    """What a finished run left: ``format`` is that of its folder, ``config`` its settings, ``summary`` its result."""

    folder: Path
    format: int
    config: dict[str, Any]
    summary: Row

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One line a round, with the seconds it took."""
        return self._table(on_disk.ROUNDS).merge(self._table(on_disk.TIMING), on="round")

    @cached_property
    def clients(self) -> "pd.DataFrame":
        """One line for each client of each round."""
        return self._table(on_disk.CLIENTS)

    @cached_property
    def final_clients(self) -> "pd.DataFrame":
        """One line a client about the model it ended with."""
        return self._table(on_disk.FINAL_CLIENTS)

    @cached_property
    def weights(self) -> Tensors:
        """Weights and buffers of the global model, by name."""
        path = self.folder / on_disk.MODEL
        try:
            return dict(tensors_from_bytes(path.read_bytes()))
        except (OSError, SafetensorError) as problem:
            raise FedskewError(f"{path} cannot be read: {problem}") from None

    def _table(self, name: str) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame(RunFolder(self.folder).table(name))


def open_run(folder: "str | Path") -> Record:
    """Read a finished run back. Its files are verified where the folder has checksums (from format 2 on).

    Args:
        folder: the run folder
    """
    disk = RunFolder.open(Path(folder))
    version = disk.read_json(on_disk.ENVIRONMENT).get("format", 1)
    if version not in range(1, FORMAT + 1):
        raise FedskewError(
            f"{folder} has the format {version}, and this version of fedskew reads 1 to {FORMAT}: use a newer one"
        )
    if not disk.finished:
        raise FedskewError(f"{folder} has not come to its end: go on with it ({on_disk.resume_command(disk.path)})")
    if version > 1:
        disk.verify_start()
        disk.verify(read_manifest(disk.path / on_disk.FINAL)["files"])
        for round in disk.checkpoints()[:1]:
            files = read_manifest(disk.checkpoint(round, "json"))["files"]
            disk.verify({name: digest for name, digest in files.items() if "/" not in name})
    return Record(disk.path, version, read_file(disk.path / on_disk.CONFIG), disk.read_json(on_disk.SUMMARY))
