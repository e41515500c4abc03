"""Small good files for every reader and mutants of them, for the fuzz in the suite and the long one in benchmarks."""

import gzip
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

import fedskew as fs
from fedskew.core.config import Experiment, read_file
from fedskew.data import load
from fedskew.fleet.machines import fleets
from fedskew.nodes.split_folder import load_split, read_origin, save_split
from fedskew.runs.experiment import check_choices

ROWS = 24
_RNG = np.random.default_rng(0)
_X, _Y = _RNG.normal(size=(ROWS, 3)).astype(np.float32), np.arange(ROWS) % 3
_CSV = "a,b,text,y\n" + "".join(
    f"{x:.3f},{i},{'uvw'[i % 3]},{i % 2}\n" for i, (x, *_) in enumerate(_X)
)


def _idx(values: Any) -> bytes:
    kind = {"uint8": 8, "int32": 12}[values.dtype.name]
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return gzip.compress(
        bytes([0, 0, kind, values.ndim])
        + sizes
        + values.astype(values.dtype.newbyteorder(">")).tobytes()
    )


def _files(place: Path, contents: dict[str, bytes | str]) -> None:
    for name, content in contents.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _write_idx(place: Path) -> None:
    images, labels = (
        _idx(_RNG.integers(0, 256, (10, 4, 4), dtype=np.uint8)),
        _idx(np.arange(10, dtype=np.uint8) % 10),
    )
    both = {f"{part}-{kind}-ubyte.gz": content for part in ("train", "t10k") for kind, content in
            (("images-idx3", images), ("labels-idx1", labels))}  # fmt: skip
    _files(place / "mnist", both)
    table = np.column_stack([np.arange(10), np.zeros(10), np.arange(10) % 3]).astype(np.int32)
    _files(
        place / "qmnist",
        {f"qmnist-{part}-labels-idx2-int.gz": _idx(table) for part in ("train", "test")},
    )


def _write_cifar(place: Path) -> None:
    record = b"".join(bytes([i % 20, i]) + _RNG.bytes(3072) for i in range(4))
    _files(
        place / "cifar-100-binary",
        {"train.bin": record, "test.bin": record, "fine_label_names.txt": "a\nb\n"},
    )


def _write_leaf(place: Path) -> None:
    data = {
        name: {"x": _RNG.random((2, 784)).round(2).tolist(), "y": [1, 2]} for name in ("f0", "f1")
    }
    text = json.dumps({"users": list(data), "num_samples": [2, 2], "user_data": data})
    _files(place / "femnist", {"train/all.json": text, "test/all.json": text})


