"""Readers of the user's own files: CSV, Parquet and NPZ (folders of images are in image_folders.py)."""

import csv as text_table
import io
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.files import open_unpacked, read_npz, reading, too_large, unpacked_limit
from fedskew.core.registry import AtLeastOne, NonNegative
from fedskew.data.cells import label_columns, need_column, with_decimal_commas
from fedskew.data.convert import part_from, split_parts
from fedskew.data.dataset import Rows, Split, datasets
from fedskew.data.readers.arrays import Arrays, everything
from fedskew.data.readers.table import Table
from fedskew.data.source import TestShare
from fedskew.data.targets import Target

if TYPE_CHECKING:
    from fedskew.data.cells import Frame

Separator = Literal["comma", "semicolon", "tab", "space"]
_MOST_COLUMNS = 100_000
_SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "space": " "}


@datasets.register("csv")
@datasets.register("parquet")
def table(
    *,
    path: str,
    label: str,
    group: str | None = None,
    drop: tuple[str, ...] = (),
    categorical: tuple[str, ...] = (),
    test: TestShare = 0.2,
    test_path: str | None = None,
    split_seed: int = 0,
    standardize: bool = True,
    max_categories: Annotated[int, AtLeastOne] = 64,
    window: Annotated[int, NonNegative] = 0,
    stride: Annotated[int, NonNegative] = 0,
    separator: Separator = "comma",
    target: Target = "class",
) -> Table:
    """Your own table: a CSV file with a header line (may be gzipped) or a Parquet file.

    Text columns become one feature per category, missing numbers the training median; everything is fitted on
    training rows only.

    Args:
        path: the file
        label: column with the class or the number to predict, or with target=labels all columns of labels, a+b+c
        group: column with the group of a row (person, device, site): natural clients
        drop: columns that are not used, a+b+c
        categorical: columns to read as categories although they hold numbers, a+b+c
        test: share of the rows held out for test, in proportion within every class (and group)
        test_path: a second file with the test rows, instead of a split
        split_seed: seed of the split
        standardize: bring numeric columns to mean 0 and deviation 1
        max_categories: most features of one text column; the rarest categories are pooled
        window: rows of one window of a time series, 0 for none; the split then keeps groups whole, or divides the
            series once
        stride: rows from one window to the next, 0 for the length of the window
        separator: character between the columns of a CSV file
        target: what the label column holds: a class, a number to predict, or (labels) 0 or 1 in each of its columns
    """

    def read(file: str) -> "Frame":
        named = (*label_columns(label, target), group)
        texts = texts_of(label, target, categorical, group)
        return read_table(Path(file).expanduser(), drop, separator, named, texts)

    train = read(path)
    tested: Frame | Split = Split("test", test, split_seed)
    if test_path is not None:
        tested = read(test_path)
    return Table(
        train=train,
        test=tested,
        label=label,
        group=group,
        standardize=standardize,
        categorical=categorical,
        max_categories=max_categories,
        window=window,
        stride=stride,
        target=target,
    )


@datasets.register("npz")
def npz(
    *,
    path: str,
    test: TestShare = 0.2,
    test_path: str | None = None,
    split_seed: int = 0,
    standardize: bool = True,
    target: Target = "class",
) -> Arrays:
    """Your own arrays: an NPZ file with x, y and perhaps group (and x_test, y_test, group_test).

    The first axis of x is the rows, the second the columns of a table or the channels of images and signals.

    Args:
        path: the file
        test: share of the rows held out for test, in proportion within every class (and group)
        test_path: a second file with the test rows, instead of a split
        split_seed: seed of the split
        standardize: bring every column or channel to mean 0 and deviation 1
        target: what y holds: a class, a number to predict, or (labels) a row of 0 and 1, one column a label
    """
    file = Path(path).expanduser()
    arrays = read_npz(file)
    train = part_from(str(file), pick(file, arrays, ""), target)
    tested = None
    if test_path is not None:
        test_file = Path(test_path).expanduser()
        tested = part_from(str(test_file), pick(test_file, read_npz(test_file), ""), target)
    elif "x_test" in arrays:
        tested = part_from(str(file), pick(file, arrays, "_test"), target)
    rows, classes, groups = split_parts(str(file), train, tested, target)
    test_rows: Rows | Split = Split("test", test, split_seed)
    if tested is not None:
        test_rows = rows[1]
    scaled = None
    if standardize:
        scaled = everything(train.x)
    return Arrays(rows[0], test_rows, classes, groups, train.features, scaled=scaled)


