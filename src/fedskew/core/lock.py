"""A lock that allows one writing process per folder; the operating system releases it when the process dies."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedskew.core.errors import FedskewError

LOCK = ".lock"

try:
    import fcntl

    def seize(file: int) -> bool:
        """Take the lock on an open file; return False if another process has it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

except ImportError:  # Windows
    import msvcrt

    def seize(file: int) -> bool:
        """Take the lock on a byte far behind the content, which other processes may still read."""
        os.lseek(file, (1 << 31) - 2, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        finally:
            os.lseek(file, 0, os.SEEK_SET)
        return True


@contextmanager
def locked(folder: Path, at: Path | None = None, patience: float = 0.1) -> Iterator[None]:
    """Hold the lock of a folder; a second process gets an error, and a process that died holds no lock.

    The lock is a file in the folder, or ``at`` another place while there is no folder yet. The error comes only after
    ``patience`` seconds, because ``holder`` has the lock for a moment.
    """
    file = hold(folder, at, patience)
    try:
        try:
            yield
        finally:
            if at:
                at.unlink(missing_ok=True)
    finally:
        os.close(file)


def hold(folder: Path, at: Path | None = None, patience: float = 0.1) -> int:
    """Take the lock of a folder until this process ends, or the file that is returned is closed."""
    place = at or folder / LOCK
    file = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        until = time.monotonic() + patience
        while not (mine := seize(file)) and time.monotonic() < until:
            time.sleep(0.05)
        if not mine:
            raise FedskewError(
                f"{folder} is being written by {_noted(place)}: wait for it to end, or stop it"
            )
        os.ftruncate(file, 0)
        os.write(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
    except BaseException:
        os.close(file)
        raise
    return file


def holder(folder: Path) -> str | None:
    """Return the process that holds the lock of a folder; None if there is none."""
    place = folder / LOCK
    try:
        file = os.open(place, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError:  # it may be read and not written
        file = os.open(place, os.O_RDONLY)
    try:
        if seize(file):
            return None
        return _noted(place)
    finally:
        os.close(file)


def _noted(place: Path) -> str:
    """Return the process that is noted in a lock file."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(place.read_text(encoding="utf-8"))
        return f"process {int(note['pid'])} on {note['host']}"
    return "another process"
