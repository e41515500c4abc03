"""The command ``fedskew status``: how a run stands, from its folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedskew.cli.command import Once
from fedskew.cli.console import console_for, duration, escape, headline, metric_value
from fedskew.core.notebook import few

if TYPE_CHECKING:
    from fedskew.report.status import Status
    from fedskew.runs.folder import Row

_NAMED = 10  # clients


def add_to(app: typer.Typer) -> None:
    """Add ``status`` to the command line."""
    app.command(cls=Once)(status)


def status(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="folder of a run", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print it as JSON")] = False,
) -> None:
    """Say how a run stands: one that goes on, was stopped or has ended. It reads the folder, and connects to nothing.

    \b
    fedskew status runs/NAME
    """
    from fedskew.report.status import status as found
    from fedskew.runs.folder import to_json

    now = found(folder)
    if as_json:
        print(to_json(vars(now)))
        return
    console = console_for()
    for title, text in _lines(now).items():
        # Names may have anything
        line = "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
        console.print(f"[bold]{title:14}[/bold]{escape(line)}", soft_wrap=True)


def _lines(now: "Status") -> dict[str, str]:
    """Return what is known, by title."""
    if now.process:
        by = f", by {now.process}"
    else:
        by = ""
    lines = {"run": f"{now.folder}: {now.algorithm}", "state": f"{now.state}{by}"}
    lines["round"] = f"{now.round} of {now.rounds}"
    if now.metrics:
        scores = []
        for part in ("validation", "test", "own_test"):
            for metric, value in [headline(now.metrics, part)]:
                if value is not None:
                    scores.append(f"{part} {metric} {metric_value(metric, value)}")
        lines["scores"] = f"{', '.join(scores)} (round {now.evaluated})"
    if now.seconds_per_round is not None:
        if now.seconds_left is not None:
            left = f", about {duration(now.seconds_left)} left"
        else:
            left = ""
        each = now.seconds_per_round
        lines["a round"] = (f"{each:.3g} s" if each < 60 else duration(each)) + left
    lines["last written"] = f"{duration(now.seconds_since_write)} ago"
    if now.nodes:
        lines["nodes"] = _names(now.nodes)
    if now.clients is not None:
        lost = {"dropped out": now.dropped, "late": now.late}
        words = []
        for fate, names in lost.items():
            if names:
                words.append(f"{len(names)} {fate} ({_names(names)})")
        if now.excluded:
            words += [f"{now.excluded} NaN or infinite"]
        lines["last round"] = "; ".join([f"{now.clients} clients", *words])
    if now.unanswered:
        lines["no answer"] = "; ".join(few([_silence(one) for one in now.unanswered], _NAMED))
    if now.error:
        lines["error"] = now.error
    if now.then:
        lines["then"] = now.then
    return lines


def _silence(one: "Row") -> str:
    """Return who did not answer what, and why."""
    if one["round"]:
        when = f"round {one['round']}"
    else:
        when = "before the rounds"
    return f"{one['client']} to {one['asked']}, {when}: {one['reason']}"


def _names(names: list[str]) -> str:
    return ", ".join(few(names, _NAMED))
