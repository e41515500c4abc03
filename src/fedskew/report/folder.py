"""The run folder: configuration, tables written as they grow, checkpoint, final weights; it survives a kill at any time."""

import csv
import errno
import io
import json
import os
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


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into errors that say what to do."""
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
        }.get(problem.errno or 0, problem.strerror or str(problem))
        raise FedskewError(f"cannot write {path}: {advice}") from problem


def write_atomically(path: Path, content: bytes) -> None:
    """All of it or nothing: a new file beside the old one takes its place."""
    part = path.with_name(path.name + ".part")
    with writing(path):
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: str, environment: Mapping[str, Any], partition: Partition) -> "RunFolder":
        """A new folder, complete from the moment it exists; an existing one is never touched."""
        if path.exists():
            raise FedskewError(
                f"{path} exists already: go on with it (fedskew resume {path}), remove it or choose another folder"
            )
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
            try:
                (part / CONFIG).write_text(config, encoding="utf-8")
                (part / ENVIRONMENT).write_text(json.dumps(environment, indent=2) + "\n", encoding="utf-8")
                partition.save(part / PARTITION)
                part.chmod(0o755)
                part.rename(path)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run."""
        if not (path / CONFIG).is_file():
            raise FedskewError(f"{path} is not a run folder: it has no {CONFIG}")
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
        with writing(path), path.open("a", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())

    def table(self, name: str) -> list[Row]:
        """The lines of a table so far, with numbers as numbers; a last line cut short by a crash is left out."""
        path = self.path / name
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        return [{key: _value(value) for key, value in row.items()} for row in csv.DictReader(io.StringIO(whole, newline=""))]

    def trim(self, name: str, last_round: int) -> list[Row]:
        """Drop what was written after the checkpoint at ``last_round``; returns what remains."""
        rows = [row for row in self.table(name) if row["round"] <= last_round]
        path = self.path / name
        path.unlink(missing_ok=True)
        if rows:
            self.append(name, rows)
        return rows

    def save_checkpoint(self, content: bytes) -> None:
        """Replace the checkpoint."""
        write_atomically(self.path / CHECKPOINT, content)

    def load_checkpoint(self) -> bytes | None:
        """The last checkpoint, if there is one."""
        path = self.path / CHECKPOINT
        return path.read_bytes() if path.exists() else None

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole."""
        write_atomically(self.path / name, content)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a mapping as JSON."""
        self.write(name, (json.dumps(content, indent=2) + "\n").encode())


def _value(text: str | None) -> Any:
    if text is None or text == "":
        return None
    try:
        return int(text)
    except ValueError:
        return float(text)
