"""The commands that only show: what there is to choose from, and the data sets; and how all commands print."""

import os
from collections import Counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import Registry, spelled


class Once(TyperCommand):
    """A command that refuses an option given twice, of which Click would take the last without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        given = Counter(self.make_parser(ctx).parse_args(args=list(args))[2])
        for option, count in given.items():
            if count > 1 and option.param_type_name == "option" and not option.multiple:
                raise FedskewError(f"{option.opts[0]} is given {count} times: give it once (see {ctx.command_path} --help)")
        return super().parse_args(ctx, args)


def add_to(app: typer.Typer) -> None:
    """Add ``list`` and ``data`` to the command line."""
    app.command("list", cls=Once)(list_things)
    data_app = typer.Typer(help="The data sets: which are there, whether they are sound, how to get them", no_args_is_help=True)
    for name, command in (("list", data_list), ("check", data_check), ("fetch", data_fetch)):
        data_app.command(name, cls=Once)(command)
    app.add_typer(data_app, name="data")


class _Console(Console):
    """Rich would end the process with an error when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        """Leave it to the command line, which takes it for a reader that has read enough."""
        raise BrokenPipeError


def console_for(stderr: bool = False) -> Console:
    """Colour and the terminal's width on a terminal; neither, and room for a whole line, without one."""
    console = _Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 200
    return console


def escape(text: str) -> str:
    """Text that Rich prints as it is."""
    return text.replace("[", "\\[")


# -- list ----------------------------------------------------------------------------------------------------------------


def _registries() -> dict[str, Registry[Any]]:
    from fedskew.algorithms.contract import algorithms
    from fedskew.data.dataset import datasets
    from fedskew.engine.lr_schedule import schedules
    from fedskew.fleet.machines import fleets
    from fedskew.models.network import models
    from fedskew.skew.skews import skews, treatments
    from fedskew.tasks.task import tasks

    return {
        "algorithms": algorithms,
        "skews": skews,
        "treatments": treatments,
        "data": datasets,
        "models": models,
        "tasks": tasks,
        "fleets": fleets,
        "schedules": schedules,
    }


def list_things(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="algorithms, skews, treatments, data, models, tasks, fleets or schedules; all when left out"
        ),
    ] = None,
) -> None:
    """What there is to choose from, with every option, its default and a line of help."""
    registries = _registries()
    if kind is not None and kind not in registries:
        raise unknown("kind", kind, registries)
    console = console_for()
    for title, registry in registries.items():
        if kind in (None, title) or (kind == "skews" and title == "treatments"):
            console.print(f"[bold]{title}[/bold]")
            for name in registry:
                _list_one(console, registry, name)
            console.print()


def _list_one(console: Console, registry: Registry[Any], name: str) -> None:
    summary = registry.summary(name).replace("``", "")
    added = f" [dim](an addition: METHOD + {name})[/dim]" if getattr(registry.get(name), "addition", False) else ""
    console.print(f"  [bold cyan]{name}[/bold cyan]  {escape(summary)}{added}", soft_wrap=True)
    for option in registry.options(name).values():
        default = "required" if option.required else f"default {spelled(option.default) or 'none'}"
        bounds = f", {option.bounds}" if option.bounds else ""
        facts = f"{option.type_name()}{bounds}; {default}"
        console.print(f"      {option.name}=  {escape(option.help)} [dim]({escape(facts)})[/dim]", soft_wrap=True)


# -- data ----------------------------------------------------------------------------------------------------------------


def data_list() -> None:
    """Every known data set: is it there, can it be fetched, under which licence."""
    from fedskew.data.catalogue import listing
    from fedskew.data.source import root

    console = console_for()
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for title, wrap in (("name", False), ("here", False), ("what", True)):
        table.add_column(title, no_wrap=not wrap, overflow="fold")
    for entry in listing():
        how = "fetch" if entry.fetchable else "by hand"
        state = {"present": "yes", "own": "your file", "partly": f"partly, {how}", "missing": f"no, {how}"}[entry.state]
        licence = f"\n[dim]{escape(entry.licence)}[/dim]" if entry.licence else ""
        table.add_row(entry.name, state, escape(entry.summary) + licence)
    console.print(table)
    console.print(
        "\n[dim]fetch: fedskew data fetch NAME gets it; by hand: fedskew data check NAME says what to put where[/dim]"
    )
    console.print(f"data folder: {root()} (set FEDSKEW_DATA to change it)", soft_wrap=True)


def data_check(name: Annotated[str, typer.Argument(help="a data set, with options if it needs them")]) -> None:
    """Read a data set whole and say what is in it."""
    from fedskew.data.catalogue import check

    facts = check(name)
    console = console_for()
    console.print(f"[bold]{escape(facts.name)}[/bold]", soft_wrap=True)
    rows = ", ".join(f"{count:,} {part}" for part, count in facts.rows.items())
    console.print(f"  rows      {rows}\n  shape     {facts.shape}\n  groups    {facts.groups or 'none'}")
    shown = [f"{label} {count:,}" for label, count in list(facts.classes.items())[:20]]
    more = f" … and {len(facts.classes) - 20} more" if len(facts.classes) > 20 else ""
    if facts.classes:
        console.print(f"  classes   {len(facts.classes)}: {escape(', '.join(shown))}{more}", soft_wrap=True)
    if facts.licence:
        console.print(f"  licence   {escape(facts.licence)}", soft_wrap=True)
    for note in facts.notes:
        console.print(f"  note      {escape(note)}", soft_wrap=True)


def data_fetch(name: Annotated[str, typer.Argument(help="a data set")]) -> None:
    """Download a data set from its publisher, checked and resumable."""
    from fedskew.data.download import fetch

    console = Console(stderr=True)
    if not console.is_terminal:
        paths = fetch(name)
    else:
        from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        with Progress(TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn(), console=console) as bars:
            tasks: dict[str, Any] = {}

            def show(file: str, done: int, total: int | None) -> None:
                if file not in tasks:
                    tasks[file] = bars.add_task(file, total=total)
                bars.update(tasks[file], completed=done, total=total)

            paths = fetch(name, show)
    for path in paths:
        print(path)
