"""Safe reading of files: only regular files, with limits on memory, and every failure is an error of one line."""

import bz2
import gzip
import io
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedskew.core.errors import FedskewError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A compressed file may unpack to so many times its size; a deflate bomb has 1,000
MOST_GROWTH = 200
_SLACK = 64 << 20  # bytes that any packed file may unpack to
_PACKED: dict[str, Callable[[Path], IO[bytes]]] = {
    ".gz": gzip.open,  # type: ignore[dict-item]
    ".bz2": bz2.open,
    ".xz": lzma.open,
}


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any failure while a file is read into an error of one line that names the file.

    Parsers raise all kinds of exceptions on damaged content, so all are converted; the cause stays with the error.
    """
    try:
        _refuse_odd(path)
        yield
    except FedskewError:
        raise
    except FileNotFoundError:
        raise FedskewError(f"{path} is not there") from None
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise FedskewError(f"{path} is cut off or damaged: get it again") from error
    except UnicodeDecodeError as error:
        raise FedskewError(f"{path} is not UTF-8 text (byte {error.start}): convert it") from None
    except OSError as error:
        raise FedskewError(f"{path} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise FedskewError(
            f"{path} cannot be read: it needs more memory than this machine has; take a part of it"
        ) from error
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise FedskewError(
            f"{path} cannot be read, it is damaged or not what its name says ({why})"
        ) from error


def _refuse_odd(path: Path) -> None:
    """Raise an error for a pipe or device, which might block or never end."""
    mode = path.stat().st_mode
    # A folder gives the operating system's own error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FedskewError(
            f"{path} is a pipe or device, not a file: write its content to a file first"
        )


@dataclass(frozen=True)
class OpenFile:
    """A file of which parts are read again and again, as it was when it was opened: its size, and when it changed."""

    path: Path
    size: int
    changed: int

    @classmethod
    def at(cls, path: Path) -> "OpenFile":
        """Return the file as it is now."""
        with reading(path):
            status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)

    def refuse_change(self) -> None:
        """Raise an error for a file that was written to since; what is deleted stays readable where it is open."""
        try:
            now = OpenFile.at(self.path)
        except FedskewError:
            return
        if now != self:
            raise FedskewError(
                f"{self.path} has changed since it was opened ({self.size:,} bytes then, {now.size:,} now): load it "
                "again, and leave it alone while a run reads it"
            )


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if it is compressed; an empty file is an error."""
    with reading(path), open_unpacked(path) as file:
        content = file.read()
    if not content:
        raise FedskewError(f"{path} is empty: get it again")
    return content


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 text file, decompressed if it is compressed; an empty file is an error."""
    content = read_bytes(path)
    with reading(path):
        return content.decode()


def open_unpacked(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed by its suffix; reading raises an error beyond ``unpacked_limit``."""
    opener = _PACKED.get(path.suffix.lower())
    if opener is None:
        return path.open("rb")
    limit = unpacked_limit(path.stat().st_size)
    return io.BufferedReader(_Limited(path, opener(path), limit))


def unpacked_limit(packed: int) -> int:
    """Return how many bytes a compressed file of this size may unpack to."""
    return MOST_GROWTH * packed + _SLACK


class _Limited(io.RawIOBase):
    """A stream that raises an error after a given number of bytes."""

    def __init__(self, path: Path, inner: IO[bytes], limit: int) -> None:
        self._path = path
        self._inner = inner
        self._limit = limit
        self._left = limit

    def readable(self) -> bool:
        """Return True, as the stream can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into the buffer."""
        data = self._inner.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise too_large(self._path, "more than", self._limit)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close this stream and the one below."""
        self._inner.close()
        super().close()


def too_large(path: Path, how: str, size: int) -> FedskewError:
    """Return the error for a compressed file that unpacks to far more than real data does."""
    return FedskewError(
        f"{path} unpacks to {how} {size:,} bytes, over {MOST_GROWTH} times its size: "
        "it is damaged or made to fill the memory; unpack it yourself if you trust it"
    )


def must_fit(what: str, size: int, fix: str) -> None:
    """Raise an error if ``what`` needs more bytes than this machine has memory."""
    memory = 1 << 40
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise FedskewError(
            f"{what} needs {size / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f} GB of memory: {fix}"
        )


def read_npz(path: Path) -> "dict[str, NDArray[Any]]":
    """Return the arrays of an NPZ file; pickled objects are refused."""
    with reading(path):
        try:
            with path.open("rb") as file:
                return _arrays_of(path, file)
        except FedskewError:
            raise
        except (ValueError, zipfile.BadZipFile, KeyError) as error:
            why = "damaged"
            if "pickle" in str(error):
                why = "it holds Python objects (dtype object), which are never unpickled"
            raise FedskewError(f"{path} is not a readable .npz archive: {why}") from None


def _arrays_of(path: Path, file: IO[bytes]) -> "dict[str, NDArray[Any]]":
    import numpy as np  # here, so that the command line starts without it

    archive = np.load(file, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise FedskewError(f"{path} is a single array, not an .npz archive: use numpy.savez")
    with zipfile.ZipFile(file) as packed:
        size = sum(member.file_size for member in packed.infolist())
    if size > unpacked_limit(path.stat().st_size):
        raise too_large(path, "", size)
    return {name: archive[name] for name in archive.files}
