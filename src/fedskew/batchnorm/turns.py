"""Functions that meet: each in a thread of its own, one running at a time, so that repeats give the same bits."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import torch

Result = TypeVar("Result")
Meet: TypeAlias = Callable[[Any], Any]  # hand something in, wait for all others, get the reply


class _OverError(BaseException):
    """Ends the thread of a function whose meeting was called off; no function should catch it."""


def in_turn(workers: Sequence[Callable[[Meet], Result]], reply: Callable[[dict[int, Any]], Any]) -> list[Result]:
    """What the functions return, each run with a ``meet`` of its own.

    Whenever everybody still at work has handed something in, ``reply`` makes of it, by the workers' numbers, what all of them
    get back. An exception in any function, or in ``reply``, ends all threads and is raised here.

    >>> def work(meet):
    ...     return meet(1) + meet(10)
    >>> in_turn([work, work, lambda meet: meet(5)], lambda given: sum(given.values()))  # 1 + 1 + 5, then 10 + 10
    [27, 27, 7]
    """
    seats = [_Seat(worker) for worker in workers]
    results: dict[int, Result] = {}
    answer: Any = None
    at_work = list(range(len(seats)))
    try:
        while at_work:
            given: dict[int, Any] = {}
            for number in at_work:
                what, value = seats[number].go_on(answer)
                if what == "failed":
                    raise value
                (results if what == "ended" else given)[number] = value
            at_work = list(given)
            answer = reply(given) if given else None
    finally:
        for seat in seats:
            seat.close()
    return [results[number] for number in range(len(seats))]


class _Seat(Generic[Result]):
    """One function's thread. It runs from one ``go_on`` until it hands something in, ends or fails."""

    def __init__(self, worker: Callable[[Meet], Result]) -> None:
        self._worker = worker
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._outbox: SimpleQueue[tuple[Literal["handed in", "ended", "failed"], Any]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self, answer: Any) -> tuple[Literal["handed in", "ended", "failed"], Any]:
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
            # Autograd keeps one thread a GPU for everybody's backward passes: one that waits there would stop all others.
            with torch.autograd.set_multithreading_enabled(False):
                result = self._worker(self._meet)
            self._outbox.put(("ended", result))
        except _OverError:
            return
        except BaseException as problem:  # raised again where the functions were called
            self._outbox.put(("failed", problem))

    def _meet(self, message: Any) -> Any:
        self._outbox.put(("handed in", message))
        return self._wait()

    def _wait(self) -> Any:
        answer = self._inbox.get()
        if isinstance(answer, _OverError):
            raise answer
        return answer
