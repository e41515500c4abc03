"""One run from its first round to its last file: rounds are recorded, checkpoints written, signals handled."""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from fedskew.core.errors import BudgetSpentError, FedskewError, Interrupted
from fedskew.core.manifest import Digest, manifest
from fedskew.runs import folder as on_disk
from fedskew.runs.callbacks import Callback, CallbackSpec
from fedskew.runs.checkpoint import Checkpoints
from fedskew.runs.folder import Row, RunFolder
from fedskew.runs.recorded_config import how_to_resume
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server
from fedskew.transport.group import WorkerLostError

Result = TypeVar("Result")

SHARE = 0.01  # of a run's time: what checkpoints take if checkpoint_every is not given
# Signals after which a run ends its round, with their exit codes
_SIGNALS = {"SIGTERM": 143, "SIGHUP": 129}
BUDGET = "budget"  # stands for a signal when the time of a study is up
STOPS = {**_SIGNALS, BUDGET: BudgetSpentError.code}
GRACE = 5.0  # seconds that a round has to end after such a signal; then it is lost


@dataclass
class CheckpointInterval:
    """Says after which rounds a checkpoint is due: every ``every``-th one, and the last.

    If ``every`` is None, checkpoints are so far apart that they take about 1 % of the time.
    """

    every: int | None
    rounds: int
    clock: Callable[[], float] = time.perf_counter
    _cost: float = 0.02  # seconds of the last one; a guess until there is one
    _since: float = field(init=False)
    _asked: tuple[int, bool] = (0, False)  # the last answer, and for which round

    def __post_init__(self) -> None:
        self._since = self.clock()

    def due(self, round: int) -> bool:
        """Return whether a checkpoint is due after this round; runs side by side, which ask in turn, get one answer."""
        if round == self.rounds:
            return True
        if self.every is not None:
            return round % self.every == 0
        if round != self._asked[0]:
            due = self.clock() - self._since >= self._cost * (1 / SHARE - 1)
            self._asked = round, due
            if due:
                self._cost = 0.0
        return self._asked[1]

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Measure how long it takes to write a checkpoint; those of runs side by side are added up."""
        began = self.clock()
        yield
        self._since = self.clock()
        self._cost += self._since - began


@dataclass(frozen=True)
class Watch:
    """How a run is watched and checkpointed: its callbacks, and the interval that runs side by side share."""

    callbacks: "CallbackSpec | Iterable[CallbackSpec]" = ()
    interval: CheckpointInterval | None = None


@dataclass(frozen=True)
class Resumption:
    """How a run goes on; the first two are those of ``fedskew.resume``.

    With ``latest`` it goes on from a checkpoint of at most this round, if such a one is still there.
    """

    force: bool = False
    workers: int | None = None
    latest: int | None = None


UNWATCHED, RESUMED = Watch(), Resumption()


@dataclass(frozen=True)
class Advanced:
    """The result of a round, and the seconds that it took."""

    result: RoundResult
    seconds: float


# A run: yields its server when a round is to be run
Steps: TypeAlias = Generator[Server, Advanced, Result]


def run_to_end(steps: "Steps[Result]", server: Server | None = None) -> Result:
    """Run all rounds of a run, one after the other, and return its result; ``server`` is that of a run that waits."""
    try:
        server = server or next(steps)
        while True:
            began = time.perf_counter()
            try:
                result = server.advance()
            except BaseException as problem:
                server = steps.throw(problem)
            else:
                server = steps.send(Advanced(result, time.perf_counter() - began))
    except StopIteration as end:
        value: Result = end.value
        return value


def run_rounds(
    server: Server,
    checkpoints: Checkpoints | None,
    tables: Mapping[str, list[Any]],
    callbacks: Iterable[Callback],
    interval: CheckpointInterval | None = None,
) -> "Steps[None]":
    """Ask for all rounds, or until a callback stops the run. Every round is recorded before the next begins.

    ``tables`` has a list of rows for the rounds and their timing, and one of a table a round for the clients. Runs side
    by side share the ``interval`` of their checkpoints.

    Ctrl-C, SIGTERM and SIGHUP leave a run that can be resumed: the latter two end the round first, if it takes no
    longer than ``GRACE``, and make a checkpoint.
    """
    settings = server.settings
    disk = None
    if checkpoints:
        disk = checkpoints.disk
    interval = interval or CheckpointInterval(settings.checkpoint_every, settings.rounds)
    with resumable(server, disk), stopping() as stopped:
        while server.round < settings.rounds:
            # A signal may have come while this run was prepared, or while another one was at work
            _end_if(stopped, server, disk)
            advanced = yield server
            _record(advanced, server.round, tables, disk)
            saved = False
            if checkpoints:
                saved = _save_if_due(checkpoints, server, interval, bool(stopped))
            ended = _call(callbacks, advanced.result, settings.rounds)
            if checkpoints and not saved and (ended or stopped):
                checkpoints.save(server)
            _end_if(stopped, server, disk)
            if ended:
                return


def _end_if(stopped: list[str], server: Server, disk: RunFolder | None) -> None:
    """End the run if a signal has come."""
    if stopped:
        raise Interrupted(_how_to_resume(server, disk), STOPS[stopped[0]])


def _record(
    advanced: Advanced, round: int, tables: Mapping[str, list[Any]], disk: RunFolder | None
) -> None:
    """Add a round to the tables in memory and, if there is a folder, on disk."""
    result = advanced.result
    timing = {"round": round, "seconds": advanced.seconds}
    new = {on_disk.ROUNDS: result.round, on_disk.CLIENTS: result.clients, on_disk.TIMING: timing}
    for name, table in tables.items():
        table.append(new[name])
    if disk:
        disk.append(on_disk.ROUNDS, [result.round])
        disk.append(on_disk.CLIENTS, result.clients)
        disk.append(on_disk.TIMING, [timing])


def _save_if_due(
    checkpoints: Checkpoints, server: Server, interval: CheckpointInterval, stopped: bool
) -> bool:
    """Make a checkpoint if the interval or a signal asks for it; return whether it was made."""
    due = interval.due(server.round)
    if not due and not stopped:
        return False
    with interval.saving():
        checkpoints.save(server)
    return True


def _call(callbacks: Iterable[Callback], result: RoundResult, rounds: int) -> bool:
    """Call every callback, and return whether one of them stops the run."""
    stops = False
    for callback in callbacks:
        if callback.on_round_end(result, rounds):
            stops = True
    return stops


@contextmanager
def resumable(server: Server, disk: RunFolder | None) -> Iterator[None]:
    """Make Ctrl-C, and the loss of a worker, print the command that resumes the run."""
    try:
        yield
    except Interrupted:
        raise
    except WorkerLostError as lost:
        raise WorkerLostError(f"{lost}; {_how_to_resume(server, disk)}") from lost
    except KeyboardInterrupt as stop:
        raise Interrupted(_how_to_resume(server, disk), getattr(stop, "code", 130)) from None


def _how_to_resume(server: Server, disk: RunFolder | None) -> str:
    done = f"interrupted after round {server.round} of {server.settings.rounds}"
    if disk:
        return f"{done}; resume with: {how_to_resume(disk)}"
    return done


class _Stop(KeyboardInterrupt):
    """A signal that ends a run, where nothing else has ended it yet."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.code = STOPS[name]


