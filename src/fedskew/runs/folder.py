"""The run folder: configuration, growing tables, checkpoints, final weights.

It survives a kill or a power failure at any moment: files that are needed later are flushed to disk, with their
folders, and then listed with size and checksum in a manifest that is written last.
"""

import csv
import hashlib
import io
import json
import math
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.lock import locked
from fedskew.core.manifest import Digest, manifest, read_manifest
from fedskew.core.plugins import imported
from fedskew.core.writing import sync, write_atomically, writing

if TYPE_CHECKING:  # a command that only reads a folder starts without NumPy
    from fedskew.core.streams import Floats, Ints
    from fedskew.data.partition import Partition

Row = dict[str, Any]

CONFIG, ENVIRONMENT, PARTITION = "config.toml", "environment.json", "partition.npz"
NODES = "nodes"  # folder in which simulated nodes keep the state of their clients
OF_NODES = "nodes.json"  # the number of a run among nodes on other machines, and the names of these
# How new data become features, the names of the classes and of the clients
PIPELINE = "pipeline.json"
ROUNDS, CLIENTS, TIMING = "rounds.csv", "clients.csv", "timing.csv"
FINAL_CLIENTS = "clients_final.csv"
UNSEEN_CLIENTS = "clients_unseen.csv"  # of clients that took no part in training
MODEL, SUMMARY, PAGE = "model.safetensors", "summary.json", "report.html"
EVENTS = "events.jsonl"  # what happened in a run on nodes, one line an event
APP, RUN = "app", "run"  # in the folder of a deployment
GROUP = "group.json"  # the runs of a comparison, in the folder around them
CONFUSION, OWN_CONFUSION, CLASSES = "confusion.csv", "confusion_own.csv", "classes.csv"
CLIENT_CLASSES = "client_classes.csv"
THRESHOLDS = "thresholds.json"
START, FINAL = "start.json", "final.json"  # manifests of what was written at first and at last
# A folder with two files for each of the last checkpoints, named by their round
CHECKPOINTS = "checkpoints"
JOURNAL = "clients"  # a folder of numbered files that go with the checkpoints
# The format of a run folder; 1 had one checkpoint.safetensors and no checksums, 2 had other names in its checkpoints
FORMAT = 3
_FORMATS = range(2, FORMAT + 1)  # those with manifests
TABLES = (ROUNDS, CLIENTS, TIMING)
_LINES = 100_000  # lines of a table that are converted at a time
_END = 2**16  # bytes at the end of a table that are read first to find its last rows
NAME = "name"  # the only column of a table that holds text: the client's


def resume_command(path: Path, imports: Sequence[str] | None = None) -> str:
    """Return the command that resumes a run, with what it is to import; by default what was imported here.

    A run of a comparison is resumed with all others of it.
    """
    if (path.parent / GROUP).is_file():
        path = path.parent
    if imports is None:
        imports = [code.source for code in imported()]
    words = ["fedskew"]
    for source in imports:
        words.append(f"--import {shlex.quote(source)}")
    return " ".join([*words, "resume", shlex.quote(str(path))])


class TakenError(FedskewError):
    """Raised if a folder that should be new exists."""


def must_be_new(path: Path) -> None:
    """Raise an error if the folder exists: a run never changes existing files."""
    with writing(path):
        taken = path.exists()
    if taken:
        raise TakenError(
            f"{path} exists already: resume it ({resume_command(path)}), remove it or choose another"
        )


@contextmanager
def new_folder(path: Path, patience: float = 0.1) -> Iterator[Path]:
    """Create a folder that is complete when it appears: fill the one given, which is then renamed.

    Where another process creates it, an error comes after ``patience`` seconds, or when the folder is there.
    """
    must_be_new(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), locked(path, path.parent / f".{path.name}.lock", patience):
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            yield part
            part.chmod(0o755)
            for inner in [*part.rglob("*"), part]:
                sync(inner)
            must_be_new(path)  # another process may have created it in the meantime
            part.rename(path)
            sync(path.parent)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


def to_json(content: Any, indent: int | None = None) -> str:
    """Return strict JSON: NaN and infinity become null."""
    try:
        return json.dumps(content, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(content), indent=indent)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def matrix_to_csv(matrix: "Ints", names: Sequence[str]) -> bytes:
    """Return a confusion matrix as CSV, with the names of the classes: true ones down, predicted ones across."""
    return counts_to_csv("true/predicted", names, names, matrix)


