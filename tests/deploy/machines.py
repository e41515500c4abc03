"""The processes of a deployment on this machine, for tests: a server and its nodes, started, stopped and killed."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.silos import SETTINGS

import fedskew as fs
from fedskew.core.config import to_toml

PATIENCE = 300  # seconds for anything to happen


def until(what: str, happened: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Return what happened, as soon as it did."""
    end = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        time.sleep(0.1)
    return found


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


@dataclass
class Machines:
    """The server and the nodes of a deployment, all on this machine."""

    folder: Path
    paths: list[Path]
    secure: bool = True
    port: int = field(default_factory=free_port)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        scripts, source = Path(sys.executable).parent, Path(fs.__file__).parents[1]
        self.around = {
            **os.environ,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(source),
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def do(self, *command: str) -> str:
        """Run a command to its end and return all that it says."""
        done = subprocess.run(
            command,
            env=self.around,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return done.stdout + done.stderr

    def fedskew(self, *arguments: str) -> str:
        return self.do(sys.executable, "-m", "fedskew", *arguments)

    def start(self, name: str, *arguments: str, **around: str) -> None:
        """Start a command that stays; what it says is in a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedskew", *arguments],
                env={**self.around, **around},
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def start_server(self) -> None:
        self.start(
            "server", "server", *self.security(), "--state", "link", "--port", str(self.port)
        )
        until("a healthy server", self.healthy)

    def security(self) -> list[str]:
        return ["--keys", "keys"] if self.secure else ["--insecure"]

    def healthy(self) -> bool:
        trusted = (
            ssl.create_default_context(cafile=str(self.folder / "keys" / "ca.crt"))
            if self.secure
            else None
        )
        address = f"http{'s' if self.secure else ''}://127.0.0.1:{self.port}/health"
        try:
            with urllib.request.urlopen(address, context=trusted) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def start_node(
        self,
        number: int,
        key: str,
        ca: str = "keys/ca.crt",
        name: str = "",
        port: int = 0,
        **around: str,
    ) -> None:
        name = name or key
        path, server = str(self.paths[number]), f"127.0.0.1:{port or self.port}"
        own = ["--key", f"keys/nodes/{key}", "--ca", ca] if self.secure else ["--insecure"]
        self.start(
            name,
            "node",
            "--data",
            path,
            "--server",
            server,
            *own,
            "--state",
            f"state_{name}",
            "--name",
            name,
            **around,
        )

    def register(self, key: str) -> None:
        assert "registered" in self.do("flwr", "supernode", "register", f"keys/nodes/{key}.pub")

    def deploy(
        self,
        name: str,
        nodes: int = 3,
        timeout: float = 120,
        options: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """Write the app of an experiment; the connection is that of the first."""
        values = {
            "data": "silos:label=outcome",
            "model": "logreg",
            **SETTINGS,
            "checkpoint_every": 1,
            "eval_every": 3,
        }
        (self.folder / f"{name}.toml").write_text(to_toml(values | settings))
        told = self.fedskew(
            *f"deploy {name}.toml --nodes {nodes} --out {name} --timeout {timeout}".split(),
            *f"--server 127.0.0.1:{self.port}".split(),
            *self.security(),
            *options,
        )
        assert "then, here:" in told, told
        shutil.copytree(self.folder / name / "flower", self.folder / "flower", dirs_exist_ok=True)

    def begin(self, name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["flwr", "run", f"{name}/app", "--stream"],
            env=self.around,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, name: str) -> str:
        """Run the app to its end and return what it says."""
        began = self.begin(name)
        try:
            return began.communicate(timeout=PATIENCE)[0]
        finally:
            began.kill()

    def finished(self, name: str) -> Any:
        return fs.open_run(self.folder / name / "run")

    def rounds(self, name: str) -> int:
        """Return how many rounds are recorded."""
        path = self.folder / name / "run" / "rounds.csv"
        return max(0, len(path.read_text().splitlines()) - 1) if path.exists() else 0

    def kill(self, name: str) -> None:
        """Kill a process and all that it has started, at once, as a power failure would."""
        process = self.running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_answering(self, name: str) -> None:
        """Kill the process of a node that answers messages, and wait for the end of the node."""
        node = self.running.pop(name)
        (child,) = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        assert node.wait(PATIENCE) is not None

    def stop(self, name: str) -> None:
        """Ask a process to stop, as a person would."""
        self.running[name].terminate()
        self.running.pop(name).wait(PATIENCE)

    def left(self) -> list[str]:
        """Return the commands of all processes of these machines that still run."""
        mine, found = str(self.folder).encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                around, words = (
                    (process / "environ").read_bytes(),
                    (process / "cmdline").read_bytes(),
                )
            except OSError:
                continue
            if words and mine in around and int(process.name) != os.getpid():
                found.append(words.replace(b"\0", b" ").decode())
        return found


@contextmanager
def started(machines: Machines) -> Iterator[Machines]:
    """Start a server, and stop it and its nodes at the end: no process is left, and the port is free again."""
    try:
        machines.start_server()
        yield machines
    finally:
        for name in sorted(machines.running, key="server".__eq__):
            machines.stop(name)
        until("the end of all processes", lambda: not machines.left(), 30)
    with socket.socket() as tried:
        # Connections that were closed may linger
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(("127.0.0.1", machines.port))
