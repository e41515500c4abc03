"""Readers of the user's own files: CSV, Parquet and NPZ (folders of images are in image_folders.py)."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.files import open_unpacked, read_npz, reading, too_large, unpacked_limit
from fedskew.core.registry import AtLeastOne, NonNegative
from fedskew.data.cells import label_columns, need_column
from fedskew.data.convert import arrays_of, part_from, split_parts
from fedskew.data.dataset import Rows, Split, datasets
from fedskew.data.dates import AsNumbers
from fedskew.data.duplicates import Duplicates
from fedskew.data.readers.arrays import Arrays, everything
from fedskew.data.readers.csv_format import (
    AS_RECOGNISED,
    READ,
    SIGNS,
    CsvFormat,
    DecimalSign,
    ReadFile,
    Separator,
    ThousandsSign,
    file_and_format,
    format_note,
    header_of,
    last_lines,
    recognised,
    sign_of,
)
from fedskew.data.readers.lazy_table import LazyTable
from fedskew.data.readers.table import Table
from fedskew.data.readers.written_numbers import with_numbers
from fedskew.data.source import TestShare
from fedskew.data.targets import Target

if TYPE_CHECKING:
    from fedskew.data.cells import Frame

_MOST_COLUMNS = 100_000


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
    separator: Separator | None = None,
    decimal: DecimalSign | None = None,
    thousands: ThousandsSign | None = None,
    encoding: str | None = None,
    target: Target = "class",
    labels: tuple[str, ...] = (),
    keep: tuple[str, ...] = (),
    dates: AsNumbers | None = None,
    duplicates: Duplicates = "keep",
    lazy: bool = False,
) -> Table | Arrays:
    """Your own table: a CSV file with a header line (may be gzipped) or a Parquet file.

    Text columns become one feature per category, missing numbers the training median; everything is fitted on
    training rows only. A Parquet file that does not fit into memory is read lazily: its features are then all other
    columns, which hold numbers, or one column of lists of one length (pixels, tokens, embeddings).

    Args:
        path: the file
        label: column with the class or the number to predict, or with target=labels or numbers all columns of these,
            a+b+c
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
        separator: character between the columns of a CSV file; by default recognised
        decimal: sign before the decimals of a number; by default recognised
        thousands: sign between the thousands of a number; by default recognised
        encoding: encoding of a CSV file; by default recognised (UTF-8, UTF-16, Latin-1)
        target: what the label column holds: a class, a number to predict, (labels) 0 or 1 in each of its columns, or
            (numbers) a number in each
        labels: classes with their spellings, yes:Y:1+no:N:0, or as-is for classes as they are spelled
        keep: columns that are features although they look like ids, dates or constants, a+b+c
        dates: days for columns of dates as numbers of days; by default they are left out
        duplicates: drop to leave out rows that equal an earlier one of their file in every column
        lazy: leave the features in a Parquet file, and read them by row groups when rows are used; standardising is
            fitted to a sample of the training rows
    """
    if lazy:
        _refuse_with_lazy(
            categorical=categorical,
            window=window,
            stride=stride,
            keep=keep,
            dates=dates,
            duplicates=duplicates != "keep",
        )
        part = LazyTable(label, group, drop, labels, target)
        return part.arrays(path, test_path, Split("test", test, split_seed), standardize)
    common = CsvFormat(separator, decimal, thousands, encoding)

    def read(file: str) -> "Frame":
        named = (*label_columns(label, target), group)
        texts = texts_of(label, target, categorical, group)
        place, written = file_and_format(file, common)
        return read_table(Path(place).expanduser(), drop, written, named, texts)

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
        labels=labels,
        keep=keep,
        dates=dates,
        duplicates=duplicates,
    )


def _refuse_with_lazy(**options: Any) -> None:
    """Raise an error for an option that needs the features of all rows."""
    for name, value in options.items():
        if value:
            raise FedskewError(
                f"{name}= needs all features in memory, and lazy=true leaves them in the file: leave one of them out"
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
    classes: Annotated[int | None, AtLeastOne] = None,
) -> Arrays:
    """Your own arrays: an NPZ file with x, y and perhaps group (and x_test, y_test, group_test).

    The first axis of x is the rows, the second the columns of a table or the channels of images and signals.

    Args:
        path: the file
        test: share of the rows held out for test, in proportion within every class (and group)
        test_path: a second file with the test rows, instead of a split
        split_seed: seed of the split
        standardize: bring every column or channel to mean 0 and deviation 1
        target: what y holds: a class, a number to predict, (labels) a row of 0 and 1, one column per label, (numbers)
            several numbers, or (tokens) a token at each place, -1 where there is none
        classes: how many classes there are, 0 … K-1, where some may have no row; by default those with rows
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
    rows, names, groups = split_parts(str(file), train, tested, target, classes)
    test_rows: Rows | Split = Split("test", test, split_seed)
    if tested is not None:
        test_rows = rows[1]
    scaled = None
    if standardize:
        scaled = everything(train.x)
    return Arrays(rows[0], test_rows, names, groups, train.features, scaled=scaled, counted=True)


