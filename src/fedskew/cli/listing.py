"""The command ``fedskew list``: the registered components with their options.

What fedskew itself registers is listed from a file, ``components.json``, because importing all components takes a
second, PyTorch most of it. ``make index`` writes that file, and a test fails if it is out of date.
"""

import json
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer
from rich.console import Console

from fedskew.algorithms.purposes import by_purpose
from fedskew.cli.command import Once
from fedskew.cli.console import column_meanings, console_for, escape
from fedskew.cli.partition_options import Json
from fedskew.core.errors import unknown
from fedskew.core.plugins import OWN
from fedskew.core.registry import Registry, spelled

INDEX = Path(__file__).with_name("components.json")
KINDS = (
    "algorithms", "skews", "treatments", "data", "models", "tasks", "fleets", "schedules",
)  # fmt: skip

COLUMNS = "columns"


class ListedOption(TypedDict):
    """What is listed of an option: its help, and in words its type, bounds and default."""

    help: str
    facts: str


class Listed(TypedDict):
    """What is listed of a component; an addition goes with any method."""

    summary: str
    addition: bool
    options: dict[str, ListedOption]


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


def _kinds(incomplete: str) -> list[str]:
    """Return what a shell completes KIND to."""
    return [kind for kind in (*KINDS, COLUMNS) if kind.startswith(incomplete)]


def list_things(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="algorithms, skews, treatments, data, models, tasks, fleets or schedules, by default all of these; "
            "columns are those of the table that a run prints",
            autocompletion=_kinds,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the available components with all options, their defaults and a line of help.

    \b
    fedskew list algorithms
    fedskew list columns
    """
    if kind is not None and kind not in (*KINDS, COLUMNS):
        raise unknown("kind", kind, (*KINDS, COLUMNS))
    if kind == COLUMNS:
        _list_columns(as_json)
        return
    wanted = list(KINDS)
    if kind == "skews":
        wanted = ["skews", "treatments"]
    elif kind is not None:
        wanted = [kind]
    found = components(wanted)
    if as_json:
        print(json.dumps(found))
    else:
        _list_components(found)


def _list_components(found: dict[str, dict[str, Listed]]) -> None:
    """Print the components kind by kind."""
    console = console_for()
    for title, things in found.items():
        if title == "algorithms":
            _list_algorithms(console, things)
            continue
        console.print(f"[bold]{title}[/bold]")
        for name, listed in things.items():
            _list_one(console, name, listed)
        console.print()


def _list_columns(as_json: bool) -> None:
    """List what the columns mean of the table that a run prints at its end."""
    meanings = column_meanings()
    if as_json:
        print(json.dumps({COLUMNS: meanings}))
        return
    width = max(map(len, meanings))
    console = console_for()
    for title, meaning in meanings.items():
        console.print(f"[bold]{title:{width}}[/bold]  {escape(meaning)}", soft_wrap=True)


def _list_algorithms(console: Console, things: dict[str, Listed]) -> None:
    """List methods and additions by what they are for."""
    console.print(
        f"[bold]algorithms[/bold]: {len(things)} methods and additions, by what they are for"
    )
    for purpose, names in by_purpose(things).items():
        console.print(f"\n[bold]{escape(purpose)}[/bold]")
        for name in names:
            _list_one(console, name, things[name])
    console.print()


def components(kinds: Sequence[str]) -> dict[str, dict[str, Listed]]:
    """Return the components of these kinds by name: from the index, unless others than fedskew's own may be there."""
    groups = set()
    for kind in kinds:
        groups.add(f"fedskew.{kind}")
    if OWN or groups & entry_points().groups:
        return registered(kinds)
    index = json.loads(INDEX.read_text(encoding="utf-8"))
    found = {}
    for kind in kinds:
        found[kind] = index[kind]
    return found


def registered(kinds: Sequence[str]) -> dict[str, dict[str, Listed]]:
    """Return the components of these kinds by name, from their classes and functions."""
    known = registries()
    found = {}
    for kind in kinds:
        found[kind] = _described(known[kind])
    return found


def _described(registry: Registry[Any]) -> dict[str, Listed]:
    """Return what is listed of the components of a registry."""
    things: dict[str, Listed] = {}
    for name in registry:
        options: dict[str, ListedOption] = {}
        for option in registry.options(name).values():
            facts = option.type_name()
            if option.bounds:
                facts += f", {option.bounds}"
            if option.required:
                facts += "; required"
            else:
                facts += f"; default {spelled(option.default) or 'none'}"
            options[option.name] = {"help": option.help, "facts": facts}
        things[name] = {
            "summary": registry.summary(name),
            "addition": getattr(registry.get(name), "addition", False),
            "options": options,
        }
    return things


def _list_one(console: Console, name: str, listed: Listed) -> None:
    summary = listed["summary"].replace("``", "")
    line = f"  [bold cyan]{name}[/bold cyan]  {escape(summary)}"
    if listed["addition"]:
        line += f" [dim](an addition: METHOD + {name})[/dim]"
    console.print(line, soft_wrap=True)
    for title, option in listed["options"].items():
        console.print(
            f"      {title}=  {escape(option['help'])} [dim]({escape(option['facts'])})[/dim]",
            soft_wrap=True,
        )
