"""Loading a data set by its name or path, listing the known ones, and checking one."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice, parse
from fedskew.data.dataset import Dataset, Split, datasets
from fedskew.data.pickled_splits import refuse_pickled
from fedskew.data.readers.csv_format import OPTIONS
from fedskew.data.readers.leaf import json_files
from fedskew.data.readers.silo_files import holds_tables, is_pattern
from fedskew.data.source import sources

_BY_ENDING = {".csv": "csv", ".csv.gz": "csv", ".parquet": "parquet", ".npz": "npz"}


def choose(spec: str | Mapping[str, Any] | Choice) -> Choice:
    """Return the validated choice of a data set; a file or folder name selects the reader of its kind.

    >>> str(choose("my.csv:label=y,drop=id+time"))
    'csv:path=my.csv,label=y,drop=id+time'
    """
    if isinstance(spec, str):
        spec = parse(spec, datasets.kind)
    if isinstance(spec, Choice):
        spec = {"name": spec.name, **spec.options}
    if isinstance(spec, Mapping):
        spec = _with_reader(spec)
    return datasets.choose(spec)


def _with_reader(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table with the reader as its name, if its name is a path."""
    path = spec.get("name")
    if not isinstance(path, str) or path in datasets:
        return spec
    reader = _reader_of(path, "label" in spec)
    if not reader:
        return spec
    if "path" in spec:
        raise FedskewError(f"{path} is a path already; leave out path={spec['path']}")
    read: dict[str, Any] = {"name": reader}
    if reader == "silos":
        read["paths"] = (path,)
    else:
        read["path"] = path
    for key, value in spec.items():
        if key != "name":
            read[key] = value
    return read


def together(specs: Sequence[str]) -> str | dict[str, Any]:
    """Return several files, patterns or folders as one choice, with the options of all of them: one client per file.

    How a file is written is an option of that file alone.

    >>> together(["a.csv:label=y", "b.csv:separator=tab"])
    {'name': 'silos', 'paths': ('a.csv', 'b.csv:separator=tab'), 'label': 'y'}
    """
    if len(specs) == 1:
        return specs[0]
    parts = [parse(spec, datasets.kind) for spec in specs]
    options: dict[str, Any] = {}
    paths = []
    for spec, part in zip(specs, parts, strict=True):
        if part.name in datasets:
            raise FedskewError(
                f"--data {spec}: several --data are files of clients, and {part.name} is a data set"
            )
        paths.append(part.name)
        for key, value in part.options.items():
            if key in OPTIONS:
                paths[-1] += f":{key}={value}"
            elif options.setdefault(key, value) != value:
                raise FedskewError(
                    f"--data {spec}: {key}={value} here and {key}={options[key]} before: all files have the same "
                    "options, and giving them once is enough"
                )
    return {"name": "silos", "paths": tuple(paths), **options}


def _reader_of(path: str, labelled: bool) -> str | None:
    """Return what reads a path; a folder whose label is a column holds tables."""
    with suppress(OSError, RuntimeError):  # an impossible file name, or an unknown home folder
        if is_pattern(path):
            return "silos"
    with suppress(OSError, RuntimeError):
        refuse_pickled(Path(path).expanduser())
    for ending, reader in _BY_ENDING.items():
        if path.lower().endswith(ending):
            return reader
    with suppress(OSError, RuntimeError):
        folder = Path(path).expanduser()
        if folder.is_dir():
            return _reader_of_folder(folder, labelled)
    return None


def _reader_of_folder(folder: Path, labelled: bool) -> str:
    """Return what reads a folder, by what is in it."""
    if (folder / "x.npy").exists():
        return "npy"
    if labelled or holds_tables(folder):
        return "silos"
    if json_files(folder / "train"):
        return "leaf"
    return "images"


def load(
    spec: str | Mapping[str, Any] | Choice, *, validation: float = 0.0, seed: int = 0
) -> Dataset:
    """Read a data set: ``load("digits")``, ``load("csv:path=my.csv,label=y")``, ``load("my.csv:label=y")``.

    Args:
        spec: a name with options (text or table), or a path: .csv, .parquet, .npz, a pattern for several
            of them or a folder of them (one client per file), a folder of images,
            or a folder with x.npy and y.npy
        validation: share of the training rows to hold out, drawn before anything is fitted
        seed: seed of that choice

    >>> data = load("digits", validation=0.25)
    >>> len(data.train), len(data.validation), len(data.test), data.shape
    (1079, 359, 359, (1, 8, 8))
    """
    if not 0 <= validation < 1:
        raise FedskewError(
            f"a validation share of {validation:g} is out of range, it must be >= 0 and < 1"
        )
    choice = choose(spec)
    read = datasets.get(choice.name)(**choice.options)
    if isinstance(read, Dataset):
        data = replace(read, name=str(choice))
        if validation:
            return data.hold_out(validation, seed)
        return data
    split = None
    if validation:
        split = Split("validation", validation, seed)
    return read.build(str(choice), split)


@dataclass(frozen=True)
class Entry:
    """A known data set as ``fedskew data list`` shows it."""

    name: str
    summary: str
    state: Literal["present", "partly", "missing", "own"]  # own: a reader of the user's files
    fetchable: bool
    licence: str


def listing() -> list[Entry]:
    """Return all data sets and readers, by name."""
    return [_entry(name) for name in datasets]


def _entry(name: str) -> Entry:
    source = sources.get(name)
    if source is None:
        return Entry(name, datasets.summary(name), "own", False, "")
    missing = source.missing()
    state: Literal["present", "partly", "missing"] = "present"
    if missing:
        state = "partly"
    if missing and len(missing) == len(source.files):
        state = "missing"
    return Entry(name, datasets.summary(name), state, bool(source.downloads), source.licence)


@dataclass(frozen=True)
class Facts:
    """The content of a data set, as ``fedskew data check`` shows it."""

    name: str
    licence: str
    rows: dict[str, int]  # part -> rows
    shape: tuple[int, ...]
    classes: dict[str, int]  # class, or label -> training rows; empty where targets are numbers
    groups: int
    notes: tuple[str, ...]
    # Client -> training rows, where the data has clients
    clients: dict[str, int] = field(default_factory=dict)
    differences: tuple[str, ...] = ()  # between the clients
    doubts: tuple[str, ...] = ()  # about how files were understood


def check(spec: str | Mapping[str, Any] | Choice) -> Facts:
    """Load a data set and return what is in it; raise an error for whatever is wrong with it."""
    data = load(spec)
    source = sources.get(choose(spec).name)
    licence = ""
    if source is not None:
        licence = source.licence
    y = data.train.y
    classes: dict[str, int] = {}
    notes = data.notes
    if data.target == "class":
        counts = np.bincount(y, minlength=len(data.classes))
        classes = dict(zip(data.classes, counts.tolist(), strict=True))
    elif data.target == "labels":
        classes = dict(zip(data.classes, y.sum(0).tolist(), strict=True))
    elif data.target == "number":
        spread = f"the target is a number from {y.min():g} to {y.max():g}, mean {y.mean():g}"
        notes = (spread, *notes)
    return Facts(
        name=data.name,
        licence=licence,
        rows={"train": len(data.train), "test": len(data.test)},
        shape=data.shape,
        classes=classes,
        groups=len(data.groups),
        notes=notes,
        clients={silo.name: silo.rows for silo in data.silos},
        differences=data.differences,
        doubts=data.doubts,
    )
