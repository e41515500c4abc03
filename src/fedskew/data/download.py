"""Download of published data sets: resumable, verified, and complete when it appears under its final name."""

import hashlib
import http.client
import os
import stat
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, TypeAlias

from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.lock import seize
from fedskew.core.registry import parse
from fedskew.core.writing import sync
from fedskew.data.dataset import datasets
from fedskew.data.source import Download, how_to_get, is_there, root, sources

Progress: TypeAlias = Callable[[str, int, int | None], None]
_BLOCK = 1 << 18
_PATIENCE = 30  # seconds without a byte
# A download may take so many seconds, and one more for so many bytes
_GRACE, _SLOWEST = 600, 10_000
# Of an archive: times its size, bytes besides, files
_MOST_GROWTH, _ROOM, _MOST_MEMBERS = 10, 64 << 20, 1_000_000


def fetch(name: str, progress: Progress | None = None) -> tuple[Path, ...]:
    """Download what a known data set needs and is missing; return the new files and folders.

    Args:
        name: the data set
        progress: called with (file name, bytes so far, all bytes or None) as they arrive
    """
    name = parse(name, datasets.kind).name
    datasets.get(name)
    source = sources.get(name)
    if source is None or not source.files:
        raise FedskewError(f"{name} needs no download")
    if not source.downloads:
        raise FedskewError(f"{name} cannot be fetched: {how_to_get(name)}")
    # What is in the way of any of them is found before the first is fetched
    wanted = []
    for download in source.downloads:
        if not _is_complete(download, source.files):
            wanted.append(download)
    fetched = [_fetch_one(download, progress or _silent) for download in wanted]
    return tuple(fetched)


def _silent(file: str, done: int, total: int | None) -> None:
    """Report no progress at all."""


def _is_complete(download: Download, files: tuple[str, ...]) -> bool:
    """Return whether it is complete; raise an error for something else under its name, which is never overwritten."""
    target = root() / download.path
    if not target.exists():
        return False
    if download.archive:
        for file in files:
            if not is_there(file):
                raise FedskewError(
                    f"{target} is there but lacks {file}: move that folder away, then fetch again"
                )
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
    with _writing(target), _locked(part):
        _download(download, part, progress)
        if download.archive:
            _unpack(part, download.archive, target)
            part.unlink()
        else:
            sync(part)
            part.replace(target)
            sync(target.parent)
    return target


@contextmanager
def _locked(part: Path) -> Iterator[None]:
    """Lock the partial file for this process; the operating system releases the lock when the process ends."""
    with _open_locked(part):
        try:
            yield
        finally:
            if part.exists() and not _size(part):
                part.unlink()


def _open_locked(part: Path) -> "IO[bytes]":
    while True:
        file = part.open("ab")
        if not seize(file.fileno()):
            file.close()
            raise FedskewError(
                f"{part} is being fetched by another process: wait for it, then try again"
            )
        if part.exists() and part.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return file
        file.close()  # another process had it and has just finished


def _download(download: Download, part: Path, progress: Progress) -> None:
    """Download from the first address that has the intact file; an interrupted download is resumed."""
    refused = []
    until = time.monotonic() + _GRACE + download.size / _SLOWEST
    for url in download.urls:
        resumed = _size(part) > 0
        try:
            _stream(url, download.size, part, progress, until)
            # The part of an earlier call may be damaged
            if resumed and not _matches(part, download.checksum):
                _empty(part)
                _stream(url, download.size, part, progress, until)
            if _matches(part, download.checksum):
                return
            _empty(part)
            refused.append(
                f"{url} gives a file that does not have the {download.checksum} it should have"
            )
        except _NotHereError as error:
            refused.append(str(error))
    raise FedskewError(
        f"{'; '.join(refused)}: try again later; if that fails too, the publisher has changed the file"
    )


class _NotHereError(Exception):
    """This address does not provide the file; another one may."""


class _CutError(Exception):
    """The connection ended before the file did."""


def _stream(url: str, size: int, part: Path, progress: Progress, until: float) -> None:
    """Download into ``part`` until it has ``size`` bytes."""
    if _size(part) > size:
        _empty(part)
    furthest = _size(part)
    while _size(part) < size:
        try:
            _receive(url, size, part, progress, until)
        except _CutError as cut:
            # Resume as long as every attempt gets further; give up if the server always stops at the same byte.
            if _size(part) <= furthest:
                raise _NotHereError(f"{url}: {cut}; fetch again to resume from there") from None
            furthest = _size(part)


def _size(path: Path) -> int:
    if path.exists():
        return path.stat().st_size
    return 0


def _empty(part: Path) -> None:
    """Empty the file to start again; the file itself stays, since it is locked."""
    os.truncate(part, 0)


