"""Device, precision and threads of a run; no other module sets them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedskew.core.errors import FedskewError
from fedskew.core.streams import bits


def pick_device(name: str) -> torch.device:
    """Return the device by name; ``auto`` is the GPU if there is one."""
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
    """Return the number of cores this process may use, at most ``OMP_NUM_THREADS`` if that is set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = (
        os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    )  # a list has one number for each nesting level
    return min(cores, int(asked)) if asked.isdecimal() and int(asked) > 0 else cores


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """Make repeats bit-identical: fixed threads, full float32, deterministic convolutions; all restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def random_layers(device: torch.device, seed: int, round: int, client: int) -> Iterator[None]:
    """Seed layers that draw random numbers (dropout) for a client and round; the global generators are restored."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        word = int(bits(seed, "dropout", round, client)[0] >> np.uint64(1))
        torch.default_generator.manual_seed(word)  # torch.manual_seed would reset the generators of all GPUs as well
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(word)
        yield
