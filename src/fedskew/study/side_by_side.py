"""Several runs side by side, round by round, so that their clients are trained in one stack."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias, TypeVar

from fedskew.core.errors import DivergedError, Interrupted
from fedskew.core.trees import size_in_bytes
from fedskew.engine.device import computing
from fedskew.engine.input_rows import InputRows
from fedskew.engine.job import Updates
from fedskew.engine.stacked import Stacked
from fedskew.engine.together import Asked, Together
from fedskew.runs.run import Run
from fedskew.runs.runner import Advanced, Signals, Steps, run_to_end, stopping
from fedskew.server.scorer import RoundResult
from fedskew.server.server import Server
from fedskew.topology.parallel import Invited, ParallelRounds

Result = TypeVar("Result")
_MEMORY = 2 << 30  # bytes for the states of runs side by side
_ROWS = 1 << 30  # bytes for their rows, where treatments have made several tables of them
Ended: TypeAlias = "Run | DivergedError"


def side_by_side(runs: "Sequence[Steps[Run]]") -> list[Ended]:
    """Run all rounds of several runs; a run that diverges ends with its error, and the others go on.

    Where their clients cannot be trained in one stack, or gain nothing from it, one run follows the other. After a
    signal every run that has begun ends its round and makes a checkpoint, as a run on its own does.
    """
    with stopping() as signals, ExitStack() as closing:
        for steps in runs:
            closing.callback(steps.close)
        group = _Group(runs, signals)
        while len(group.ended) < len(runs):
            group.begin()
            while group.servers:
                group.advance()
        return [group.ended[number] for number in range(len(runs))]


class _Group:
    """The runs that have not ended, by number, with the servers that wait for their next round."""

    def __init__(self, runs: "Sequence[Steps[Run]]", signals: Signals) -> None:
        self.runs = runs
        self.signals = signals
        self.ended = dict[int, Ended]()
        self.servers: dict[int, Server] = {}
        self.together: Together | None = None

    def begin(self) -> None:
        """Begin the next runs, as many as memory allows; those that cannot be trained together run to their end."""
        for number, steps in list(enumerate(self.runs))[len(self.ended) :]:
            if len(self.servers) >= min(map(_most_in_memory, self.servers.values()), default=1):
                break
            if interruption := self._go_on(number, partial(next, steps)):
                raise interruption
            server = self.servers.get(number)
            if server and not self._takes(server):
                del self.servers[number]
                try:
                    self.ended[number] = run_to_end(steps, server)
                except DivergedError as problem:
                    self.ended[number] = problem
        if self.servers:
            self.together = _joined(self.servers)

    def _takes(self, server: Server) -> bool:
        """Return whether a run can be trained in one stack with the others, and memory has room for all their rows."""
        if not can_share_a_stack(server, next(iter(self.servers.values()))):
            return False
        tables = {}
        for one in (server, *self.servers.values()):
            tables[id(one.fed.train)] = one.job.x.nbytes
        return len(tables) == 1 or sum(tables.values()) <= _ROWS

    def _go_on(self, number: int, move: Callable[[], Server]) -> Interrupted | None:
        """Let a run record its round and wait for the next, or end; return its error if a signal stopped it."""
        self.servers.pop(number, None)
        try:
            self.servers[number] = move()
        except StopIteration as end:
            self.ended[number] = end.value
        except DivergedError as problem:
            self.ended[number] = problem
        except Interrupted as stopped:
            return stopped
        return None

    def advance(self) -> None:
        """Run one round of every run."""
        assert self.together
        began = time.perf_counter()
        servers = dict(sorted(self.servers.items()))
        halves = {}
        for number, server in servers.items():
            halves[number] = _tried(server.invite)
        asked = []
        for number, half in halves.items():
            if isinstance(half, Invited):
                asked.append(Asked(number, half.start, half.plan))
        with computing(max(server.threads for server in servers.values())):
            learnt = self.together.train(asked)
        shared = (time.perf_counter() - began) / len(servers)
        # All rounds are completed before the first is recorded: a signal until then makes all runs save a checkpoint.
        moves = {}
        for number, server in servers.items():
            began = time.perf_counter()
            steps = self.runs[number]
            result = _tried(partial(_complete, server, halves[number], learnt.get(number)))
            if isinstance(result, Exception):  # it ends the run
                moves[number] = partial(steps.throw, result)
            else:
                moves[number] = partial(
                    steps.send, Advanced(result, shared + time.perf_counter() - began)
                )
        self._record(moves)

    def _record(self, moves: "Mapping[int, Callable[[], Server]]") -> None:
        """Let every run record its round; all of them make a checkpoint because of a signal, or none does."""
        interruption = None
        with self.signals.held_back():
            for number, move in moves.items():
                interruption = self._go_on(number, move) or interruption
        if interruption:
            raise interruption


def _joined(servers: Mapping[int, Server]) -> Together:
    """Return what trains the clients of these runs in one stack."""
    engine = next(iter(servers.values())).engine
    assert isinstance(engine, Stacked)
    jobs = {}
    tables = {}
    for number, server in servers.items():
        jobs[number] = server.job
        tables[number] = id(server.fed.train)
    return Together(jobs, engine, tables)


def _most_in_memory(server: Server) -> int:
    """Return how many such servers may be in memory; most of a server is what its clients keep between rounds."""
    stores = sum(store.row_bytes * server.fed.clients for store in server.stores().values())
    return max(1, _MEMORY // (stores + size_in_bytes({"": server.state.model()})))


def can_share_a_stack(server: Server, first: Server | None = None) -> bool:
    """Return whether the clients of a run can be trained in one stack with those of the first, and gain from it."""
    if type(server.rounds) is not ParallelRounds or not isinstance(server.engine, Stacked):
        return False
    if server.algorithm.poison:
        return False  # runs of other seeds have other poisoned rows
    if not _fit_one_stack(server, first or server):
        return False
    return server.engine.gains(server.job, server.settings.batch_size, server.per_round)


def _fit_one_stack(server: Server, first: Server) -> bool:
    """Return whether two runs train on rows of one shape, in batches of one least size, for the same task and method.

    Class weights that follow from the rows are part of the task.
    """
    if server.fed.train is not first.fed.train and (_is_stored(server) or _is_stored(first)):
        return False  # stored rows are shared, and not joined
    return (
        server.job.x.shape[1:] == first.job.x.shape[1:]
        and server.least == first.least
        and server.job.task == first.job.task
        and server.job.unsent == first.job.unsent
        and server.algorithm.requires == first.algorithm.requires
        and server.algorithm.batchnorm == first.algorithm.batchnorm
    )


def _is_stored(server: Server) -> bool:
    """Return whether the rows of a run stay as they are stored, and are no tensor of the run's precision."""
    return isinstance(server.job.x, InputRows)


def _tried(part: Callable[[], Result]) -> Result | Exception:
    """Call a part of a round, and return what it returns or the error that it raises."""
    try:
        return part()
    except Exception as problem:  # whatever a method raises is the error of that run
        return problem


def _complete(
    server: Server, half: Invited | Exception | None, learnt: Updates | None
) -> RoundResult:
    """Run the second half of a round."""
    if isinstance(half, Exception):
        raise half
    assert half is not None
    return server.complete(half, learnt)
