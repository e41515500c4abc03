"""Clients on other machines: they are asked, what they answer is checked, and their state has a version."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedskew.core.errors import FedskewError, UnansweredError
from fedskew.core.streams import Ints
from fedskew.data import fitting
from fedskew.deploy.fit_checks import checked_counts, checked_moments, ends_of, inside
from fedskew.deploy.requests import FRESH, Question, Refusal, Request, Version, from_bytes, to_bytes
from fedskew.transport.message_sizes import LARGEST

Kinds: TypeAlias = type[Any] | tuple[type[Any], ...]
# A client and its answer -> the answer to use; an error refuses it
Check: TypeAlias = Callable[[int, Any], Any]
CHECKPOINTS = 2  # that stay on a server's disk
SILENT, REFUSED = "no answer in time", "the node refused: the output of the run has its words"


class _RefusedError(FedskewError):
    """Raised where a node refuses what it was asked; ``of_flower``: its reason is Flower's own, and quotes no file."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal.reason))
        self.of_flower = refusal.of_flower is True


@dataclass(frozen=True)
class Patience:
    """Whom a question waits for: all but ``not_for``; ``told`` gets those that it still waits for after a while."""

    not_for: frozenset[int] = frozenset()
    told: Callable[[Sequence[int]], None] = lambda clients: None


class Transport(Protocol):
    """Carries requests to nodes and their answers back."""

    def ask(
        self, requests: Mapping[int, bytes], about: Mapping[str, Any], patience: Patience
    ) -> dict[int, bytes]:
        """Return the answers of clients by their numbers; one that does not answer in time has none.

        ``about`` is what every message says of the run.
        """
        ...

    def renumber(self, clients: Sequence[int]) -> None:
        """Give clients other numbers: the first of these is the old number of the new client 0."""
        ...


class Versions:
    """Which round's state each client goes on from; the state itself is with the clients.

    They keep what the checkpoints on the server's disk may ask for, and nothing older.
    """

    def __init__(self, clients: int) -> None:
        # Two rows: the round of each client's whole state, and that of its mirrored parts.
        self.rounds = np.full((2, clients), FRESH, dtype=np.int64)
        self._saved: list[Ints] = [self.rounds.copy()]

    def of(self, client: int) -> Version:
        """Return what a client is told."""
        now, mirrored = self.rounds[:, client].tolist()
        oldest = min(int(saved[:, client].min()) for saved in self._saved)
        return Version(now, mirrored, oldest)

    def state(self) -> Tensor:
        """Return all of it for a checkpoint, which may be asked for until two more were written."""
        self._saved = [*self._saved, self.rounds.copy()][-1 - CHECKPOINTS :]
        return torch.from_numpy(self.rounds.copy())

    def restore(self, state: Tensor) -> None:
        """Go back to what ``state`` returned."""
        self.rounds = state.cpu().numpy().copy()
        self._saved = [self.rounds.copy()]


class Record(Protocol):
    """Notes what happens between a server and its nodes."""

    def unanswered(self, asked: str, reasons: Mapping[str, str]) -> None:
        """Note why clients did not answer; not in the words of nodes, which may quote their files."""
        ...

    def waits(self, asked: str, clients: Sequence[str]) -> None:
        """Note whose answers are waited for; nobody's when they are there."""
        ...


class _NoRecord:
    def unanswered(self, asked: str, reasons: Mapping[str, str]) -> None:
        """Note nothing: nobody keeps a record."""

    def waits(self, asked: str, clients: Sequence[str]) -> None:
        """Note nothing: nobody keeps a record."""


