"""How a run stands, from its folder alone: whether it goes on, how far it is, and whom it waits for."""

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedskew.core.config import read_file
from fedskew.core.errors import FedskewError
from fedskew.core.lock import holder
from fedskew.report.recorded_events import read_events
from fedskew.runs import folder as on_disk
from fedskew.runs.folder import APP, RUN, Row, RunFolder
from fedskew.server.score_names import CLIENT_NAMES, NAMES
from fedskew.study.member import FAILED, read_members

RECENT = 50  # rounds, from whose duration the time left is estimated
_PARTS = sorted((*NAMES, *CLIENT_NAMES), key=len, reverse=True)
_SCORE = re.compile(rf"(?:{'|'.join(_PARTS)})_\w+")


@dataclass(frozen=True)
class Status:
    """How a run stands.

    Args:
        folder: the run folder
        state: running, stopped (it can be gone on with), finished, or failed (a run of a comparison that diverged)
        process: the process at work in the folder; None if there is none
        algorithm: name of the method
        round: rounds that have ended
        rounds: rounds of the run
        metrics: scores of the global and of clients' models when they were evaluated last
        evaluated: the round after which that was
        seconds_per_round: mean of the last 50 rounds
        seconds_left: until the end, if further rounds take as long; None after the last
        seconds_since_write: for how long nothing has been written
        clients: clients of the last round
        dropped: those of them that dropped out or did not answer, by name, or number if they have none
        late: likewise, those that came after the deadline
        excluded: how many updates of the last round were NaN or infinite
        nodes: names of the nodes of a run on machines of their own
        numbers: the numbers of these nodes, by which ``flwr supernode list`` names them
        waits_for: nodes whose answers it waits for; empty unless it has waited for some seconds
        unanswered: which nodes did not answer what, and why, in the last round and since then
        error: why it has stopped, where that is known
        then: what to do next; None while it runs
    """

    folder: str
    state: Literal["running", "stopped", "finished", "failed"]
    process: str | None
    algorithm: str
    round: int
    rounds: int
    metrics: dict[str, float]
    evaluated: int | None
    seconds_per_round: float | None
    seconds_left: float | None
    seconds_since_write: float
    clients: int | None
    dropped: list[str]
    late: list[str]
    excluded: int
    nodes: list[str]
    numbers: list[str]
    waits_for: list[str]
    unanswered: list[Row]
    error: str | None
    then: str | None


def status(folder: Path) -> Status:
    """Return how a run stands: one that goes on, was stopped or has ended; nothing is changed."""
    if (folder / on_disk.GROUP).is_file():
        names = ", ".join(str(folder / member.name) for member in read_members(folder)[:3])
        raise FedskewError(
            f"{folder} is a comparison of several runs: name one of them, such as {names}"
        )
    _check_begun(folder)
    disk = RunFolder.open(folder)
    process = holder(folder)  # first: a run that ends meanwhile is then finished
    config = read_file(folder / on_disk.CONFIG)
    rows = disk.table(on_disk.ROUNDS, growing=not disk.finished)
    round = 0
    last: Row = {}
    clients: list[Row] = []
    if rows:
        last = rows[-1]
        round = last["round"]
        clients = disk.last_rows(on_disk.CLIENTS, round)
    rounds = int(config.get("rounds", 0))
    seconds_per_round = _seconds_per_round(disk, round)
    since_write = max(0.0, time.time() - _last_write(folder))
    state = _state(disk, process)
    left = None
    if seconds_per_round is not None and state in ("running", "stopped"):
        left = _seconds_left(seconds_per_round, rounds - round, since_write, running=bool(process))
    evaluated, metrics = _scores(rows)
    nodes = []
    if (folder / on_disk.OF_NODES).exists():
        nodes = disk.read_json(on_disk.OF_NODES)["clients"]
    events = read_events(folder)
    return Status(
        folder=str(folder),
        state=state,
        process=process,
        algorithm=_name(config.get("algorithm")),
        round=round,
        rounds=rounds,
        metrics=metrics,
        evaluated=evaluated,
        seconds_per_round=seconds_per_round,
        seconds_left=left,
        seconds_since_write=since_write,
        clients=last.get("clients"),
        dropped=_clients_with(clients, "dropped", round),
        late=_clients_with(clients, "late", round),
        excluded=last.get("excluded") or 0,
        nodes=nodes,
        numbers=_numbers(events),
        waits_for=_waits_for(events, process),
        unanswered=_unanswered(events, round),
        error=_error(disk, state, events),
        then=_then(disk, state, bool(nodes)),
    )


