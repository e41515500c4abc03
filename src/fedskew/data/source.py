"""The files of known data sets under the data root, and how to get them."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Bounds
from fedskew.data.dataset import Reader, datasets

TestShare: TypeAlias = Annotated[float, Bounds(0, 1, above=True, below=True)]


@dataclass(frozen=True)
class Download:
    """One published file: its place under the data root (for an archive: the unpacked folder), its checksum and size.

    The addresses are tried in order: the publisher's, then copies with the same checksum. An MD5 is used where no
    SHA-256 is published: it detects a damaged file, but not a forged one.
    """

    path: str
    urls: tuple[str, ...]  # https only
    checksum: str  # "sha256:…", or "md5:…" if no other is published
    size: int  # in bytes
    # File name of the .zip or .tar.gz to unpack; empty: the file is kept as it is
    archive: str = ""


@dataclass(frozen=True)
class Source:
    """The files that a known data set needs, and its licence."""

    licence: str
    files: tuple[str, ...] = ()  # paths under the data root; a .gz may also be unpacked
    instead: tuple[str, ...] = ()  # alternative files
    downloads: tuple[Download, ...] = ()
    manual: str = ""  # for what cannot be fetched: what to get from where; {root} is the data root

    def missing(self) -> tuple[str, ...]:
        """Return the files that are missing."""
        if self.instead and all(is_there(path) for path in self.instead):
            return ()
        return tuple(path for path in self.files if not is_there(path))


sources: dict[str, Source] = {}


def register(name: str, source: Source) -> Callable[[Reader], Reader]:
    """Decorator: make a reader available as ``name``, with its source."""

    def keep(reader: Reader) -> Reader:
        sources[name] = source
        return datasets.register(name)(reader)

    return keep


def root() -> Path:
    """Return the folder of all data sets: ``FEDSKEW_DATA``, or ``fedskew`` in the platform's user cache."""
    chosen = os.environ.get("FEDSKEW_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return _user_cache(sys.platform) / "fedskew"


def _user_cache(platform: str) -> Path:
    if platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _at(relative: str) -> Path | None:
    path = root() / relative
    if path.exists():
        return path
    unpacked = path.with_suffix("")
    if path.suffix == ".gz" and unpacked.exists():
        return unpacked
    return None


def is_there(relative: str) -> bool:
    """Return whether a file or folder is under the data root, compressed or not."""
    return _at(relative) is not None


def find(name: str, relative: str, otherwise: str = "") -> Path:
    """Return a file or folder of a known data set, compressed or not, or raise an error that says how to get it."""
    path = _at(relative)
    if path is None:
        raise FedskewError(
            f"{name}: {root() / relative} is not there; {how_to_get(name)}{otherwise}"
        )
    return path


def how_to_get(name: str) -> str:
    """Return the instructions for the files of a known data set."""
    source = sources[name]
    if source.downloads:
        return f"run: fedskew data fetch {name}"
    return source.manual.format(root=root())