def read_table(
    path: Path,
    drop: Iterable[str] = (),
    separator: Separator = "comma",
    named: Iterable[str | None] = (),
    texts: Iterable[str | None] = (),
) -> "Frame":
    """Read a CSV or Parquet file, recognised by its first bytes, without the dropped columns.

    Of the index that pandas may have stored in a Parquet file, the levels in ``named`` are columns; the others are
    not used. Numbers with a decimal comma are recognised in a CSV file, except in columns that are ``texts``: the
    group, the class and categories.
    """
    with reading(path), path.open("rb") as file:
        start = file.read(4)
    if start == b"PAR1":
        frame = read_parquet(path, drop, named)
    else:
        frame = read_csv(path, drop, separator)
        left_out = {title for title in texts if title is not None}
        frame = with_decimal_commas(
            str(path), frame, left_out, partial(_columns_as_text, path, separator)
        )
    if not len(frame):
        raise FedskewError(f"{path} has no rows")
    return frame


def texts_of(
    label: str, target: Target, categorical: Iterable[str], group: str | None = None
) -> set[str | None]:
    """Return the columns of a table that hold no numbers, whatever they look like."""
    texts = {*categorical, group}
    if target == "class":
        texts.update(label_columns(label, target))
    return texts


def _columns_as_text(path: Path, separator: Separator, columns: list[str]) -> "Frame":
    """Read columns of a CSV file as they are written."""
    import pandas as pd

    with reading(path), open_unpacked(path) as file:
        return pd.read_csv(
            file, sep=_SEPARATORS[separator], index_col=False, usecols=columns, dtype=str
        )


def read_csv(path: Path, drop: Iterable[str] = (), separator: Separator = "comma") -> "Frame":
    """Read a CSV file with a header line, without the dropped columns."""
    import pandas as pd

    sign = _SEPARATORS[separator]
    _check_header(path, _csv_header(path, separator))
    with reading(path), warnings.catch_warnings(), open_unpacked(path) as file:
        # More fields than the header has are otherwise cut away with a warning only.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(file, sep=sign, index_col=False, low_memory=False)
        except pd.errors.EmptyDataError:
            raise FedskewError(f"{path} is empty") from None
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            raise FedskewError(f"{path} is not a regular table: {error}") from None
    _refuse_short_end(path, sign, len(frame.columns))
    for column in drop:
        need_column(str(path), column, frame.columns)
    return frame.drop(columns=list(drop))


def _csv_header(path: Path, separator: Separator) -> list[str]:
    """Return the names in the first line that is not empty; one name with other separators in it is refused."""
    with reading(path), open_unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        try:
            names = _first_line(text, _SEPARATORS[separator])
        except text_table.Error as error:
            raise FedskewError(
                f"{path} has no header line that can be read ({error}): write the names of its columns"
            ) from None
    if not names:
        raise FedskewError(f"{path} is empty")
    if len(names) > 1:
        return names
    for other in ("comma", "semicolon", "tab"):
        if _SEPARATORS[other] in names[0]:
            raise FedskewError(
                f"{path} has one column, as {names[0]!r} is one name: say separator={other}, or write {separator}s"
            )
    return names


def _first_line(text: Iterable[str], sign: str) -> list[str]:
    """Return the fields of the first line that is not empty; none if there is no such line."""
    for fields in text_table.reader(text, delimiter=sign):
        if fields:
            return fields
    return []


