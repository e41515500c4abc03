"""Flower's long-running processes, a server's SuperLink and a silo's SuperNode: checked first, then started."""

import os
import secrets
import socket
import sys
import sysconfig
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_npz
from fedskew.core.lock import hold
from fedskew.core.writing import writing
from fedskew.data.readers.csv_format import CsvFormat, file_and_format
from fedskew.data.readers.silo_files import is_arrays
from fedskew.data.readers.table import read_sentences
from fedskew.data.readers.user_files import column_names, pick, read_table
from fedskew.deploy.certificates import (
    CA,
    SERVER,
    SERVER_KEY,
    check_certificate,
    check_node_key,
    check_pair,
    check_private,
)
from fedskew.deploy.flower_grid import QUIET, need_flower

DATABASE, FLOWER = "superlink.db", "flower"  # in the folder of a process
RUNS = "FEDSKEW_RUNS"  # a variable that tells runs where the server looks for deployments


@dataclass(frozen=True)
class Process:
    """A Python program, its arguments, and the folder of its state, which one process at a time may use."""

    program: list[str]
    arguments: list[str]
    state: Path
    variables: Mapping[str, str] = field(default_factory=dict)  # of its environment

    def become(self) -> None:
        """Replace this process by that program: signals then reach it, and no other process is left behind."""
        # The program that follows goes on to hold the lock of the state.
        os.set_inheritable(hold(self.state), True)
        # Flower starts its other programs by their names.
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
        environment = {**os.environ, **_flower_variables(self.state), **self.variables}
        environment["PATH"] = path
        os.execve(sys.executable, [sys.executable, *self.program, *self.arguments], environment)


def server_process(keys: Path | None, state: Path, host: str, port: int, runs: Path) -> Process:
    """Return the SuperLink of a server; without keys, it is neither encrypted nor asks who a node is.

    ``runs`` is the folder under which it looks for the deployments that it runs.
    """
    need_flower()
    if not runs.is_dir():
        raise FedskewError(
            f"--runs {runs} is not a folder: give one in which fedskew deploy writes"
        )
    secure = ["--insecure"]
    if keys is not None:
        check_certificate(keys / CA, f"--keys, a folder with {CA}")
        check_certificate(keys / SERVER, f"--keys, a folder with {SERVER}")
        check_private(keys / SERVER_KEY, f"--keys, a folder with {SERVER_KEY}")
        check_pair(keys / SERVER, keys / SERVER_KEY)
        secure = ["--ssl-ca-certfile", str(keys / CA), "--ssl-certfile", str(keys / SERVER)]
        secure += ["--ssl-keyfile", str(keys / SERVER_KEY), "--enable-supernode-auth"]
    _check_port(host, port)
    where = ["--host", host, "--port", str(port), "--database", str(_folder(state) / DATABASE)]
    program = ["-m", "fedskew.deploy.guarded_link"]
    arguments = [*secure, *where, "--disable-runtime-dependency-installation"]
    return Process(program, arguments, state, {RUNS: str(runs.absolute())})


def node_process(
    data: Path,
    server: str,
    state: Path,
    name: str | None,
    security: tuple[Path, Path] | None,
    port: int | None,
) -> Process:
    """Return the SuperNode of a silo, whose file is read once to see that it can be, and how it is written.

    ``data`` is its file, or FILE:separator=semicolon:decimal=comma where that is not recognised.
    ``security`` is the node's private key and the certificate of the authority; ``port`` is for its own processes
    alone, on this machine.
    """
    need_flower()
    check_address(server)
    secure = ["--insecure"]
    if security is not None:
        key, authority = security
        check_node_key(key, "--key, the node's private key")
        check_certificate(authority, f"--ca, the file {CA}")
        secure = ["--root-certificates", str(authority), "--auth-supernode-private-key", str(key)]
    name_of_file, written = file_and_format(str(data))
    path = Path(name_of_file)
    if not path.is_file():
        raise FedskewError(
            f"{path} is not there: give --data FILE, the CSV, Parquet or NPZ file of this silo"
        )
    if is_arrays(path):
        pick(path, read_npz(path), "")
    else:
        _read_once(path, written)
    if port is None:
        port = _free_port()
    _check_port("127.0.0.1", port)
    own = {
        "data": f"{path.absolute()}{str(data).removeprefix(name_of_file)}",
        "state": str(_folder(state).absolute()),
    }
    if name:
        own["name"] = name
    for option, value in own.items():
        if "'" in value or not value.isprintable():
            raise FedskewError(
                f"--{option} {value!r}: Flower does not take such a name, choose another"
            )
    node_config = " ".join(f"{option}='{value}'" for option, value in own.items())
    where = ["--superlink", server, "--port", str(port), "--node-config", node_config]
    where += ["--isolation", "process", "--superexec-auth-secret-file", str(_secret(state))]
    return Process(["-m", "fedskew.deploy.prompt_node"], [*secure, *where], state)


def _read_once(path: Path, written: CsvFormat) -> None:
    """Refuse a table that cannot be read, and say how it is written; what its columns mean, only the run knows."""
    read_table(path, (), written, texts=column_names(path, written))
    try:
        said = read_sentences([read_table(path, (), written)])
    except FedskewError as doubt:
        said = [str(doubt)]
    for sentence in said:
        warnings.warn(sentence, stacklevel=3)


def _secret(state: Path) -> Path:
    """Return a file that only the processes of this node know: others on this machine do not get its messages."""
    path = state.absolute() / "messages.secret"
    with writing(path):
        path.unlink(missing_ok=True)
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(secrets.token_bytes(32))
    return path


def _flower_variables(state: Path) -> dict[str, str]:
    """Return the environment variables that say where Flower keeps its files, and how often it looks for work."""
    return {
        "FLWR_HOME": str(state.absolute() / FLOWER),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        **QUIET,
    }


def _folder(path: Path) -> Path:
    """Return a folder that only its owner may read, made if it is not there."""
    with writing(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def check_address(address: str) -> None:
    """Refuse what is no address of a server."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdigit() or not 0 < int(port) < 2**16:
        raise FedskewError(f"--server {address}: give HOST:PORT")


def _check_port(host: str, port: int) -> None:
    """Refuse a port that something else listens on, or that cannot be had."""
    if not 0 < port < 2**16:
        raise FedskewError(f"--port {port}: give a number from 1 to {2**16 - 1}")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
    except OSError as problem:
        raise FedskewError(
            f"port {port} of {host} cannot be used ({problem.strerror or problem}): give another --port"
        ) from None


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port: int = tried.getsockname()[1]
        return port
