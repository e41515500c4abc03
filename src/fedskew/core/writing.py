"""Writing files that are there completely or not at all, and errors that say what to do."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedskew.core.errors import FedskewError


@contextmanager
def writing(path: Path, then: str = "") -> Iterator[None]:
    """Turn errors of the operating system into errors with a fix; ``then`` says what to do after it."""
    try:
        yield
    except OSError as problem:
        advice = {
            errno.ENOSPC: "the disk is full: free some space",
            errno.EDQUOT: "the disk quota is used up: free some space",
            errno.EACCES: "permission denied: choose a folder you may write to",
            errno.EPERM: "not permitted: choose a folder you may write to",
            errno.EROFS: "the file system is read-only: choose another folder",
            errno.ENOTDIR: "a part of the path is a file: choose another folder",
            errno.EEXIST: "a part of the path is a file: choose another folder",
        }.get(problem.errno or 0, problem.strerror or str(problem))
        raise FedskewError(f"cannot write {path}: {advice}{then}") from problem


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    mode = os.O_RDONLY
    if os.name == "nt":
        if path.is_dir():
            return  # Windows has no such call for folders
        mode = os.O_RDWR
    file = os.open(path, mode)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_atomically(path: Path, content: bytes, then: str = "") -> None:
    """Write a file completely or not at all, also on a power failure: a new file replaces the old one."""
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
        sync(path.parent)
