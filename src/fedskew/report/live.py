"""The page of a run while it goes on, for a browser on this machine.

The page is made between two rounds, by the process that trains; a thread hands out what was made last. It listens on
the loopback address alone, answers two paths that contain a secret, and nothing else of the machine can be read.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedskew.core.config import read_file
from fedskew.core.streams import Ints
from fedskew.core.units import TIMES
from fedskew.data.federation import shown_clients
from fedskew.report.html_page import live_content, live_page
from fedskew.report.loopback import ADDRESS, LoopbackServer
from fedskew.report.readable import amount
from fedskew.report.run_page import run_content
from fedskew.report.status import RECENT
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import Callback
from fedskew.runs.folder import Row, RunFolder, to_json
from fedskew.runs.run import Run, run_on_disk
from fedskew.runs.runner import client_weights, only_warned
from fedskew.runs.summary import facts, summarise
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server
from fedskew.study.run_data import Holdings, RunData

_EVERY = 2.0  # seconds between two versions of the page, at least
_SHARE = 0.05  # of the time of the run that goes into making the page, at most
_WATCHED = 5.0  # seconds since its last request for which a browser counts as being there
_LAST = 3.0  # seconds for which the end of a run waits until the browser has the last version


@dataclass(frozen=True)
class LiveData(RunData):
    """A run as the page shows it while it goes on: what is not known yet is left out."""

    server: Server

    @cached_property
    def sizes(self) -> Ints:
        """Return the rows of each client."""
        return self.server.fed.partition.sizes

    @cached_property
    def holdings(self) -> Holdings:
        """Return who holds what."""
        fed = self.server.fed
        columns = fed.label_columns
        clients = shown_clients(fed.clients)
        names = fed.client_names
        counts = columns.counts(fed.partition, clients)
        return Holdings(
            columns.title, [names[client] for client in clients], list(columns.names), counts
        )

    @property
    def has_batchnorm(self) -> bool:
        """Return whether the model has running statistics."""
        return any(name.endswith("running_mean") for name, _ in self.server.model.named_buffers())


def _so_far(server: Server, folder: Path) -> LiveData:
    """Return what the tables of a run say until now."""
    disk = RunFolder(folder)
    config = read_file(folder / on_disk.CONFIG)
    tables: dict[str, list[Any]] = {
        on_disk.ROUNDS: disk.table(on_disk.ROUNDS),
        on_disk.TIMING: disk.table(on_disk.TIMING),
    }
    numbers = summarise(
        tables[on_disk.ROUNDS], client_weights(tables, disk), [], server.trained_on.clients, server.evaluator.holds_out,
        server.job.task, server.headline.name,
    )  # fmt: skip
    seconds = sum(row["seconds"] for row in tables[on_disk.TIMING])
    summary = {**facts(server, config), **numbers, "seconds": seconds}
    return LiveData(run_on_disk(disk, summary), server)


def _stands(run: RunData, rounds: int) -> str:
    """Return after which round the page was made, and how long the others take if they take as long as the last ones.

    Both follow from the tables that the page shows, so that its first line, its cards and its curves never disagree.
    """
    done = run.rounds["round"][-1]
    text = f"Round {done} of {rounds}"
    seconds = [row["seconds"] for row in run.disk.table(on_disk.TIMING)[-RECENT:]]
    if done < rounds and seconds:
        left = (rounds - done) * sum(seconds) / len(seconds)
        text += f", about {amount(left, TIMES)} left"
    return f"{text}."


@dataclass(frozen=True)
class _Shown:
    """What a browser gets: always replaced as a whole, as another thread hands it out."""

    version: int
    says: str
    content: Mapping[str, Any]
    ended: bool = False


class LivePage(Callback):
    """A callback that serves the page of a run, and makes it again while the run goes on."""

    def __init__(self) -> None:
        self._secret = secrets.token_urlsafe(9)
        self._http = LoopbackServer(self.answer)
        self._page = live_page()
        self._run: tuple[Server, Path | None] | None = None
        # When the page was made last, and how long that took
        self._made = -float("inf")
        self._cost = 0.0
        # When a browser asked last, and which version it got
        self._asked = -float("inf")
        self._given = 0
        self._shown = _Shown(0, "No round has ended yet.", live_content())

    @property
    def url(self) -> str:
        """Return the address to open in a browser."""
        return f"http://{ADDRESS}:{self._http.server_port}/{self._secret}/"

    def on_run_start(self, server: Server, folder: Path | None, rows: Sequence[Row]) -> None:
        """Remember what the page is about; a resumed run has rounds to show."""
        self._run = server, folder
        if rows:
            self._make(server.settings.rounds)

    def on_round_end(self, result: RoundResult, rounds: int) -> None:
        """Make the page again, if that is due."""
        if time.monotonic() - self._made >= max(_EVERY, self._cost / _SHARE):
            self._make(rounds)

    def _make(self, rounds: int) -> None:
        assert self._run
        server, folder = self._run
        if folder is None:
            return
        began = time.monotonic()
        with only_warned("the live page"):
            run = _so_far(server, folder)
            self._show(_stands(run, rounds), run_content(run))
        self._made = time.monotonic()
        self._cost = self._made - began

    def _show(self, says: str, content: Mapping[str, Any], ended: bool = False) -> None:
        self._shown = _Shown(self._shown.version + 1, says, content, ended)

    def on_run_end(self, run: Run) -> None:
        """Make the page of the finished run."""
        if run.folder is None:
            return
        content = self._shown.content
        with only_warned("the live page"):
            content = run_content(RunData(run))
        says = f"The run has ended. Its page is {run.folder / on_disk.PAGE}."
        self._show(says, content, ended=True)

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Return type and content of what is served under a path; None where there is nothing."""
        if path == f"/{self._secret}/":
            return "text/html; charset=utf-8", self._page
        if path != f"/{self._secret}/data":
            return None
        self._asked = time.monotonic()
        shown = self._shown
        state = {"version": shown.version, "says": shown.says, "ended": shown.ended}
        content = to_json({**state, **shown.content}).encode()
        self._given = shown.version
        return "application/json", content

    def start(self) -> None:
        """Begin to answer."""
        self._http.start()

    def stop(self) -> None:
        """Let a browser that is there have the last version, and free the port."""
        shown = self._shown
        if not shown.ended:
            says = shown.says.split(", about ")[0].rstrip(".")
            self._show(f"The run was stopped. {says}.", shown.content, ended=True)
        until = min(time.monotonic() + _LAST, self._asked + _WATCHED)
        try:
            while self._given < self._shown.version and time.monotonic() < until:
                time.sleep(0.05)
        finally:  # also after a second Ctrl-C
            self._http.stop()


@contextmanager
def serving(wanted: bool) -> Iterator[list[LivePage]]:
    """Yield the callback that serves a page, if one is wanted; whatever happens, the port is free afterwards."""
    if not wanted:
        yield []
        return
    page = LivePage()
    page.start()
    try:
        yield [page]
    finally:
        page.stop()
