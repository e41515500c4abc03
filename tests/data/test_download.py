"""Downloads from servers on loopback: complete, cut, resumed, rejected, falsified, slow, packed and badly packed."""

import errno
import gc
import hashlib
import io
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedskew.core.errors import FedskewError
from fedskew.data import datasets, download, fetch
from fedskew.data.source import Download, Source, sources

CONTENT = bytes(range(256)) * 4000  # several blocks


class Server(ThreadingHTTPServer):
    """Serves ``files``; ``cuts`` has the number of bytes after which each of the next answers is cut."""

    daemon_threads = True

    def __init__(self, certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
            self.scheme = "https"
        self.leads: dict[str, str] = {}  # path -> where it leads
        self.kinds: dict[str, str] = {}  # path -> content type
        self.lengths = True  # say how long an answer is
        self.pause = 0.0  # after every byte of an answer
        self.stopping = threading.Event()
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of clients that disconnect."""

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        if self.path.lstrip("/") in self.server.leads:
            self.send_response(302)
            self.send_header("Location", self.server.leads[self.path.lstrip("/")])
            self.end_headers()
            return
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
        if self.server.lengths:
            self.send_header("Content-Length", str(len(content) - start))
        self.send_header(
            "Content-Type", self.server.kinds.get(self.path.lstrip("/"), "application/gzip")
        )
        self.end_headers()
        end = start + self.server.cuts.pop(0) if self.server.cuts else len(content)
        if not self.server.pause:
            with suppress(OSError):  # the other side may have had enough
                self.wfile.write(content[start:end])
            return
        for number in range(start, end):
            with suppress(OSError):
                self.wfile.write(content[number : number + 1])
            if self.server.stopping.wait(self.server.pause):
                return

    def log_message(self, *values: object) -> None:
        """Write no log messages."""


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a key and a self-signed certificate for 127.0.0.1."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    made = [
        "-keyout",
        folder / "key",
        "-out",
        folder / "certificate",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    extra = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made, *extra],
        check=True,
        capture_output=True,
    )
    (folder / "both").write_bytes(
        (folder / "certificate").read_bytes() + (folder / "key").read_bytes()
    )
    return folder / "both"


@contextmanager
def running(certificate: Path | None) -> Iterator[Server]:
    with Server(certificate) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.stopping.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def server(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Return a server that only this test trusts."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with running(certificate) as server:
        yield server


@pytest.fixture
def plain_server() -> Iterator[Server]:
    """Return a server with plain http, whose content could be changed in transit."""
    with running(None) as server:
        yield server


def published(urls: Sequence[str], content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the file x with this content as mnist."""
    list(datasets)
    wanted = Download("x", tuple(urls), checksum(content), len(content))
    monkeypatch.setitem(sources, "mnist", Source("free", files=("x",), downloads=(wanted,)))


def checksum(content: bytes, kind: str = "sha256") -> str:
    return f"{kind}:{hashlib.new(kind, content).hexdigest()}"


@pytest.fixture
def one_file(server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Register one file on the server as mnist, and return its path."""
    list(datasets)
    server.files["file.gz"] = CONTENT
    wanted = Download("mnist/file.gz", (server.url("file.gz"),), checksum(CONTENT), len(CONTENT))
    monkeypatch.setitem(
        sources, "mnist", Source("free", files=("mnist/file.gz",), downloads=(wanted,))
    )
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


def test_md5_and_what_is_already_there(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(datasets)
    server.files |= {"a": b"aaa", "b": b"bbb"}
    wanted = tuple(
        Download(f"x/{name}", (server.url(name),), checksum(content, "md5"), len(content))
        for name, content in server.files.items()
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
    assert server.asked == [
        ("/file.gz", part) for part in (None, "bytes=300000-", "bytes=300005-", "bytes=400005-")
    ]


def test_goes_on_in_the_next_call(server: Server, one_file: Path) -> None:
    server.cuts = [300_000, 0]
    with pytest.raises(
        FedskewError,
        match=r"cut after 300,000 of 1,024,000 bytes; fetch again to resume from there",
    ):
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
    assert server.asked == []


@pytest.mark.parametrize("stale", [b"other", CONTENT + b"too long", CONTENT[:-1] + b"!"])
def test_a_wrong_part_is_loaded_again_from_the_beginning(
    server: Server, one_file: Path, stale: bytes
) -> None:
    one_file.parent.mkdir()
    one_file.with_name("file.gz.part").write_bytes(stale)
    fetch("mnist")
    assert one_file.read_bytes() == CONTENT
    assert server.asked[-1] == ("/file.gz", None)
    assert names(one_file.parent) == ["file.gz"]


def test_wrong_content(server: Server, one_file: Path) -> None:
    server.files["file.gz"] = CONTENT[:-1] + b"!"
    with pytest.raises(FedskewError, match="does not have the sha256:"):
        fetch("mnist")
    assert names(one_file.parent) == []


def test_second_address_when_the_first_refuses(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(datasets)
    server.files["good"] = b"abc"
    published(
        [server.url("gone"), "https://127.0.0.1:9/unreachable", server.url("good")],
        b"abc",
        monkeypatch,
    )
    fetch("mnist")
    assert (data_root / "x").read_bytes() == b"abc"
    (data_root / "x").unlink()
    del server.files["good"]
    with pytest.raises(
        FedskewError, match=r"gone answers 404 .*unreachable cannot be reached: .*good answers 404"
    ):
        fetch("mnist")


def test_something_else_under_the_name_is_left_alone(one_file: Path) -> None:
    one_file.parent.mkdir()
    one_file.write_bytes(b"a sample of my own")
    with pytest.raises(
        FedskewError, match=r"is there but does not have the published sha256:.* move it away"
    ):
        fetch("mnist")
    assert one_file.read_bytes() == b"a sample of my own"


def test_disk_problems(one_file: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data_root / "mnist").write_text("a file where a folder should be")
    with pytest.raises(
        FedskewError, match=r"file\.gz cannot be written: .*; free space or choose FEDSKEW_DATA"
    ):
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


def offer(
    server: Server, monkeypatch: pytest.MonkeyPatch, kind: str, members: dict[str, bytes]
) -> None:
    list(datasets)
    name = f"sets.{kind}"
    server.files[name] = packed(kind, members)
    wanted = Download(
        "My Set",
        (server.url(name),),
        checksum(server.files[name]),
        len(server.files[name]),
        archive=name,
    )
    monkeypatch.setitem(
        sources, "mnist", Source("free", files=("My Set/a.txt",), downloads=(wanted,))
    )


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_are_unpacked(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    offer(
        server,
        monkeypatch,
        kind,
        {"My Set/a.txt": b"one", "My Set/deep/b.txt": b"two", "__MACOSX/junk": b"x"},
    )
    server.cuts = [20]
    assert fetch("mnist") == (data_root / "My Set",)
    assert (data_root / "My Set/deep/b.txt").read_bytes() == b"two"
    assert names(data_root) == ["My Set"]
    assert fetch("mnist") == ()


def test_an_archive_has_its_name_when_all_of_it_is_on_disk(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(server, monkeypatch, "zip", {"My Set/a.txt": b"one", "My Set/deep/b.txt": b"two"})
    done: list[str] = []
    monkeypatch.setattr(download, "sync", lambda path: done.append(path.name))
    rename = Path.rename

    def noted(path: Path, target: Path) -> Path:
        done.append(f"rename {path.name}")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", noted)
    fetch("mnist")
    before, after = done[: done.index("rename My Set")], done[done.index("rename My Set") + 1 :]
    assert sorted(before) == ["My Set", "a.txt", "b.txt", "deep"]
    assert after == [data_root.name]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("zip", "../evil"),
        ("zip", "/evil"),
        ("zip", "C:/evil"),
        ("zip", "a\\..\\..\\evil"),
        ("tar.gz", "../evil"),
    ],
)
def test_archives_cannot_write_elsewhere(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    offer(server, monkeypatch, kind, {"My Set/a.txt": b"one", name: b"two"})
    with pytest.raises(FedskewError, match=r"holds the unsafe path|cannot be unpacked"):
        fetch("mnist")
    assert names(data_root) == [f"sets.{kind}.part"]
    assert not (data_root.parent / "evil").exists()


def entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.external_attr = mode << 16
    return member


def zipped(*members: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names that are there twice
        for member, content in members:
            archive.writestr(member, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def tarred(kind: bytes, size: int = 0) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        member = tarfile.TarInfo("My Set/odd")
        member.type, member.size, member.linkname = kind, size, "/etc/passwd"
        archive.addfile(member, io.BytesIO(bytes(size)))
    return buffer.getvalue()


def edited(content: bytes, local: int, central: int, value: bytes) -> bytes:
    """Return a zip archive with these bytes in both headers of its first member."""
    result = bytearray(content)
    for head, place in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        at = result.index(head) + place
        result[at : at + len(value)] = value
    return bytes(result)


def bomb() -> bytes:
    return zipped((entry("My Set/a.txt"), bytes(100_000_000)))


BAD_ARCHIVES = {
    "link": (
        "zip",
        lambda: zipped((entry("My Set/link", 0o120777), b"/etc/passwd")),
        "'My Set/link', which is not a file",
    ),
    "device": (
        "zip",
        lambda: zipped((entry("My Set/null", 0o020666), b"")),
        "'My Set/null', which is not a file",
    ),
    "encrypted": (
        "zip",
        lambda: edited(packed("zip", {"My Set/a.txt": b"1"}), 6, 8, b"\1"),
        "a.txt', which is encrypted",
    ),
    "twice": (
        "zip",
        lambda: zipped((entry("a"), b"1"), (entry("a"), b"2")),
        "'a', which is there twice",
    ),
    "bomb": ("zip", bomb, "which no published set does"),
    "bomb that lies about its size": (
        "zip",
        lambda: edited(bomb(), 22, 24, b"d\0\0\0"),
        "cannot be unpacked",
    ),
    "symbolic link": (
        "tar.gz",
        lambda: tarred(tarfile.SYMTYPE),
        "'My Set/odd', which is not a file",
    ),
    "hard link": ("tar.gz", lambda: tarred(tarfile.LNKTYPE), "'My Set/odd', which is not a file"),
    "pipe": ("tar.gz", lambda: tarred(tarfile.FIFOTYPE), "'My Set/odd', which is not a file"),
    "tar bomb": (
        "tar.gz",
        lambda: tarred(tarfile.REGTYPE, 100_000_000),
        "which no published set does",
    ),
}


@pytest.mark.parametrize("kind", BAD_ARCHIVES)
def test_bad_archives_are_refused_before_anything_is_written(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    ending, make, said = BAD_ARCHIVES[kind]
    content = make()
    list(datasets)
    server.files[f"sets.{ending}"] = content
    wanted = Download(
        "My Set",
        (server.url(f"sets.{ending}"),),
        checksum(content),
        len(content),
        archive=f"sets.{ending}",
    )
    monkeypatch.setitem(
        sources, "mnist", Source("free", files=("My Set/a.txt",), downloads=(wanted,))
    )
    with pytest.raises(FedskewError, match=said):
        fetch("mnist")
    assert names(data_root) == [f"sets.{ending}.part"]


def test_archive_without_the_folder(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(server, monkeypatch, "zip", {"Other/a.txt": b"one"})
    with pytest.raises(FedskewError, match="has no folder 'My Set' in it"):
        fetch("mnist")
    assert not (data_root / "My Set").exists()


def test_incomplete_folder_is_left_alone(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(server, monkeypatch, "zip", {"My Set/a.txt": b"one"})
    (data_root / "My Set").mkdir()
    (data_root / "My Set" / "mine.txt").write_text("precious")
    with pytest.raises(
        FedskewError, match=r"is there but lacks My Set/a\.txt: move that folder away"
    ):
        fetch("mnist")
    assert server.asked == []
    assert (data_root / "My Set" / "mine.txt").read_text() == "precious"


def test_what_cannot_be_fetched(data_root: Path) -> None:
    with pytest.raises(
        FedskewError,
        match=rf"pacs cannot be fetched: download .* {re.escape(str(data_root))}/PACS/<domain>",
    ):
        fetch("pacs")
    for name in ("digits", "csv"):
        with pytest.raises(FedskewError, match=f"{name} needs no download"):
            fetch(name)
    with pytest.raises(FedskewError, match="did you mean 'mnist'"):
        fetch("mnits")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://127.0.0.1:9/x", "ftp://127.0.0.1/x"])
def test_only_https_addresses(data_root: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    published([url], b"abc", monkeypatch)
    with pytest.raises(
        FedskewError,
        match=f"{url}: only https addresses are fetched, over others a file can be changed",
    ):
        fetch("mnist")
    assert names(data_root) == []


def test_every_known_address_is_https_with_a_size() -> None:
    list(datasets)
    known = [download for source in sources.values() for download in source.downloads]
    assert len(known) >= 10
    assert all(url.startswith("https://") for download in known for url in download.urls)
    assert all(download.size > 0 for download in known)


def test_https_over_every_hop(
    server: Server, plain_server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_server.files["x"] = server.files["x"] = b"abc"
    server.leads = {"down": plain_server.url("x"), "on": server.url("x")}
    published([server.url("down")], b"abc", monkeypatch)
    with pytest.raises(
        FedskewError, match=r"down leads to http://.*/x: only https addresses are fetched"
    ):
        fetch("mnist")
    assert plain_server.asked == []
    assert names(data_root) == []
    published([server.url("down"), server.url("on")], b"abc", monkeypatch)
    fetch("mnist")
    assert (data_root / "x").read_bytes() == b"abc"


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
def test_a_server_that_nobody_trusts(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    server.files["x"] = b"abc"
    published([server.url("x")], b"abc", monkeypatch)
    with pytest.raises(FedskewError, match=r"cannot be reached: .*certificate verify failed"):
        fetch("mnist")
    gc.collect()  # Python's own socket is not closed after a handshake that failed


@pytest.mark.parametrize(
    ("nonsense", "kind", "said"),
    [
        (b"<html>log in first", "text/html", "answers with a web page"),
        (b"another file", "application/gzip", "offers 12 bytes, the published file has 3"),
        (b"abd", "application/gzip", "does not have the sha256:"),
    ],
)
def test_the_next_address_when_one_answers_nonsense(
    server: Server,
    data_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    nonsense: bytes,
    kind: str,
    said: str,
) -> None:
    server.files |= {"bad": nonsense, "good": b"abc"}
    server.kinds["bad"] = kind
    published([server.url("bad")], b"abc", monkeypatch)
    with pytest.raises(FedskewError, match=f"bad .*{said}"):
        fetch("mnist")
    assert names(data_root) == []
    published([server.url("bad"), server.url("good")], b"abc", monkeypatch)
    fetch("mnist")
    assert (data_root / "x").read_bytes() == b"abc"


def test_no_more_is_read_than_was_published(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["x"], server.lengths = CONTENT * 20, False
    published([server.url("x")], b"abc", monkeypatch)
    seen: list[int] = []
    with pytest.raises(FedskewError, match="sends more than the 3 bytes"):
        fetch("mnist", progress=lambda file, done, total: seen.append(done))
    assert seen == []
    assert names(data_root) == []


@pytest.mark.parametrize("silent", [False, True])
def test_a_server_that_takes_for_ever(
    server: Server, data_root: Path, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    server.files["x"], server.pause = CONTENT, 0.02
    if silent:
        monkeypatch.setattr(Handler, "do_GET", lambda handler: handler.server.stopping.wait())
    published([server.url("x")], CONTENT, monkeypatch)
    monkeypatch.setattr(download, "_GRACE", -101.4)  # of the 102.4 seconds that its size allows
    with pytest.raises(FedskewError, match="x is too slow: "):
        fetch("mnist")


def test_two_processes_do_not_write_one_file(server: Server, one_file: Path) -> None:
    one_file.parent.mkdir()
    part = one_file.with_name("file.gz.part")
    hold = "import fcntl, sys; file = open(sys.argv[1], 'ab'); fcntl.flock(file, 2); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, part], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(
            FedskewError, match=r"file\.gz\.part is being fetched by another process: wait for it"
        ):
            fetch("mnist")
        assert server.asked == []
        other.kill()
    fetch("mnist")  # a lock dies with its owner
    assert one_file.read_bytes() == CONTENT
