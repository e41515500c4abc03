"""What happens in a run on nodes, one line of JSON an event, in its folder; nothing about rows.

A line is written by one call, and a line that was written in part only (a full disk, a power failure) is removed before
the next one. A resumed run goes on in the same file.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedskew import __version__
from fedskew.core.errors import FedskewError, UnansweredError
from fedskew.core.lock import locked
from fedskew.runs.callbacks import Callback
from fedskew.runs.folder import EVENTS, OF_NODES, Row, RunFolder, to_json
from fedskew.runs.run import Run
from fedskew.runs.runner import only_warned
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server

# Columns of the table of rounds that the log has too
_STOPPED = "it was asked to stop, by flwr stop or by the end of the server"
_TOLD = ("clients", "excluded", "dropped", "late", "bytes_down", "bytes_up")


class EventLog(Callback):
    """A callback that writes the events of a run; those before it has a folder are written when it has one.

    An error of the log is a warning, and the run goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / EVENTS
        self._waiting: list[bytes] | None = []  # until the run has its folder, and the lock of it
        self._round = self._rounds = 0
        self._checkpoint = self._last_checkpoint()
        self._metric = ""
        self.numbers: Callable[[], Sequence[int]] = (
            list  # of clients' nodes, by which Flower names them
        )
        self._since = time.monotonic()  # the beginning of the round

    def note(self, event: str, **facts: Any) -> None:
        """Write an event with the time at which it happened."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = (to_json({"time": now, "event": event, **facts}) + "\n").encode()
        if self._waiting is not None:
            self._waiting.append(line)
            return
        with only_warned(str(self._path)):
            append_line(self._path, line)

    def unanswered(self, asked: str, reasons: Mapping[str, str]) -> None:
        """Write which clients did not answer what they were asked, and why."""
        for client, reason in reasons.items():
            self.note("unanswered", **self._now(), client=client, asked=asked, reason=reason)

    def waits(self, asked: str, clients: Sequence[str]) -> None:
        """Write whose answers are waited for; nobody's when they are there."""
        self.note("waiting", **self._now(), asked=asked, clients=list(clients))

    def _now(self) -> dict[str, int]:
        """Return the round that goes on; none before the first."""
        if not self._rounds:
            return {}
        return {"round": min(self._round + 1, self._rounds)}

    def on_run_start(self, server: Server, folder: Path | None, rows: Sequence[Row]) -> None:
        """Write who takes part, and after which round the run goes on."""
        self._round = server.round
        self._rounds = server.settings.rounds
        self._metric = server.headline.name
        self._since = time.monotonic()
        self._begin()
        self.note(
            "nodes",
            clients=list(server.fed.client_names),
            numbers=list(map(str, self.numbers())),
            round=self._round,
            rounds=self._rounds,
        )

    def on_round_end(self, result: RoundResult, rounds: int) -> None:
        """Write the numbers of a round, and its checkpoint."""
        row = result.round
        now = time.monotonic()
        self._round = row["round"]
        told = {name: row[name] for name in _TOLD}
        for name in (f"validation_{self._metric}", f"test_{self._metric}"):
            if row.get(name) is not None:
                told[name] = row[name]
        self.note(
            "round",
            round=self._round,
            rounds=rounds,
            seconds=round(now - self._since, 3),
            **told,
        )
        self._since = now
        self._note_checkpoint()

    def on_run_end(self, run: Run) -> None:
        """Write that the run has ended."""
        self._note_checkpoint()
        self.note("end", round=self._round)

    def failed(self, problem: BaseException) -> None:
        """Write why the run has stopped, unless another process is at work in its folder, or it is a run without nodes.

        The words of nodes are left out, as they may quote their files.
        """
        if not (self._folder / OF_NODES).exists():
            return
        with suppress(FedskewError, OSError), locked(self._folder):
            self._begin()
            self._note_checkpoint()
            when = {}
            if self._rounds:
                when["round"] = self._round
            if isinstance(problem, (SystemExit, KeyboardInterrupt)):
                self.note("stopped", **when, reason=_STOPPED)
                return
            reason = str(problem)
            if isinstance(problem, UnansweredError):
                reason = problem.plain
            self.note("error", **when, kind=type(problem).__name__, reason=reason)

    def _begin(self) -> None:
        """Write what has waited for the folder."""
        waiting = self._waiting or []
        self._waiting = None
        with only_warned(str(self._path)):
            for line in waiting:
                append_line(self._path, line)

    def _note_checkpoint(self) -> None:
        """Write that there is a new checkpoint, if so."""
        last = self._last_checkpoint()
        if last > self._checkpoint:
            self._checkpoint = last
            self.note("checkpoint", round=last)

    def _last_checkpoint(self) -> int:
        return next(iter(RunFolder(self._folder).checkpoints.rounds()), 0)


@contextmanager
def recording(folder: Path) -> Iterator[EventLog]:
    """Yield the log of a run that will be in this folder, or goes on there; an error is written to it."""
    log = EventLog(folder)
    log.note("start", version=__version__, process=os.getpid())
    try:
        yield log
    except BaseException as problem:
        log.failed(problem)
        raise


def append_line(path: Path, line: bytes) -> None:
    """Append a line to a file by one call; the rest of a line that was not written to its end is removed first."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if size := os.lseek(file, 0, os.SEEK_END):
            os.lseek(file, size - 1, os.SEEK_SET)
            if os.read(file, 1) != b"\n":
                os.ftruncate(file, path.read_bytes().rfind(b"\n") + 1)
        os.write(file, line)
    finally:
        os.close(file)
