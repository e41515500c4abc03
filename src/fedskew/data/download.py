"""Download a published data set: resumable, verified, and never half there under its final name."""

import hashlib
import http.client
import stat
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from fedskew.data.dataset import datasets
from fedskew.data.source import Download, how_to_get, is_there, reading, root, sources
from fedskew.errors import FedskewError
from fedskew.registry import parse

Progress: TypeAlias = Callable[[str, int, int | None], None]
_BLOCK = 1 << 18
_PATIENCE = 30  # seconds without a byte


def fetch(name: str, progress: Progress | None = None) -> tuple[Path, ...]:
    """Download what a known data set needs and is not there yet; returns the new files and folders.

    Args:
        name: the data set
        progress: called with (file name, bytes so far, bytes in all or None) as they arrive
    """
    name = parse(name, datasets.kind).name
    datasets.get(name)
    source = sources.get(name)
    if source is None or not source.files:
        raise FedskewError(f"{name} needs no download")
    if not source.downloads:
        raise FedskewError(f"{name} cannot be fetched: {how_to_get(name)}")
    wanted = [download for download in source.downloads if not _is_complete(download, source.files)]
    return tuple(_fetch_one(download, progress or _silent) for download in wanted)


def _silent(file: str, done: int, total: int | None) -> None:
    """No report."""


def _is_complete(download: Download, files: tuple[str, ...]) -> bool:
    """Whether it is there; something else under its name is refused, never overwritten."""
    target = root() / download.path
    if not target.exists():
        return False
    if download.archive:
        lacking = [file for file in files if not is_there(file)]
        if lacking:
            raise FedskewError(f"{target} is there but lacks {lacking[0]}: move that folder away, then fetch again")
    elif not _matches(target, download.checksum):
        raise FedskewError(
            f"{target} is there but does not have the published {download.checksum}: move it away, then fetch again"
        )
    return True


def _fetch_one(download: Download, progress: Progress) -> Path:
    target = root() / download.path
    part = target.parent / f"{download.archive or target.name}.part"
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    _download(download, part, progress)
    with _writing(target):
        if not _matches(part, download.checksum):
            part.unlink()
            raise FedskewError(
                f"{part.name} from {download.urls[0]} does not have the {download.checksum} it should have; "
                "it was deleted: fetch again, and if that fails too the publisher has changed the file"
            )
        if download.archive:
            _unpack(part, download.archive, target)
            part.unlink()
        else:
            part.replace(target)
    return target


def _download(download: Download, part: Path, progress: Progress) -> None:
    """From the first address that has the file; an interrupted download goes on where it stopped."""
    refused = []
    for url in download.urls:
        try:
            return _stream(url, part, progress)
        except _NotHereError as error:
            refused.append(str(error))
    raise FedskewError("; ".join(refused))


class _NotHereError(Exception):
    """This address does not give the file; another one may."""


class _CutError(Exception):
    """The connection ended before the file did."""


def _stream(url: str, part: Path, progress: Progress) -> None:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise FedskewError(f"{url}: only http and https addresses are fetched")
    furthest = _size(part)
    while True:
        try:
            return _receive(url, part, progress)
        except _CutError as cut:
            # Go on by ourselves as long as every attempt gets further; a server that always stops at one point ends it.
            if _size(part) <= furthest:
                raise _NotHereError(f"{url}: {cut}; fetch again to go on from there") from None
            furthest = _size(part)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(url: str, part: Path, progress: Progress) -> None:
    start = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "fedskew"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    with _open(request, url) as response:
        if response is None:  # nothing lies beyond what we have: it is complete, or else its checksum will be wrong
            return
        resumed = response.status == http.client.PARTIAL_CONTENT and _first_byte(response) == start
        if not resumed:
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
        done = _copy(response, part, "ab" if resumed else "wb", lambda count: progress(part.stem, start + count, total))
        if total is not None and start + done < total:
            raise _CutError(f"the connection was cut after {start + done:,} of {total:,} bytes")


@contextmanager
def _open(request: urllib.request.Request, url: str) -> "Iterator[http.client.HTTPResponse | None]":
    try:
        response = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _NotHereError(f"{url} answers {error.code} {error.reason}") from None
        yield None
        return
    except urllib.error.URLError as error:
        raise _NotHereError(f"{url} cannot be reached: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(f"the connection failed ({type(error).__name__}: {error})") from None
    with response:
        yield response


def _first_byte(response: http.client.HTTPResponse) -> int:
    """From ``Content-Range: bytes 100-199/200``."""
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else -1


def _copy(response: http.client.HTTPResponse, part: Path, mode: str, report: Callable[[int], None]) -> int:
    done = 0
    with _writing(part), part.open(mode) as file:
        while block := _read_block(response):
            file.write(block)
            done += len(block)
            report(done)
    return done


def _read_block(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(f"the connection was cut ({type(error).__name__})") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FedskewError(f"{path} cannot be written: {error.strerror or error}; free space or choose FEDSKEW_DATA") from None


def _matches(path: Path, checksum: str) -> bool:
    kind, _, expected = checksum.partition(":")
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest() == expected


def _unpack(archive: Path, name: str, target: Path) -> None:
    """Into a temporary folder beside the target, then one rename."""
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as place:
        try:
            if name.endswith(".zip"):
                with zipfile.ZipFile(archive) as packed:
                    _refuse_unsafe(packed, name)
                    packed.extractall(place)
            else:
                with tarfile.open(archive) as packed_tar:
                    packed_tar.extractall(place, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
            raise FedskewError(f"{name} cannot be unpacked: {error}") from None
        inner = Path(place) / target.name
        if not inner.exists():
            raise FedskewError(f"{name} has no folder {target.name!r} in it: the publisher has changed it")
        inner.rename(target)


def _refuse_unsafe(packed: zipfile.ZipFile, name: str) -> None:
    for member in packed.infolist():
        path = PurePosixPath(member.filename.replace("\\", "/"))
        link = stat.S_ISLNK(member.external_attr >> 16)
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0] or link:
            raise FedskewError(f"{name} holds the unsafe path {member.filename!r}: it was not unpacked")
