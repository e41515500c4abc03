"""Tables in Parquet files whose features stay there: labels and groups are read at once."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import FedskewError
from fedskew.data.cells import label_columns
from fedskew.data.class_spellings import with_classes
from fedskew.data.convert import arrays_of
from fedskew.data.dataset import Split
from fedskew.data.readers.arrays import Arrays
from fedskew.data.readers.parquet_rows import ParquetRows, columns_at_once, feature_columns
from fedskew.data.targets import MATRICES, Target

if TYPE_CHECKING:
    from fedskew.data.cells import Frame


@dataclass(frozen=True)
class LazyTable:
    """How a Parquet file is read whose features stay in it: its options, as those of a table."""

    label: str
    group: str | None
    drop: tuple[str, ...]
    labels: tuple[str, ...]
    target: Target

    def arrays(self, path: str, test_path: str | None, split: Split, standardize: bool) -> Arrays:
        """Return the rows of a file, and perhaps those of a second one with the test rows, before any split."""
        if self.target == "tokens":
            raise FedskewError(
                f"{path}: target=tokens is for arrays (an NPZ file), and this is a table"
            )
        file = Path(path).expanduser()
        features = feature_columns(file, {*self._targets, self.group, *self.drop})
        train = self._part(file, features)
        tested = None
        if test_path is not None:
            tested = self._part(Path(test_path).expanduser(), features)
        of_lists = train[0].of_lists
        raw = arrays_of(
            path,
            train,
            tested,
            split,
            standardize=standardize and not of_lists,
            target=self.target,
            classes=None,
        )
        if of_lists:
            return raw
        note = (
            f"the other {len(features)} columns are features: ids and constants among them are not recognised with "
            "lazy=true (drop=)"
        )
        return replace(raw, features=features, notes=(note,))

    @property
    def _targets(self) -> tuple[str, ...]:
        return label_columns(self.label, self.target)

    def _part(self, path: Path, features: tuple[str, ...]) -> tuple[Any, ...]:
        """Return features, targets and perhaps groups of a file."""
        rows = ParquetRows(path, features)
        named = [*self._targets]
        if self.group is not None:
            named.append(self.group)
        frame = columns_at_once(path, named)
        y = self._y(path, frame)
        if self.group is None:
            return rows, y
        return rows, y, frame[self.group]

    def _y(self, path: Path, frame: "Frame") -> Any:
        """Return the column of the target, or several."""
        if self.target in MATRICES:
            return frame[list(self._targets)]
        if self.target == "class":
            return with_classes(str(path), frame[self.label], self.labels)
        return frame[self.label]
