"""The command ``fedskew server``: Flower's SuperLink for runs on nodes."""

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.command import Once
from fedskew.core.errors import FedskewError

Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="neither encrypt nor check who a node is: for trials on one machine"
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add ``server`` to the command line."""
    app.command(cls=Once)(server)


def server(
    state: Annotated[
        Path,
        typer.Option("--state", metavar="DIR", help="folder for its database", show_default=False),
    ],
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="DIR", help="folder of fedskew keys", show_default=False),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="IP", help="address to listen on; 0.0.0.0 for all of this machine's"
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="port to listen on, the only one that nodes need")
    ] = 8000,
    runs: Annotated[
        Path,
        typer.Option(
            "--runs",
            metavar="DIR",
            help="folder under which fedskew deploy writes; by default the current one",
            show_default=False,
        ),
    ] = Path(),
    insecure: Insecure = False,
) -> None:
    """Start the server that nodes connect to (Flower's SuperLink), with TLS and node keys. It runs until it is stopped.

    \b
    fedskew server --keys keys --state link --host 0.0.0.0
    """
    from fedskew.deploy.flower_processes import server_process

    if (keys is None) != insecure:
        raise FedskewError(
            "give --keys DIR (fedskew keys makes it), or --insecure for a trial on one machine"
        )
    server_process(keys, state, host, port, runs).become()
