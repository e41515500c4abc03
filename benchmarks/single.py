"""Steps per second of stratify-single with single samples, against a plain PyTorch loop, and with a CUDA graph."""

import copy
import time
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.workloads import Workload
from fedskew.algorithms.contract import Algorithm
from fedskew.algorithms.stratify import StratifyBatch, StratifySingle
from fedskew.server.server import Server

STEPS = 2000
SINGLE = {"batch_size": 1, "lr": 0.01}
WORKLOADS = (
    Workload(
        "MNIST-sized CNN", "cnn", (1, 28, 28), 10, 10, STEPS // 10, SINGLE, 0.9, "classes:k=1"
    ),
    Workload(
        "MNIST-sized MLP", "mlp", (1, 28, 28), 10, 10, STEPS // 10, SINGLE, 0.9, "classes:k=1"
    ),
    Workload(
        "MNIST-sized logistic regression",
        "logreg",
        (1, 28, 28),
        10,
        10,
        STEPS // 10,
        SINGLE,
        0.9,
        "classes:k=1",
    ),
)
BATCHES = Workload(
    "MNIST-sized CNN, batches of 64",
    "cnn",
    (1, 28, 28),
    10,
    10,
    640,
    {"batch_size": 64, "lr": 0.05},
    0.9,
    "classes:k=1",
)


def main(repeats: int = 5) -> None:
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        print(
            f"{device}, one thread"
            if device == "cpu"
            else f"{device}, steps replayed as a CUDA graph"
        )
        for workload, method in (
            *((one, StratifySingle()) for one in WORKLOADS),
            (BATCHES, StratifyBatch()),
        ):
            training = _training(workload, device, method)
            bare = _Bare(training)
            ours, theirs = [], []
            for number in range(repeats + 1):
                for take, times in ((training.advance, ours), (bare.epoch, theirs)):
                    began = time.perf_counter()
                    take()
                    if device == "cuda":
                        torch.cuda.synchronize()
                    if number:  # the first one warms up
                        times.append((time.perf_counter() - began) / bare.steps)
            ratio = median(plain / mine for mine, plain in zip(ours, theirs, strict=True))
            wanted = 5.0 if device == "cuda" and workload is not BATCHES else workload.wanted
            rates = f"{1 / median(ours):8.0f} steps/s, bare loop {1 / median(theirs):8.0f}"
            print(
                f"    {workload.title:34} {rates}  {ratio:5.2f}x  wanted "
                f"{wanted:.1f}x{'' if ratio >= wanted else '  SHORT'}"
            )


def _training(workload: Workload, device: str, method: Algorithm) -> Server:
    return workload.training(workload.federation(), None, method, device=device, threads=1)


class _Bare:
    """A plain loop: forward, backward, step of ``torch.optim.SGD``, and the sum of the losses."""

    def __init__(self, training: Server) -> None:
        settings = training.settings
        self.model = copy.deepcopy(training.model).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=settings.lr)
        self.batches = torch.split(
            torch.randperm(len(training.job.y)).to(training.device), settings.batch_size
        )
        self.x, self.y, self.steps = training.job.x, training.job.y, len(self.batches)

    def epoch(self) -> float:
        """Train once on all rows."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        total = torch.zeros((), device=self.x.device)
        for rows in self.batches:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(self.x[rows]), self.y[rows])
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        torch.set_num_threads(threads)
        return float(total)
