"""Files and settings made to break a reader: each works or ends in one line, and none hangs or exhausts memory."""

import gzip
import io
import json
import os
import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedskew as fs
from fedskew.core.config import read_file
from fedskew.core.errors import FedskewError
from fedskew.data import load

ROWS = range(40)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSKEW_DATA", str(tmp_path))
    return tmp_path


def refused(call: Callable[[], Any], *said: str) -> str:
    """Return the one-line error of ``call``."""
    with pytest.raises(FedskewError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 2_000
    for words in said:
        assert words in line
    return line


# -- numbers and names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kinds", [(">f4", ">i4", ">i8"), ("<f4", ">i2", "<i8"), (">f8", "<U1", ">i4")]
)
def test_numbers_of_another_byte_order(kinds: tuple[str, str, str]) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 4
    np.savez("mine.npz", x=x.astype("f4"), y=y.astype(str) if kinds[1] == "<U1" else y, group=y)
    np.savez(
        "theirs.npz",
        x=x.astype("f4").astype(kinds[0]),
        y=y.astype(kinds[1]),
        group=y.astype(kinds[2]),
    )
    mine, theirs = load("npz:path=mine.npz"), load("npz:path=theirs.npz")
    assert np.allclose(mine.train.x, theirs.train.x, atol=1e-6)
    assert np.array_equal(mine.train.y, theirs.train.y)
    assert mine.classes == theirs.classes


def test_labels_that_are_lists() -> None:
    x = np.zeros((3, 2))
    refused(lambda: fs.split((x, [[1], [2, 3], [4]]), "iid", 1), "labels of different lengths")
    refused(lambda: fs.split((x, np.array([{}, {}, {}])), "iid", 1), "lists or the like")
    refused(lambda: fs.split((x, np.zeros(3, dtype=complex)), "iid", 1), "complex128")


def test_a_csv_column_of_any_text() -> None:
    """Check text with Unicode line separators, which do not end a row of a table."""
    odd = "\u2028\u2029\x85\x0b\x0c\x1c"
    Path("odd.csv").write_text(
        "a,text,label\n" + "".join(f"{i},u{odd}v{i % 3},{i % 2}\n" for i in ROWS), encoding="utf-8"
    )
    data = load("odd.csv:label=label,keep=a")
    assert data.features == ("a", *(f"text=u{odd}v{i}" for i in range(3)))
    assert len(data.train) + len(data.test) == 40


@pytest.mark.parametrize("separator", ["comma", "semicolon"])
def test_a_column_that_is_there_twice(separator: str) -> None:
    sign = {"comma": ",", "semicolon": ";"}[separator]
    text = "a,label,label\n" + "".join(f"{i},{i % 2},{i % 2}\n" for i in ROWS)
    Path("twice.csv").write_text(text.replace(",", sign))
    refused(
        lambda: load(f"twice.csv:label=label,separator={separator}"),
        "column 'label' is there twice",
        "rename one",
    )


def test_a_table_of_too_many_columns() -> None:
    Path("wide.csv").write_text("a" + "," * 3_000_000 + "label\n")
    refused(lambda: load("wide.csv:label=label"), "3,000,001 columns")


def test_an_error_line_does_not_repeat_five_megabytes() -> None:
    for name, text in (
        ("cell.csv", "a,label\n" + f"1,{'x' * 5_000_000}\n" * 2),
        ("odd.csv", f"a,label\n1,2,{'x' * 5_000_000}\n"),
    ):
        Path(name).write_text(text)
        refused(lambda name=name: load(f"{name}:label=label"), name)
    assert str(FedskewError("a\nb\x1b[31m")) == "a b\ufffd[31m"


def test_names_that_no_file_can_have() -> None:
    refused(lambda: load("x" * 5_000), "unknown data set")
    refused(lambda: load("~nobody-of-this-name/images"), "unknown data set")


def test_names_that_are_no_text(here: Path) -> None:
    for name in (b"images/gr\xf6\xdfe", b"images/b"):
        os.makedirs(name)  # noqa: PTH103 (pathlib knows no bytes)
        for number in range(5):
            with open(name + b"/%d.png" % number, "wb") as file:  # noqa: PTH123
                Image.new("RGB", (4, 4)).save(file, "png")
    refused(lambda: load("images:path=images"), "is not UTF-8: rename it")
    refused(lambda: load("gr\udcf6\udcdfe.csv:label=y"), "is not UTF-8 text")
    (here / "cifar-100-binary").mkdir()
    for part in ("train", "test"):
        (here / f"cifar-100-binary/{part}.bin").write_bytes(bytes(2 + 3072))
    (here / "cifar-100-binary/fine_label_names.txt").write_bytes("größe".encode("latin-1"))
    refused(lambda: load("cifar100"), "fine_label_names.txt is not UTF-8 text (byte 2): convert it")


