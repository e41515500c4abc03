"""Files of several clients: one client per file, named by it; tables (CSV, Parquet) or arrays (NPZ)."""

import glob
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_npz, reading
from fedskew.core.registry import AtLeastOne, NonNegative
from fedskew.data.cells import label_columns, need_column
from fedskew.data.class_spellings import AS_IS, refuse_other_spellings, with_classes
from fedskew.data.convert import Loose, client_parts, part_from
from fedskew.data.dataset import Rows, Split, datasets
from fedskew.data.dates import AsNumbers
from fedskew.data.duplicates import Duplicates
from fedskew.data.readers.arrays import Arrays, everything
from fedskew.data.readers.csv_format import (
    AS_RECOGNISED,
    OPTIONS,
    CsvFormat,
    DecimalSign,
    Separator,
    ThousandsSign,
    file_and_format,
    format_from,
)
from fedskew.data.readers.table import SiloTables, Table
from fedskew.data.readers.user_files import column_names, pick, read_table, texts_of
from fedskew.data.source import TestShare
from fedskew.data.split_record import RECORD, read_split_record
from fedskew.data.targets import Target

if TYPE_CHECKING:
    from fedskew.data.cells import Frame


class SiloFile(NamedTuple):
    """A file of a client, and how it is written, as far as that is given."""

    path: Path
    written: CsvFormat = AS_RECOGNISED


ENDINGS = (".csv", ".csv.gz", ".parquet", ".npz")
TEST = "-test"  # after the name of a client: its own test rows
_OF_TABLES = (
    "categorical",
    "standardize",
    "max_categories",
    "target",
    "labels",
    "keep",
    "dates",
    "duplicates",
)
_RECORDED = ("drop", *OPTIONS, *_OF_TABLES)


@datasets.register("silos")
def silos(
    *,
    paths: tuple[str, ...],
    label: str | None = None,
    drop: tuple[str, ...] = (),
    categorical: tuple[str, ...] = (),
    test: TestShare = 0.2,
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
) -> SiloTables | Arrays:
    """Files of several clients, one client per file and named by it: CSV, Parquet or NPZ.

    Columns are aligned by name. Every client holds out test rows for itself, or has them in a file NAME-test.csv. What
    is fitted (categories, scales, medians) is fitted on the training rows of all, from counts and sums.

    Args:
        paths: files, patterns (hospital_*.csv), a folder of files or one that fedskew split wrote, a+b+c; how a file is
            written may be said of it alone, b.csv:separator=semicolon:decimal=comma
        label: column with the class or the number to predict, or with target=labels or numbers all columns of these,
            a+b+c
        drop: columns that are not used, a+b+c
        categorical: columns to read as categories although they hold numbers, a+b+c
        test: share of each client's rows held out for test, in proportion within every class
        split_seed: seed of that split
        standardize: bring numeric columns to mean 0 and deviation 1
        max_categories: most features of one text column; the rarest categories are pooled
        window: rows of one window of a time series, 0 for none; the end of each client's series is then its test part
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
    """
    record = _record(paths)
    recorded = record.get("data", {})
    options: dict[str, Any] = {
        "drop": drop,
        "categorical": categorical,
        "standardize": standardize,
        "max_categories": max_categories,
        "separator": separator,
        "decimal": decimal,
        "thousands": thousands,
        "encoding": encoding,
        "target": target,
        "labels": labels,
        "keep": keep,
        "dates": dates,
        "duplicates": duplicates,
    }
    options = _with_recorded(options, record)
    files = files_of(paths, record, format_from(options))
    label = label or recorded.get("label")
    common = None
    if record.get("test"):
        common = SiloFile(Path(paths[0]).expanduser() / record["test"], format_from(options))
    split = Split("test", test, split_seed)
    if all(is_arrays(file.path) for file in files.values()):
        return _arrays(files, common, split, options, record)
    if label is None:
        raise FedskewError(f"{', '.join(paths)}: label= is missing: the column with the class")
    tables = _tables(files, label, options)
    tests = _tests(files)
    test_table = None
    own_test: Split | None = split
    if common is not None and not tests:
        test_table = _read(common, column_names(*common), label, options)
        own_test = None
    own: dict[str, Any] = {"window": window, "stride": stride}
    for name in _OF_TABLES:
        own[name] = options[name]
    made = {}
    for client, frame in tables.items():
        if client not in tests:
            tested = tables.get(client + TEST, own_test)
            made[client] = Table(train=frame, test=tested, label=label, **own)
    return SiloTables(made, test_table)


