"""Several tasks at once in processes of this machine, which tell how far they are and end when this one does."""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from fedskew.core.errors import FedskewError, Interrupted
from fedskew.core.plugins import Imported, import_again, imported
from fedskew.engine.device import usable_cores
from fedskew.runs.runner import STOPS, stopping

Task = TypeVar("Task")
Result = TypeVar("Result")
Tell = Callable[[Any], None]
MOST_JOBS = 256
_PATIENCE = 0.2  # seconds between two looks at whether a signal came
_READY = "ready"  # what a process says when it has begun
_GUARD = (
    "a job ended before it began: where a script uses jobs, what it does must be under "
    'if __name__ == "__main__": and its classes must be in a file'
)


def checked_jobs(given: Any, workers: Any) -> int:
    """Return the number of processes; one that cannot be, or ``workers`` beside several processes, is an error."""
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= MOST_JOBS:
        raise FedskewError(f"jobs={given!r} is not a whole number from 1 to {MOST_JOBS}")
    if given > 1 and workers is not None:
        raise FedskewError(f"jobs={given} clashes with workers={workers}: give one of them")
    return given


def in_processes(
    work: Callable[[Task, Tell], Result], tasks: Sequence[Task], jobs: int, told: Tell
) -> list[Result]:
    """Return ``work(task, tell)`` of every task, from up to ``jobs`` processes with an equal share of the cores.

    What a task tells is given to ``told`` in this process. An error ends all, and so does a signal; runs end their
    round first and make a checkpoint. ``work`` is a function of a module, so that a new process finds it.
    """
    pool = _Pool(work, tasks)
    try:
        with stopping() as signals:
            pool.start(min(jobs, len(tasks)))
            while pool.doing:
                for pipe in wait(list(pool.doing), _PATIENCE):
                    assert isinstance(pipe, Connection)
                    kind, content = _received(pipe, signals, pipe in pool.ready)
                    if kind == _READY:
                        pool.ready.add(pipe)
                    elif kind == "told":
                        told(content)
                    else:
                        pool.ended(pipe, kind, content)
                if signals:
                    raise Interrupted("interrupted", STOPS[signals[0]])
        return [pool.results[number] for number in range(len(tasks))]
    finally:
        pool.close()


class _Pool(Generic[Task, Result]):
    """Processes that each do one task after the other."""

    def __init__(self, work: Callable[[Task, Tell], Result], tasks: Sequence[Task]) -> None:
        self.work = work
        self.tasks = tasks
        self.waiting = list(range(len(tasks)))[::-1]  # numbers of tasks; the next one is the last
        self.results: dict[int, Result] = {}
        self.processes: dict[Connection, BaseProcess] = {}
        self.doing: dict[Connection, int] = {}  # the number of a task, by the pipe to its process
        self.ready: set[Connection] = set()  # pipes to processes that have begun

    def start(self, count: int) -> None:
        """Start so many processes, and give each a task."""
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            # This is such a process, and runs the script that has started it once more.
            raise FedskewError(_GUARD)
        context = multiprocessing.get_context("spawn")
        threads = max(1, usable_cores() // count)
        for _ in range(count):
            mine, theirs = context.Pipe()
            new = context.Process(target=_serve, args=(theirs, self.work, threads, imported()))
            with theirs:
                new.start()
            self.processes[mine] = new
            self._give_next(mine)

    def _give_next(self, pipe: Connection) -> None:
        """Give a process the next task; that it has ended shows when its answer is read."""
        self.doing[pipe] = self.waiting.pop()
        with suppress(ConnectionError):
            pipe.send(self.tasks[self.doing[pipe]])

    def ended(self, pipe: Connection, kind: str, content: Any) -> None:
        """Keep the result of a task, and give its process the next one; an error of a task is raised here."""
        if kind == "refused":
            raise FedskewError(content)
        if kind == "error":
            raise RuntimeError(content)
        self.results[self.doing.pop(pipe)] = content
        if self.waiting:
            self._give_next(pipe)

    def close(self) -> None:
        """End all processes; one that is at work ends its round first."""
        for pipe, process in self.processes.items():
            if pipe in self.doing:
                process.terminate()
            pipe.close()
        for process in self.processes.values():
            process.join()


def _received(pipe: Connection, signals: Sequence[str], began: bool) -> tuple[str, Any]:
    """Return the next message of a process; one that has ended was interrupted, if a signal came, or has failed."""
    try:
        kind, content = pipe.recv()
    except (EOFError, ConnectionError):
        time.sleep(_PATIENCE)  # the signal that has ended it may be on its way to this process
        if signals:
            raise Interrupted("interrupted", STOPS[signals[0]]) from None
        if not began:
            raise FedskewError(_GUARD) from None
        raise FedskewError(
            "one of the jobs ended before its run did, perhaps for want of memory: take fewer jobs, and resume"
        ) from None
    return kind, content


def _end_with_first() -> None:
    """End this process at once when the first one was killed, so that whoever resumes its runs has them alone."""
    first = multiprocessing.parent_process()
    assert first
    first.join()
    os._exit(1)


def _serve(
    pipe: Connection, work: Callable[[Any, Tell], Any], threads: int, imports: Sequence[Imported]
) -> None:
    """Do one task after the other, until the first process closes its end."""
    # Ctrl-C reaches all processes: the first one tells the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_first, daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import_again(imports)
    with suppress(ConnectionError):
        pipe.send((_READY, None))

    def tell(content: Any) -> None:
        try:
            pipe.send(("told", content))
        except ConnectionError:
            # The first process has ended or is about to: the run ends its round and makes a checkpoint
            os.kill(os.getpid(), signal.SIGTERM)

    while True:
        try:
            task = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer = ("done", work(task, tell))
        except KeyboardInterrupt:
            return
        except FedskewError as problem:
            answer = ("refused", str(problem))
        except Exception:  # the first process raises it again, in words
            answer = ("error", traceback.format_exc())
        try:
            pipe.send(answer)
        except ConnectionError:
            return