# -- Parquet -----------------------------------------------------------------------------------------------------------


def parquet(name: str, **columns: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    files.write_table(arrow.table({**columns, "b": list(ROWS), "y": [i % 2 for i in ROWS]}), name)


def test_parquet_columns_that_are_not_single_values() -> None:
    parquet("list.parquet", a=[[1, 2]] * 40)
    parquet("struct.parquet", a=[{"p": 1}] * 40)
    refused(lambda: load("list.parquet:label=y"), "column 'a' holds list<", "drop=a")
    refused(lambda: load("struct.parquet:label=y"), "column 'a' holds struct<", "drop=a")
    assert load("list.parquet:label=y,drop=a,keep=b").features == ("b",)


def test_a_parquet_index_is_a_column_where_it_is_asked_for() -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {"a": np.arange(40.0), "b": 1.5}, index=pd.Index(np.arange(40) % 2, name="y")
    )
    frame.to_parquet("label.parquet")
    frame.assign(y=np.arange(40) % 2).set_index(pd.Index(np.arange(40) % 4, name="who")).to_parquet(
        "group.parquet"
    )
    assert load("label.parquet:label=y,keep=a+b").features == ("a", "b")
    assert load("group.parquet:label=y,group=who,keep=a+b").groups == ("0", "1", "2", "3")
    assert load("group.parquet:label=y,keep=a+b").features == ("a", "b")


def test_parquet_columns_of_one_name() -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    files.write_table(arrow.table([list(ROWS), list(ROWS)], names=["y", "y"]), "twice.parquet")
    refused(lambda: load("twice.parquet:label=y"), "column 'y' is there twice")


# -- LEAF --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"users": [], "user_data": {}}, "names no users"),
        (
            {"users": ["a"], "user_data": {"a": {"x": [[0.0] * 784], "y": [10**30]}}},
            "label 1000000000000000000000000000000",
        ),
        ({"users": ["a"], "user_data": {"a": {"x": [[0.0] * 784], "y": [1.5]}}}, "label 1.5"),
        ({"users": ["a"], "user_data": {"a": {"x": [[0.0] * 784], "y": [-1]}}}, "label -1"),
        (
            {"users": ["a"], "user_data": {"a": {"x": [[1e300] * 784], "y": [1]}}},
            "pixels beyond 255",
        ),
        ({"users": "a"}, "user_data"),
        ([], "users with 784 pixels"),
    ],
)
def test_leaf_without_users_or_with_odd_labels(here: Path, content: Any, said: str) -> None:
    for part in ("train", "test"):
        (here / "femnist" / part).mkdir(parents=True)
        (here / "femnist" / part / "all.json").write_text(json.dumps(content))
    refused(lambda: load("femnist"), "all.json", said)


def test_json_and_toml_that_nest_for_ever(here: Path) -> None:
    (here / "femnist/test").mkdir(parents=True)
    (here / "femnist/train").mkdir()
    (here / "femnist/train/all.json").write_text("[" * 100_000)
    refused(lambda: load("femnist"), "all.json cannot be read", "RecursionError")
    Path("deep.toml").write_text("lr = " + "[" * 100_000)
    refused(lambda: read_file(Path("deep.toml")), "deep.toml cannot be read", "RecursionError")


# -- what is no file, and bombs ----------------------------------------------------------------------------------------


