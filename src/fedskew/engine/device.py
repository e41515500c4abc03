"""Device, precision and threads of a run: the only module that speaks of them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedskew.core.errors import FedskewError
from fedskew.core.streams import bits


def pick_device(name: str) -> torch.device:
    """``auto`` is the GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise FedskewError(f"device={name} is not a device: use cpu, cuda, cuda:0 … or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise FedskewError(f"device={name} is not supported: use cpu, cuda, cuda:0 … or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise FedskewError(
            f"device={name} asked for, but this machine has {torch.cuda.device_count()} CUDA devices: use device=cpu"
        )
    return device


def usable_cores() -> int:
    """Cores that this process may run on; no more than ``OMP_NUM_THREADS`` says, where it is set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = (
        os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    )  # a list has a number for each nesting level
    return min(cores, int(asked)) if asked.isdecimal() and int(asked) > 0 else cores


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """Same bits on every repeat: fixed threads, full float32 and deterministic convolutions; all restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def random_layers(device: torch.device, seed: int, round: int, client: int) -> Iterator[None]:
    """Layers that draw numbers themselves (dropout) repeat for a client in a round; the user's generators stay as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        word = int(bits(seed, "dropout", round, client)[0] >> np.uint64(1))
        torch.default_generator.manual_seed(word)  # torch.manual_seed would reset the generators of all GPUs as well
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(word)
        yield