def _check_header(path: Path, names: Sequence[str]) -> None:
    """Raise an error for two columns of one name, of which the second would become a feature."""
    if len(names) > _MOST_COLUMNS:
        raise FedskewError(
            f"{path} has {len(names):,} columns, more than {_MOST_COLUMNS:,}: is it a table, separator and all?"
        )
    for name, count in Counter(names).items():
        if count > 1 and name.strip():
            raise FedskewError(f"{path}: column {name!r} is there twice: rename one or take it out")


def _refuse_short_end(path: Path, sign: str, columns: int) -> None:
    """Raise an error for a short last line, the sign of a truncated file, which would pass for missing values."""
    if path.suffix != ".csv":
        return  # a compressed file knows by itself that it was cut off
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - (1 << 16)))
        # Of bytes: text has other signs that end a line, a table has not
        lines = file.read().rstrip(b"\r\n").splitlines()
    if len(lines) < 2 or b'"' in lines[-1]:
        return  # quotes may span lines, so the last one proves nothing
    fields = lines[-1].count(sign.encode()) + 1
    if fields < columns:
        raise FedskewError(
            f"{path}: the last line has {fields} of {columns} columns, so the file is cut off: get it again"
        )


def read_parquet(path: Path, drop: Iterable[str] = (), named: Iterable[str | None] = ()) -> "Frame":
    """Read a Parquet file without the dropped columns; ``named`` are levels of a stored index that become columns."""
    files = _parquet()
    import pyarrow

    with reading(path):
        try:
            table = _read_columns(path, files.ParquetFile(path), set(drop))
        except pyarrow.ArrowException as error:
            raise FedskewError(f"{path} is not a Parquet file or damaged: {error}") from None
        frame: Frame = table.to_pandas()
        used = set(named) - {None}
        levels = [level for level in frame.index.names if level in used]
        return frame.reset_index(levels).reset_index(drop=True)


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise FedskewError("Parquet files need pyarrow: pip install 'fedskew[parquet]'") from None
    return parquet


def _read_columns(path: Path, file: Any, drop: set[str]) -> Any:
    """Return the columns of a Parquet file that are not dropped, if they hold single values and fit into memory."""
    from pyarrow import types

    schema = file.schema_arrow
    size = 8 * file.metadata.num_rows * file.metadata.num_columns
    for column in drop:
        need_column(str(path), column, schema.names)
    _check_header(path, schema.names)
    if size > unpacked_limit(path.stat().st_size):
        raise too_large(path, "about", size)
    kept = [field for field in schema if field.name not in drop]
    for field in kept:
        if types.is_nested(field.type):
            raise FedskewError(
                f"{path}: column {field.name!r} holds {field.type}, not one value a row: leave it out with "
                f"drop={field.name} or make a column of each part"
            )
    return file.read([field.name for field in kept])


def column_names(path: Path, separator: Separator = "comma") -> list[str]:
    """Return the names of a table's columns, without its rows."""
    with reading(path), path.open("rb") as file:
        start = file.read(4)
    if start != b"PAR1":
        return _csv_header(path, separator)
    with reading(path):
        return list(_parquet().ParquetFile(path).schema_arrow.names)


def pick(path: Path, arrays: Mapping[str, NDArray[Any]], ending: str) -> tuple[NDArray[Any], ...]:
    """Return the arrays x, y and, if there is one, group of an NPZ file; ``ending`` selects its test arrays."""
    for name in ("x", "y"):
        if name + ending not in arrays:
            names = ", ".join(sorted(arrays)) or "nothing"
            raise FedskewError(f"{path} has no array {name + ending!r}, it holds {names}")
    picked = [arrays["x" + ending], arrays["y" + ending]]
    if "group" + ending in arrays:
        picked.append(arrays["group" + ending])
    return tuple(picked)
