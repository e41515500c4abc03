"""The example of three silos on one machine: its commands as they stand in its README, and interruptions."""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedskew as fs

pytest.importorskip("flwr", reason="needs fedskew[flower]")
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are found in /proc"
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "silos"
PATIENCE = 300  # seconds for a command


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with the example, and a run as short as can be."""
    for path in EXAMPLE.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(re.sub(r"rounds = \d+", "rounds = 1", experiment.read_text()))
    return tmp_path


def begin(place: Path, *words: str) -> subprocess.Popen[str]:
    around = {
        **os.environ,
        "PYTHONPATH": str(Path(fs.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "FEDSKEW_DATA": str(place / "no_data"),
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, *words], cwd=place, env=around, text=True, **pipes)


def done(place: Path, *words: str) -> str:
    """Run a script to its end and return what it says."""
    process = begin(place, *words)
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    return told


def left(folder: Path) -> list[str]:
    """Return the commands of all processes that have to do with a folder."""
    mine, found = str(folder).encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            around, words = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
        except OSError:
            continue
        if mine in around + words:
            found.append(words.replace(b"\0", b" ").decode())
    return found


def port_of(told: str) -> int:
    found = re.search(r"fedskew server .*--port (\d+)", told)
    assert found, told
    return int(found[1])


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return tried.connect_ex(("127.0.0.1", port)) != 0


def test_the_commands_of_the_page(place: Path):
    (block,) = re.findall(
        r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    make, start, stop = (shlex.split(line)[1:] for line in block.splitlines())
    assert "so the silos have digits" in done(place, *make)
    folder = place / "three_silos"
    try:
        told = done(place, *start)
        assert "Server and nodes are still there" in told
        assert sum("--node-config" in command for command in left(folder)) >= 3
        assert not is_free(port_of(told))
        run = fs.open_run(folder / "deployment" / "run")
        assert list(run.final_clients["name"]) == ["silo_A", "silo_B", "silo_C"]
        assert run.rounds["test_accuracy"].iloc[-1] > 0.5
        assert "<html" in (folder / "deployment" / "run" / "report.html").read_text(
            encoding="utf-8"
        )
        again = begin(place, *start)
        assert "exists already" in again.communicate(timeout=PATIENCE)[0]
        assert again.returncode == 1
        assert not is_free(port_of(told))
    finally:
        told_at_end = done(place, *stop)
    assert re.match(r"stopped [1-9]\d* processes", told_at_end)
    assert left(place) == []
    assert is_free(port_of(told))


def test_two_at_a_time_that_are_interrupted_leave_nothing_behind(place: Path):
    """One is interrupted and stops its processes itself, the other is killed when it has just started its server."""
    done(place, "make_silos.py")
    first, second = begin(place, "start.py", "first"), begin(place, "start.py", "second")
    try:
        for name in ("first", "second"):
            end = time.monotonic() + PATIENCE
            while not any("guarded_link" in command for command in left(place / name)):
                assert time.monotonic() < end
                time.sleep(0.1)
        second.kill()
        told = second.communicate()[0]
        first.send_signal(signal.SIGINT)
        said = first.communicate(timeout=PATIENCE)[0]
        assert "interrupted: all is stopped" in said
        assert port_of(said) != port_of(told)
        assert left(place / "first") == []
        assert left(place / "second")
    finally:
        for name in ("first", "second"):
            done(place, "stop.py", name)
    assert left(place) == []
    assert is_free(port_of(said))
    assert is_free(port_of(told))
