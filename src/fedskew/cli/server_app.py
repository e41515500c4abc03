"""Flower's ServerApp: one run with the silos of all nodes."""

import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp import ServerApp

from fedskew.cli.console import print_summary, show_progress
from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.deploy.deployment import run_on_nodes
from fedskew.deploy.flower_app import DEPLOYMENT, run_folder
from fedskew.deploy.flower_grid import GridTransport, nodes_of
from fedskew.deploy.flower_patches import try_again
from fedskew.deploy.flower_processes import RUNS
from fedskew.deploy.remote_clients import Nodes
from fedskew.report.event_log import recording
from fedskew.report.page import PageWriter
from fedskew.report.prometheus import serving_metrics
from fedskew.runs.choices import spell

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid

app = ServerApp()


@app.main()
def main(grid: "Grid", context: "Context") -> None:
    """Wait for the nodes, then run the experiment of the app's configuration, or go on with it."""
    try_again(grid)
    try:
        _run(grid, context)
    except FedskewError as problem:
        print(f"fedskew: {problem}", file=sys.stderr)
        # Without the traceback: the message says what to do.
        raise problem.with_traceback(None) from None


def _run(grid: "Grid", context: "Context") -> None:
    config = context.run_config
    count = int(str(config["nodes"]))
    timeout = float(str(config["timeout"]))
    folder = run_folder(str(config[DEPLOYMENT]), Path(os.environ[RUNS]))
    port = None
    if "metrics_port" in config:
        port = int(str(config["metrics_port"]))
    with recording(folder) as log, serving_metrics(port) as metrics:
        node_ids = nodes_of(grid, count, timeout)
        transport = GridTransport(grid, dict(enumerate(node_ids)), timeout)
        log.numbers = transport.numbers
        nodes = Nodes(transport, log)
        if "max_update_norm" in config:
            nodes.max_norm = float(str(config["max_update_norm"]))
        experiment = Experiment(**tomllib.loads(str(config["experiment"])))
        name = spell("algorithm", experiment.algorithm)
        with show_progress([name], experiment.rounds, simulated=False) as callbacks_of:
            callbacks = [PageWriter(), log, *metrics, *callbacks_of(name)]
            done = run_on_nodes(
                nodes, len(node_ids), experiment, folder, callbacks, bool(config.get("alias"))
            )
    print_summary([name], [done.summary], folder, done.summary, as_json=False)
