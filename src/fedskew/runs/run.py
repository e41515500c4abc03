"""A finished run in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedskew.runs import folder as on_disk
from fedskew.runs.folder import Row, RunFolder
from fedskew.server.server import Server
from fedskew.tasks.scores import class_table

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

    @cached_property
    def confusion(self) -> "pd.DataFrame | None":
        """Test rows by their true class (down) and the class that the model predicts (across); None for other tasks."""
        matrix = self.server.confusion()
        return None if matrix is None else confusion_frame(self.server.fed.data.classes, matrix)

    @cached_property
    def own_confusion(self) -> "pd.DataFrame | None":
        """The sum over clients of such tables of their own models, on the same test rows; None without own models."""
        matrix = self.server.final_clients().confusion
        return None if matrix is None else confusion_frame(self.server.fed.data.classes, matrix)

    @cached_property
    def classes(self) -> "pd.DataFrame | None":
        """Rows, predictions, precision, recall and F1 of every class, of the global model; None for other tasks."""
        return None if self.confusion is None else class_frame(self.confusion)


def class_frame(confusion: "pd.DataFrame") -> "pd.DataFrame":
    """Rows, predictions, precision, recall and F1 of every class, from a confusion matrix."""
    import pandas as pd

    matrix = confusion.to_numpy()
    columns = {"rows": matrix.sum(1), "predicted": matrix.sum(0), **class_table(matrix)}
    return pd.DataFrame(columns, index=pd.Index(confusion.index, name="class"))


def confusion_frame(names: Sequence[str], matrix: Any) -> "pd.DataFrame":
    """A confusion matrix with the names of the classes on both sides."""
    import pandas as pd

    true, predicted = (pd.Index(list(names), name=side) for side in ("true", "predicted"))
    return pd.DataFrame(matrix, index=true, columns=predicted)


def _frame(rows: list[Row]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(rows)
