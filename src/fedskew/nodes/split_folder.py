"""A split on disk for real nodes: one file per client in the format of the input, the partition, its heterogeneity."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, overload

import numpy as np

from fedskew import __version__
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.files import read_npz, reading
from fedskew.core.registry import Choice
from fedskew.core.streams import Ints
from fedskew.core.writing import writing
from fedskew.data import catalogue
from fedskew.data.dataset import Dataset, Rows, Split, datasets
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.data.readers.csv_format import READ, CsvFormat, format_from, recognised
from fedskew.data.readers.table import Table
from fedskew.data.split_record import RECORD, read_split_record, sealed
from fedskew.data.stored_rows import whole
from fedskew.data.targets import Targets
from fedskew.heterogeneity.heterogeneity import measure
from fedskew.heterogeneity.result import Heterogeneity
from fedskew.nodes.client_files import Columns, Lines, Numbers, Stack, Stored
from fedskew.runs.folder import PARTITION, new_folder, to_json

Files: TypeAlias = Literal["same", "arrays", "index"]
HETEROGENEITY, PICTURE = "heterogeneity.json", "picture"

_OWN = (
    "csv",
    "parquet",
    "npz",
    "npy",
    "images",
)  # readers of files that have no published test part
_ENDINGS = {"csv": ".csv", "parquet": ".parquet", "npz": ".npz", "arrays": ".npz", "index": ".npy"}
_NEEDED = (
    "data",
    "clients",
    "files",
    "ending",
    "test",
    "name",
    "classes",
    "groups",
    "features",
    "fingerprint",
)
_NONE = np.zeros(0, dtype=np.int64)
_FILE_NAME = re.compile(r"\w[\w .-]{0,98}\w|\w", re.ASCII)  # on every machine


# -- the input -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """A data set to split, and the number in its file of every training and every test row.

    ``test`` is empty where the test rows do not come from that file, or there are none. ``left_out`` is how many of its
    rows are neither, as they equal earlier ones; ``written`` is how a CSV file is written.
    """

    data: Dataset
    choice: Choice
    train: Ints
    test: Ints
    left_out: int = 0
    written: CsvFormat | None = None


def read_origin(spec: "str | Mapping[str, Any] | Choice") -> Origin:
    """Read a data set to split: all rows of a user's own file go to the clients, unless it has ``test=``.

    A published data set keeps its test part; so does an NPZ file with x_test and a folder of images with a folder test.
    """
    choice = catalogue.choose(spec)
    if choice.name not in _OWN:
        return _origin(catalogue.load(choice), choice)
    raw: Any = datasets.get(choice.name)(**choice.options)
    origin = _origin_of_file(raw, choice)
    if not isinstance(raw, Table) or raw.window:
        return origin
    numbers = raw.rows_kept(raw.train)
    return replace(
        origin,
        train=numbers[origin.train],
        test=numbers[origin.test],
        left_out=len(raw.train) - len(numbers),
        written=_written(raw),
    )


def _origin_of_file(raw: Any, choice: Choice) -> Origin:
    """Return a user's own file as an origin, with the numbers of rows among those that are used."""
    if not isinstance(raw.test, Split):
        return _origin(raw.build(str(choice), None), choice)
    whole = _all_rows(raw, str(choice))
    if "test" not in choice.options:
        return _origin(whole, choice)
    data = raw.build(str(choice), None)
    if whole.train.x.ndim > 2 and isinstance(raw, Table):
        return _origin(data, choice)  # windows have no number in the file
    return Origin(data, choice, *raw.test.rows(str(choice), whole.train.strata))


def _origin(data: Dataset, choice: Choice) -> Origin:
    return Origin(data, choice, np.arange(len(data.train)), _NONE)


def _written(table: Table) -> CsvFormat | None:
    """Return how the CSV file of a table is written; None for other files."""
    file = table.train.attrs.get(READ)
    if file is None:
        return None
    written: CsvFormat = file.written
    if written.encoding and written.encoding.startswith("utf-16"):
        return replace(written, encoding="utf-8")  # as lines are written
    return written


def _all_rows(raw: Any, name: str) -> Dataset:
    """Return the data set with every row as a training row; the test part is a placeholder."""
    if not isinstance(raw, Table):
        placeholder = raw.train.take(np.zeros(1, dtype=np.int64))
    elif raw.window:
        placeholder = raw.train
    else:
        placeholder = raw.train.head(1)
    data: Dataset = replace(raw, test=placeholder).build(name, None)
    return replace(data, test=data.test.take(_NONE))


