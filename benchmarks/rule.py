"""Measurements for the CPU rules: stack or loop, threads and memory format, over models from tiny to convolutional."""

import time
from dataclasses import replace
from statistics import median

from benchmarks.workloads import CIFAR, HAR, MNIST, TEXT, TINY, Workload
from fedskew.engine.cost import measure_cost
from fedskew.engine.device import usable_cores
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

WAYS: dict[str, Engine] = {
    "loop": Loop(),
    "channels last": Loop(channels_last=True),
    "stack": Stacked(mode="stack"),
}
MODELS = [
    TINY,
    MNIST,
    *(replace(HAR, title=f"MLP 561-{w}-{w}-6", model=f"mlp:hidden={w}+{w}", rows=320) for w in (32, 128, 512, 1024)),
    replace(HAR, title="MLP 561-128-64-6, batch 16", settings={**HAR.settings, "batch_size": 16}, rows=320),
    replace(HAR, title="tabular 256-128-64 with BN", model="tabular:hidden=256+128+64", rows=320),
    replace(CIFAR, title="CNN width 4 on 8x8", model="cnn:width=4", shape=(1, 8, 8), rows=64),
    replace(CIFAR, title="CNN width 32 on 8x8", shape=(1, 8, 8), rows=64),
    replace(CIFAR, title="CNN width 8 on 28x28", model="cnn:width=8", shape=(1, 28, 28), rows=64),
    replace(CIFAR, rows=64),
    replace(CIFAR, title="HAR 1-D CNN", model="har-cnn", shape=(9, 128), rows=64),
    replace(CIFAR, title="ResNet-20 width 4", model="resnet20:width=4", rows=64),
    replace(CIFAR, title="ResNet-20 width 16 on 16x16", model="resnet20:width=16", shape=(3, 16, 16), rows=32),
    replace(CIFAR, title="ResNet-9 width 16 on 16x16", model="resnet9:width=16", shape=(3, 16, 16), rows=32),
    replace(CIFAR, title="ResNet-9 width 64 on 16x16", model="resnet9:width=64", shape=(3, 16, 16), rows=32),
    replace(TEXT, title="LSTM 16 on 20 tokens", model="char-lstm:hidden=16,layers=1", shape=(20,)),
    replace(TEXT, title="LSTM 32 on 40 tokens", model="char-lstm:hidden=32,layers=1"),
    replace(TEXT, title="LSTM 2 x 64 on 80 tokens", model="char-lstm:hidden=64", shape=(80,)),
    replace(TEXT, title="transformer 1 x 16 on 20 tokens", model="char-transformer:width=16,layers=1", shape=(20,)),
    replace(TEXT, title="transformer 2 x 32 on 40 tokens", model="char-transformer:width=32"),
    replace(TEXT, title="transformer 2 x 64 on 80 tokens", model="char-transformer", shape=(80,)),
]  # fmt: skip


def main(rounds: int = 3) -> None:
    ways = [(name, threads) for threads in sorted({1, usable_cores()}) for name in WAYS]
    print(
        f"{'model':40} {'mults/step':>11} "
        + " ".join(f"{name[:12]:>12}/{threads}" for name, threads in ways)
    )
    for workload in MODELS:
        fed = workload.federation()
        job = workload.training(fed, None).job
        cost = measure_cost(job.model, job.x, workload.settings["batch_size"])
        times = _interleaved(workload, ways, rounds)
        best = min(times.values())
        cells = " ".join(
            f"{seconds * 1e3:9.1f} ms{'*' if seconds == best else ' '} "
            for seconds in times.values()
        )
        print(f"{workload.title[:40]:40} {cost.multiplications_per_step:11,} {cells}", flush=True)


def _interleaved(
    workload: Workload, ways: list[tuple[str, int]], rounds: int
) -> dict[tuple[str, int], float]:
    fed = workload.federation()
    trainings = {way: workload.training(fed, WAYS[way[0]], threads=way[1]) for way in ways}
    times: dict[tuple[str, int], list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, training in trainings.items():
            began = time.perf_counter()
            training.advance()
            if number:
                times[way].append(time.perf_counter() - began)
    return {way: median(values) for way, values in times.items()}