def test_pipes_are_not_waited_for(here: Path) -> None:
    for name in ("x.csv", "x.npz", "x.parquet", "x.toml"):
        os.mkfifo(name)
    for name in ("images/a", "images/b"):
        Path(name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(f"{name}/1.png")
    os.mkfifo("images/a/2.png")
    (here / "mnist").mkdir()
    os.mkfifo("mnist/train-images-idx3-ubyte.gz")
    for name in ("train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (here / f"mnist/{name}-ubyte.gz").touch()
    code = """
import sys
from pathlib import Path
from fedskew.core.config import read_file
from fedskew.data import load
from fedskew.core.errors import FedskewError
specs = ["x.csv:label=y", "x.npz", "x.parquet:label=y", "images:path=images", "mnist"]
for call in [*(lambda spec=spec: load(spec) for spec in specs), lambda: read_file(Path("x.toml"))]:
    try:
        call()
    except FedskewError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert (
        done.stdout.count("is a pipe or device, not a file: write its content to a file first\n")
        == 6
    )


def header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue()


def make_bombs() -> None:
    labels = io.BytesIO()
    np.save(labels, np.arange(40) % 4)
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            member.write(header((25_000_000, 1)))
            for _ in range(100):
                member.write(bytes(1_000_000))
        archive.writestr("y.npy", labels.getvalue())
    with zipfile.ZipFile("claims.npz", "w") as archive:
        archive.writestr("x.npy", header((10**12, 3)))
        archive.writestr("y.npy", labels.getvalue())
    with gzip.open("bomb.csv.gz", "wb") as file:
        file.write(b"a,label\n")
        for _ in range(100):
            file.write(b"1,1\n" * 250_000)
    for name in ("images/a", "images/b"):
        Path(name).mkdir(parents=True)
        Image.new("1", (12_000, 12_000)).save(f"{name}/1.png")


def test_bombs_are_refused_before_they_go_off() -> None:
    make_bombs()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(lambda: load("bomb.npz"), "bomb.npz unpacks to", "over 200 times its size")
    refused(lambda: load("claims.npz"), "claims.npz")
    refused(
        lambda: load("bomb.csv.gz:label=label"),
        "bomb.csv.gz unpacks to more than",
        "over 200 times its size",
    )
    refused(
        lambda: load("images:path=images"), "1.png is ", "12000x12000, more than 64,000,000 pixels"
    )
    refused(lambda: load("images:path=images,size=10000000"), "choose a smaller size=")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000  # kilobytes


# -- settings ----------------------------------------------------------------------------------------------------------

KINDS = {
    "threads": (
        "run --threads 1000000",
        "threads=1000000 is out of range, it must be >= 1 and <= 1024",
    ),
    "memory": ("run --memory 1e300", "memory=1e300 is out of range"),
    "batch": (f"run --batch-size {10**30}", "is too large: numbers stay below 2^63"),
    "epochs": (
        "run --epochs 1000000000",
        "epochs=1000000000 is out of range, it must be >= 1 and <= 10000",
    ),
    "mu": ("run --algorithm fedprox:mu=1e308", "mu=1e308 is too large"),
    "weight decay": ("run --weight-decay 1e308", "weight_decay=1e308 is too large"),
    "model": ("run --model mlp:hidden=1000000000", "75,000,000,010 weights needs 1,200.0 GB"),
    "model beyond 64 bits": (
        "run --model cnn:width=1000000000",
        "cnn:width=1000000000 cannot be built",
    ),
    "seeds": ("compare --seeds 0-20000", "seeds 0-20000", "at most 1,000 at a time"),
    "more seeds, one by one": (
        f"compare --seeds {','.join(map(str, range(1001)))}",
        "1,001 seeds",
        "at most 1,000",
    ),
    "seeds without end": (f"compare --seeds 0-{10**20}", "at most 1,000 at a time"),
    "seed": (f"run --seed {2**64}", f"seed={2**64} is too large"),
    "seed of a split": (
        f"split --data digits --out new --seed {2**64}",
        f"seed={2**64} is too large",
    ),
    "skew twice": (
        "run --skew iid --skew vop",
        "fedskew run is one run, not several (skew): use fedskew compare --skew iid --skew vop",
    ),
    "skew twice in split": (
        "split --data digits --skew iid --skew vop --out new",
        "--skew is given 2 times",
    ),
    "flag twice": ("run --nesterov --no-nesterov", "--nesterov is given 2 times"),
    "group elsewhere": ("resume group", "the run '../x' is not a name of a folder in it"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_settings_that_no_machine_can_do(
    kind: str, here: Path, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *said = KINDS[kind]
    (here / "group").mkdir()
    values = {"rounds": 1, "model": "logreg", "algorithm": "fedavg", "seed": 0}
    (here / "group/group.json").write_text(
        json.dumps([{"name": "../x", "algorithm": "fedavg", "values": values}])
    )
    began = time.process_time()
    assert fedskew(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fedskew: ")
    assert err.count("\n") == 1
    for words in said:
        assert words in err
    assert sorted(path.name for path in here.iterdir()) == ["group"]
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "content",
    [
        '[{"name": "a", "algorithm": 3, "values": 4}]',
        '[{"name": "a", "algorithm": "fedavg", "values": {"x": 1}}]',
        "[" * 100_000,
    ],
)
def test_a_list_of_runs_that_makes_no_sense(here: Path, content: str) -> None:
    from fedskew.study.member import read_members

    (here / "group.json").write_text(content)
    refused(lambda: read_members(here), "group.json")


def test_a_thousand_seeds_are_read_at_once() -> None:
    from fedskew.study.grid import parse_seeds
    from fedskew.study.study_plan import members_of

    began = time.process_time()
    assert len(members_of({"model": "logreg"}, ["fedavg"], parse_seeds("0-999"))) == 1_000
    assert time.process_time() - began < 30


def test_help_shows_brackets(
    fedskew: Callable[[str], Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert fedskew("run --help") == 0
    assert "[digits]" in capsys.readouterr().out
    assert fedskew("list algorithms") == 0
    assert "fedskew[he]" in capsys.readouterr().out
