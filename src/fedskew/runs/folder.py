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
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.lock import locked
from fedskew.core.plugins import imported
from fedskew.core.streams import Floats, Ints
from fedskew.core.writing import sync, write_atomically, writing
from fedskew.data.partition import Partition
from fedskew.topology.client_table import ClientTable

Row = dict[str, Any]

CONFIG, ENVIRONMENT, PARTITION = "config.toml", "environment.json", "partition.npz"
NODES = "nodes"  # folder in which simulated nodes keep the state of their clients
OF_NODES = "nodes.json"  # the number of a run among nodes on other machines, and the names of these
# How new data become features, the names of the classes and of the clients
PIPELINE = "pipeline.json"
ROUNDS, CLIENTS, TIMING, FINAL_CLIENTS = (
    "rounds.csv",
    "clients.csv",
    "timing.csv",
    "clients_final.csv",
)
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
# Of a run folder; 1 had one checkpoint.safetensors and no checksums, 2 had other names in its checkpoints
FORMAT = 3
TABLES = (ROUNDS, CLIENTS, TIMING)
_LINES = 100_000  # that are converted at a time
_END = 2**16  # bytes of a table that are read first for its last rows
NAME = "name"  # the only column of a table that holds text: the client's


def resume_command(path: Path, imports: Sequence[str] | None = None) -> str:
    """Return the command that resumes a run, with what it is to import; by default what was imported here.

    A run of a comparison is resumed with all others of it.
    """
    path = path.parent if (path.parent / GROUP).is_file() else path
    sources = [one.source for one in imported()] if imports is None else imports
    return " ".join(
        [
            "fedskew",
            *(f"--import {shlex.quote(source)}" for source in sources),
            "resume",
            shlex.quote(str(path)),
        ]
    )


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
def new_folder(path: Path) -> Iterator[Path]:
    """Create a folder that is complete when it appears: fill the one given, which is then renamed."""
    must_be_new(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), locked(path, path.parent / f".{path.name}.lock"):
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


@dataclass(frozen=True)
class Digest:
    """The content of a file, or the beginning of a growing table: a number of bytes and their SHA-256."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> "Digest":
        """Return the digest of a whole file."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


def manifest(files: Mapping[str, Digest], format: int = FORMAT, **facts: Any) -> bytes:
    """Return files with their digests as JSON, with a checksum of that itself."""
    content = {
        "format": format,
        **facts,
        "files": {name: vars(digest) for name, digest in files.items()},
    }
    return (json.dumps({**content, "checksum": _checksum(content)}, indent=1) + "\n").encode()


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the content of a manifest, with ``files`` as digests; raise an error if it was changed."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] not in range(2, FORMAT + 1):
            raise FedskewError(
                f"{path} has the format {content['format']!r}, and this version of fedskew reads 2 to {FORMAT}: "
                "use the version that wrote it"
            )
        checksum = content.pop("checksum")
        content["files"] = {name: Digest(**digest) for name, digest in content["files"].items()}
        plain = {
            **content,
            "files": {name: vars(digest) for name, digest in content["files"].items()},
        }
        whole = (
            checksum == _checksum(plain)
            and manifest(content["files"], **_facts(content)) == path.read_bytes()
        )
    except FileNotFoundError:
        raise FedskewError(f"{path} is gone") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        if isinstance(problem, FedskewError):
            raise
        raise FedskewError(
            f"{path} is damaged: it is no manifest ({type(problem).__name__})"
        ) from None
    if not whole:
        raise FedskewError(f"{path} is damaged: its checksum is not that of its content")
    return dict(content)


def _facts(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != "files"}


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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


def matrix_to_csv(matrix: Ints, names: Sequence[str]) -> bytes:
    """A confusion matrix with the names of the classes: true ones down, predicted ones across."""
    return counts_to_csv("true/predicted", names, names, matrix)


