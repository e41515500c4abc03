"""One writer a folder: a lock that the operating system drops when its process dies, with a note of who holds it."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedskew.core.errors import FedskewError

LOCK = ".lock"

try:
    import fcntl

    def seize(file: int) -> bool:
        """Take the lock on an open file if nobody has it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

except ImportError:  # Windows
    import msvcrt

    def seize(file: int) -> bool:
        """Take the lock on a byte far behind what is written, which others may still read."""
        os.lseek(file, (1 << 31) - 2, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        finally:
            os.lseek(file, 0, os.SEEK_SET)
        return True


@contextmanager
def locked(folder: Path, at: Path | None = None) -> Iterator[None]:
    """Hold the lock of a folder; a second process is refused, and a process that died holds nothing.

    The lock is a file in the folder, or ``at`` another place while there is no folder yet.
    """
    place = at or folder / LOCK
    file = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not seize(file):
            raise FedskewError(f"{folder} is being written by {_holder(place)}: wait for it to end, or stop it")
        os.ftruncate(file, 0)
        os.write(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        try:
            yield
        finally:
            if at:
                at.unlink(missing_ok=True)
    finally:
        os.close(file)


def _holder(place: Path) -> str:
    """Who wrote the note."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(place.read_text(encoding="utf-8"))
        return f"process {int(note['pid'])} on {note['host']}"
    return "another process"
