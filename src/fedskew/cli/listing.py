"""The command ``fedskew list``: the registered components with their options."""

from typing import Annotated, Any

import typer
from rich.console import Console

from fedskew.cli.command import Once
from fedskew.cli.console import console_for, escape
from fedskew.core.errors import unknown
from fedskew.core.registry import Registry, spelled


def add_to(app: typer.Typer) -> None:
    """Add ``list`` to the command line."""
    app.command("list", cls=Once)(list_things)


def registries() -> dict[str, Registry[Any]]:
    """Return the registries of all components, by kind."""
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
    """List the available components with all options, their defaults and a line of help.

    KIND is one of algorithms, skews, treatments, data, models, fleets, schedules; by default all are listed.
    """
    kinds = registries()
    if kind is not None and kind not in kinds:
        raise unknown("kind", kind, kinds)
    console = console_for()
    for title, registry in kinds.items():
        if kind in (None, title) or (kind == "skews" and title == "treatments"):
            console.print(f"[bold]{title}[/bold]")
            for name in registry:
                _list_one(console, registry, name)
            console.print()


def _list_one(console: Console, registry: Registry[Any], name: str) -> None:
    summary = registry.summary(name).replace("``", "")
    line = f"  [bold cyan]{name}[/bold cyan]  {escape(summary)}"
    if getattr(registry.get(name), "addition", False):
        line += f" [dim](an addition: METHOD + {name})[/dim]"
    console.print(line, soft_wrap=True)
    for option in registry.options(name).values():
        facts = option.type_name()
        if option.bounds:
            facts += f", {option.bounds}"
        if option.required:
            facts += "; required"
        else:
            facts += f"; default {spelled(option.default) or 'none'}"
        console.print(
            f"      {option.name}=  {escape(option.help)} [dim]({escape(facts)})[/dim]",
            soft_wrap=True,
        )