class Nodes:
    """The nodes of a run: asks them, and checks what they answer. ``names`` are those of the clients, once known.

    A client that is silent is not waited for again in the same round, so that it costs a round one timeout.
    """

    def __init__(self, transport: Transport | None, record: Record | None = None) -> None:
        self.transport = transport
        self.record = record or _NoRecord()
        self.about: dict[str, Any] = {}
        self.names: Sequence[str] = ()
        self.marks: Sequence[
            str
        ] = ()  # by which a resumed run recognises nodes whose names it does not write
        self.max_norm: float | None = None  # of an update; none by default
        self._round = FRESH
        self._silent: set[int] = set()  # clients that did not answer in this round

    def begin_round(self, round: int) -> None:
        """Wait for everybody again, if this is another round."""
        if round != self._round:
            self._round = round
            self.wait_for_all()

    def wait_for_all(self) -> None:
        """Wait for everybody again, also for those that were silent."""
        self._silent.clear()

    def ask(
        self,
        requests: Mapping[int, Request],
        kind: Kinds,
        check: Check | None = None,
        most: int = LARGEST,
        needed: bool = True,
        without: Callable[[Sequence[int]], str] = lambda missing: "",
    ) -> dict[int, Any]:
        """Return the answers of this kind by client; clients without a good one are left out, with a warning.

        ``check`` returns the answer to use, or raises an error; an answer of more than ``most`` bytes is not even read.
        It is an error if no client has a good answer, unless none is ``needed``. What ``without`` says of the missing
        clients is added to the warning.
        """
        answers, refusals = self._ask(requests, kind, check, most)
        if needed and requests and not answers:
            raise UnansweredError(
                f"none of {len(requests)} clients answered", self._reasons(refusals)
            )
        missing = sorted(requests.keys() - answers.keys())
        if missing:
            reasons = self._reasons({client: refusals.get(client, SILENT) for client in missing})
            warnings.warn(
                f"{len(missing)} of {len(requests)} clients are left out: {reasons}{without(missing)}",
                stacklevel=2,
            )
        return answers

    def everybody(self, requests: Mapping[int, Request], kind: Kinds, check: Check) -> list[Any]:
        """Return the answers of all clients, in the order of their numbers; an error if one is missing."""
        answers, refusals = self._ask(requests, kind, check, LARGEST)
        missing = len(requests.keys() - answers.keys())
        if missing:
            raise UnansweredError(
                f"{missing} of {len(requests)} clients did not answer", self._reasons(refusals)
            )
        return list(answers.values())

    def one(self, client: int, request: Request, kind: Kinds, check: Check, most: int) -> Any:
        """Return the answer of one client, without which there is no going on."""
        return self.ask({client: request}, kind, check, most)[client]

    def _ask(
        self, requests: Mapping[int, Request], kind: Kinds, check: Check | None, most: int
    ) -> tuple[dict[int, Any], dict[int, str]]:
        """Return answers, and why others are none."""
        answers = dict[int, Any]()
        refusals = dict[int, str]()
        own_words = set[int]()  # clients whose nodes refused in words of their own
        contents = self._contents(requests)
        for client, content in sorted(contents.items()):
            try:
                answer = _read(content, kind, most)
                if check:
                    answer = check(client, answer)
                answers[client] = answer
            except _RefusedError as problem:
                refusals[client] = str(problem)
                if not problem.of_flower:
                    own_words.add(client)
            except FedskewError as problem:
                refusals[client] = str(problem)
            except Exception as problem:  # an answer may be anything, and must not end the run
                refusals[client] = f"an answer that cannot be checked ({type(problem).__name__})"
        recorded = {**refusals, **dict.fromkeys(own_words, REFUSED)}
        self._note_missing(requests, answers, recorded)
        return answers, refusals

    def _contents(self, requests: Mapping[int, Request]) -> dict[int, bytes]:
        """Send requests, and return what comes back in time."""
        assert self.transport, "a run begins when its nodes are there"
        sent = {}
        asked = ""
        for client, request in requests.items():
            sent[client] = to_bytes(request)
            asked = _kind(request)

        def told(clients: Sequence[int]) -> None:
            self.record.waits(asked, [self.name(client) for client in clients])

        contents = self.transport.ask(sent, self.about, Patience(frozenset(self._silent), told))
        self._silent |= requests.keys() - contents.keys()
        return contents

    def _note_missing(
        self,
        requests: Mapping[int, Request],
        answers: Mapping[int, Any],
        reasons: Mapping[int, str],
    ) -> None:
        """Have it noted which clients did not answer, and why."""
        missing = sorted(requests.keys() - answers.keys())
        if not missing:
            return
        by_name = {}
        for client in missing:
            by_name[self.name(client)] = reasons.get(client, SILENT)
        self.record.unanswered(_kind(requests[missing[0]]), by_name)

    def _reasons(self, refusals: Mapping[int, str]) -> str:
        reasons = []
        for client, reason in refusals.items():
            reasons.append(f"client {self.name(client)}: {reason}")
        return "; ".join(reasons)

    def name(self, client: int) -> str:
        """Return the name of a client, or its number until there is one."""
        if self.names:
            return self.names[client]
        return str(client)


