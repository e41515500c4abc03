"""Cooperating threads: functions that exchange values, one running at a time, so that results are reproducible."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import torch

Result = TypeVar("Result")
Meet: TypeAlias = Callable[[Any], Any]  # pass a value, wait for all others, get the reply


class _OverError(BaseException):
    """Ends the thread of a function after an error elsewhere; no function should catch it."""


def in_turn(
    workers: Sequence[Callable[[Meet], Result]], reply: Callable[[dict[int, Any]], Any]
) -> list[Result]:
    """Return the results of the functions, each called with its own ``meet``.

    ``meet`` passes a value and waits. When all functions that still run have passed one, ``reply`` gets the values by
    the functions' numbers, and all get its result. An exception in any function, or in ``reply``, ends all threads
    and is raised here.

    >>> def work(meet):
    ...     return meet(1) + meet(10)
    >>> in_turn([work, work, lambda meet: meet(5)], lambda given: sum(given.values()))  # 1 + 1 + 5, then 10 + 10
    [27, 27, 7]
    """
    threads = [_Worker(worker) for worker in workers]
    results: dict[int, Result] = {}
    answer: Any = None
    running = list(range(len(threads)))
    try:
        while running:
            given: dict[int, Any] = {}
            for number in running:
                what, value = threads[number].go_on(answer)
                if what == "failed":
                    raise value
                if what == "ended":
                    results[number] = value
                else:
                    given[number] = value
            running = list(given)
            if given:
                answer = reply(given)
    finally:
        for thread in threads:
            thread.close()
    return [results[number] for number in range(len(threads))]


class _Worker(Generic[Result]):
    """The thread of one function. It runs from one ``go_on`` until it calls ``meet``, ends or fails."""

    def __init__(self, worker: Callable[[Meet], Result]) -> None:
        self._worker = worker
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._outbox: SimpleQueue[tuple[Literal["met", "ended", "failed"], Any]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self, answer: Any) -> tuple[Literal["met", "ended", "failed"], Any]:
        """Let the function run with this answer, and wait."""
        self._inbox.put(answer)
        return self._outbox.get()

    def close(self) -> None:
        """End the thread, wherever it waits."""
        self._inbox.put(_OverError())
        self._thread.join()

    def _run(self) -> None:
        try:
            self._wait()
            # Autograd has one thread per GPU for all backward passes: one that waits there would stop all others.
            with torch.autograd.set_multithreading_enabled(False):
                result = self._worker(self._meet)
            self._outbox.put(("ended", result))
        except _OverError:
            return
        except BaseException as problem:  # raised again where the functions were called
            self._outbox.put(("failed", problem))

    def _meet(self, message: Any) -> Any:
        self._outbox.put(("met", message))
        return self._wait()

    def _wait(self) -> Any:
        answer = self._inbox.get()
        if isinstance(answer, _OverError):
            raise answer
        return answer