@datasets.register("npy")
def npy(
    *,
    path: str,
    test: TestShare = 0.2,
    split_seed: int = 0,
    standardize: bool = False,
    target: Target = "class",
    classes: Annotated[int | None, AtLeastOne] = None,
) -> Arrays:
    """Your own arrays that do not fit into memory: a folder with x.npy, y.npy, perhaps group.npy (and x_test.npy, …).

    x is read when rows of it are used, y and group at once. The first axis of x is the rows, the second the columns of
    a table or the channels of images and signals. Of images of bytes (uint8), 255 becomes 1.

    Args:
        path: the folder
        test: share of the rows held out for test, in proportion within every class (and group)
        split_seed: seed of the split
        standardize: bring every column or channel to mean 0 and deviation 1, those of a sample of training rows
        target: what y holds: a class, a number to predict, or (labels) a row of 0 and 1, one column per label
        classes: how many classes there are, 0 … K-1, where some may have no row; by default those with rows
    """
    folder = Path(path).expanduser()
    tested = None
    if (folder / "x_test.npy").exists():
        tested = _mapped(folder, "_test")
    return arrays_of(
        str(folder),
        _mapped(folder, ""),
        tested,
        Split("test", test, split_seed),
        standardize=standardize,
        target=target,
        classes=classes,
    )


def _mapped(folder: Path, ending: str) -> tuple[Any, ...]:
    """Return x, which stays in its file, y and perhaps the groups of a folder."""
    files = [folder / f"x{ending}.npy", folder / f"y{ending}.npy"]
    group = folder / f"group{ending}.npy"
    if group.exists():
        files.append(group)
    arrays: list[Any] = []
    for file in files:
        if not file.exists():
            raise FedskewError(
                f"{folder} has no {file.name}: it needs x{ending}.npy and y{ending}.npy"
            )
        arrays.append(_map(file))
    x, *others = arrays
    return x, *(np.array(other) for other in others)


def mapped_x(path: Path) -> Any:
    """Return the array of an NPY file, or of x.npy in a folder, which stays in its file."""
    if not path.is_dir():
        return _map(path)
    if not (path / "x.npy").exists():
        raise FedskewError(
            f"{path} has no x.npy: give an NPZ file with x, or a folder with x.npy (images as rows of pixels from 0 to "
            "255, channels first, in the size of training)"
        )
    return _map(path / "x.npy")


def _map(file: Path) -> Any:
    """Return the array of an NPY file, which stays in its file."""
    with reading(file):
        try:
            return np.load(file, mmap_mode="r", allow_pickle=False)
        except ValueError as problem:
            # NumPy takes any other file for pickled data, and says how to trust it
            reason = str(problem)
            if "allow_pickle" in reason or "pickled" in reason:
                reason = "it is no NPY file, or holds Python objects"
            raise FedskewError(f"{file} is not an array of numbers or text: {reason}") from None


def read_table(
    path: Path,
    drop: Iterable[str] = (),
    written: CsvFormat = AS_RECOGNISED,
    named: Iterable[str | None] = (),
    texts: Iterable[str | None] = (),
) -> "Frame":
    """Read a CSV or Parquet file, recognised by its first bytes, without the dropped columns.

    Of the index that pandas may have stored in a Parquet file, the levels in ``named`` are columns; the others are
    not used. How a CSV file is ``written`` is recognised where it is not given, and what was recognised is among the
    ``attrs`` of the table. Columns that are ``texts`` hold no numbers: the group, the class and categories.
    """
    with reading(path), path.open("rb") as file:
        start = file.read(4)
    if start == b"PAR1":
        frame = read_parquet(path, drop, named)
    else:
        frame = _read_written(path, drop, written, texts)
    if not len(frame):
        raise FedskewError(f"{path} has no rows")
    return frame


