"""Start a server and a node for each silo on this machine, with keys and TLS, and train: python start.py [FOLDER]

FOLDER must be new: keys, logs, databases and the run are written there. Server and nodes stay until stop.py stops
them; where something fails, or with Ctrl-C, all is stopped at once.
"""

import json
import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path
from typing import Any

from stop import MARK, folder_of, stop

PATIENCE = 120  # seconds for the server to start, for nodes to join and for their answers
PROGRAMS = {
    "fedskew": [sys.executable, "-m", "fedskew"],
    "flwr": [str(Path(sysconfig.get_path("scripts")) / "flwr")],
}
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # Flower calls nobody
Process = subprocess.Popen[bytes]


def main(folder: Path, silos: list[Path]) -> None:
    """Do all that docs/deploy.md does by hand, on several machines."""
    keys, deployment, port = folder / "keys", folder / "deployment", free_port()
    server, authority, names = f"127.0.0.1:{port}", keys / "ca.crt", [path.stem for path in silos]
    os.environ |= {"FLWR_HOME": str(deployment / "flower"), **QUIET}
    do(
        folder / "keys.log",
        "fedskew",
        "keys",
        keys,
        "--host",
        "127.0.0.1",
        "--nodes",
        ",".join(names),
    )
    state = folder / "server"
    link = begin(
        folder / "server.log", "fedskew", "server", "--keys", keys, "--state", state, "--port", port
    )
    how = ("--nodes", len(silos), "--server", server, "--keys", keys, "--timeout", PATIENCE)
    do(folder / "deploy.log", "fedskew", "deploy", "experiment.toml", *how, "--out", deployment)
    wait_for(link, folder / "server.log", server, authority)
    for path, name in zip(silos, names, strict=True):
        do(folder / f"{name}.log", "flwr", "supernode", "register", keys / "nodes" / f"{name}.pub")
        own = ("--key", keys / "nodes" / name, "--ca", authority, "--state", folder / name)
        begin(folder / f"{name}.log", "fedskew", "node", "--data", path, "--server", server, *own)
    do(None, "flwr", "run", deployment / "app", "--stream")
    run = deployment / "run"
    if not (run / "summary.json").exists():
        sys.exit(f"the run did not end: see above, and the logs in {folder}")
    reached = json.loads((run / "summary.json").read_text(encoding="utf-8"))["test_accuracy_last"]
    print(f"\nTest accuracy after the last round: {reached:.4f}\nThe report: {run / 'report.html'}")
    print(f"Server and nodes are still there: python stop.py {shlex.quote(str(folder))}")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def begin(log: Path | None, *command: Any, stays: bool = True) -> Process:
    """Show a command and start it; what it says is in a file, or here."""
    program, *words = map(str, command)
    print(f"$ {shlex.join([program, *words])}", flush=True)
    if log is None:
        return Process([*PROGRAMS[program], *words])
    with log.open("ab") as said:
        command = [*PROGRAMS[program], *words]
        return Process(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=stays)


def do(log: Path | None, *command: Any) -> None:
    """Run a command to its end."""
    if begin(log, *command, stays=False).wait():
        sys.exit(f"that failed: {said_in(log) if log else 'see above'}")


def wait_for(process: Process, log: Path, server: str, authority: Path) -> None:
    """Wait until the server answers."""
    trusted, end = ssl.create_default_context(cafile=authority), time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"https://{server}/health", context=trusted):
                return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"the server did not start: {said_in(log)}")


def said_in(log: Path) -> str:
    """Return the end of a log."""
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def on_interruption(handler: Any) -> None:
    """Say what Ctrl-C, and a request to end, do."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, handler)


def interrupted(*_: Any) -> None:
    """End this process, and with it all that it has started; once is enough."""
    on_interruption(signal.SIG_IGN)
    sys.exit("interrupted: all is stopped")


if __name__ == "__main__":
    where, found = folder_of(sys.argv), sorted(Path.cwd().glob("silo_*.npz"))
    # Begin again with a mark, which all that is started from here inherits
    if os.environ.get(MARK) != str(where):
        os.execve(
            sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, MARK: str(where)}
        )
    if not found:
        sys.exit("there is no silo_*.npz here: python make_silos.py")
    if where.exists():
        sys.exit(
            f"{where} exists already: give another folder, or remove it after python stop.py {where}"
        )
    where.mkdir(parents=True)
    on_interruption(interrupted)
    try:
        main(where, found)
    except BaseException:
        on_interruption(signal.SIG_IGN)
        stop(where)
        raise