def matrix_from_csv(path: Path) -> tuple[list[str], list[list[int]]]:
    """Return the names of the classes and the counts of a confusion matrix."""
    _, _, names, counts = counts_from_csv(path)
    return names, counts


def counts_to_csv(corner: str, down: Sequence[str], across: Sequence[str], counts: "Ints") -> bytes:
    """Return a matrix of counts as CSV, with the names of its rows and columns; ``corner`` says what both are."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([corner, *across])
    for name, row in zip(down, counts.tolist(), strict=True):
        lines.writerow([name, *row])
    return text.getvalue().encode()


def counts_from_csv(path: Path) -> tuple[str, list[str], list[str], list[list[int]]]:
    """Return what ``counts_to_csv`` wrote."""
    with reading(path), path.open(encoding="utf-8", newline="") as file:
        first, *lines = csv.reader(file)
        down, counts = [], []
        for name, *row in lines:
            down.append(name)
            counts.append([int(count) for count in row])
    return first[0], down, first[1:], counts


def _column_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of the columns, which all rows share."""
    from fedskew.topology.client_table import ClientTable

    if isinstance(rows, ClientTable):
        return list(rows.columns)
    return list(rows[0])


def to_csv(rows: Sequence[Row], header: bool) -> bytes:
    """Return rows as CSV; all have the same columns."""
    from fedskew.topology.client_table import ClientTable

    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=_column_names(rows), lineterminator="\n")
    if header:
        table.writeheader()
    if isinstance(rows, ClientTable):
        for line in rows.lines():
            text.write(f"{line}\n")
    else:
        table.writerows(rows)
    return text.getvalue().encode()


class CheckpointFiles:
    """The files of a run's checkpoints: for each the state and a manifest, and the journal of what clients keep.

    Args:
        folder: the folder of the run
        then: the end of an error that a file cannot be written: what to do once that is mended
    """

    def __init__(self, folder: Path, then: str) -> None:
        self._folder = folder
        self._then = then

    def rounds(self) -> list[int]:
        """Return the rounds with checkpoints, the latest first."""
        rounds = []
        for path in (self._folder / CHECKPOINTS).glob("*.json"):
            match = re.fullmatch(r"(\d+)\.json", path.name)
            if match:
                rounds.append(int(match[1]))
        return sorted(rounds, reverse=True)

    def state(self, round: int) -> Path:
        """Return the path of a checkpoint's state."""
        return self._folder / CHECKPOINTS / f"{round:08d}.safetensors"

    def manifest(self, round: int) -> Path:
        """Return the path of a checkpoint's manifest."""
        return self._folder / CHECKPOINTS / f"{round:08d}.json"

    def needed(self, round: int) -> dict[str, Digest]:
        """Return the digests of all files that a checkpoint needs."""
        files: dict[str, Digest] = read_manifest(self.manifest(round), _FORMATS)["files"]
        return files

    def last(self) -> Row:
        """Return the round of the last checkpoint, and the digest of its manifest."""
        round = self.rounds()[0]
        return {"round": round, **vars(Digest.of(self.manifest(round).read_bytes()))}

    def journal(self, number: int) -> Path:
        """Return the path of the journal's file of this number."""
        return self._folder / JOURNAL / f"{number:08d}.safetensors"

    def write(self, path: Path, content: bytes) -> None:
        """Write one of these files; its folder is created if needed."""
        with writing(path, self._then):
            if not path.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                sync(self._folder)
        write_atomically(path, content, self._then)

    def remove_others(self, folder: str, kept: set[str], suffix: str) -> None:
        """Remove numbered files of a kind except these, and incomplete files of a killed run."""
        for path in (self._folder / folder).glob(f"*.{suffix}*"):
            if re.fullmatch(rf"\d+\.{suffix}(\.part)?", path.name) and path.name not in kept:
                with writing(path, self._then):
                    path.unlink(missing_ok=True)


