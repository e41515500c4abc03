"""Arrays that a node has made of its file, kept beside its state, so that it does not read the file for every message.

The file of the silo is the authority. What is kept is used only if it is whole, and if the file is the one that it was
made from. Otherwise the file is read again.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.writing import sync, writing

_INDEX = "index.json"
# Seconds within which a file may change and keep its time: file systems count in steps of up to two seconds
_STEP = 2.0
_UNUSED = 7 * 24 * 3600.0  # seconds after which what another run has kept is removed


class ArraysCache:
    """Named arrays that were made of a file.

    Args:
        folder: where they are kept, a folder of their own in that of a run
        source: the file
        meaning: all that they depend on beside the file
    """

    def __init__(self, folder: Path, source: Path, meaning: str) -> None:
        self.folder = folder
        self.source = source
        self.meaning = hashlib.sha256(meaning.encode()).hexdigest()

    def load(self) -> dict[str, NDArray[Any]] | None:
        """Return the arrays that were kept, mapped into memory; None if the file must be read."""
        # Whatever is wrong with what was kept, the file itself can be read.
        with suppress(OSError, ValueError, KeyError, TypeError):
            index = json.loads((self.folder / _INDEX).read_text(encoding="utf-8"))
            if index["meaning"] != self.meaning or not self._is_intact(index):
                return None
            arrays = {}
            for name in index["arrays"]:
                arrays[name] = _mapped(self._path(name))
            return arrays
        return None

    def save(self, arrays: Mapping[str, NDArray[Any]], signs: tuple[int, ...]) -> None:
        """Keep arrays, unless the file has changed since it had these signs, when it was read."""
        with writing(self.folder):
            self.remove()
            self.folder.mkdir(mode=0o700, parents=True)
            kept: dict[str, Any] = {}
            for name, array in arrays.items():
                with open(self._path(name), "xb", opener=_private) as file:
                    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
                    _flush(file)
                kept[name] = _noted(self._path(name))
            source = _noted(self.source)
            if signs_of(self.source) == signs:
                self._write_index(source, kept)
                sync(self.folder)

    def remove(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"

    def _write_index(self, source: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Write the index, which is there when everything else is."""
        part = self.folder / f"{_INDEX}.{os.getpid()}.part"
        part.unlink(missing_ok=True)
        index = {"meaning": self.meaning, "source": source, "arrays": arrays}
        with open(part, "xb", opener=_private) as file:
            file.write(json.dumps(index).encode())
            _flush(file)
        part.replace(self.folder / _INDEX)

    def _is_intact(self, index: Mapping[str, Any]) -> bool:
        """Return whether all files are what they were; one with other signs is read, and its content counts."""
        noted = {self.source: index["source"]}
        for name, found in index["arrays"].items():
            if Path(name).name != name:
                return False
            noted[self._path(name)] = found
        changed = [path for path, found in noted.items() if not _has_signs(path, found)]
        for path in changed:
            if _digest(path) != noted[path]["sha256"]:
                return False
        if changed:
            arrays = {name: _noted(self._path(name)) for name in index["arrays"]}
            self._write_index(_noted(self.source), arrays)
        return True


def remove_unused(state: Path) -> None:
    """Remove what runs have kept and not used for a week; if one of them goes on, it reads the file again."""
    for index in state.glob(f"*/*/{_INDEX}"):
        with suppress(OSError):
            if time.time() - index.stat().st_mtime > _UNUSED:
                shutil.rmtree(index.parent, ignore_errors=True)


def signs_of(path: Path) -> tuple[int, ...]:
    """Return by what a change of a file is seen without reading it."""
    found = path.stat()
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def digest_of(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a hash of arrays and their names."""
    found = hashlib.sha256()
    for name, array in arrays.items():
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _has_signs(path: Path, noted: Mapping[str, Any]) -> bool:
    """Return whether a file has the signs that were noted, which any change since then would have changed."""
    size, modified, changed, inode = noted["signs"]
    settled = noted["time"] - max(modified, changed) / 1e9 > _STEP
    return settled and signs_of(path) == (size, modified, changed, inode)


def _noted(path: Path) -> dict[str, Any]:
    """Return the signs of a file and the hash of its content, and when they were taken."""
    now = time.time()
    return {"signs": signs_of(path), "sha256": _digest(path), "time": now}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mapped(path: Path) -> NDArray[Any]:
    """Return the array in a file, of which only what is used is read."""
    try:
        # A part that is written to is copied, and the file stays as it is.
        return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    except ValueError:  # of an array without numbers, which cannot be mapped
        empty: NDArray[Any] = np.load(path, allow_pickle=False)
        return empty


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _private(name: str, flags: int) -> int:
    """Open a file that only its owner may read."""
    return os.open(name, flags, 0o600)
