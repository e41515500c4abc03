"""The progress of a training in a log, one line at a time: neither too few lines nor too many."""

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fedskew.cli.console.run_progress import Progress


@contextmanager
def log_lines(
    least: float = 1.0, most: float = 10.0, clock: "Callable[[], float]" = time.monotonic
) -> "Iterator[Callable[[Progress], None]]":
    """Print a line for a tenth of the rounds, at most one in ``least`` seconds, and one after ``most`` seconds anyway.

    The last round of a run always has its line. What is yielded is the function that is told what is new of a run.
    """
    log = _Log(least, most, clock)
    watcher = threading.Thread(target=log.watch, daemon=True)
    watcher.start()
    try:
        yield log.follow
    finally:
        log.ended.set()
        watcher.join()


class _Log:
    """Which lines were printed, and when."""

    def __init__(self, least: float, most: float, clock: "Callable[[], float]") -> None:
        self.ended = threading.Event()
        self._least = least
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._printed = -math.inf
        self._latest: Progress | None = None
        self._told: dict[Progress, int] = {}  # the round of each run that was printed last

    def follow(self, run: Progress) -> None:
        """Print a line about a run that has begun or has ended a round, if one is due."""
        with self._lock:
            self._latest = run
            if run.round and (run.round == run.rounds or self._is_due(run)):
                self._print(run)

    def watch(self) -> None:
        """Print a line about the latest run whenever there was none for too long, until the end."""
        while not self.ended.wait(max(0.01, self._most - self._silent())):
            with self._lock:
                if self._latest is not None and self._silent() >= self._most:
                    self._print(self._latest)

    def _is_due(self, run: Progress) -> bool:
        step = max(1, run.rounds // 10)
        new = run.round - self._told.get(run, 0)
        return new >= step and self._clock() - self._printed >= self._least

    def _silent(self) -> float:
        """Return for how many seconds nothing was printed."""
        return self._clock() - max(self._began, self._printed)

    def _print(self, run: Progress) -> None:
        self._printed = self._clock()
        self._told[run] = run.round
        words = [f"{run.name}: round {run.round}/{run.rounds}"]
        words += run.score + run.details + run.left
        with suppress(OSError, ValueError):  # an error of stderr does not stop the training
            print("  ".join(words), file=sys.stderr, flush=True)
