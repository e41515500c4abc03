"""The run folder: configuration, tables written as they grow, checkpoint, final weights; it survives a kill at any time."""

import csv
import errno
import io
import json
import math
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedskew.errors import FedskewError
from fedskew.skew.partition import Partition

Row = dict[str, Any]

CONFIG, ENVIRONMENT, PARTITION = "config.toml", "environment.json", "partition.npz"
ROUNDS, CLIENTS, TIMING, FINAL_CLIENTS = "rounds.csv", "clients.csv", "timing.csv", "clients_final.csv"
CHECKPOINT, MODEL, SUMMARY, PICTURE = "checkpoint.safetensors", "model.safetensors", "summary.json", "picture.png"
JOURNAL = "clients"  # a folder of numbered files that go with the checkpoint


def resume_command(path: Path) -> str:
    """What to type to go on with a run."""
    return f"fedskew resume {shlex.quote(str(path))}"


def must_be_new(path: Path) -> None:
    """Refuse a folder that exists: a run never touches what is there."""
    with writing(path):
        taken = path.exists()
    if taken:
        raise FedskewError(f"{path} exists already: go on with it ({resume_command(path)}), remove it or choose another")


@contextmanager
def writing(path: Path, then: str = "") -> Iterator[None]:
    """Turn the operating system's refusals into errors that say what to do, and what ``then``."""
    try:
        yield
    except OSError as problem:
        advice = {
            errno.ENOSPC: "the disk is full: free some space",
            errno.EDQUOT: "the disk quota is used up: free some space",
            errno.EACCES: "permission denied: choose a folder you may write to with --folder",
            errno.EPERM: "not permitted: choose a folder you may write to with --folder",
            errno.EROFS: "the file system is read-only: choose another folder with --folder",
            errno.ENOTDIR: "a part of the path is a file: choose another folder with --folder",
            errno.EEXIST: "a part of the path is a file: choose another folder with --folder",
        }.get(problem.errno or 0, problem.strerror or str(problem))
        raise FedskewError(f"cannot write {path}: {advice}{then}") from problem


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that is complete from the moment it exists: fill the one given, it is then put in place."""
    must_be_new(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            yield part
            part.chmod(0o755)
            part.rename(path)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


def write_atomically(path: Path, content: bytes, then: str = "") -> None:
    """All of it or nothing: a new file beside the old one takes its place."""
    part = path.with_name(path.name + ".part")
    with writing(path, then):
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def to_json(content: Any, indent: int | None = None) -> str:
    """JSON that every parser takes: NaN and infinity, which JSON does not have, become null."""
    return json.dumps(_finite(content), indent=indent)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._then = f", then go on with: {resume_command(path)}"

    @classmethod
    def create(cls, path: Path, config: str, environment: Mapping[str, Any], partition: Partition) -> "RunFolder":
        """A new run, with all that is known before its first round."""
        with new_folder(path) as part:
            (part / CONFIG).write_text(config, encoding="utf-8")
            (part / ENVIRONMENT).write_text(to_json(environment, indent=2) + "\n", encoding="utf-8")
            partition.save(part / PARTITION)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run."""
        if not (path / CONFIG).is_file():
            raise FedskewError(f"{path} is not a run folder: it has no {CONFIG}; name a folder such as runs/NAME")
        return cls(path)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / SUMMARY).is_file()

    def append(self, name: str, rows: list[Row]) -> None:
        """Add lines to a table; the header is written with the first."""
        path = self.path / name
        text = io.StringIO()
        table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        if not path.exists():
            table.writeheader()
        table.writerows(rows)
        with writing(path, self._then), path.open("a", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())

    def table(self, name: str) -> list[Row]:
        """The lines of a table, with numbers as numbers."""
        path = self.path / name
        if not path.exists():
            return []
        try:
            lines = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
            return [{key: _value(value) for key, value in row.items()} for row in lines]
        except ValueError as problem:
            raise FedskewError(f"{path} is damaged: {problem}; the run must be started again in another folder") from None

    def trim(self, name: str, last_round: int) -> list[Row]:
        """Drop what was written after the checkpoint at ``last_round``, torn last line included; returns what remains."""
        path = self.path / name
        if path.exists():
            text = path.read_text(encoding="utf-8", errors="replace")
            header, *lines = text[: text.rfind("\n") + 1].splitlines(keepends=True) or [""]
            kept = [line for line in lines if _round_of(line) <= last_round]
            if not header:
                path.unlink()
            elif len(kept) < len(lines) or not text.endswith("\n"):
                write_atomically(path, "".join([header, *kept]).encode(), self._then)
        return self.table(name)

    def save_checkpoint(self, content: bytes) -> None:
        """Replace the checkpoint."""
        self.write(CHECKPOINT, content)

    def load_checkpoint(self) -> bytes | None:
        """The last checkpoint, if there is one."""
        path = self.path / CHECKPOINT
        return path.read_bytes() if path.exists() else None

    def journal(self, number: int) -> Path:
        """Where the journal has its file of this number."""
        return self.path / JOURNAL / f"{number:08d}.safetensors"

    def write_journal(self, number: int, content: bytes) -> None:
        """Write a file of the journal; its folder is made for the first."""
        path = self.journal(number)
        with writing(path, self._then):
            path.parent.mkdir(exist_ok=True)
        write_atomically(path, content, self._then)

    def trim_journal(self, kept: range) -> None:
        """Remove the journal's files but those with these numbers, and what a killed run left half written."""
        for path in (self.path / JOURNAL).glob("*.safetensors*"):
            found = re.fullmatch(r"(\d+)\.safetensors(\.part)?", path.name)
            if found and (found[2] or int(found[1]) not in kept):
                with writing(path, self._then):
                    path.unlink()

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole."""
        write_atomically(self.path / name, content, self._then)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a mapping as JSON."""
        self.write(name, (to_json(content, indent=2) + "\n").encode())

    def read_json(self, name: str) -> Row:
        """What ``write_json`` wrote."""
        try:
            content: Row = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise FedskewError(f"{self.path / name} cannot be read: {problem}") from None
        return content


def _round_of(line: str) -> int:
    """The round in the first column; 0 for a damaged line, which then stays to be complained about."""
    number = line.partition(",")[0]
    return int(number) if number.isdecimal() else 0


def _value(text: str | None) -> Any:
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        return float(text)
