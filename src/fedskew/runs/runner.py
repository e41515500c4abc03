"""One run from its first round to its last file: rounds are recorded, checkpoints are made, signals and mishaps survived."""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedskew.core.errors import FedskewError, Interrupted
from fedskew.runs import folder as on_disk
from fedskew.runs.checkpoint import Checkpoints
from fedskew.runs.folder import Row, RunFolder
from fedskew.server.training import RoundResult, Training

SHARE = 0.01  # of a run's time that checkpoints may take where nobody says how often they are made
STOPS = {"SIGTERM": 143, "SIGHUP": 129}  # signals that end a run in good order, with the exit codes of a shell


class Watcher(Protocol):
    """Somebody who wants to see every round as it ends."""

    def __call__(self, result: RoundResult, rounds: int) -> None:
        """Called once a round."""
        ...


@dataclass
class Pace:
    """When a checkpoint is due: every so many rounds, or when the last one is paid for, about 1 % of the time; at the end."""

    every: int | None
    rounds: int
    clock: Callable[[], float] = time.perf_counter
    _cost: float = 0.02  # seconds of the last one; a guess until there is one
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def due(self, round: int) -> bool:
        """Whether there is one after this round."""
        if round == self.rounds:
            return True
        if self.every is not None:
            return round % self.every == 0
        return self.clock() - self._since >= self._cost * (1 / SHARE - 1)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around the making of one."""
        began = self.clock()
        yield
        self._since = self.clock()
        self._cost = self._since - began


def run_rounds(
    training: Training, checkpoints: Checkpoints | None, tables: Mapping[str, list[Row]], watchers: Iterable[Watcher]
) -> None:
    """Round after round to the end. Every round is recorded before the next begins.

    Ctrl-C, SIGTERM and SIGHUP leave a run that can be resumed: the latter two end the round first and make a checkpoint.
    """
    settings, disk = training.settings, checkpoints.disk if checkpoints else None
    pace = Pace(settings.checkpoint_every, settings.rounds)
    with going_on(training, disk), _stopping() as stopped:
        while training.round < settings.rounds:
            began = time.perf_counter()
            result = training.advance()
            new = {"rounds": [result.round], "clients": result.clients}
            new["timing"] = [{"round": training.round, "seconds": time.perf_counter() - began}]
            for name, table in tables.items():
                table.extend(new[name])
            if checkpoints and disk:
                for name, file in (("rounds", on_disk.ROUNDS), ("clients", on_disk.CLIENTS), ("timing", on_disk.TIMING)):
                    disk.append(file, new[name])
                if pace.due(training.round) or stopped:
                    with pace.saving():
                        checkpoints.save(training)
            for watch in watchers:
                watch(result, settings.rounds)
            if stopped and training.round < settings.rounds:
                raise Interrupted(_how_to_go_on(training, disk), code=STOPS[stopped[0]])


@contextmanager
def going_on(training: Training, disk: RunFolder | None) -> Iterator[None]:
    """Ctrl-C says how to go on with the run."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(_how_to_go_on(training, disk)) from None


def _how_to_go_on(training: Training, disk: RunFolder | None) -> str:
    done = f"interrupted after round {training.round} of {training.settings.rounds}"
    return f"{done}; go on with: {on_disk.resume_command(disk.path)}" if disk else done


@contextmanager
def _stopping() -> Iterator[list[str]]:
    """The names of the signals that came and want the run to end; empty as long as none did."""
    came: list[str] = []
    known = [name for name in STOPS if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():  # only there may signals be handled
        yield came
        return
    before = {name: signal.signal(getattr(signal, name), lambda *_, name=name: came.append(name)) for name in known}
    try:
        yield came
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


@contextmanager
def only_warned(what: str) -> Iterator[None]:
    """What is nice to have may fail: that is told, and the run is as good without it."""
    try:
        yield
    except Exception as problem:  # whatever a plotting library raises
        reason = problem if isinstance(problem, FedskewError) else f"{type(problem).__name__}: {problem}"
        warnings.warn(
            f"{what} could not be made ({' '.join(str(reason).split())[:200]}); the run itself is whole", stacklevel=3
        )


def client_lines(tables: Mapping[str, list[Row]], disk: RunFolder | None) -> Iterable[Row]:
    """All lines about clients: in memory, or one after the other from the folder."""
    return disk.stream(on_disk.CLIENTS) if disk else tables["clients"]


def finished_files(disk: RunFolder, files: Mapping[str, bytes], summary: Mapping[str, Any]) -> None:
    """Write what a run ends with; the summary comes last, and with it the run is finished."""
    content = (on_disk.to_json(summary, indent=2) + "\n").encode()
    for name, inside in files.items():
        disk.write(name, inside)
    digests = {name: on_disk.Digest.of(inside) for name, inside in {**files, on_disk.SUMMARY: content}.items()}
    disk.write(on_disk.FINAL, on_disk.manifest(digests))
    disk.write(on_disk.SUMMARY, content)
