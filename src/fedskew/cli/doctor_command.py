"""The command ``fedskew doctor``: what is installed, and whether it works."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from fedskew.cli.command import Once
from fedskew.cli.console import console_for, escape
from fedskew.cli.partition_options import Json

if TYPE_CHECKING:
    from fedskew.testing.installation import Symptom

_MARKS = {"fine": "ok", "absent": "–", "broken": "BROKEN"}


def add_to(app: typer.Typer) -> None:
    """Add ``doctor`` to the command line."""
    app.command(cls=Once)(doctor)


def doctor(as_json: Json = False) -> None:
    """Show versions, devices, extras and data sets, and test in a few seconds whether training works here.

    The exit code is 1 if something is broken. A missing extra or GPU does not count.
    """
    from fedskew.testing.installation import examine

    found = examine()
    broken = []
    for symptom in found:
        if symptom.outcome == "broken":
            broken.append(symptom.name)
    if as_json:
        findings = list(map(asdict, found))
        print(json.dumps({"ok": not broken, "findings": findings}))
    else:
        _print(found, broken)
    if broken:
        raise typer.Exit(1)


def _print(found: "Sequence[Symptom]", broken: Sequence[str]) -> None:
    """Print the findings part by part, and what is broken."""
    console = console_for()
    part = ""
    for symptom in found:
        if symptom.part != part:
            part = symptom.part
            console.print(f"\n[bold]{part}[/bold]")
        line = f"  {_MARKS[symptom.outcome]:6}  {symptom.name:16}  {symptom.said}"
        console.print(escape(line), soft_wrap=True)
    verdict = "everything works"
    if broken:
        verdict = f"broken: {', '.join(broken)}"
    console.print(f"\n{escape(verdict)}")
