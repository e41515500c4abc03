"""The Flower app of a deployment: configuration only, for the two apps that are in the installed package."""

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from fedskew import __version__
from fedskew.core.config import to_toml
from fedskew.core.errors import FedskewError
from fedskew.core.writing import write_atomically, writing
from fedskew.deploy.certificates import CA, check_certificate
from fedskew.deploy.flower_processes import FLOWER, check_address
from fedskew.runs.folder import APP, RUN

DEPLOYMENT = "deployment"  # the number of a deployment, in the configuration of its app
_DEPTHS = ("*", "*/*", "*/*/*")  # of deployments in the folder in which a server looks for them
_PROJECT = """# Written by fedskew deploy: nothing but configuration, the two apps are in the installed package.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedskew-run"
description = "A run of fedskew over Flower"
license = "Apache-2.0"
dependencies = []
{project}
[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedskew"

[tool.flwr.app.components]
serverapp = "fedskew.cli.server_app:app"
clientapp = "fedskew.deploy.client_app:app"

[tool.flwr.app.config]
{config}"""


@dataclass(frozen=True)
class Deployment:
    """A folder with a Flower app, and how its server is reached; ``keys`` is None where nothing is encrypted.

    ``metrics_port`` is where a run has its metrics, for collectors on the machine of the server; None for nowhere.
    ``max_update_norm`` is the largest norm of an update that is taken; None for any.
    ``alias``: its clients are called ``client 1``, ``client 2`` and so on in all that is written.

    The app goes to all nodes: it names neither clients nor a folder of the server, but has a number by which the server
    finds the folder.
    """

    folder: Path
    server: str
    keys: Path | None
    nodes: int
    timeout: float
    metrics_port: int | None = None
    max_update_norm: float | None = None
    alias: bool = False

    def write(self, experiment: Mapping[str, Any]) -> None:
        """Write the app, and the connection to its server."""
        if self.folder.exists():
            raise FedskewError(f"--out {self.folder} exists already: choose another folder")
        check_address(self.server)
        if self.keys is not None:
            check_certificate(self.keys / CA, f"--keys, a folder with {CA}")
        config: dict[str, Any] = {"nodes": self.nodes, "timeout": self.timeout}
        config |= {DEPLOYMENT: uuid.uuid4().hex}
        if self.metrics_port:
            config |= {"metrics_port": self.metrics_port}
        if self.max_update_norm is not None:
            config |= {"max_update_norm": self.max_update_norm}
        if self.alias:
            config |= {"alias": True}
        content = _PROJECT.format(
            project=to_toml({"version": __version__}),
            config=to_toml({**config, "experiment": to_toml(experiment)}),
        )
        link: dict[str, Any] = {"address": self.server}
        if self.keys:
            link |= {"root-certificates": str((self.keys / CA).absolute())}
        else:
            link |= {"insecure": True}
        connection = f'[superlink]\ndefault = "fedskew"\n\n[superlink.fedskew]\n{to_toml(link)}'
        with writing(self.folder):
            for inside in (APP, FLOWER):
                (self.folder / inside).mkdir(parents=True)
        write_atomically(self.folder / APP / "pyproject.toml", content.encode())
        write_atomically(self.folder / FLOWER / "config.toml", connection.encode())

    def commands(self) -> list[tuple[str, str]]:
        """Return what is to be done, in order, and by which command."""
        host, _, port = self.server.rpartition(":")
        listen = " --host 0.0.0.0"
        if host in ("127.0.0.1", "localhost"):
            listen = ""
        server_keys = "--insecure"
        node_keys = "--insecure"
        if self.keys:
            server_keys = f"--keys {quote(str(self.keys))}"
            node_keys = "--key nodes/NAME --ca ca.crt"
        folder = self.folder.absolute()
        flwr = f"FLWR_TELEMETRY_ENABLED=0 FLWR_HOME={quote(str(folder / FLOWER))} flwr"
        runs = quote(str(folder.parent))
        serve = f"fedskew server {server_keys}{listen} --port {port} --state STATE --runs {runs}"
        join = f"fedskew node --data FILE.csv --server {self.server} {node_keys} --state STATE"
        commands = [("on the server, which stays", serve)]
        if self.keys:
            register = f"{flwr} supernode register {quote(str(self.keys))}/nodes/NAME.pub"
            commands.append(("once for each node, before it joins", register))
        commands.append((f"on each of the {self.nodes} nodes, which stay", join))
        commands.append(("then, here", f"{flwr} run {quote(str(folder / APP))} --stream"))
        return commands


def run_folder(number: str, runs: Path) -> Path:
    """Return the run folder of the deployment with this number, which is somewhere in a folder of deployments."""
    wanted = f'{DEPLOYMENT} = "{number}"'
    for depth in _DEPTHS:
        for project in runs.glob(f"{depth}/{APP}/pyproject.toml"):
            with suppress(OSError, UnicodeDecodeError):
                if wanted in project.read_text(encoding="utf-8").splitlines():
                    return project.parent.parent / RUN
    raise FedskewError(
        f"the deployment {number} is not in {runs} of the server: start fedskew server with --runs DIR, the folder in "
        "which fedskew deploy has written"
    )
