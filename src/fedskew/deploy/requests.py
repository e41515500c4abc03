"""What a server asks its nodes, and what they answer: plain values, numbers and tensors, never code.

A request is one message and an answer another. Nothing is kept in memory between two of them, because a node may start
a new process for each: what a client keeps is in files, one for each round that it took part in.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch

from fedskew.algorithms.contract import Report
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree
from fedskew.data import fitting
from fedskew.engine.job import ModelState, ScheduleResult, Start, Updates
from fedskew.engine.plan import Plan
from fedskew.tasks.additive import Sums
from fedskew.transport.messages import ALIGNMENT, Message, packed, sendable, unpacked

_HEAD = 8  # bytes before a message: the length of its text
FRESH = -1  # the version of what a client keeps before its first round


@dataclass(frozen=True)
class Version:
    """Which of the states that a client has kept it goes on from, by the rounds after which they were kept."""

    round: int = FRESH
    mirrored: int = FRESH  # of the parts whose mean the server keeps
    oldest: int = FRESH  # files of earlier rounds are not needed any more


@dataclass(frozen=True)
class Train:
    """Train a client for one round.

    Args:
        job: 0 for the method, 1 for the model that a client trains for itself
        start: where it starts, without what it kept
        plan: its part of the plan
        version: which of its kept states it goes on from
        mirrored: names of the parts of its state whose mean the server keeps
        met: results of the exchanges of statistics so far, the same for all clients of the round
        together: whether the clients exchange statistics at all
    """

    job: int
    start: Start
    plan: Plan
    version: Version
    mirrored: tuple[str, ...] = ()
    met: list[torch.Tensor] = field(default_factory=list)
    together: bool = False


@dataclass(frozen=True)
class Waiting:
    """The answer of a client that cannot go on before an exchange, with its part of it; asked again, it begins anew."""

    sent: Any


@dataclass(frozen=True)
class Measure:
    """Measure a probe on the first batch of a plan."""

    start: Start
    plan: Plan
    version: Version
    what: tuple[str, ...]
    mirrored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Visit:
    """Train the model that has come to this client on some of its rows, numbered in the order of their labels."""

    state: ModelState
    rows: Ints
    ends: Ints
    reset_optimizer: bool


@dataclass(frozen=True)
class Step:
    """Compute this client's part of a synchronous step; ``answers`` are the hub's so far."""

    opening: torch.Tensor
    rows: Ints
    answers: list[torch.Tensor]


@dataclass(frozen=True)
class Evaluate:
    """Sum up what a model makes of this client's rows, and score the model that the client uses.

    ``state`` is what clients share of the model; where that is not the whole of it, there are no sums. ``candidates``
    are models to choose from beside it, and ``answer`` is what the server sends this client alone, for methods whose
    clients use that.
    """

    state: Tensors
    versions: list[Version]
    final: bool = False
    own: bool = False
    round: int = 0  # how many are done, by which clients draw the rows that they adapt a model on
    candidates: Tensors = field(default_factory=dict)
    answer: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """Sums by part of the data, and the scores of the client's own model on its rows (``own``) and on test rows.

    ``held_out`` are the loss and the headline of the model that it uses on its held-out rows, if it holds some out.
    At the end of a run also the client's row of the table of clients, and its confusion matrix.
    """

    parts: dict[str, Sums]
    own: dict[str, float]
    own_test: dict[str, float] | None
    row: dict[str, Any] | None = None
    confusion: Ints | None = None
    held_out: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Statistics:
    """Sum up the class statistics of this client's rows, for a calibrated head."""

    state: Tensors
    version: Version


@dataclass(frozen=True)
class RowCounts:
    """What a client tells about its rows before the first round: how many there are of each class in each part."""

    name: str
    train: Ints
    test: Ints
    validation: Ints | None
    held_out: Ints | None


@dataclass(frozen=True)
class CountRows:
    """Count this client's rows, of each class and in each part of its data; ``RowCounts`` is the answer."""


@dataclass(frozen=True)
class Question:
    """A question of a fit: one of those that every silo answers, see ``fedskew.data.fitting``."""

    what: Literal["describe", "count", "add_up"]
    content: Any


@dataclass(frozen=True)
class Refusal:
    """The answer of a node that cannot do what it was asked, or Flower's (``of_flower``) in its place."""

    reason: str
    of_flower: bool = False


Request: TypeAlias = Train | Measure | Visit | Step | Evaluate | Statistics | CountRows | Question
sendable(
    Start, Plan, Report, Updates, ModelState, ScheduleResult,
    Version, Train, Waiting, Measure, Visit, Step, Evaluate, Scored, Statistics, RowCounts, CountRows,
    Refusal, Question, fitting.Request, fitting.ColumnFacts, fitting.Description, fitting.Moments,
)  # fmt: skip


def to_bytes(thing: Any) -> bytes:
    """Return a request or an answer as bytes."""
    message = packed(thing)
    return int(message.text).to_bytes(_HEAD, "little") + message.host.numpy().tobytes()


def from_bytes(content: bytes) -> Any:
    """Return the request or answer that these bytes are; an error for anything else."""
    try:
        if len(content) % ALIGNMENT != _HEAD:
            raise ValueError("its end is missing")
        host = torch.frombuffer(bytearray(content[_HEAD:]), dtype=torch.uint8)
        return unpacked(Message(int.from_bytes(content[:_HEAD], "little"), host, host[:0]))
    except FedskewError:
        raise
    except Exception as problem:
        raise FedskewError(
            f"a message of {len(content)} bytes is not one of fedskew's: {problem}"
        ) from None


def in_tensor(message: bytes) -> torch.Tensor:
    """Return bytes as a tensor, which a request can carry."""
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def out_of_tensor(message: torch.Tensor) -> bytes:
    """Return the bytes that ``in_tensor`` put into a tensor."""
    return message.numpy().tobytes()