# -- in which form -----------------------------------------------------------------------------------------------------


def _open(kind: str, path: Path, choice: Choice) -> Any:
    if kind == "csv":
        return Lines.read(path, recognised(path, format_from(choice.options)))
    if kind == "parquet":
        return Columns.read(path)
    return Stack.read(path)


def _kind_of(path: Path) -> str:
    """Return the format of a table by its first bytes, as the reader of tables does."""
    with reading(path), path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return "parquet"
        return "csv"


def _kind(origin: Origin, files: Files) -> str:
    """Return the format of the written files: that of the input, or arrays where it has none of its own."""
    choice = origin.choice
    if files == "index":
        return "index"
    if files == "arrays" or choice.name not in ("csv", "parquet", "npz"):
        return "arrays"
    if choice.options.get("window") or choice.options.get("lazy"):
        return "arrays"
    if choice.name == "npz":
        return "npz"
    return _kind_of(_path(choice))


def _path(choice: Choice, option: str = "path") -> Path:
    return Path(choice.options[option]).expanduser()


# -- writing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Names:
    """The names of the files of a split; those of clients have the clients' names, if these can be names of files."""

    clients: int
    ending: str
    called: tuple[str, ...] = ()

    def client(self, number: int, part: str = "") -> str:
        """Return the name of a client's file, or of the file with its held-out rows (``part="-test"``)."""
        if self.called:
            return f"{self.called[number]}{part}{self.ending}"
        digits = max(3, len(str(self.clients - 1)))
        return f"client-{number:0{digits}d}{part}{self.ending}"

    @property
    def test(self) -> str:
        """Return the name of the file with the test rows."""
        return f"test{self.ending}"

    @property
    def unassigned(self) -> str:
        """Return the name of the file with the training rows of no client."""
        return f"nobody{self.ending}"


def _file_names(fed: Federation) -> tuple[str, ...]:
    """Return the names of the clients if all of them can be names of files, different ones on every machine."""
    if not fed.named:
        return ()
    names = fed.client_names
    lower = {name.lower() for name in names}
    if len(lower) < len(names) or lower & {"test", "nobody", "partition"}:
        return ()
    for name in names:
        if not _FILE_NAME.fullmatch(name) or name.endswith("-test"):
            return ()
    return names


def must_not_exist(folder: Path) -> None:
    """Raise an error if the folder exists: a split never changes existing files."""
    with writing(folder):
        if folder.exists():
            raise FedskewError(f"{folder} exists already: remove it, or choose another with --out")


def save_split(
    folder: "str | os.PathLike[str]",
    origin: Origin,
    fed: Federation,
    made_by: Mapping[str, Any],
    *,
    files: Files = "same",
    pictures: Sequence[str] = ("png",),
    draw: "Callable[[Federation, Heterogeneity, str], bytes] | None" = None,
) -> Heterogeneity:
    """Write a split; the folder appears only when it is complete.

    Args:
        folder: a new folder
        origin: what ``read_origin`` returned
        fed: its partition
        made_by: skew, seed and other facts to record
        files: ``same`` keeps the input's format and values, ``arrays`` writes the models' input, ``index`` row numbers
            only
        pictures: formats to draw the split in
        draw: the function that draws it
    """
    place = Path(folder)
    kind = _kind(origin, files)
    must_not_exist(place)
    _refuse_changed_values(fed, made_by, kind)
    if kind == "arrays":
        fed = _with_written_rows(fed)
    ending = _ENDINGS[kind]
    if kind == "csv" and _path(origin.choice).suffix == ".gz":
        ending += ".gz"
    names = Names(fed.clients, ending, _file_names(fed))
    stored = _store(kind, origin, fed)
    found = measure(fed)
    drawn = {}
    if draw:
        drawn = {format: draw(fed, found, format) for format in pictures}
    with new_folder(place) as part:
        for name, rows in _files(names, origin, fed, kind):
            stored.write(part / name, rows)
        test = _write_test(part, names, origin, fed, kind, stored)
        _write_partition(part / PARTITION, origin, fed)
        record = _record(origin, fed, made_by, kind, names.ending, test)
        if names.called:
            record |= {"names": list(names.called)}
        _write_json(part / HETEROGENEITY, found.as_dict())
        for format, picture in drawn.items():
            (part / f"{PICTURE}.{format}").write_bytes(picture)
        # As it is read again: a number of NumPy's, say, is a number of JSON's.
        written = json.loads(to_json(record))
        _write_json(part / RECORD, sealed(written, part))
    return found


