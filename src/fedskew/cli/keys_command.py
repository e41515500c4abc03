"""The command ``fedskew keys``: certificates and keys for a server and its nodes."""

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.command import Once


def add_to(app: typer.Typer) -> None:
    """Add ``keys`` to the command line."""
    app.command(cls=Once)(keys)


def keys(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="folder to write them to", show_default=False)
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="name or IP address by which nodes reach the server; may be repeated",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", metavar="A,B,C", help="names of the nodes", show_default=False),
    ] = None,
    days: Annotated[
        int,
        typer.Option(
            "--days", min=1, max=3650, help="days for which the server's certificate is valid"
        ),
    ] = 365,
) -> None:
    """Make a certificate for the server and a pair of keys for each node. Nothing is overwritten.

    The folder keeps the key of the certificate authority (ca.key), which signs later certificates: keep it where nobody
    else reads it. A node needs its own private key (nodes/NAME) and ca.crt, and nothing else of the folder.

    \b
    fedskew keys keys --host fl.example.org --nodes hospital_A,hospital_B,hospital_C
    fedskew keys keys --nodes hospital_D
    """
    from fedskew.deploy.certificates import make_keys

    names = []
    if nodes:
        names = nodes.split(",")
    for path in make_keys(folder, host or (), names, days):
        print(path)
