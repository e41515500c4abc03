"""Training on a memory-mapped image set of 20.9 GB: the peak of memory, and how long splitting and rounds take."""

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

import fedskew as fs
from benchmarks.workloads import peak_megabytes

ROWS, SHAPE, CLASSES = 1_700_000, (3, 64, 64), 10
WRITTEN = 2_000  # rows with pixels; the others are holes of the file, and read as black images
CLIENTS, PER_ROUND, ROUNDS = 1_000, 10, 3
WANTED_GIGABYTES = 4
SETTINGS = {
    "rounds": ROUNDS,
    "per_round": PER_ROUND,
    "lr": 0.01,
    "device": "cpu",
    "threads": 1,
    "eval_rows": 2_000,
    "folder": False,
}


def main() -> None:
    """Print the table of docs/large-data.md."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _write(folder)
        stored = ROWS * np.prod(SHAPE) / 1e9
        print(f"{ROWS:,} images of {SHAPE} bytes, {stored:.1f} GB; wanted: {WANTED_GIGABYTES} GB")
        print("| model | clients' held-out rows | split | 3 rounds | peak of memory |")
        print("|---|---|---|---|---|")
        for model, held_out in (("logreg", 0.01), ("cnn", 0.01), ("logreg", 0.0)):
            # Peak memory is that of a process
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                print(pool.submit(_train, folder, model, held_out).result(), flush=True)


def _write(folder: Path) -> None:
    """Write a sparse file of images, with random pixels in some rows, and their labels."""
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (ROWS, *SHAPE))
    for row in rng.choice(ROWS, WRITTEN, replace=False).tolist():
        x[row] = rng.integers(0, 256, SHAPE, dtype=np.uint8)
    x.flush()
    np.save(folder / "y.npy", rng.integers(0, CLASSES, ROWS))


def _train(folder: Path, model: str, held_out: float) -> str:
    """Return a row of the table."""
    began = time.perf_counter()
    data = fs.load(f"{folder}:test=0.005")
    fed = fs.split(data, "dirichlet:alpha=0.5", CLIENTS, client_test=held_out)
    divided = time.perf_counter()
    fs.train(fed, model, **SETTINGS)
    trained = time.perf_counter()
    gigabytes = peak_megabytes() / 1e3
    share = "none: all training rows are scored once"
    if held_out:
        share = f"{held_out:.0%}"
    times = f"{divided - began:.1f} s | {trained - divided:.0f} s"
    return f"| `{model}` | {share} | {times} | {gigabytes:.2f} GB |"


if __name__ == "__main__":
    main()
