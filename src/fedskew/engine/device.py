"""Device, precision and threads of a run; no other module sets them."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import torch

from fedskew.core.errors import FedskewError
from fedskew.core.streams import bits

Result = TypeVar("Result")
Precision: TypeAlias = Literal["float32", "tf32", "bf16"]


def pick_device(name: str) -> torch.device:
    """Return the device by name; ``auto`` is the GPU if there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise FedskewError(
            f"device={name} is not a device: use cpu, cuda, cuda:0 … or auto"
        ) from None
    if device.type not in ("cpu", "cuda"):
        raise FedskewError(f"device={name} is not supported: use cpu, cuda, cuda:0 … or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise FedskewError(
            f"device={name} asked for, but this machine has {torch.cuda.device_count()} CUDA devices: use device=cpu"
        )
    return device


def usable_cores() -> int:
    """Return the number of cores this process may use, at most ``OMP_NUM_THREADS`` if that is set."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    # A list has one number for each nesting level.
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return min(cores, int(asked))
    return cores


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """Make repeats bit-identical: fixed threads, full float32, deterministic convolutions; all restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        ):
            yield
    finally:
        torch.set_num_threads(before)


def products_in(precision: Precision) -> AbstractContextManager[None]:
    """Compute products on a GPU in this precision; PyTorch decides which operations are done in bf16."""
    if precision == "float32":
        return nullcontext()
    return _faster_products(precision)


@contextmanager
def _faster_products(precision: Precision) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    if precision == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    try:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


class _FastAttention:
    """The fast path of PyTorch's attention, which is one switch for all threads: who needs it off, and how it was."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._before = True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Keep it off until the last thread that needs that has ended."""
        with self._lock:
            if not self._users:
                self._before = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    torch.backends.mha.set_fastpath_enabled(self._before)


# In evaluation mode, under vmap, attention would take a path without a gradient
differentiable_attention = _FastAttention().off


def in_threads(task: Callable[[int], Result], count: int, threads: int) -> Iterator[Result]:
    """Yield ``task(0)``, ``task(1)``, ... in order, from so many threads with one core each; one thread has all cores.

    At most two tasks for each thread are begun and not yet taken, so that results do not pile up.
    """
    if threads == 1:
        yield from map(task, range(count))
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            begun = deque(pool.submit(task, i) for i in range(min(count, 2 * threads)))
            for i in range(count):
                result = begun.popleft().result()
                if i + 2 * threads < count:
                    begun.append(pool.submit(task, i + 2 * threads))
                yield result
    finally:
        torch.set_num_threads(before)


@contextmanager
def random_layers(device: torch.device, seed: int, round: int, client: int) -> Iterator[None]:
    """Seed layers that draw random numbers (dropout) for a client and round; the global generators are restored."""
    devices = []
    if device.type == "cuda":
        devices.append(device)
    with torch.random.fork_rng(devices=devices):
        word = int(bits(seed, "dropout", round, client)[0] >> np.uint64(1))
        # torch.manual_seed would reset the generators of all GPUs as well
        torch.default_generator.manual_seed(word)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(word)
        yield
