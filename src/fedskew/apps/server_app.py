"""Flower's ServerApp: one run with the silos of all nodes."""

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp import ServerApp

from fedskew.core.config import Experiment
from fedskew.deploy.flower_grid import GridTransport, nodes_of
from fedskew.deploy.remote_clients import Nodes
from fedskew.report.page import PageWriter
from fedskew.runs.deployment import run_on_nodes

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

app = ServerApp()


@app.main()
def main(grid: "Grid", context: "Context") -> None:
    """Wait for the nodes, then run the experiment of the app's configuration, or go on with it."""
    config = context.run_config
    count, timeout = int(str(config["nodes"])), float(str(config["timeout"]))
    found = nodes_of(grid, count, timeout)
    nodes = Nodes(GridTransport(grid, dict(enumerate(found)), timeout))
    experiment = Experiment(**tomllib.loads(str(config["experiment"])))
    run_on_nodes(nodes, len(found), experiment, Path(str(config["folder"])), [PageWriter()])