def _read_written(
    path: Path, drop: Iterable[str], given: CsvFormat, texts: Iterable[str | None]
) -> "Frame":
    """Read a CSV file, and tell in the ``attrs`` of the table how it is written."""
    written = recognised(path, given)
    frame = read_csv(path, drop, written)
    left_out = {title for title in texts if title is not None}
    as_text = partial(_columns_as_text, path, written)
    frame, way, sentence = with_numbers(str(path), frame, written, left_out, as_text)
    found = replace(written, decimal=way.decimal, thousands=way.thousands)
    said = [text for text in (format_note(given, written), sentence) if text]
    frame.attrs[READ] = ReadFile(path.name, found, "; ".join(said))
    return frame


def texts_of(
    label: str, target: Target, categorical: Iterable[str], group: str | None = None
) -> set[str | None]:
    """Return the columns of a table that hold no numbers, whatever they look like."""
    texts = {*categorical, group}
    if target == "class":
        texts.update(label_columns(label, target))
    return texts


def _columns_as_text(path: Path, written: CsvFormat, columns: list[str]) -> "Frame":
    """Read columns of a CSV file as they are written."""
    import pandas as pd

    with reading(path), open_unpacked(path) as file:
        return pd.read_csv(
            file,
            sep=sign_of(written),
            encoding=written.encoding,
            index_col=False,
            usecols=columns,
            dtype=str,
        )


def read_csv(path: Path, drop: Iterable[str] = (), written: CsvFormat = AS_RECOGNISED) -> "Frame":
    """Read a CSV file with a header line, without the dropped columns."""
    import pandas as pd

    written = recognised(path, written)
    _check_header(path, _csv_header(path, written))
    with reading(path), warnings.catch_warnings(), open_unpacked(path) as file:
        # More fields than the header has are otherwise cut away with a warning only.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(
                file,
                sep=sign_of(written),
                encoding=written.encoding,
                index_col=False,
                low_memory=False,
            )
        except pd.errors.EmptyDataError:
            raise FedskewError(f"{path} is empty") from None
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            raise FedskewError(f"{path} is not a regular table: {error}") from None
        except UnicodeDecodeError as error:
            raise FedskewError(
                f"{path} is no {written.encoding} text (byte {error.start}): say another encoding=, or convert it"
            ) from None
    _refuse_short_end(path, written, len(frame.columns))
    for column in drop:
        need_column(str(path), column, frame.columns)
    return frame.drop(columns=list(drop))


def _csv_header(path: Path, written: CsvFormat) -> list[str]:
    """Return the names in the first line that is not empty; one name with other separators in it is refused."""
    names = header_of(path, written)
    if len(names) > 1:
        return names
    for other in ("comma", "semicolon", "tab"):
        if SIGNS[other] in names[0]:
            raise FedskewError(
                f"{path} has one column, as {names[0]!r} is one name: say separator={other}, or write "
                f"{written.separator}s"
            )
    return names


def _check_header(path: Path, names: Sequence[str]) -> None:
    """Raise an error for two columns of one name, of which the second would become a feature."""
    if len(names) > _MOST_COLUMNS:
        raise FedskewError(
            f"{path} has {len(names):,} columns, more than {_MOST_COLUMNS:,}: is it a table, separator and all?"
        )
    for name, count in Counter(names).items():
        if count > 1 and name.strip():
            raise FedskewError(f"{path}: column {name!r} is there twice: rename one or take it out")


def _refuse_short_end(path: Path, written: CsvFormat, columns: int) -> None:
    """Raise an error for a short last line, the sign of a truncated file, which would pass for missing values."""
    if path.suffix != ".csv":
        return  # a compressed file knows by itself that it was cut off
    lines = last_lines(path, written.encoding or "utf-8")
    if len(lines) < 2 or '"' in lines[-1]:
        return  # quotes may span lines, so the last one proves nothing
    fields = lines[-1].count(sign_of(written)) + 1
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
                f"{path}: column {field.name!r} holds {field.type}, not one value per row: leave it out with "
                f"drop={field.name}, make a column of each part, or take it as the only feature with lazy=true"
            )
    return file.read([field.name for field in kept])


def column_names(path: Path, written: CsvFormat = AS_RECOGNISED) -> list[str]:
    """Return the names of a table's columns, without its rows."""
    with reading(path), path.open("rb") as file:
        start = file.read(4)
    if start != b"PAR1":
        return _csv_header(path, recognised(path, written))
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