def _refuse_changed_values(fed: Federation, made_by: Mapping[str, Any], kind: str) -> None:
    """Refuse a split that changes values where files keep those of the input."""
    if fed.treated is None or kind == "arrays":
        return
    files = f"{kind} files"
    if kind == "index":
        files = "row numbers"
    raise FedskewError(
        f"skew {made_by.get('skew')} changes values, which {files} cannot show, as they keep the input as it is: "
        "write arrays with --npz, or leave the treatment out"
    )


def _with_written_rows(fed: Federation) -> Federation:
    """Return a federation with the features that arrays hold: stored rows are written as they are used."""
    data = replace(fed.data, train=_written_rows(fed.data.train), test=_written_rows(fed.data.test))
    if fed.treated is None:
        return replace(fed, data=data)
    return replace(fed, data=data, treated=_written_rows(fed.treated))


def _written_rows(rows: Rows) -> Rows:
    return replace(rows, x=whole(rows.x, "split"))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(to_json(content, indent=2) + "\n", encoding="utf-8")


def _store(kind: str, origin: Origin, fed: Federation) -> Stored:
    """Return the rows to write from, with one entry for every row that was read."""
    if kind == "index":
        return Numbers()
    if kind == "arrays":
        return Stack.of(fed.train)
    path = _path(origin.choice)
    rows = len(origin.train) + len(origin.test) + origin.left_out
    stored: Stored = _open(kind, path, origin.choice)
    if len(stored) != rows:
        raise FedskewError(
            f"{path} cannot be split by lines: {rows} rows, but {len(stored)} lines (a quotation mark inside a "
            "field?): "
            "write arrays with --npz, or convert it to Parquet"
        )
    return stored


def _files(names: Names, origin: Origin, fed: Federation, kind: str) -> Iterator[tuple[str, Ints]]:
    """Yield every file of training rows, with the numbers of its rows in the store, in stored order."""
    numbers = origin.train
    if kind == "arrays":
        numbers = np.arange(len(fed.train))
    parts = {"": fed.partition}
    if fed.held_out is not None:
        parts["-test"] = fed.held_out
    for part, partition in parts.items():
        for client in range(partition.clients):
            yield names.client(client, part), numbers[np.sort(partition.of(client))]
    unassigned = unassigned_rows(fed)
    if len(unassigned):
        yield names.unassigned, numbers[unassigned]


def unassigned_rows(fed: Federation) -> Ints:
    """Return the training rows of no client; there are some with ``overlap=true`` or ``natural:groups=``."""
    free = np.ones(len(fed.train), dtype=np.bool_)
    free[fed.partition.rows] = False
    if fed.held_out is not None:
        free[fed.held_out.rows] = False
    return np.flatnonzero(free)


def _write_test(
    folder: Path, names: Names, origin: Origin, fed: Federation, kind: str, stored: Stored
) -> str | None:
    """Write the test rows, if there are any, and return the name of their file."""
    name, rows = names.test, origin.test
    if not len(rows) or kind == "arrays":
        if kind == "index" or not len(fed.test):
            return None
        stored, name = _store_of_test(kind, name, origin, fed)
        rows = np.arange(len(fed.test))
    stored.write(folder / name, rows)
    return name


def _store_of_test(kind: str, name: str, origin: Origin, fed: Federation) -> tuple[Stored, str]:
    """Return the test rows that are not among the rows of the file, and their file's name."""
    if kind == "arrays":
        return Stack.of(fed.test), name
    if "test_path" not in origin.choice.options:
        return Stack.read(_path(origin.choice), "_test"), name
    path = _path(origin.choice, "test_path")
    if kind != "npz":
        kind = _kind_of(path)
    if kind == "csv" and origin.written is not None:
        own = recognised(path, format_from(origin.choice.options))
        if own.separator != origin.written.separator:
            raise FedskewError(
                f"{path} has {own.separator}s between its columns, and {_path(origin.choice)} has "
                f"{origin.written.separator}s: write them alike, or write arrays with --npz"
            )
    return _open(kind, path, origin.choice), f"test{_ENDINGS[kind]}"


