"""The pages of the reference: components from registries, commands from the command line, names from docstrings."""

import html
import re
from pathlib import Path
from typing import Any

import fedskew
from fedskew.cli.listing import registries
from fedskew.core.registry import Registry, spelled

KINDS = {
    "algorithms": "Methods, and what can be added to one (`METHOD + ADDITION`).",
    "skews": "How one data set is partitioned into heterogeneous clients.",
    "treatments": "What is done to the rows of clients; written after a skew (`SKEW + TREATMENT`).",
    "data": "Data sets by name; files and folders are read by their names too.",
    "models": "Networks; any `nn.Module` will do in Python.",
    "tasks": "Loss, targets, predictions and metrics.",
    "fleets": "Clients as machines: speed, bandwidth, drop-outs.",
    "schedules": "How the learning rate changes over the rounds.",
}
FUNCTIONS = (
    "load",
    "split",
    "measure",
    "train",
    "compare",
    "resume",
    "open_run",
    "advise",
    "check",
    "load_split",
)
SHOWN = (
    "Run",
    "Federation",
    "Dataset",
    "Partition",
    "Experiment",
    "Settings",
    "Task",
    "Callback",
    "Algorithm",
    "FederatedClassifier",
    "FederatedRegressor",
)
# Made by scikit-learn, whose texts refer to its own pages
ROUTED = "set_fit_request, set_predict_request, set_predict_proba_request, set_score_request"


def write_reference(folder: Path) -> None:
    """Write the three pages into the folder."""
    folder.mkdir(exist_ok=True)
    for name, text in {
        "components": components(),
        "commands": commands(),
        "python": python(),
    }.items():
        path = folder / f"{name}.md"
        if (
            not path.exists() or path.read_text(encoding="utf-8") != text
        ):  # an unchanged page is not built again
            path.write_text(text, encoding="utf-8")


def components() -> str:
    """Return all registered components with their options."""
    parts = [
        "# Components",
        "`name:option=value,option=value` chooses one; `fedskew list` prints this page.",
    ]
    for kind, registry in registries().items():
        parts += [
            f"## {kind.capitalize()}",
            KINDS[kind],
            *(_component(registry, name) for name in registry),
        ]
    return "\n\n".join(parts) + "\n"


def _component(registry: Registry[Any], name: str) -> str:
    addition = " An addition." if getattr(registry.get(name), "addition", False) else ""
    lines = [f"### `{name}`", "", registry.summary(name).replace("``", "`") + addition]
    rows = []
    for option in registry.options(name).values():
        default = "required" if option.required else f"`{spelled(option.default) or 'none'}`"
        values = f"{option.type_name()}{f', {option.bounds}' if option.bounds else ''}"
        rows.append([f"`{option.name}`", option.help.replace("``", "`"), values, default])
    if rows:
        table = [["option", "", "values", "default"], ["---"] * 4, *rows]
        lines += [
            "",
            *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table),
        ]
    return "\n".join(lines)


def commands() -> str:
    """Return the help of all commands."""
    import typer
    from typer.cli import get_docs_for_click

    from fedskew.cli.app import app

    group = typer.main.get_command(app)
    text = get_docs_for_click(obj=group, ctx=typer.Context(group), name="fedskew").replace(
        "# `fedskew`", "# Commands", 1
    )
    for name, command in group.commands.items():  # in full: Typer shortens them
        text = re.sub(
            rf"^\* `{name}`: .*$",
            f"* `{name}`: {command.help.split(chr(10))[0]}",
            text,
            count=1,
            flags=re.M,
        )
    examples = re.compile(r"(?:^fedskew .*\n)+", re.MULTILINE)
    return examples.sub(lambda found: f"```sh\n{html.unescape(found[0])}```\n", text)


def python() -> str:
    """Return the public names of the package, as Sphinx reads them."""
    parts = [
        "# Python",
        "`import fedskew as fs`. Methods are classes of the package too: `fs.FedProx(mu=0.1)`.",
    ]
    parts += [
        "## Functions",
        *(
            _automatic(f"autofunction:: fedskew.{name}")
            for name in FUNCTIONS
            if hasattr(fedskew, name)
        ),
    ]
    parts += [
        "## Classes",
        *(_automatic(_class(name)) for name in SHOWN),
    ]
    return "\n\n".join(parts) + "\n"


def _class(name: str) -> str:
    return f"autoclass:: fedskew.{name}\n   :members:\n   :exclude-members: {ROUTED}"


def _automatic(directive: str) -> str:
    return f"```{{eval-rst}}\n.. {directive}\n```"
