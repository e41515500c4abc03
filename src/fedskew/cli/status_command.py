"""The command ``fedskew status``: how a run stands, from its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedskew.cli.command import Once
from fedskew.cli.console import console_for, duration, escape, headline, metric_value
from fedskew.core.notebook import few

if TYPE_CHECKING:
    from fedskew.report.status import Status
    from fedskew.runs.folder import Row

_NAMED = 10  # clients, or silences of clients, that a line lists


def add_to(app: typer.Typer) -> None:
    """Add ``status`` to the command line."""
    app.command(cls=Once)(status)


def status(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="folder of a run", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print it as JSON")] = False,
) -> None:
    """Show how far a run is, whether it is running, stopped or finished. Only its folder is read.

    \b
    fedskew status runs/NAME
    """
    from fedskew.report.status import status as read_status
    from fedskew.runs.folder import to_json

    now = read_status(folder)
    if as_json:
        print(to_json(vars(now)))
        return
    console = console_for()
    for title, text in _lines(now).items():
        console.print(f"[bold]{title:14}[/bold]{escape(_printable(text))}", soft_wrap=True)


def _printable(text: str) -> str:
    """Return a text without control characters, which the names of clients and folders may have."""
    signs = []
    for sign in text:
        if sign.isprintable():
            signs.append(sign)
        else:
            signs.append("\ufffd")
    return "".join(signs)


def _lines(now: "Status") -> dict[str, str]:
    """Return what is known, by title."""
    lines = {"run": f"{now.folder}: {now.algorithm}", "state": now.state}
    if now.process:
        lines["state"] += f", by {now.process}"
    lines["round"] = f"{now.round} of {now.rounds}"
    if now.metrics:
        lines["scores"] = f"{', '.join(_scores(now.metrics))} (round {now.evaluated})"
    if now.seconds_per_round is not None:
        lines["a round"] = _time_of_a_round(now.seconds_per_round)
        if now.seconds_left is not None:
            lines["a round"] += f", about {duration(now.seconds_left)} left"
    lines["last written"] = f"{duration(now.seconds_since_write)} ago"
    lines |= _of_clients(now)
    if now.error:
        lines["error"] = now.error
    if now.then:
        lines["then"] = now.then
    return lines


def _of_clients(now: "Status") -> dict[str, str]:
    """Return who takes part, whom the run waits for, and who was lost."""
    lines = {}
    if now.nodes:
        lines["nodes"] = _names(_numbered(now.nodes, now.numbers))
    if now.waits_for:
        lines["waits for"] = _names(now.waits_for)
    if now.clients is not None:
        lines["last round"] = "; ".join([f"{now.clients} clients", *_losses(now)])
    if now.unanswered:
        lines["no answer"] = _silences(now.unanswered)
    return lines


def _scores(metrics: "Row") -> list[str]:
    """Return the task's first metric on each part that was evaluated."""
    scores = []
    for part in ("validation", "test", "own_test"):
        metric, value = headline(metrics, part)
        if value is not None:
            scores.append(f"{part} {metric} {metric_value(metric, value)}")
    return scores


def _time_of_a_round(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return duration(seconds)


def _losses(now: "Status") -> list[str]:
    """Return whose updates of the last round were lost, and why."""
    words = []
    for fate, names in (("dropped out", now.dropped), ("late", now.late)):
        if names:
            words.append(f"{len(names)} {fate} ({_names(names)})")
    if now.excluded:
        words.append(f"{now.excluded} NaN or infinite")
    return words


def _silences(unanswered: "Sequence[Row]") -> str:
    """Return who did not answer what, and why."""
    lines = []
    for silence in unanswered:
        when = "before the rounds"
        if silence["round"]:
            when = f"round {silence['round']}"
        lines.append(f"{silence['client']} to {silence['asked']}, {when}: {silence['reason']}")
    return "; ".join(few(lines, _NAMED))


def _numbered(names: list[str], numbers: list[str]) -> list[str]:
    """Return the names of nodes with the numbers by which ``flwr supernode list`` names them, where these are known."""
    if len(names) != len(numbers):
        return names
    numbered = []
    for name, number in zip(names, numbers, strict=True):
        numbered.append(f"{name} ({number})")
    return numbered


def _names(names: list[str]) -> str:
    return ", ".join(few(names, _NAMED))