def _write_partition(path: Path, origin: Origin, fed: Federation) -> None:
    """Write what ``Partition.load`` reads, the held-out rows, and the numbers of all rows in the input."""
    arrays: dict[str, Any] = {
        "rows": fed.partition.rows,
        "offsets": fed.partition.offsets,
        "train": origin.train,
        "test": origin.test,
    }
    if fed.held_out is not None:
        arrays |= {"held_out_rows": fed.held_out.rows, "held_out_offsets": fed.held_out.offsets}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _record(
    origin: Origin,
    fed: Federation,
    made_by: Mapping[str, Any],
    kind: str,
    ending: str,
    test: str | None,
) -> dict[str, Any]:
    options = dict(origin.choice.options)
    if kind == "csv" and origin.written is not None:
        # What the whole file shows, the file of one client may not
        options |= asdict(origin.written)
    # Nothing but the input itself holds the rows, so it must be found again from anywhere
    if kind == "index":
        for name in ("path", "test_path"):
            if name in options:
                options[name] = str(_path(origin.choice, name).resolve())
    return {
        "fedskew": __version__,
        "data": {"name": origin.choice.name, **options},
        **made_by,
        "clients": fed.clients,
        "rows": len(fed.partition.rows),
        "files": kind,
        "ending": ending,
        "test": test,
        "name": fed.data.name,
        "classes": list(fed.data.classes),
        "target_kind": fed.data.target,
        "groups": list(fed.data.groups),
        "features": list(fed.data.features),
        "fingerprint": fed.fingerprint,
    }


# -- reading back ------------------------------------------------------------------------------------------------------


@overload
def load_split(folder: "str | os.PathLike[str]") -> Federation: ...


@overload
def load_split(folder: "str | os.PathLike[str]", client: int | str) -> Dataset: ...


def load_split(
    folder: "str | os.PathLike[str]", client: int | str | None = None
) -> "Federation | Dataset":
    """Read what ``fedskew split`` wrote: the whole split or, given a ``client``, that client's data set.

    A client's data set has its rows for training and, for test, the rows that it holds out or else the test rows of
    the split. Its labels are numbered and its features encoded as those of all clients are. From arrays (``--npz``)
    that takes the client's own file, split.json and test.npz only; from the other formats it takes all files.

    Args:
        folder: the folder of ``--out``
        client: number of a client, from 0, or its name
    """
    place = Path(folder)
    record = _read_record(place)
    if client is None:
        return _whole_split(place, record)
    number = _number_of(place, record, client)
    if record["files"] == "arrays":
        return _one_client(place, record, number)
    fed = _whole_split(place, record)
    train = fed.train.take(np.sort(fed.partition.of(number)))
    test = fed.test
    if fed.held_out is not None:
        test = fed.train.take(np.sort(fed.held_out.of(number)))
    return _of_client(fed.data, train, test, number)


def _number_of(place: Path, record: Mapping[str, Any], client: int | str) -> int:
    """Return the number of a client that is given by number or name; an error if there is none."""
    if isinstance(client, str):
        names = record.get("names", ())
        if client not in names:
            raise unknown(f"client of {place}", client, names)
        return int(names.index(client))
    if not 0 <= client < record["clients"]:
        raise FedskewError(
            f"{place} has no client {client}: the clients are 0 … {record['clients'] - 1}"
        )
    return client


def _whole_split(place: Path, record: Mapping[str, Any]) -> Federation:
    """Return the split of all clients; an error if its rows are not those that were written."""
    partition, held_out, where = _read_partition(place / PARTITION)
    data = _read_data(place, record, partition, held_out, where).with_bins(record.get("bins"))
    fed = Federation(data, partition, held_out)
    if fed.fingerprint != record["fingerprint"]:
        raise FedskewError(
            f"{place}: its rows are not those that were written: a file was changed, split again"
        )
    return fed


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    if not path.is_file():
        raise FedskewError(f"{folder} is not a folder that fedskew split wrote: it has no {RECORD}")
    record = read_split_record(folder)
    missing = set(_NEEDED) - set(record)
    if missing:
        raise FedskewError(f"{path} is damaged: it lacks {', '.join(sorted(missing))}")
    return record