def matrix_from_csv(path: Path) -> tuple[list[str], list[list[int]]]:
    """The names and the counts of a confusion matrix."""
    _, _, names, counts = counts_from_csv(path)
    return names, counts


def counts_to_csv(corner: str, down: Sequence[str], across: Sequence[str], counts: Ints) -> bytes:
    """A matrix of counts with the names of its rows and columns, and what both are."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([corner, *across])
    lines.writerows([name, *row] for name, row in zip(down, counts.tolist(), strict=True))
    return text.getvalue().encode()


def counts_from_csv(path: Path) -> tuple[str, list[str], list[str], list[list[int]]]:
    """Return what ``counts_to_csv`` wrote."""
    with reading(path), path.open(encoding="utf-8", newline="") as file:
        first, *lines = csv.reader(file)
        return (
            first[0],
            [line[0] for line in lines],
            first[1:],
            [[int(count) for count in line[1:]] for line in lines],
        )


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the names of the columns of rows, which all have the same."""
    return list(rows.columns if isinstance(rows, ClientTable) else rows[0])


def to_csv(rows: Sequence[Row], header: bool) -> bytes:
    """Return rows as CSV; all have the same columns."""
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=_names(rows), lineterminator="\n")
    if header:
        table.writeheader()
    if isinstance(rows, ClientTable):
        text.writelines(f"{line}\n" for line in rows.lines())
    else:
        table.writerows(rows)
    return text.getvalue().encode()


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._then = f", then resume with: {resume_command(path)}"
        self._grown: dict[str, Any] = {}  # length and SHA-256 of each table that was written to

    @classmethod
    def create(
        cls,
        path: Path,
        config: str,
        environment: Mapping[str, Any],
        partition: Partition,
        pipeline: Mapping[str, Any] | None = None,
        nodes: Mapping[str, Any] | None = None,
    ) -> "RunFolder":
        """Create a new run, with everything that is known before its first round, ``nodes`` of its clients included."""
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
            (part / START).write_bytes(manifest(written))
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
        found = self.read_json(ENVIRONMENT)
        version = found.get("format", 1)
        if version != FORMAT:
            raise FedskewError(
                f"{self.path} has the format {version}, and this version of fedskew resumes runs of format "
                f"{FORMAT} only: "
                "finish it with the version that began it, or start a new run (fedskew.open_run reads finished ones)"
            )
        return found

    def verify_start(self, force: bool = False) -> None:
        """Raise an error if configuration, environment or partition were changed.

        With ``force`` the first two may be changed.
        """
        files = read_manifest(self.path / START)["files"]
        changed = (CONFIG, ENVIRONMENT) if force else ()
        try:
            self.verify({name: digest for name, digest in files.items() if name not in changed})
        except FedskewError as problem:
            raise FedskewError(f"{problem}: put it back, or start a new run") from None

    @property
    def finished(self) -> bool:
        """Return whether the run is finished."""
        return (self.path / SUMMARY).is_file()

    def append(self, name: str, rows: Sequence[Row]) -> None:
        """Append rows to a table; the header is written first."""
        path = self.path / name
        begun = path.exists()
        if begun and self.header(name) != _names(rows):
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
            return _rows(_complete(content) if growing else content.decode())
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
                    return [row for row in rows if row["round"] >= round]
            size *= 8
        result: list[Row] = []
        for row in self.table(name, growing=True):
            if row["round"] >= round:
                result.append(row)
        return result

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

    def columns(self, name: str, columns: Sequence[str]) -> dict[str, Floats]:
        """Return columns of numbers, NaN where a cell is empty; faster than rows."""
        path = self.path / name
        places = [self.header(name).index(column) for column in columns]
        parts: list[Floats] = []
        with reading(path), path.open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            next(lines)
            while some := [
                [line[place] or "nan" for place in places] for line in islice(lines, _LINES)
            ]:
                parts.append(np.array(some, dtype=np.float64))
        if parts:
            whole = np.concatenate(parts)
        else:
            whole = np.zeros((0, len(places)))
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
        result: dict[str, Digest] = {}
        for name, (length, running) in self._grown.items():
            result[name] = Digest(length, running.hexdigest())
        return result

    def verify(self, files: Mapping[str, Digest]) -> None:
        """Raise an error for a file that was changed; tables may have grown since."""
        for name, digest in files.items():
            path = self.path / name
            try:
                with path.open("rb") as file:
                    content = file.read(digest.size if name in TABLES else -1)
            except FileNotFoundError:
                raise FedskewError(f"{path} is gone") from None
            if Digest.of(content) != digest:
                raise FedskewError(f"{path} is damaged: its content is not what was written")

    def checkpoint(self, round: int, suffix: str) -> Path:
        """Return the path of a checkpoint's state (``safetensors``) or manifest (``json``)."""
        return self.path / CHECKPOINTS / f"{round:08d}.{suffix}"

    def checkpoints(self) -> list[int]:
        """Return the rounds with checkpoints, the latest first."""
        found = (
            re.fullmatch(r"(\d+)\.json", path.name)
            for path in (self.path / CHECKPOINTS).glob("*.json")
        )
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def last_checkpoint(self) -> Row:
        """Return the round of the last checkpoint, and the digest of its manifest."""
        round = self.checkpoints()[0]
        return {"round": round, **vars(Digest.of(self.checkpoint(round, "json").read_bytes()))}

    def final_checkpoint(self) -> int:
        """Return the round of the checkpoint with which a finished run ended.

        Raise an error if it is gone or changed: the one before has older models of clients.
        """
        rounds = self.checkpoints()
        if not rounds:
            raise FedskewError(
                f"{self.path / CHECKPOINTS} is gone, and with it the clients' own models"
            )
        recorded = read_manifest(self.path / FINAL).get("checkpoint")
        if recorded is None:  # a version up to 0.2.0 wrote the folder
            if rounds[0] < self.read_json(SUMMARY)["rounds"]:
                raise FedskewError(
                    f"{self.path / CHECKPOINTS} lacks the checkpoint of the last round: put it back"
                )
            return rounds[0]
        round = int(recorded["round"])
        name = f"{CHECKPOINTS}/{round:08d}.json"
        try:
            self.verify({name: Digest(recorded["size"], recorded["sha256"])})
        except FedskewError as problem:
            raise FedskewError(
                f"{problem}: it names the models of clients after the last round, put it back"
            ) from None
        return round

    def write_inside(self, path: Path, content: bytes) -> None:
        """Write a file of a folder inside this one, which is created if needed."""
        with writing(path, self._then):
            if not path.parent.is_dir():
                path.parent.mkdir(exist_ok=True)
                sync(self.path)
        write_atomically(path, content, self._then)

    def remove_inside(self, folder: str, kept: set[str], suffix: str) -> None:
        """Remove numbered files of a kind except these, and incomplete files of a killed run."""
        for path in (self.path / folder).glob(f"*.{suffix}*"):
            if re.fullmatch(rf"\d+\.{suffix}(\.part)?", path.name) and path.name not in kept:
                with writing(path, self._then):
                    path.unlink(missing_ok=True)

    def journal(self, number: int) -> Path:
        """Return the path of the journal's file of this number."""
        return self.path / JOURNAL / f"{number:08d}.safetensors"

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
        return content


def _complete(content: bytes) -> str:
    """Return the lines of a growing file: the last one may have been written in part only."""
    return content[: content.rfind(b"\n") + 1].decode()


def _rows(text: str, names: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a table, the first of which has the names of its columns, unless they are given."""
    lines = csv.DictReader(io.StringIO(text, newline=""), fieldnames=names)
    result: list[Row] = []
    for row in lines:
        result.append({key: value if key == NAME else _value(value) for key, value in row.items()})
    return result


def _value(text: str | None) -> Any:
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        return float(text)