def _with_recorded(given: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those with which the rows of a split folder were read; lists of JSON are tuples again."""
    options = dict(given)
    if not record:
        return options
    recorded = record.get("data", {})
    # Clients of one file may have other classes, and none in common
    options["labels"] = given["labels"] or (AS_IS,)
    for name in _RECORDED:
        if name in recorded:
            options[name] = recorded[name]
            if isinstance(recorded[name], list):
                options[name] = tuple(recorded[name])
    if record.get("files") == "arrays" or not options["labels"]:
        options["labels"] = (AS_IS,)  # arrays have the numbers of classes, whatever these were
    if recorded.get("group"):
        # It says which client a row belongs to
        options["drop"] = (*options["drop"], recorded["group"])
    return options


# -- which files -------------------------------------------------------------------------------------------------------


def is_pattern(path: str) -> bool:
    """Return whether a path is a pattern for the names of files."""
    return any(sign in path for sign in "*?[") and not Path(path).expanduser().exists()


def is_arrays(path: Path) -> bool:
    """Return whether a file is one of arrays, and no table."""
    return path.suffix == ".npz"


def holds_tables(folder: Path) -> bool:
    """Return whether a folder has tables or arrays of clients, and no folders in it, as one of images has."""
    tables = False
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            return False
        if path.name.lower().endswith(ENDINGS):
            tables = True
    return tables


def _record(paths: tuple[str, ...]) -> dict[str, Any]:
    """Return what a folder of ``fedskew split`` records about its files; empty for other paths."""
    folders = []
    for path in paths:
        if (Path(path).expanduser() / RECORD).is_file():
            folders.append(path)
    if not folders:
        return {}
    file = Path(folders[0]).expanduser() / RECORD
    if len(paths) > 1:
        raise FedskewError(f"{folders[0]} is a whole split, with all its clients: give it alone")
    record = read_split_record(file.parent)
    with reading(file):
        if record["files"] == "index":
            raise FedskewError(f"{folders[0]} holds row numbers only: split again without --index")
    return record


def files_of(
    paths: Iterable[str],
    record: Mapping[str, Any] | None = None,
    written: CsvFormat = AS_RECOGNISED,
) -> dict[str, SiloFile]:
    """Return the files by the names of their clients, in their order; ``record`` is that of a split folder.

    ``written`` is how files are written of which nothing else is said.
    """
    found: dict[str, SiloFile] = {}
    for path in paths:
        place, own = file_and_format(path, written)
        for file in _expanded(place, record or {}):
            name = _name(file)
            if name in found and found[name].path != file:
                raise FedskewError(
                    f"{found[name].path} and {file} both name the client {name!r}: rename one of them"
                )
            found[name] = SiloFile(file, own)
    return dict(sorted(found.items()))


def _expanded(path: str, record: Mapping[str, Any]) -> list[Path]:
    place = Path(path).expanduser()
    if is_pattern(path):
        files = [Path(name) for name in glob.glob(str(place))]  # noqa: PTH207 - of a whole path, also an absolute one
    elif place.is_dir():
        files = _inside(place, record)
    else:
        files = [place]
    if not files:
        raise FedskewError(
            f"{path}: no file of that name; expected files that end in {', '.join(ENDINGS)}"
        )
    for file in files:
        if not file.name.lower().endswith(ENDINGS):
            raise FedskewError(
                f"{file} is none of {', '.join(ENDINGS)}: leave it out, or write a narrower pattern"
            )
    return sorted(files)


def _inside(folder: Path, record: Mapping[str, Any]) -> list[Path]:
    """Return the files of clients in a folder, without those that ``fedskew split`` adds for all of them."""
    apart: set[str | None] = set()
    if record:
        apart = {record.get("test"), f"nobody{record['ending']}", "partition.npz"}
    files = []
    for file in folder.iterdir():
        if file.name.lower().endswith(ENDINGS) and file.name not in apart:
            files.append(file)
    return files


def _name(file: Path) -> str:
    endings = [ending for ending in ENDINGS if file.name.lower().endswith(ending)]
    return file.name[: -len(max(endings, key=len))]


def _tests(names: Iterable[str]) -> set[str]:
    """Return the names that are test files of another."""
    every = set(names)
    tests: set[str] = set()
    for name in every:
        if name.endswith(TEST) and name.removesuffix(TEST) in every:
            tests.add(name)
    return tests


# -- reading -----------------------------------------------------------------------------------------------------------


def _tables(
    files: Mapping[str, SiloFile], label: str, options: Mapping[str, Any]
) -> "dict[str, Frame]":
    for file in files.values():
        if is_arrays(file.path):
            raise FedskewError(
                f"{file.path} holds arrays, and other files tables: give files of one kind"
            )
    columns = {}
    every: dict[str, None] = {}
    for name, file in files.items():
        columns[name] = column_names(file.path, file.written)
        every |= dict.fromkeys(columns[name])
    for column in options["drop"]:
        need_column("all files", column, every)
    tables = {}
    for name, file in files.items():
        for column in label_columns(label, options["target"]):
            need_column(str(file.path), column, columns[name])
        tables[name] = _read(file, columns[name], label, options)
    return tables


def _read(file: SiloFile, columns: list[str], label: str, options: Mapping[str, Any]) -> "Frame":
    """Read a table without the columns to drop, of which it need not have all."""
    dropped = [column for column in options["drop"] if column in columns]
    texts = texts_of(label, options["target"], options["categorical"])
    return read_table(file.path, dropped, file.written, texts=texts)


def _arrays(
    files: Mapping[str, SiloFile],
    common: SiloFile | None,
    split: Split,
    options: Mapping[str, Any],
    record: Mapping[str, Any],
) -> Arrays:
    """Return the arrays of all clients as one, with the client as the group of a row."""
    _refuse_table_options(files, options)
    target: Target = options["target"]
    standardize = options["standardize"]
    known_classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    if record.get("files") == "arrays":  # as models see them, with numbered classes
        target = record.get("target_kind", "class")
        standardize = False
        known_classes = tuple(record["classes"])
        features = tuple(record["features"])
    loose = _loose(files, common, target, options["labels"])
    if target == "class" and not known_classes:
        own = {name: part.y["0"].dropna().unique().tolist() for name, part in loose.items()}
        refuse_other_spellings("silos", "y", own, options["labels"])
    rows, classes = client_parts("silos", loose, target, known_classes)
    tests = _tests(files)
    clients = [name for name in files if name not in tests]
    train = _joined(rows, clients, "")
    test: Rows | Split = rows.get(TEST, split)
    if clients[0] + TEST in rows:
        test = _joined(rows, clients, TEST)
    scaled = None
    if standardize:
        scaled = everything(train.x)
    return Arrays(
        train,
        test,
        classes,
        tuple(clients),
        features,
        scaled=scaled,
        silos=True,
        counted=record.get("files") != "arrays",
    )


def _refuse_table_options(files: Mapping[str, SiloFile], options: Mapping[str, Any]) -> None:
    """Raise an error for options that arrays, which have no named columns, do not take."""
    asked = {
        "keep": options["keep"],
        "dates": options["dates"],
        "duplicates": options["duplicates"] == "drop",
    }
    for name, value in asked.items():
        if value:
            path = next(iter(files.values())).path
            raise FedskewError(
                f"{path} holds arrays, and {name}= is an option of tables: leave it out"
            )


def _loose(
    files: Mapping[str, SiloFile],
    common: SiloFile | None,
    target: Target,
    labels: tuple[str, ...],
) -> dict[str, Loose]:
    """Return the rows of every client and its test rows, or the common test rows under the name ``TEST``."""
    tests = _tests(files)
    loose: dict[str, Loose] = {}
    for name, (path, _) in files.items():
        arrays = read_npz(path)
        if not tests and common is None:
            refuse_windows(path, arrays)
        loose |= loose_parts(name, path, arrays, target, labels)
    tested = []
    untested = []
    for name in files:
        if name in tests:
            continue
        if name + TEST in loose:
            tested.append(name)
        else:
            untested.append(name)
    if common is not None and not tested:
        loose[TEST] = _part(common.path, read_npz(common.path), "", target, labels)
    elif tested and untested:
        raise FedskewError(
            f"{files[untested[0]].path} has no test rows, and {files[tested[0]].path} has: give all of them, or none"
        )
    return loose


def _joined(rows: Mapping[str, Rows], clients: list[str], ending: str) -> Rows:
    """Return the rows of all clients, with the number of the client as the group."""
    parts = []
    for number, client in enumerate(clients):
        own = rows[client + ending]
        parts.append(replace(own, group=np.full(len(own), number)))
    return Rows.joined(parts)


def refuse_windows(path: Path, arrays: Mapping[str, Any]) -> None:
    """Raise an error for windows from which test rows would be drawn, which would overlap with others."""
    if "series" in arrays:
        raise FedskewError(
            f"{path} holds windows that overlap, and no test rows: split again with test=0.2, say"
        )


def loose_parts(
    name: str, path: Path, arrays: Mapping[str, Any], target: Target, labels: tuple[str, ...] = ()
) -> dict[str, Loose]:
    """Return the rows of a client's NPZ file by its name, and its test rows, if it has some."""
    found = {name: _part(path, arrays, "", target, labels)}
    if "x_test" in arrays:
        found[name + TEST] = _part(path, arrays, "_test", target, labels)
    return found


def _part(
    path: Path, arrays: Mapping[str, Any], ending: str, target: Target, labels: tuple[str, ...]
) -> Loose:
    """Return the rows of an NPZ file, with its classes by their names."""
    part = part_from(str(path), pick(path, arrays, ending)[:2], target)
    if target != "class":
        return part
    return replace(part, y={"0": with_classes(str(path), part.y["0"].rename("y"), labels)})
