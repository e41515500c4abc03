"""The processes that train a run together: those that a run starts on this machine, or those of ``torchrun``."""

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fedskew.core.config import SHARDS, workers_of_torchrun
from fedskew.core.errors import FedskewError
from fedskew.server.server import Server
from fedskew.server.worker import Inputs, Numbers, Recipe, enlisted, serve
from fedskew.workers.group import LEADER, Group, on_this_machine
from fedskew.workers.messages import packed

_END = 5.0  # seconds in which a worker that was told to end does so
_joined: list[Group] = []  # the group of torchrun's processes, if this is one of them


@contextmanager
def with_workers(server: Server, config: Mapping[str, Any]) -> Iterator[None]:
    """Let the workers of the settings train for a server; they are gone afterwards, unless torchrun started them.

    ``config`` is the whole configuration of the run, of which workers of torchrun make it themselves.
    """
    workers = server.settings.workers
    if workers is None:
        yield
    elif _joined:
        with enlisted(server, _joined[0], Recipe(dict(config), server.fed.fingerprint)):
            yield
    elif workers == 1:
        yield
    elif workers_of_torchrun():
        raise FedskewError(
            f"workers={workers} starts processes, and torchrun has done so: start the command line with it "
            "(torchrun -m fedskew run), or Python without it"
        )
    else:
        with _started(workers, server) as group, enlisted(server, group, Numbers.of(server)):
            yield


@contextmanager
def _started(count: int, server: Server) -> Iterator[Group]:
    """Start workers on this machine, and end them whatever happens; yields the group that they and this process are."""
    if not dist.is_available():
        raise FedskewError("workers need a PyTorch with torch.distributed, and this one has none: leave workers out")
    context = multiprocessing.get_context("spawn")
    inputs = Inputs.of(server)
    with tempfile.TemporaryDirectory() as place:
        meeting = str(Path(place) / "meeting")
        processes: list[BaseProcess] = []
        try:
            for rank in range(1, count):
                new = context.Process(target=_work, args=(rank, count, meeting, inputs), daemon=True)
                _start(new, rank, inputs)
                processes.append(new)
            group = _connected(processes, meeting)
            try:
                yield group
                for worker in group.workers:
                    group.send(packed(None), worker)
                for process in processes:
                    process.join(_END)
            finally:
                group.close()
        finally:
            for process in processes:
                process.kill()
                process.join()


def _start(process: BaseProcess, rank: int, inputs: Inputs) -> None:
    """Start a process; Python gives it the code of the run in its own way, which not every object allows."""
    try:
        process.start()
    except BrokenPipeError:
        raise _ended_early(rank) from None
    except Exception as problem:  # whatever the object of a user raises
        name = next((name for name in ("model", "algorithm", "task") if not _given(getattr(inputs, name))), "run")
        raise FedskewError(
            f"the {name} cannot be sent to workers ({' '.join(str(problem).split())}): define its class and "
            "functions in a module, by name, or leave workers out"
        ) from problem


def _given(part: Any) -> bool:
    """Return whether an object can be given to a process that is started."""
    try:
        ForkingPickler.dumps(part)
    except Exception:  # whatever the object of a user raises
        return False
    return True


def _ended_early(rank: int) -> FedskewError:
    return FedskewError(
        f"worker {rank} ended before it began: where a script uses workers, what it does must be under "
        'if __name__ == "__main__": and its classes must be in a file'
    )


def _connected(processes: list[BaseProcess], meeting: str) -> Group:
    """Return the group, once all workers are there."""
    store = _store(meeting, len(processes) + 1)
    for rank, process in enumerate(processes, 1):
        while not store.check([_ready(rank)]):
            if not process.is_alive():
                raise _ended_early(rank)
            time.sleep(0.02)
    with on_this_machine():
        return Group(LEADER, len(processes) + 1, store)


def _work(rank: int, size: int, meeting: str, inputs: Inputs) -> None:
    """Run a worker on this machine, until the leader ends it or ends itself."""
    _leave_signals_to_the_leader()
    store = _store(meeting, size)
    store.set(_ready(rank), "")
    with on_this_machine():
        group = Group(rank, size, store)
    serve(group, rank, inputs.trainer)


def _store(meeting: str, size: int) -> Any:
    """Return the file in which processes of this machine find each other."""
    return dist.FileStore(meeting, size)  # type: ignore[attr-defined]


def _ready(rank: int) -> str:
    return f"worker {rank} is ready"


def _leave_signals_to_the_leader() -> None:
    """Ignore Ctrl-C and SIGTERM, which reach all processes: the leader ends its round, and then the workers."""
    torch.set_num_threads(1)
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def join_torchrun(make: Callable[[Mapping[str, Any]], Server]) -> bool:
    """Connect with the other processes of torchrun; return False in a worker, once there is nothing left to do.

    ``make`` returns the server of a configuration: a worker uses it for every run that the leader tells it.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size > SHARDS:
        raise FedskewError(f"torchrun started {size} processes, and rounds have {SHARDS} shards: use at most {SHARDS}")
    group = Group(rank, size)
    if rank == LEADER:
        _joined.append(group)
        return True
    _leave_signals_to_the_leader()
    serve(group, int(os.environ["LOCAL_RANK"]), lambda recipe: recipe.trainer(make))
    return False


def leave_torchrun() -> None:
    """Let the workers of torchrun end."""
    while _joined:
        _joined.pop().close()
