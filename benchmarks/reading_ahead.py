"""Reading rows while others train: JPEG files, and a source that takes as long as the training itself."""

import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import fedskew as fs
from fedskew.data.federation import Federation
from fedskew.engine.input_rows import Inputs

IMAGES, SIZE, CLASSES, CLIENTS = 500, 64, 5, 5
TIMES = 3
SETTINGS = {
    "rounds": 4,
    "lr": 0.01,
    "batch_size": 16,
    "epochs": 2,
    "eval_every": 4,
    "eval_rows": 1,
    "folder": False,
}


class Slow:
    """Rows that come after a wait, as from a store over a network."""

    def __init__(self, x: np.ndarray, seconds: float) -> None:
        self.x = x
        self.shape = x.shape
        self.dtype = x.dtype
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        time.sleep(self.seconds * len(index))
        return self.x[index]


def main() -> None:
    """Print the table of docs/large-data.md."""
    where = "a CPU"
    if torch.cuda.is_available():
        where = torch.cuda.get_device_name()
    print(
        f"{IMAGES} images, {CLIENTS} clients, {SETTINGS['rounds']} rounds of two epochs, {where}, shortest of {TIMES}"
    )
    print("| rows | in memory | read when needed | read ahead |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        spec = f"images:path={folder},size={SIZE},scale=unit,test=0.02"
        held = fs.split(fs.load(spec), "iid", CLIENTS)
        alone = _seconds(held)
        _print(
            "JPEG files of 500 x 375", alone, fs.split(fs.load(f"{spec},lazy=true"), "iid", CLIENTS)
        )
    x = held.train.x[:]
    reads = SETTINGS["rounds"] * SETTINGS["epochs"] * len(held.partition.rows)
    slow = Slow(x, alone / reads)
    fed = fs.split((slow, held.train.y), "iid", CLIENTS)
    _print("a source as slow as the training", alone, fed)


def _write(folder: Path) -> None:
    """Write JPEG files of smooth random images, in a folder for each class."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        place = folder / f"class-{number % CLASSES}"
        place.mkdir(exist_ok=True)
        coarse = draw.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        image.save(place / f"{number}.jpg", quality=90)


@contextmanager
def _as_needed(x: Inputs, requests: Iterable[Tensor]) -> Iterator[Inputs]:
    yield x


def _print(title: str, alone: float, fed: Federation) -> None:
    """Print a row of the table."""
    with mock.patch("fedskew.engine.stack.read_ahead", _as_needed):
        needed = _seconds(fed)
    print(f"| {title} | {alone:.1f} s | {needed:.1f} s | {_seconds(fed):.1f} s |", flush=True)


def _seconds(fed: Federation) -> float:
    """Return how long the training takes: the shortest of a few, as other work may share the machine."""
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        fs.train(fed, "cnn", **SETTINGS)
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
