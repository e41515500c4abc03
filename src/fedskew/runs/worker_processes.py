"""The processes that train a run together: those that a run starts on this machine, or those of ``torchrun``."""

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fedskew.core.config import SHARDS, workers_of_torchrun
from fedskew.core.errors import FedskewError
from fedskew.core.plugins import Imported, import_again, imported
from fedskew.server.server import Server
from fedskew.server.worker import Inputs, Numbers, Recipe, enlisted, serve
from fedskew.transport.group import LEADER, Group, on_this_machine
from fedskew.transport.messages import packed

_END = 5.0  # seconds in which a worker that was told to end does so
_joined: list[Group] = []  # the group of torchrun's processes, if this is one of them


@contextmanager
def with_workers(server: Server, config: Mapping[str, Any]) -> Iterator[None]:
    """Let the workers of the settings train for a server; they are gone afterwards, unless torchrun started them.

    ``config`` is the whole configuration of the run, from which workers of torchrun prepare the run themselves.
    """
    workers = server.settings.workers
    if server.clients.away:
        with server.clients.serving(config):
            yield
    elif workers is None:
        yield
    elif _joined:
        digests = [code.sha256 for code in imported()]
        recipe = Recipe(dict(config), server.fed.fingerprint, digests)
        with enlisted(server, _joined[0], recipe):
            yield
    elif workers == 1:
        yield
    elif workers_of_torchrun():
        raise FedskewError(
            f"workers={workers} starts processes, and torchrun has done so: start the command line with it "
            "(torchrun -m fedskew run), or Python without it"
        )
    else:
        numbers = Numbers.of(server)
        with _started(workers, server) as group, enlisted(server, group, numbers):
            yield


@contextmanager
def _started(count: int, server: Server) -> Iterator[Group]:
    """Start workers on this machine, and end them whatever happens; yields the group that they and this process are."""
    if not dist.is_available():
        raise FedskewError(
            "workers need a PyTorch with torch.distributed, and this one has none: leave workers out"
        )
    context = multiprocessing.get_context("spawn")
    inputs = Inputs.of(server)
    # Pickled once for every worker: a handle to shared memory can be given to one process only
    pickles = [_pickled(inputs) for _ in range(1, count)]
    with tempfile.TemporaryDirectory() as place:
        meeting = str(Path(place) / "meeting")
        processes: list[BaseProcess] = []
        try:
            pipes = []
            for rank in range(1, count):
                mine, theirs = context.Pipe()
                new = context.Process(
                    target=_work, args=(rank, count, meeting, theirs, imported()), daemon=True
                )
                with theirs:  # closed here, so that it is closed everywhere when the worker ends
                    new.start()
                processes.append(new)
                pipes.append(mine)
            _give(pipes, pickles)
            with on_this_machine():
                group = Group(LEADER, count, _store(meeting, count))
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


def _pickled(inputs: Inputs) -> bytes:
    """Return the inputs of a run as bytes for a process that Python starts; what cannot be pickled is an error."""
    try:
        return bytes(ForkingPickler.dumps(inputs))
    except Exception as problem:  # whatever the object of a user raises
        part = _first_unpicklable(inputs)
        raise FedskewError(
            f"the {part} cannot be sent to workers ({' '.join(str(problem).split())}): define its class and "
            "functions in a module, by name, or leave workers out"
        ) from problem


def _first_unpicklable(inputs: Inputs) -> str:
    """Return which part of the inputs cannot be pickled; ``run`` if it is none of those that a user writes."""
    for name in ("model", "algorithm", "task"):
        if not _can_be_pickled(getattr(inputs, name)):
            return name
    return "run"


def _can_be_pickled(part: Any) -> bool:
    """Return whether an object can be given to a process that Python starts."""
    try:
        ForkingPickler.dumps(part)
    except Exception:  # whatever the object of a user raises
        return False
    return True


def _give(pipes: Sequence[Connection], pickles: Sequence[bytes]) -> None:
    """Give every worker the inputs of the run, and wait until all have them.

    They are no argument of the process: while Python writes its arguments, it holds the end that the process reads,
    and would wait for ever for a process that has ended.
    """
    for rank, (pipe, pickle) in enumerate(zip(pipes, pickles, strict=True), 1):
        with _beginning(rank):
            pipe.send_bytes(pickle)
    for rank, pipe in enumerate(pipes, 1):
        with _beginning(rank), pipe:
            pipe.recv_bytes()


@contextmanager
def _beginning(rank: int) -> Iterator[None]:
    """Turn a broken pipe into an error that says why a worker may have ended."""
    try:
        yield
    except (EOFError, ConnectionError):
        raise FedskewError(
            f"worker {rank} ended before it began: where a script uses workers, what it does must be under "
            'if __name__ == "__main__": and its classes must be in a file'
        ) from None


def _work(
    rank: int, size: int, meeting: str, pipe: Connection, imports: Sequence[Imported]
) -> None:
    """Run a worker on this machine, until the leader ends it or ends itself; ``imports`` are what the user imported."""
    _leave_signals_to_the_leader()
    import_again(imports)
    with pipe:
        try:
            inputs: Inputs = pipe.recv()
            pipe.send_bytes(b"ready")
        except (EOFError, ConnectionError):
            return
    with on_this_machine():
        group = Group(rank, size, _store(meeting, size))
    serve(group, rank, inputs.trainer)


def _store(meeting: str, size: int) -> Any:
    """Return the file in which processes of this machine find each other."""
    return dist.FileStore(meeting, size)  # type: ignore[attr-defined]


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
    rank = int(os.environ["RANK"])
    size = int(os.environ["WORLD_SIZE"])
    if size > SHARDS:
        raise FedskewError(
            f"torchrun started {size} processes, and rounds have {SHARDS} shards: use at most {SHARDS}"
        )
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