def _names_of(record: Mapping[str, Any]) -> Names:
    return Names(record["clients"], record["ending"], tuple(record.get("names", ())))


def _read_partition(path: Path) -> tuple[Partition, Partition | None, tuple[Ints, Ints]]:
    """Return the partition, the held-out rows, and the numbers of the training and the test rows in the input."""
    partition = Partition.load(path)
    stored = read_npz(path)
    held_out = None
    if "held_out_rows" in stored:
        held_out = Partition(stored["held_out_rows"], stored["held_out_offsets"])
    return partition, held_out, (stored.get("train", _NONE), stored.get("test", _NONE))


def _read_data(
    folder: Path,
    record: Mapping[str, Any],
    partition: Partition,
    held_out: Partition | None,
    where: tuple[Ints, Ints],
) -> Dataset:
    choice = catalogue.choose(record["data"])
    kind = record["files"]
    if kind == "index":
        return read_origin(choice).data
    names = _names_of(record)
    train, test = where
    blank = Federation(_nothing(record, len(train)), partition, held_out)
    numbered = dict(_files(names, Origin(blank.data, choice, train, test), blank, kind))
    if kind != "arrays" and len(test):
        numbered[names.test] = test
    joined = _joined(folder, choice, kind, numbered)
    order = np.unique(np.concatenate(list(numbered.values())), return_index=True)[1]
    if kind == "arrays":
        test_rows = _test_rows(folder, record, joined)
        return replace(blank.data, train=joined.rows(order), test=test_rows)
    with TemporaryDirectory() as scratch:
        file = Path(scratch, f"data{record['ending']}")
        joined.write(file, order)
        options: dict[str, Any] = {**choice.options, "path": str(file)}
        if record["test"] and not len(test):
            options["test_path"] = str(folder / record["test"])
        data = read_origin(Choice(choice.name, options)).data
    return replace(data, name=record["name"])


def _joined(folder: Path, choice: Choice, kind: str, numbered: Mapping[str, Ints]) -> Any:
    """Return the rows of all files, each of which must have as many as were written."""
    parts = []
    for name, rows in numbered.items():
        part = _open(kind, folder / name, choice)
        if len(part) != len(rows):
            raise FedskewError(
                f"{folder / name} has {len(part)} rows, but {len(rows)} were written: split again"
            )
        parts.append(part)
    return type(parts[0]).join(parts)


def _nothing(record: Mapping[str, Any], rows: int) -> Dataset:
    """Return the data set without its features."""
    classes = tuple(record["classes"])
    groups = tuple(record["groups"])
    features = tuple(record["features"])
    target = record.get("target_kind", "class")  # a folder of an older version has classes
    y: Targets = np.zeros(rows, dtype=np.int64)
    if target == "labels":
        y = np.zeros((rows, len(classes)), dtype=np.uint8)
    elif target == "number":
        y = np.zeros(rows, dtype=np.float32)
    elif target == "numbers":
        y = np.zeros((rows, len(classes)), dtype=np.float32)
    elif target == "tokens":
        y = np.zeros((rows, 1), dtype=np.int64)
    empty = Rows(np.zeros((rows, 1), dtype=np.float32), y)
    return Dataset(
        record["name"], empty, empty.take(_NONE), classes, groups=groups, features=features
    )


def _test_rows(folder: Path, record: Mapping[str, Any], like: Stack) -> Rows:
    if record["test"] is None:
        return like.rows(_NONE)
    stored = Stack.read(folder / record["test"])
    return stored.rows(np.arange(len(stored)))


def _one_client(folder: Path, record: Mapping[str, Any], client: int) -> Dataset:
    names = _names_of(record)
    stored = Stack.read(folder / names.client(client))
    train = stored.rows(np.arange(len(stored)))
    file = folder / names.client(client, "-test")
    if file.exists():
        held_out = Stack.read(file)
        test = held_out.rows(np.arange(len(held_out)))
    else:
        test = _test_rows(folder, record, stored)
    return _of_client(_nothing(record, 1), train, test, client)


def _of_client(data: Dataset, train: Rows, test: Rows, client: int) -> Dataset:
    return replace(data, name=f"{data.name}, client {client}", train=train, test=test)
