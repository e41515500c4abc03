"""Downloads from a server on loopback: whole, cut, resumed, refused, falsified, packed."""

import errno
import hashlib
import io
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedskew.data import datasets, download, fetch
from fedskew.data.source import Download, Source, sources
from fedskew.errors import FedskewError

CONTENT = bytes(range(256)) * 4000  # several blocks


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``cuts`` says after how many bytes each of the next answers breaks off."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        content = self.server.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        start = 0
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = start + self.server.cuts.pop(0) if self.server.cuts else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, *values: object) -> None:
        """Keep quiet."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def checksum(content: bytes, kind: str = "sha256") -> str:
    return f"{kind}:{hashlib.new(kind, content).hexdigest()}"


@pytest.fixture
def one_file(server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pretend that mnist is one file on the server; returns where it belongs."""
    list(datasets)
    server.files["file.gz"] = CONTENT
    wanted = Download("mnist/file.gz", (server.url("file.gz"),), checksum(CONTENT))
    monkeypatch.setitem(sources, "mnist", Source("free", files=("mnist/file.gz",), downloads=(wanted,)))
    return data_root / "mnist" / "file.gz"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_whole_file_with_progress(server: Server, one_file: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    assert fetch("mnist", progress=lambda *report: seen.append(report)) == (one_file,)
    assert one_file.read_bytes() == CONTENT
    assert names(one_file.parent) == ["file.gz"]
    assert seen[-1] == ("file.gz", len(CONTENT), len(CONTENT))
    assert [report[1] for report in seen] == sorted(report[1] for report in seen)
    assert fetch("mnist") == ()
    assert len(server.asked) == 1


def test_md5_and_what_is_already_there(server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(datasets)
    server.files |= {"a": b"aaa", "b": b"bbb"}
    wanted = tuple(
        Download(f"x/{name}", (server.url(name),), checksum(content, "md5")) for name, content in server.files.items()
    )
    monkeypatch.setitem(sources, "mnist", Source("free", files=("x/a", "x/b"), downloads=wanted))
    (data_root / "x").mkdir()
    (data_root / "x" / "a").write_bytes(b"aaa")
    assert fetch("mnist:whatever=1") == (data_root / "x" / "b",)
    assert server.asked == [("/b", None)]


def test_goes_on_by_itself_after_cuts(server: Server, one_file: Path) -> None:
    server.cuts = [300_000, 5, 100_000]
    fetch("mnist")
    assert one_file.read_bytes() == CONTENT
    assert server.asked == [("/file.gz", part) for part in (None, "bytes=300000-", "bytes=300005-", "bytes=400005-")]


def test_goes_on_in_the_next_call(server: Server, one_file: Path) -> None:
    server.cuts = [300_000, 0]
    with pytest.raises(FedskewError, match=r"cut after 300,000 of 1,024,000 bytes; fetch again to go on from there"):
        fetch("mnist")
    assert names(one_file.parent) == ["file.gz.part"]
    fetch("mnist")
    assert one_file.read_bytes() == CONTENT
    assert server.asked[-1] == ("/file.gz", "bytes=300000-")


def test_server_without_ranges_starts_again(server: Server, one_file: Path) -> None:
    server.ranges, server.cuts = False, [300_000, 200_000]
    with pytest.raises(FedskewError, match="cut after 200,000 of 1,024,000 bytes"):
        fetch("mnist")
    fetch("mnist")
    assert one_file.read_bytes() == CONTENT


def test_a_complete_part_is_not_loaded_again(server: Server, one_file: Path) -> None:
    one_file.parent.mkdir()
    one_file.with_name("file.gz.part").write_bytes(CONTENT)
    fetch("mnist")
    assert one_file.read_bytes() == CONTENT
    assert server.asked == [("/file.gz", f"bytes={len(CONTENT)}-")]


@pytest.mark.parametrize("stale", [b"other", CONTENT + b"too long"])
def test_a_wrong_part_ends_in_a_checksum_error_and_then_a_clean_start(one_file: Path, stale: bytes) -> None:
    one_file.parent.mkdir()
    one_file.with_name("file.gz.part").write_bytes(stale)
    with pytest.raises(FedskewError, match=r"does not have the sha256:.* it was deleted: fetch again"):
        fetch("mnist")
    assert names(one_file.parent) == []
    fetch("mnist")
    assert one_file.read_bytes() == CONTENT


def test_wrong_content(server: Server, one_file: Path) -> None:
    server.files["file.gz"] = CONTENT[:-1] + b"!"
    with pytest.raises(FedskewError, match="does not have the sha256:"):
        fetch("mnist")
    assert names(one_file.parent) == []


def test_second_address_when_the_first_refuses(server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(datasets)
    server.files["good"] = b"abc"
    addresses = (server.url("gone"), "http://127.0.0.1:9/unreachable", server.url("good"))
    wanted = Download("x", addresses, checksum(b"abc"))
    monkeypatch.setitem(sources, "mnist", Source("free", files=("x",), downloads=(wanted,)))
    fetch("mnist")
    assert (data_root / "x").read_bytes() == b"abc"
    (data_root / "x").unlink()
    del server.files["good"]
    with pytest.raises(FedskewError, match=r"gone answers 404 .*unreachable cannot be reached: .*good answers 404"):
        fetch("mnist")


def test_something_else_under_the_name_is_left_alone(one_file: Path) -> None:
    one_file.parent.mkdir()
    one_file.write_bytes(b"a sample of my own")
    with pytest.raises(FedskewError, match=r"is there but does not have the published sha256:.* move it away"):
        fetch("mnist")
    assert one_file.read_bytes() == b"a sample of my own"


def test_disk_problems(one_file: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data_root / "mnist").write_text("a file where a folder should be")
    with pytest.raises(FedskewError, match=r"file\.gz cannot be written: .*; free space or choose FEDSKEW_DATA"):
        fetch("mnist")
    (data_root / "mnist").unlink()
    plain = Path.open

    def full(path: Path, mode: str = "r", *rest):
        file = plain(path, mode, *rest)
        if path.suffix == ".part" and mode != "rb":
            file.close()
            raise OSError(errno.ENOSPC, "No space left on device")
        return file

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(FedskewError, match="cannot be written: No space left on device"):
        fetch("mnist")
    assert not one_file.exists()


def packed(kind: str, members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def offer(server: Server, monkeypatch: pytest.MonkeyPatch, kind: str, members: dict[str, bytes]) -> None:
    list(datasets)
    name = f"sets.{kind}"
    server.files[name] = packed(kind, members)
    wanted = Download("My Set", (server.url(name),), checksum(server.files[name]), archive=name)
    monkeypatch.setitem(sources, "mnist", Source("free", files=("My Set/a.txt",), downloads=(wanted,)))


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_are_unpacked(server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    offer(server, monkeypatch, kind, {"My Set/a.txt": b"one", "My Set/deep/b.txt": b"two", "__MACOSX/junk": b"x"})
    server.cuts = [20]
    assert fetch("mnist") == (data_root / "My Set",)
    assert (data_root / "My Set/deep/b.txt").read_bytes() == b"two"
    assert names(data_root) == ["My Set"]
    assert fetch("mnist") == ()


@pytest.mark.parametrize(
    ("kind", "name"),
    [("zip", "../evil"), ("zip", "/evil"), ("zip", "C:/evil"), ("zip", "a\\..\\..\\evil"), ("tar.gz", "../evil")],
)
def test_archives_cannot_write_elsewhere(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    offer(server, monkeypatch, kind, {"My Set/a.txt": b"one", name: b"two"})
    with pytest.raises(FedskewError, match=r"holds the unsafe path|cannot be unpacked"):
        fetch("mnist")
    assert names(data_root) == [f"sets.{kind}.part"]
    assert not (data_root.parent / "evil").exists()


def test_links_in_a_zip_are_refused(server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(server, monkeypatch, "zip", {"My Set/a.txt": b"one"})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        link = zipfile.ZipInfo("My Set/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(FedskewError, match="unsafe path 'My Set/link'"), zipfile.ZipFile(buffer) as archive:
        download._refuse_unsafe(archive, "sets.zip")


def test_archive_without_the_folder(server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(server, monkeypatch, "zip", {"Other/a.txt": b"one"})
    with pytest.raises(FedskewError, match="has no folder 'My Set' in it"):
        fetch("mnist")
    assert not (data_root / "My Set").exists()


def test_incomplete_folder_is_left_alone(server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(server, monkeypatch, "zip", {"My Set/a.txt": b"one"})
    (data_root / "My Set").mkdir()
    (data_root / "My Set" / "mine.txt").write_text("precious")
    with pytest.raises(FedskewError, match=r"is there but lacks My Set/a\.txt: move that folder away"):
        fetch("mnist")
    assert server.asked == []
    assert (data_root / "My Set" / "mine.txt").read_text() == "precious"


def test_what_cannot_be_fetched(data_root: Path) -> None:
    with pytest.raises(FedskewError, match=rf"pacs cannot be fetched: download .* {re.escape(str(data_root))}/PACS/<domain>"):
        fetch("pacs")
    for name in ("digits", "csv"):
        with pytest.raises(FedskewError, match=f"{name} needs no download"):
            fetch(name)
    with pytest.raises(FedskewError, match="did you mean 'mnist'"):
        fetch("mnits")


def test_only_web_addresses(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(datasets)
    wanted = Download("x", ("file:///etc/passwd",), checksum(b""))
    monkeypatch.setitem(sources, "mnist", Source("free", files=("x",), downloads=(wanted,)))
    with pytest.raises(FedskewError, match="only http and https addresses are fetched"):
        fetch("mnist")