def _seconds_per_round(disk: RunFolder, round: int) -> float | None:
    """Return the mean of the last rounds; None before the first has ended."""
    seconds = []
    for row in disk.last_rows(on_disk.TIMING, round - RECENT + 1):
        seconds.append(row["seconds"])
    if not seconds:
        return None
    return sum(seconds) / len(seconds)


def _seconds_left(
    each_round: float, rounds_left: int, since_write: float, running: bool
) -> float | None:
    """Return the time of the rounds that are left, of which one may be under way; None after the last.

    A round that takes longer than others, because somebody does not answer, does not count down the rest.
    """
    if rounds_left <= 0:
        return None
    this_round = each_round
    if running:
        this_round = max(0.0, each_round - since_write)
    return each_round * (rounds_left - 1) + this_round


def _check_begun(folder: Path) -> None:
    """Raise an error for the folder of a deployment, and for a run of one that has no folder yet."""
    if (folder / APP).is_dir() and (folder / RUN / on_disk.CONFIG).is_file():
        raise FedskewError(f"{folder} is a deployment: its run is {folder / RUN}")
    for run in (folder, folder / RUN):
        if (run.parent / APP).is_dir() and not run.exists():
            raise FedskewError(
                f"{run} is not there yet: the run has not been started, waits for its nodes or agrees with them on a "
                "schema, or stopped before that: see the output of flwr run"
            )


def _state(
    disk: RunFolder, process: str | None
) -> Literal["running", "stopped", "finished", "failed"]:
    if disk.finished:
        return "finished"
    if process:
        return "running"
    if (disk.path / FAILED).exists():
        return "failed"
    return "stopped"


def _then(disk: RunFolder, state: str, nodes: bool) -> str | None:
    """Return what to do with a run that is not at work."""
    match state:
        case "finished":
            if (disk.path / on_disk.PAGE).exists():
                return f"its page is {disk.path / on_disk.PAGE}"
            return f"make its page: fedskew report {shlex.quote(str(disk.path))}"
        case "stopped":
            if nodes:
                return "go on with it: flwr run APP --stream"
            return f"go on with it: {on_disk.resume_command(disk.path)}"
        case "failed":
            return f"run it again: {on_disk.resume_command(disk.path)} --retry"
    return None


def _error(disk: RunFolder, state: str, events: Sequence[Row]) -> str | None:
    """Return why a run has stopped, if a comparison or the log of its events says so."""
    if state == "failed":
        return str(disk.read_json(FAILED).get("failed"))
    if events and state == "stopped" and events[-1]["event"] in ("error", "stopped"):
        return str(events[-1].get("reason"))
    return None


def _numbers(events: Sequence[Row]) -> list[str]:
    """Return the numbers that the nodes had when the run was started last."""
    for event in reversed(events):
        if event["event"] == "nodes":
            return list(event.get("numbers") or [])
    return []


def _waits_for(events: Sequence[Row], process: str | None) -> list[str]:
    """Return the nodes that a running run waits for, if that is the last that happened."""
    if not process or not events or events[-1]["event"] != "waiting":
        return []
    return list(events[-1].get("clients") or [])


def _unanswered(events: Sequence[Row], round: int) -> list[Row]:
    """Return what was not answered in this round and later, or before the first, since the run was started last."""
    silences: list[Row] = []
    for event in events:
        if event["event"] == "start":
            silences = []
        elif event["event"] == "unanswered" and event.get("round", round) >= round:
            silences.append(
                {name: event.get(name) for name in ("round", "client", "asked", "reason")}
            )
    return silences


def _last_write(folder: Path) -> float:
    """Return when something was written last, in seconds since 1970."""
    written = folder.stat().st_mtime
    for path in folder.iterdir():
        if path.is_file() or path.name == on_disk.CHECKPOINTS:
            # A temporary file may have got its final name since the folder was listed.
            with suppress(FileNotFoundError):
                written = max(written, path.stat().st_mtime)
    return written


def _scores(rows: Sequence[Row]) -> tuple[int | None, dict[str, float]]:
    """Return the scores of the last evaluation, and its round."""
    for row in reversed(rows):
        scores = {}
        for name, value in row.items():
            if value is not None and _SCORE.fullmatch(name):
                scores[name] = value
        if scores:
            return row["round"], scores
    return None, {}


def _clients_with(rows: Sequence[Row], fate: str, round: int) -> list[str]:
    """Return the clients of a round with this fate."""
    names = []
    for row in rows:
        if row["round"] == round and row.get(fate):
            names.append(str(row.get(on_disk.NAME, row["client"])))
    return names


def _name(choice: Any) -> str:
    if isinstance(choice, Mapping):
        return str(choice.get("class") or choice.get("name"))
    return str(choice)