class Signals(list[str]):
    """The names of the signals that have come; while they are held back, new ones wait."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[str] | None = None

    def append(self, name: str) -> None:
        """Note a signal, now or when it is no longer held back."""
        if self._waiting is None:
            super().append(name)
        else:
            self._waiting.append(name)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Let all who read the list in this block read the same."""
        self._waiting = []
        try:
            yield
        finally:
            waiting = self._waiting
            self._waiting = None
            self.extend(waiting)


# The list of the outermost ``stopping``, which all inside it share; empty outside
_came: list[Signals] = []


@contextmanager
def stopping() -> Iterator[Signals]:
    """Yield the names of the signals that should end the run; empty until one arrives. Runs side by side share it.

    Whoever reads the list has ``GRACE`` seconds to end the run. After that, or at the end of the block if nothing was
    raised in it, the signal is raised as a ``KeyboardInterrupt`` with its exit code.
    """
    if _came:
        yield _came[0]
        return
    if threading.current_thread() is not threading.main_thread():
        yield Signals()  # signals can be handled only in the main thread
        return
    came = Signals()
    alarm = _Alarm()
    before: dict[str, Any] = {}

    def note(name: str) -> None:
        came.append(name)
        alarm.set(name)

    for name in _SIGNALS:
        if hasattr(signal, name):
            before[name] = signal.signal(getattr(signal, name), lambda *_, name=name: note(name))
    _came.append(came)
    try:
        yield came
    finally:
        alarm.clear()
        _came.clear()
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
    if came:
        raise _Stop(came[0])


