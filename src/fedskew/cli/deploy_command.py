"""The command ``fedskew deploy``: a Flower app for an experiment on nodes."""

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.command import Once
from fedskew.cli.server_command import Insecure
from fedskew.core.errors import FedskewError


def add_to(app: typer.Typer) -> None:
    """Add ``deploy`` to the command line."""
    app.command(cls=Once)(deploy)


def deploy(
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT.toml", help="settings of the run")
    ],
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, help="nodes to wait for", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="new folder to write", show_default=False)
    ],
    server: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT", help="where the server listens")
    ] = ("127.0.0.1:8000"),
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="DIR", help="folder of fedskew keys", show_default=False),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="seconds that a round waits for a node")
    ] = 600.0,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=1,
            max=65535,
            help="port of 127.0.0.1 at which a run has metrics for Prometheus; none by default",
            show_default=False,
        ),
    ] = None,
    max_update_norm: Annotated[
        float | None,
        typer.Option(
            "--max-update-norm",
            min=0,
            help="leave out updates of a larger norm; none by default",
            show_default=False,
        ),
    ] = None,
    alias: Annotated[
        bool,
        typer.Option(
            "--alias", help="call clients client 1, client 2 and so on in all that is written"
        ),
    ] = False,
    insecure: Insecure = False,
) -> None:
    """Write a Flower app for an experiment whose clients are nodes with files of their own, and say how to run it.

    The experiment says how these files are read, without their paths: data = "silos:label=outcome". The run folder will
    be DIR/run on the machine of the server.

    \b
    fedskew deploy experiment.toml --nodes 3 --server fl.example.org:8000 --keys keys --out deployment
    """
    from fedskew.core.config import read_file
    from fedskew.deploy.deployment import check_experiment
    from fedskew.deploy.flower_app import Deployment
    from fedskew.deploy.flower_grid import need_flower

    if (keys is None) != insecure:
        raise FedskewError(
            "give --keys DIR (fedskew keys makes it), or --insecure for a trial on one machine"
        )
    need_flower()
    values = read_file(experiment)
    check_experiment(values, nodes)
    deployment = Deployment(out, server, keys, nodes, timeout, metrics_port, max_update_norm, alias)
    deployment.write(values)
    for number, (when, command) in enumerate(deployment.commands(), 1):
        print(f"{number}. {when}:\n   {command}")
