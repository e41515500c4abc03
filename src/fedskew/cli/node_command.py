"""The command ``fedskew node``: Flower's SuperNode on a silo's own file."""

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.command import Once
from fedskew.cli.server_command import Insecure
from fedskew.core.errors import FedskewError


def add_to(app: typer.Typer) -> None:
    """Add ``node`` to the command line."""
    app.command(cls=Once)(node)


def node(
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FILE",
            help="CSV, Parquet or NPZ file of this site; say how a CSV file is written if fedskew does not recognise "
            "it, FILE:separator=semicolon:decimal=comma",
            show_default=False,
        ),
    ],
    server: Annotated[
        str,
        typer.Option(
            "--server", metavar="HOST:PORT", help="where the server listens", show_default=False
        ),
    ],
    state: Annotated[
        Path,
        typer.Option(
            "--state",
            metavar="DIR",
            help="folder for what the node keeps between rounds",
            show_default=False,
        ),
    ],
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="private key of this node", show_default=False),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca", metavar="FILE", help="certificate of the authority, ca.crt", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="name of the client; by default that of the file", show_default=False
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            help="port on this machine for the node's own processes; a free one by default",
            show_default=False,
        ),
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Let this site take part in runs (Flower's SuperNode). Its rows stay here, and it runs until it is stopped.

    \b
    fedskew node --data hospital_A.csv --server fl.example.org:8000 --key hospital_A --ca ca.crt --state node
    """
    from fedskew.deploy.flower_processes import node_process

    if insecure == bool(key or ca) or bool(key) != bool(ca):
        raise FedskewError(
            "give --key FILE and --ca FILE (fedskew keys makes them), or --insecure for a trial"
        )
    certificates = None
    if key and ca:
        certificates = (key, ca)
    node_process(data, server, state, name, certificates, port).become()