def _write_images(place: Path) -> None:
    for number, kind in enumerate(("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm")):
        for label in "ab":
            buffer = io.BytesIO()
            Image.fromarray(_RNG.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(buffer, kind)
            _files(
                place / "images" / label,
                {f"{number}.{kind.replace('jpeg', 'jpg')}": buffer.getvalue()},
            )


def _write_har(place: Path) -> None:
    folder = place / "UCI HAR Dataset"
    _files(folder, {"features.txt": "1 one\n2 two\n3 two\n"})
    for part in ("train", "test"):
        rows = "".join("  ".join(f"{x:.4e}" for x in row) + "\n" for row in _X)
        labels = "".join(f"{i % 6 + 1}\n" for i in range(ROWS))
        _files(
            folder / part,
            {f"X_{part}.txt": rows, f"y_{part}.txt": labels, f"subject_{part}.txt": labels},
        )
    np.savez(place / "uci-har-inertial.npz", x=_RNG.normal(size=(6, 128, 9)).astype(np.float32), y=np.arange(1, 7),
             subject=np.arange(1, 7), split=np.arange(6) % 2)  # fmt: skip


def _write_tables(place: Path) -> None:
    lines = "".join(
        ",".join(map(str, [*_RNG.integers(0, 9, 54), i % 7 + 1])) + "\n" for i in range(ROWS)
    )
    _files(place / "covtype", {"covtype.data.gz": gzip.compress(lines.encode())})
    motion = "AccX,GyroX,Class,Timestamp\n" + "".join(f"{x:.2f},{y:.2f},{'SLOW' if i % 2 else 'NORMAL'},{i}\n"
                                                      for i, (x, y, _) in enumerate(_X))  # fmt: skip
    _files(
        place / "driving-behavior",
        {"train_motion_data.csv": motion, "test_motion_data.csv": motion},
    )


def _write_trace(place: Path) -> None:
    header = "client,rows_per_second,seconds_per_step,down_mbit,up_mbit,latency,dropout,from,to\n"
    _files(
        place,
        {
            "trace.csv": header
            + "".join(f"{i},5{i},0.1,8,2,0.1,0.0{i},100,{i + 200}\n" for i in range(4))
        },
    )


def _write_toml(place: Path) -> None:
    text = 'rounds = 3\nlr = 0.1\nseed = 7\nnesterov = false\nper_round = "none"\ndata = "digits"\n'
    _files(
        place,
        {
            "run.toml": text
            + '[skew]\nname = "dirichlet"\nalpha = 0.5\n[algorithm]\nname = "fedprox"\nmu = 0.1\n'
        },
    )


def _read_toml(place: Path) -> None:
    experiment = Experiment(**read_file(place / "run.toml"))
    check_choices(experiment)


def _write_csv_split(place: Path) -> None:
    _files(place, {"mine.csv": _CSV})
    _split(place, {"name": "csv", "path": str(place / "mine.csv"), "label": "y"}, "same")


def _write_npz_split(place: Path) -> None:
    np.savez(place / "mine.npz", x=_X, y=_Y)
    _split(place, {"name": "npz", "path": str(place / "mine.npz")}, "arrays")


def _split(place: Path, spec: dict[str, Any], kind: Any) -> None:
    origin = read_origin(spec)
    fed = fs.split(origin.data, "iid", 2)
    save_split(
        place / "nodes",
        origin,
        fed,
        {"skew": "iid", "seed": 0, "client_test": 0.0},
        files=kind,
        pictures=(),
    )


READERS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "csv": (
        lambda place: _files(place, {"x.csv": _CSV}),
        lambda place: load({"name": str(place / "x.csv"), "label": "y"}),
    ),
    "csv.gz": (
        lambda place: _files(place, {"x.csv.gz": gzip.compress(_CSV.encode())}),
        lambda place: load({"name": str(place / "x.csv.gz"), "label": "y"}),
    ),
    "parquet": (
        lambda place: pd.read_csv(io.StringIO(_CSV)).to_parquet(place / "x.parquet"),
        lambda place: load({"name": str(place / "x.parquet"), "label": "y"}),
    ),
    "npz": (
        lambda place: np.savez_compressed(place / "x.npz", x=_X, y=_Y, group=_Y),
        lambda place: load({"name": str(place / "x.npz")}),
    ),
    "idx": (_write_idx, lambda place: load("qmnist")),
    "cifar": (_write_cifar, lambda place: load("cifar100")),
    "leaf": (_write_leaf, lambda place: load("femnist")),
    "images": (
        _write_images,
        lambda place: load({"name": "images", "path": str(place / "images")}),
    ),
    "har": (_write_har, lambda place: load("uci-har")),
    "har npz": (_write_har, lambda place: load("uci-har-inertial")),
    "covtype": (_write_tables, lambda place: load("covtype")),
    "driving": (_write_tables, lambda place: load("driving-behavior")),
    "trace": (_write_trace, lambda place: fleets.get("trace")(4, 0, file=str(place / "trace.csv"))),
    "toml": (_write_toml, _read_toml),
    "split of lines": (_write_csv_split, lambda place: load_split(place / "nodes")),
    "split of arrays": (
        _write_npz_split,
        lambda place: (load_split(place / "nodes"), load_split(place / "nodes", 0)),
    ),
}

_WORDS = (
    b"\0", b"\xff", b"nan", b"-inf", b"1e400", b"99999999999999999999", b",", b"\n", b'"', b"'", b"[", b"{", b"..",
    b"null", b"\xe2\x80\xa8", b"\xed\xa0\x80", b"\xf6", b"=", b"\x1b[31m", b"\r", b"<", b">", b"O", b"\x80\0\0\0",
    b"-1", b"0.5", b"true", b"\\ud800",
)  # fmt: skip


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return the content after one to four changes: bits, critical words, pieces removed, doubled or moved."""
    result = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 3))):
        at, length = draw.randrange(len(result) + 1), draw.choice((1, 2, 8, 64, len(content)))
        kind = draw.choice((0, 0, 0, 1, 1, 1, 2, 3, 4, 5))
        if kind == 0 and at < len(result):
            result[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            result[at : at + draw.choice((0, 1, 4))] = draw.choice(_WORDS)
        elif kind == 2:
            del result[at : at + length]
        elif kind == 3:
            result[at:at] = result[at : at + length] * draw.choice((1, 2, 50))
        elif kind == 4:
            result[at : at + length] = draw.randbytes(min(length, 64))
        else:
            result[at:at] = draw.choice(_WORDS) * draw.choice((1, 1000))
    return bytes(result)


@contextmanager
def damaged(good: Path, draw: random.Random) -> Iterator[str]:
    """Replace one file below ``good`` by a mutant, yield which, and restore it afterwards."""
    path = draw.choice(sorted(path for path in good.rglob("*") if path.is_file()))
    content = path.read_bytes()
    path.write_bytes(mutated(content, draw))
    try:
        yield str(path.relative_to(good))
    finally:
        path.write_bytes(content)


def prepare(name: str, place: Path) -> Callable[[], Any]:
    """Write good files for a reader into an empty folder, and return a function that reads them."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    write, read = READERS[name]
    write(place)
    return lambda: read(place)
