"""Training on a Parquet file of 2,000,000 rows that stays in it: rows of a client that lie together, and any rows."""

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

import fedskew as fs
from benchmarks.workloads import peak_megabytes

ROWS, COLUMNS, GROUP, CLIENTS, PER_ROUND, ROUNDS = 2_000_000, 64, 10_000, 200, 10, 3
SETTINGS = {
    "rounds": ROUNDS,
    "per_round": PER_ROUND,
    "batch_size": 100,
    "device": "cpu",
    "threads": 1,
    "eval_rows": 2_000,
    "eval_every": ROUNDS,
    "folder": False,
}


def main() -> None:
    """Print the table of docs/large-data.md."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "rows.parquet"
        _write(path)
        size = ROWS * COLUMNS * 4 / 1e9
        print(f"{ROWS:,} rows of {COLUMNS} float32, {size:.2f} GB, in groups of {GROUP:,}")
        print("| clients' rows | lazy | load and split | 3 rounds | peak of memory |")
        print("|---|---|---|---|---|")
        for skew in ("natural", "iid"):
            for lazy in (True, False):
                # Peak memory is that of a process
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    print(pool.submit(_train, path, skew, lazy).result(), flush=True)


def _write(path: Path) -> None:
    """Write a file whose rows are sorted by their client."""
    import pyarrow
    from pyarrow import parquet

    draw = np.random.default_rng(0)
    writer = None
    for first in range(0, ROWS, GROUP):
        x = draw.standard_normal((GROUP, COLUMNS), dtype=np.float32)
        columns = {f"x{number}": x[:, number] for number in range(COLUMNS)}
        columns["y"] = draw.integers(0, 10, GROUP)
        columns["site"] = (np.arange(first, first + GROUP) * CLIENTS) // ROWS
        table = pyarrow.table(columns)
        if writer is None:
            writer = parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def _train(path: Path, skew: str, lazy: bool) -> str:
    """Return a row of the table."""
    began = time.perf_counter()
    data = fs.load(str(path), label="y", group="site", standardize=False, test=0.005, lazy=lazy)
    fed = fs.split(data, skew, CLIENTS, client_test=0.005)
    divided = time.perf_counter()
    fs.train(fed, "logreg", **SETTINGS)
    trained = time.perf_counter()
    title = "any rows of the file (iid)"
    if skew == "natural":
        title = "lie together in the file"
    times = f"{divided - began:.1f} s | {trained - divided:.0f} s"
    return f"| {title} | {lazy} | {times} | {peak_megabytes() / 1e3:.2f} GB |"


if __name__ == "__main__":
    main()