def _receive(url: str, size: int, part: Path, progress: Progress, until: float) -> None:
    start = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "fedskew"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    with _open(request, url, until) as response:
        if response.headers.get_content_type() == "text/html":
            raise _NotHereError(f"{url} answers with a web page, not with the file")
        if not (response.status == http.client.PARTIAL_CONTENT and _first_byte(response) == start):
            start = 0
            _empty(part)
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and start + int(length) != size:
            raise _NotHereError(
                f"{url} offers {start + int(length):,} bytes, the published file has {size:,}"
            )
        done = start + _copy(
            response,
            url,
            part,
            size - start,
            until,
            lambda count: progress(part.stem, start + count, size),
        )
        if done < size:
            raise _CutError(f"the connection was cut after {done:,} of {size:,} bytes")


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """A handler that follows redirects to https addresses only."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        """Return the request to the next address."""
        try:
            _need_https(newurl, f"{req.full_url} leads to ")
        except _NotHereError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _need_https(url: str, before: str = "") -> None:
    if urllib.parse.urlsplit(url).scheme != "https":
        raise _NotHereError(
            f"{before}{url}: only https addresses are fetched, over others a file can be changed"
        )


@contextmanager
def _open(
    request: urllib.request.Request, url: str, until: float
) -> "Iterator[http.client.HTTPResponse]":
    _need_https(url)
    opener = urllib.request.build_opener(_HttpsOnly)
    try:
        response = _in_time(lambda: opener.open(request, timeout=_PATIENCE), url, until)
    except urllib.error.HTTPError as error:
        error.close()
        raise _NotHereError(f"{url} answers {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _NotHereError(f"{url} cannot be reached: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(f"the connection failed ({type(error).__name__}: {error})") from None
    with response:
        yield response


def _in_time(call: Callable[[], Any], url: str, until: float) -> Any:
    """Return what ``call`` returns or raises within a time limit, also if a server sends its header byte by byte."""
    result: Future[Any] = Future()

    def work() -> None:
        try:
            result.set_result(call())
        except BaseException as problem:
            result.set_exception(problem)

    threading.Thread(target=work, daemon=True).start()
    try:
        return result.result(max(0, until - time.monotonic()))
    except TimeoutError:
        if result.done():  # the connection's own
            raise
        raise _too_slow(url) from None


def _too_slow(url: str) -> _NotHereError:
    return _NotHereError(
        f"{url} is too slow: {_GRACE / 60:g} minutes and a second for {_SLOWEST:,} bytes are over"
    )


def _first_byte(response: http.client.HTTPResponse) -> int:
    """Return the first byte of ``Content-Range: bytes 100-199/200``."""
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    if first.isdecimal():
        return int(first)
    return -1


def _copy(
    response: http.client.HTTPResponse,
    url: str,
    part: Path,
    most: int,
    until: float,
    report: Callable[[int], None],
) -> int:
    """Append what arrives; more than ``most`` bytes are an error, and nothing is kept."""
    done = 0
    with part.open("ab") as file:
        while block := _read_block(response):
            done += len(block)
            if done > most:
                file.truncate(0)
                raise _NotHereError(
                    f"{url} sends more than the {most:,} bytes that are missing of the published file"
                )
            if time.monotonic() > until:
                raise _too_slow(url)
            file.write(block)
            report(done)
    return done


def _read_block(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(f"the connection was cut ({type(error).__name__})") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FedskewError(
            f"{path} cannot be written: {error.strerror or error}; free space or choose FEDSKEW_DATA"
        ) from None


def _matches(path: Path, checksum: str) -> bool:
    kind, _, expected = checksum.partition(":")
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest() == expected


def _unpack(archive: Path, name: str, target: Path) -> None:
    """Unpack into a temporary folder beside the target, then rename it; with one bad member nothing is written."""
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(archive) as packed:
                _check_members(name, archive, map(_zip_member, packed.infolist()))
                _put(name, target, packed.extractall)
        else:
            with tarfile.open(archive) as packed_tar:
                _check_members(name, archive, map(_tar_member, packed_tar))
                _put(name, target, lambda place: packed_tar.extractall(place, filter="data"))
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
    ) as error:
        raise FedskewError(f"{name} cannot be unpacked: {error}") from None


def _put(name: str, target: Path, extract: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as place:
        extract(place)
        inner = Path(place) / target.name
        if not inner.exists():
            raise FedskewError(
                f"{name} has no folder {target.name!r} in it: the publisher has changed it"
            )
        # All of it is on disk before it has its name: after a power failure it is there, or not at all.
        for path in (*inner.rglob("*"), inner):
            sync(path)
        inner.rename(target)
        sync(target.parent)


class _Member(NamedTuple):
    """A member of an archive: its path, its unpacked size, and what is wrong with it."""

    path: str
    size: int
    odd: str


def _zip_member(member: zipfile.ZipInfo) -> _Member:
    kind = stat.S_IFMT(member.external_attr >> 16)
    odd = ""
    if member.flag_bits & 1:
        odd = "is encrypted"
    elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        odd = "is not a file"
    # No more than file_size bytes are unpacked
    return _Member(member.filename, member.file_size, odd)


def _tar_member(member: tarfile.TarInfo) -> _Member:
    odd = "is not a file"
    if member.isdir() or (member.isreg() and not member.issparse()):
        odd = ""
    return _Member(member.name, member.size, odd)


def _check_members(name: str, archive: Path, members: Iterable[_Member]) -> None:
    """Raise an error for links, devices, paths outside the folder, and archives that unpack to far too much."""
    most = _MOST_GROWTH * _size(archive) + _ROOM
    total = 0
    seen = set()
    for number, member in enumerate(members):
        path = PurePosixPath(member.path.replace("\\", "/"))
        odd = member.odd
        if path.is_absolute() or ".." in path.parts or any(":" in part for part in path.parts):
            odd = "leads elsewhere"
        elif path in seen:
            odd = "is there twice"
        if odd:
            raise FedskewError(
                f"{name} holds the unsafe path {member.path!r}, which {odd}: it was not unpacked"
            )
        seen.add(path)
        total += member.size
        if total > most or number >= _MOST_MEMBERS:
            raise FedskewError(
                f"{name} unpacks to more than {most:,} bytes or {_MOST_MEMBERS:,} files, which no published set does: "
                "it was not unpacked"
            )