class RunFolder:
    """One run on disk; ``checkpoints`` are the files of its checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._then = f", then resume with: {resume_command(path)}"
        self.checkpoints = CheckpointFiles(path, self._then)
        self._grown: dict[str, Any] = {}  # length and SHA-256 of each table that was written to

    @classmethod
    def create(
        cls,
        path: Path,
        config: str,
        environment: Mapping[str, Any],
        partition: "Partition",
        pipeline: Mapping[str, Any] | None = None,
        nodes: Mapping[str, Any] | None = None,
    ) -> "RunFolder":
        """Create the folder of a new run, with everything that is known before its first round.

        ``nodes`` says how its nodes are recognised, if its clients are on machines of their own.
        """
        with new_folder(path) as part:
            (part / CONFIG).write_text(config, encoding="utf-8")
            (part / ENVIRONMENT).write_text(to_json(environment, indent=2) + "\n", encoding="utf-8")
            partition.save(part / PARTITION)
            if pipeline is not None:
                (part / PIPELINE).write_text(
                    json.dumps(pipeline, indent=1) + "\n", encoding="utf-8"
                )
            if nodes is not None:
                (part / OF_NODES).write_text(to_json(nodes, indent=2) + "\n", encoding="utf-8")
            written = {}
            for file in sorted(part.iterdir()):
                written[file.name] = Digest.of(file.read_bytes())
            (part / START).write_bytes(manifest(written, FORMAT))
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open an existing run."""
        if not (path / CONFIG).is_file():
            raise FedskewError(
                f"{path} is not a run folder: it has no {CONFIG}; name a folder such as runs/NAME"
            )
        return cls(path)

    def environment(self) -> Row:
        """Return the recorded environment of the run's start; raise an error for a folder of another format."""
        recorded = self.read_json(ENVIRONMENT)
        version = recorded.get("format", 1)
        if version != FORMAT:
            raise FedskewError(
                f"{self.path} has the format {version}, and this version of fedskew resumes runs of format "
                f"{FORMAT} only: "
                "finish it with the version that began it, or start a new run (fedskew.open_run reads finished ones)"
            )
        return recorded

    def verify_start(self, force: bool = False) -> None:
        """Raise an error if configuration, environment or partition were changed.

        With ``force`` the first two may be changed.
        """
        files = self.manifest(START)["files"]
        if force:
            for name in (CONFIG, ENVIRONMENT):
                files.pop(name, None)
        try:
            self.verify(files)
        except FedskewError as problem:
            raise FedskewError(f"{problem}: put it back, or start a new run") from None

    def manifest(self, name: str) -> dict[str, Any]:
        """Return the content of a manifest; raise an error if it was changed."""
        return read_manifest(self.path / name, _FORMATS)

    @property
    def finished(self) -> bool:
        """Return whether the run is finished."""
        return (self.path / SUMMARY).is_file()

    def append(self, name: str, rows: Sequence[Row]) -> None:
        """Append rows to a table; the header is written first."""
        path = self.path / name
        begun = path.exists()
        if begun and self.header(name) != _column_names(rows):
            raise FedskewError(
                f"{path} has other columns than this version of fedskew writes: finish the run with the version that "
                "began it, or start a new run"
            )
        content = to_csv(rows, header=not begun)
        with writing(path, self._then), path.open("ab") as file:
            file.write(content)
        length, running = self._grown.get(name, (0, hashlib.sha256()))
        running.update(content)
        self._grown[name] = length + len(content), running

    def table(self, name: str, growing: bool = False) -> list[Row]:
        """Return the rows of a table, with numbers as numbers.

        While it is ``growing``, a last line that was written in part is left out; otherwise it is damage.
        """
        path = self.path / name
        if not path.exists():
            return []
        try:
            content = path.read_bytes()
            if growing:
                return _rows(_complete(content))
            return _rows(content.decode())
        except ValueError as problem:
            raise FedskewError(
                f"{path} is damaged: {problem}; the run must be started again in another folder"
            ) from None

    def last_rows(self, name: str, round: int) -> list[Row]:
        """Return the rows of a growing table from this round on; of a long table only the end is read."""
        path = self.path / name
        if not path.exists():
            return []
        size, length = _END, path.stat().st_size
        while size < length:
            with path.open("rb") as file:
                file.seek(-size, os.SEEK_END)
                _, _, tail = file.read().partition(b"\n")
            with suppress(ValueError, TypeError):  # a name of several lines may be cut in two
                rows = _rows(_complete(tail), self.header(name))
                if rows and rows[0]["round"] < round:
                    return _from_round(rows, round)
            size *= 8
        return _from_round(self.table(name, growing=True), round)

    def stream(self, name: str, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the rows of a table with these columns only, for tables larger than memory."""
        with (self.path / name).open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            header = next(lines)
            places = [(column, header.index(column)) for column in columns]
            for line in lines:
                yield {column: _value(line[place]) for column, place in places}

    def header(self, name: str) -> list[str]:
        """Return the names of the columns of a table."""
        path = self.path / name
        with reading(path), path.open(encoding="utf-8", newline="") as file:
            return next(csv.reader(file))

    def columns(self, name: str, columns: Sequence[str]) -> "dict[str, Floats]":
        """Return columns of numbers, NaN where a cell is empty; faster than rows."""
        import numpy as np

        path = self.path / name
        places = [self.header(name).index(column) for column in columns]
        parts: list[Floats] = [np.zeros((0, len(places)))]
        with reading(path), path.open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            next(lines)
            while True:
                cells = []
                for line in islice(lines, _LINES):
                    cells.append([line[place] or "nan" for place in places])
                if not cells:
                    break
                parts.append(np.array(cells, dtype=np.float64))
        whole = np.concatenate(parts)
        return {column: whole[:, i] for i, column in enumerate(columns)}

    def cut_back(self, lengths: Mapping[str, Digest]) -> None:
        """Truncate the tables to a checkpoint, incomplete last lines included."""
        for name in TABLES:
            path = self.path / name
            digest = lengths.get(name, Digest.of(b""))
            if not path.exists():
                continue
            if not digest.size:
                with writing(path, self._then):
                    path.unlink()
            elif path.stat().st_size > digest.size:
                with writing(path, self._then), path.open("r+b") as file:
                    file.truncate(digest.size)
                    os.fsync(file.fileno())
        self._grown = {}
        for name in TABLES:
            if (self.path / name).exists():
                content = (self.path / name).read_bytes()
                self._grown[name] = len(content), hashlib.sha256(content)

    def sync_tables(self) -> dict[str, Digest]:
        """Flush the tables to disk, and return their digests."""
        for name in self._grown:
            with writing(self.path / name, self._then):
                sync(self.path / name)
        digests = {}
        for name, (length, running) in self._grown.items():
            digests[name] = Digest(length, running.hexdigest())
        return digests

    def verify(self, files: Mapping[str, Digest]) -> None:
        """Raise an error for a file that was changed; tables may have grown since."""
        for name, digest in files.items():
            path = self.path / name
            size = -1  # the whole file
            if name in TABLES:
                size = digest.size
            try:
                with path.open("rb") as file:
                    content = file.read(size)
            except FileNotFoundError:
                raise FedskewError(f"{path} is gone") from None
            if Digest.of(content) != digest:
                raise FedskewError(f"{path} is damaged: its content is not what was written")

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file."""
        write_atomically(self.path / name, content, self._then)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a mapping as JSON."""
        self.write(name, (to_json(content, indent=2) + "\n").encode())

    def read_json(self, name: str) -> Row:
        """Return what ``write_json`` wrote."""
        try:
            content: Row = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise FedskewError(f"{self.path / name} cannot be read: {problem}") from None
        if not isinstance(content, dict):
            raise FedskewError(f"{self.path / name} cannot be read: it holds no table of values")
        return content


def _complete(content: bytes) -> str:
    """Return the complete lines of a growing file: a last line that was written in part is left out."""
    return content[: content.rfind(b"\n") + 1].decode()


def _rows(text: str, names: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a table; its first line has the names of the columns, unless they are given."""
    lines = csv.DictReader(io.StringIO(text, newline=""), fieldnames=names)
    rows: list[Row] = []
    for line in lines:
        row: Row = {}
        for key, value in line.items():
            if key == NAME:
                row[key] = value
            else:
                row[key] = _value(value)
        rows.append(row)
    return rows


def _from_round(rows: Sequence[Row], round: int) -> list[Row]:
    return [row for row in rows if row["round"] >= round]


def _value(text: str | None) -> Any:
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        return float(text)