@contextmanager
def within(seconds: float | None) -> Iterator[Signals]:
    """End all runs inside after their round, as a signal would, when so many seconds have passed; None is for ever.

    Yields what ``stopping`` yields.
    """
    with stopping() as came:
        if seconds is None:
            yield came
            return
        if not _came:
            raise FedskewError(
                "a budget needs the main thread: call compare there, or leave it out"
            )
        timer = threading.Timer(seconds, came.append, [BUDGET])
        timer.daemon = True
        timer.start()
        try:
            yield came
        finally:
            timer.cancel()
            timer.join()  # it may be appending just now
            if BUDGET in came:
                came.remove(BUDGET)


class _Alarm:
    """Raises the first signal when its grace is over; afterwards it restores an alarm that the user had set."""

    def __init__(self) -> None:
        self.name = ""  # of the first signal
        # Handler, seconds left and interval that the user has set
        self.before: tuple[Any, float, float] | None = None

    def set(self, name: str) -> None:
        """Begin to count, at the first signal."""
        if self.name:
            return
        self.name = name
        if hasattr(signal, "setitimer"):  # which Windows has not: there, a round is always ended
            handler = signal.signal(signal.SIGALRM, self._over)
            self.before = handler, *signal.setitimer(signal.ITIMER_REAL, GRACE)

    def clear(self) -> None:
        """Count no more."""
        if self.before is not None:
            handler, left, interval = self.before
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, left, interval)

    def _over(self, *_: Any) -> None:
        raise _Stop(self.name)


@contextmanager
def only_warned(what: str) -> Iterator[None]:
    """Turn errors of optional steps, such as drawing, into warnings."""
    try:
        yield
    except Exception as problem:  # any error of a plotting library
        reason = str(problem)
        if not isinstance(problem, FedskewError):
            reason = f"{type(problem).__name__}: {problem}"
        reason = " ".join(reason.split())[:200]
        warnings.warn(f"{what} could not be made ({reason}); the run itself is whole", stacklevel=3)


def client_weights(tables: Mapping[str, list[Any]], disk: RunFolder | None) -> Iterable[Row]:
    """Return weights and training times of clients in all rounds: from memory, or streamed from the folder."""
    if disk:
        columns = ["client", "weight"]
        if "training_seconds" in disk.header(on_disk.CLIENTS):  # not on a sample schedule
            columns.append("training_seconds")
        return disk.stream(on_disk.CLIENTS, columns)
    return chain.from_iterable(tables[on_disk.CLIENTS])


def finished_files(disk: RunFolder, files: Mapping[str, bytes], summary: Mapping[str, Any]) -> None:
    """Write the last files of a run; the summary is written last and marks the run as finished.

    Their manifest also names the last checkpoint, which has the models that clients keep for themselves.
    """
    summary_file = (on_disk.to_json(summary, indent=2) + "\n").encode()
    for name, content in files.items():
        disk.write(name, content)
    digests = {}
    for name, content in {**files, on_disk.SUMMARY: summary_file}.items():
        digests[name] = Digest.of(content)
    disk.write(on_disk.FINAL, manifest(digests, on_disk.FORMAT, checkpoint=disk.checkpoints.last()))
    disk.write(on_disk.SUMMARY, summary_file)
