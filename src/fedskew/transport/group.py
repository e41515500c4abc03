"""The processes of a run: process 0 leads it, the others are its workers and answer what it asks."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fedskew.core.errors import DivergedError, FedskewError
from fedskew.transport.messages import Message, packed, sendable, unpacked

LEADER = 0
# For a process that is there and silent; one that died is noticed at once
PATIENCE = timedelta(hours=1)

Result = TypeVar("Result")


class WorkerLostError(FedskewError):
    """Raised if another process of the run is gone or silent."""


@dataclass(frozen=True)
class Failure:
    """The answer of a worker that could not do what it was asked."""

    message: str
    diverged: bool = False

    @classmethod
    def of(cls, rank: int, problem: Exception) -> "Failure":
        """Return the answer for an exception; errors of the user keep their words."""
        if isinstance(problem, FedskewError):
            return cls(str(problem), isinstance(problem, DivergedError))
        return cls(f"worker {rank}: {type(problem).__name__}: {problem}")

    def error(self) -> FedskewError:
        """Return the error for the user."""
        if self.diverged:
            return DivergedError(self.message)
        return FedskewError(self.message)


sendable(Failure)


class Group:
    """The connection between the processes of a run.

    Args:
        rank: number of this process
        size: how many processes there are
        store: where they find each other; None where ``torchrun`` has said so in the environment
    """

    def __init__(self, rank: int, size: int, store: Any = None) -> None:
        if dist.is_initialized():
            raise FedskewError(
                "this process has a torch.distributed group already, and workers need their own: leave workers out"
            )
        self.rank = rank
        self.size = size
        self.device = torch.device("cuda")  # where tensors arrive that were on a GPU
        self.gpus: Any = None  # the group of NCCL, if every process has a GPU of its own
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)

    @property
    def workers(self) -> range:
        """Return the numbers of all processes but the leader."""
        return range(LEADER + 1, self.size)

    def close(self) -> None:
        """End the connection; the others notice it."""
        dist.destroy_process_group()

    def use_gpus(self, own: bool) -> None:
        """Send tensors from GPU to GPU if every process has one of its ``own``; called by all processes."""
        if own and self.gpus is None:
            self.gpus = dist.new_group(backend="nccl", timeout=PATIENCE)
        elif not own:
            self.gpus = None

    def send(self, message: Message, to: int) -> None:
        """Send a message to another process."""
        gpu = message.gpu
        if not self.gpus:
            gpu = gpu.cpu()
        with _noticing(to):
            dist.send(message.sizes, to)
            dist.send(message.host, to)
            if len(gpu):
                dist.send(gpu, to, group=self.gpus)

    def receive(self, source: int) -> Any:
        """Return the next object from another process."""
        with _noticing(source):
            sizes = torch.zeros(3, dtype=torch.int64)
            dist.recv(sizes, source)
            text, host_bytes, gpu_bytes = sizes.tolist()
            host = torch.empty(host_bytes, dtype=torch.uint8)
            dist.recv(host, source)
            gpu = host[:0]
            if gpu_bytes:
                gpu = self._receive_for_gpu(gpu_bytes, source)
        if gpu_bytes:
            gpu = gpu.to(self.device)
        return unpacked(Message(text, host, gpu))

    def _receive_for_gpu(self, size: int, source: int) -> Tensor:
        """Return so many bytes of a GPU of another process: on the GPU with NCCL, else in this machine's memory."""
        device = None
        if self.gpus:
            device = self.device
        buffer = torch.empty(size, dtype=torch.uint8, device=device)
        dist.recv(buffer, source, group=self.gpus)
        return buffer

    def ask(
        self, questions: Sequence[Any], meanwhile: Callable[[], Result]
    ) -> tuple[Result, list[Any]]:
        """Send every worker its question, do one's own part, and return that and the answers of the workers."""
        for worker, question in zip(self.workers, questions, strict=True):
            self.send(packed(question), worker)
        try:
            mine = meanwhile()
        except Exception:
            self._answers()  # the next question must not find an old answer
            raise
        answers = self._answers()
        for answer in answers:
            if isinstance(answer, Failure):
                raise answer.error()
        return mine, answers

    def _answers(self) -> list[Any]:
        return [self.receive(worker) for worker in self.workers]


@contextmanager
def _noticing(other: int) -> Iterator[None]:
    """Turn a broken connection into an error that says who is gone."""
    began = time.monotonic()
    try:
        yield
    except RuntimeError as problem:
        who = f"worker {other}"
        if other == LEADER:
            who = "the leading process"
        if time.monotonic() - began >= PATIENCE.total_seconds():
            raise WorkerLostError(
                f"{who} has been silent for {PATIENCE}: look whether its machine is up"
            ) from problem
        raise WorkerLostError(
            f"{who} is gone: it was killed, or its memory was not enough"
        ) from problem


@contextmanager
def on_this_machine() -> Iterator[None]:
    """Connect through the loopback device, if there is one that is known; nobody else can reach it."""
    known = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    if not known or "GLOO_SOCKET_IFNAME" in os.environ:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = known.pop()
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]