def _kind(request: Request) -> str:
    """Return what a request is, in one word."""
    return type(request).__name__.lower()


def _read(content: bytes, kind: Kinds, most: int) -> Any:
    """Return an answer of this kind; one of more than ``most`` bytes is not even read."""
    if len(content) > most:
        raise FedskewError(f"an answer of {len(content):,} bytes, expected at most {most:,}")
    answer = from_bytes(content)
    if isinstance(answer, Refusal):
        raise _RefusedError(answer)
    if not isinstance(answer, kind):
        raise FedskewError(f"it answered with a {type(answer).__name__}")
    return answer


class RemoteSilos:
    """The tables of all clients on their own machines, which have described themselves."""

    def __init__(self, nodes: Nodes, described: Sequence[fitting.Description]) -> None:
        self._nodes, self._described = nodes, described
        # The intervals of each client that were counted last, by column
        self._counted: list[dict[str, list[tuple[fitting.Interval, Ints]]]] = [
            {} for _ in described
        ]

    def describe(self, request: fitting.Request) -> Sequence[fitting.Description]:
        """Say what the tables have."""
        return self._described

    def count(
        self, intervals: Mapping[str, Sequence[fitting.Interval]]
    ) -> list[dict[str, list[Ints]]]:
        """Count the numbers of some columns in the bins of intervals."""
        asked = {title: list(each) for title, each in intervals.items()}

        def check(client: int, told: Any) -> Any:
            return checked_counts(told, asked, self._expected(client, asked))

        answers = self._ask("count", asked, check)
        self._counted = []
        for answer in answers:
            counted = {}
            for title, counts in answer.items():
                counted[title] = list(zip(asked[title], counts, strict=True))
            self._counted.append(counted)
        return answers

    def _expected(
        self, client: int, asked: Mapping[str, list[fitting.Interval]]
    ) -> dict[str, list[int]]:
        """Return how many numbers a client has in intervals, by what it has told so far."""
        described = self._described[client]
        expected = {}
        for title in asked.keys() & described.columns.keys():
            present = described.rows - described.columns[title].missing
            told = self._counted[client].get(title, [])
            counts = []
            for interval in asked[title]:
                count = inside(told, interval)
                if count is None:
                    count = present
                counts.append(count)
            expected[title] = counts
        return expected

    def add_up(self, fills: Mapping[str, float]) -> list[dict[str, fitting.Moments]]:
        """Return the moments of some columns."""

        def check(client: int, told: Any) -> Any:
            described = self._described[client]
            ends = {title: ends_of(described, title, fill) for title, fill in fills.items()}
            count = described.rows
            if described.shape is not None:  # a channel of images has many numbers per row
                count *= math.prod(described.shape[1:])
            return checked_moments(told, ends, count)

        return self._ask("add_up", dict(fills), check)

    def _ask(self, what: Literal["count", "add_up"], content: Any, check: Check) -> list[Any]:
        questions = dict.fromkeys(range(len(self._described)), Question(what, content))
        return self._nodes.everybody(questions, dict, check)
