"""Splits on disk: round trips of every format, every row once and unchanged, and each client's file by itself."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.nodes.split_folder import load_split, read_origin, save_split

ODD = ["7", "-0.50", "1e3", "", " 2 ", "0.1000"]  # spellings that a parser would not write again


def lines(rows: int = 60) -> list[str]:
    return [
        f'{k},{ODD[k % 6]},"text, {k % 3}\nnext line",{k * k % 7},{"abc"[k % 3]},site {k % 4}\n'
        for k in range(rows)
    ]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """Write quotes, commas and line breaks inside fields, missing values, empty lines, and no final line break."""
    path = tmp_path / "my.csv"
    path.write_text("id,odd,text,square,y,site\n" + "\n \n".join(lines()).rstrip("\n"), newline="")
    return path


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "whole": rng.integers(0, 9, 60).astype(np.int16),
            "real": rng.normal(size=60),
            "gap": pd.array([None if k % 5 == 0 else k for k in range(60)], dtype="Int64"),
            "text": pd.Categorical([f"t{k % 3}" for k in range(60)]),
            "y": [f"class {k % 3}" for k in range(60)],
        }
    )


def written(
    folder: Path, spec: str, skew: str = "dirichlet:alpha=1", clients: int = 4, **options: Any
) -> fs.Federation:
    """Split and write; returns the federation."""
    origin = read_origin(spec)
    split_options = {name: options.pop(name) for name in ("client_test", "seed") if name in options}
    fed = fs.split(origin.data, skew, clients, **split_options)
    save_split(folder, origin, fed, {"skew": skew, "seed": split_options.get("seed", 0)}, **options)
    return fed


def same(one: fs.Federation, two: fs.Federation) -> None:
    assert one.partition == two.partition
    assert one.held_out == two.held_out
    assert one.data.classes == two.data.classes
    assert one.data.groups == two.data.groups
    assert one.data.features == two.data.features
    assert one.data.name == two.data.name
    for left, right in ((one.train, two.train), (one.test, two.test)):
        for name in ("x", "y", "group", "series"):
            np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- CSV ---------------------------------------------------------------------------------------------------------------


def test_csv_files_hold_the_lines_of_the_input_byte_for_byte(tmp_path: Path, csv: Path) -> None:
    fed = written(tmp_path / "out", f"{csv}:label=y,group=site,drop=id")
    header, known = "id,odd,text,square,y,site\n", lines()
    for client in range(4):
        text = (tmp_path / f"out/client-{client:03d}.csv").read_bytes().decode()
        assert text == header + "".join(known[row] for row in np.sort(fed.partition.of(client)))
    assert sum(
        len((tmp_path / f"out/client-{k:03d}.csv").read_bytes()) - len(header) for k in range(4)
    ) == sum(map(len, known))
    assert files(tmp_path / "out") == [
        "client-000.csv", "client-001.csv", "client-002.csv", "client-003.csv",
        "heterogeneity.json", "partition.npz", "split.json",
    ]  # fmt: skip
    same(load_split(tmp_path / "out"), fed)


def test_a_gzipped_semicolon_table_with_windows_line_ends(tmp_path: Path) -> None:
    text = "a;b;y\r\n" + "".join(f"{k};{k % 5};{k % 2}\r\n" for k in range(30))
    path = tmp_path / "my.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    fed = written(tmp_path / "out", f"{path}:label=y,separator=semicolon", "iid", 3)
    parts = [
        gzip.decompress((tmp_path / f"out/client-{k:03d}.csv.gz").read_bytes()).decode()
        for k in range(3)
    ]
    assert all(part.startswith("a;b;y\r\n") for part in parts)
    assert sorted(line for part in parts for line in part.splitlines()[1:]) == sorted(
        text.splitlines()[1:]
    )
    same(load_split(tmp_path / "out"), fed)


def test_a_quotation_mark_inside_a_field_is_refused_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    sizes = ["5 inch"] * 7 + ['5" pipe'] + ["5 inch"] * 22
    path.write_text("a,b,y\n" + "".join(f"{k},{size},{k % 2}\n" for k, size in enumerate(sizes)))
    with pytest.raises(fs.FedskewError, match="cannot be split by lines: 30 rows, but 7 lines"):
        written(tmp_path / "out", f"{path}:label=y", "iid", 3)
    assert files(tmp_path) == ["my.csv"]
    fed = written(tmp_path / "arrays", f"{path}:label=y", "iid", 3, files="arrays")
    same(load_split(tmp_path / "arrays"), fed)


def test_test_rows_that_are_asked_for_lie_beside_the_clients(tmp_path: Path, csv: Path) -> None:
    fed = written(tmp_path / "out", f"{csv}:label=y,drop=id,test=0.25", client_test=0.2)
    assert len(fed.test) == 15
    parts = [path.read_text().split("\n", 1)[1] for path in (tmp_path / "out").glob("*.csv")]
    assert len(parts) == 9  # four clients, what each holds out, and test.csv
    assert sorted("".join(parts)) == sorted("".join(lines()))
    assert fs.load(f"{csv}:label=y,drop=id,test=0.25").test.y.tolist() == fed.test.y.tolist()
    same(load_split(tmp_path / "out"), fed)


def test_a_test_file_of_another_kind_is_copied(tmp_path: Path, frame: pd.DataFrame) -> None:
    frame.drop(columns="gap").to_csv(tmp_path / "my.csv", index=False)
    frame.drop(columns="gap").head(10).to_parquet(tmp_path / "later.parquet")
    fed = written(tmp_path / "out", f"{tmp_path}/my.csv:label=y,test_path={tmp_path}/later.parquet")
    (tmp_path / "later.parquet").unlink()
    assert len(fed.test) == 10
    same(load_split(tmp_path / "out"), fed)


def test_rows_that_no_client_holds_are_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(80, 6)), columns=list("abcdef")).assign(
        y=np.arange(80) % 2
    )
    table.to_csv(tmp_path / "my.csv", index=False)
    fed = written(
        tmp_path / "out", f"{tmp_path}/my.csv:label=y", "wgc:overlap=true,quantile=0.05", 3
    )
    held = set(fed.partition.rows.tolist())
    assert 0 < len(held) < 80
    assert len(pd.read_csv(tmp_path / "out/nobody.csv")) == 80 - len(held)
    same(load_split(tmp_path / "out"), fed)


# -- Parquet, NPZ, data sets, windows ----------------------------------------------------------------------------------


def test_parquet_keeps_its_types_and_values(tmp_path: Path, frame: pd.DataFrame) -> None:
    frame.to_parquet(tmp_path / "my.parquet")
    fed = written(tmp_path / "out", f"{tmp_path}/my.parquet:label=y")
    for client in range(4):
        found = pd.read_parquet(tmp_path / f"out/client-{client:03d}.parquet")
        expected = frame.iloc[np.sort(fed.partition.of(client))].reset_index(drop=True)
        pd.testing.assert_frame_equal(found, expected)
    same(load_split(tmp_path / "out"), fed)


def test_npz_keeps_its_types_and_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.integers(0, 255, (50, 3, 4, 4)).astype(np.uint8),
        "y": np.array(list("abcde") * 10),
    }
    arrays |= {
        "group": np.arange(50) // 10,
        "x_test": arrays["x"][:7],
        "y_test": arrays["y"][:7],
        "group_test": np.zeros(7, int),
    }
    np.savez(tmp_path / "my.npz", **arrays)
    fed = written(tmp_path / "out", f"{tmp_path}/my.npz")
    for client in range(4):
        with np.load(tmp_path / f"out/client-{client:03d}.npz") as found:
            assert found["x"].dtype == np.uint8
            for name in ("x", "y", "group"):
                np.testing.assert_array_equal(
                    found[name], arrays[name][np.sort(fed.partition.of(client))]
                )
    with np.load(tmp_path / "out/test.npz") as found:
        np.testing.assert_array_equal(found["y"], arrays["y_test"])
    same(load_split(tmp_path / "out"), fed)


def test_a_data_set_by_name_becomes_arrays_with_its_test_rows(tmp_path: Path) -> None:
    fed = written(tmp_path / "out", "digits", "classes:k=3", client_test=0.1)
    assert "test.npz" in files(tmp_path / "out")
    same(load_split(tmp_path / "out"), fed)
    for client in range(4):
        with np.load(tmp_path / f"out/client-{client:03d}.npz") as found:
            np.testing.assert_array_equal(
                found["x"], fed.train.x[np.sort(fed.partition.of(client))]
            )


def test_a_folder_of_images_is_cut_whole(tmp_path: Path) -> None:
    from PIL import Image

    for label in ("cat", "dog"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (4, 4), (number * 20, 0, 0)).save(
                tmp_path / "pictures" / label / f"{number}.png"
            )
    fed = written(tmp_path / "out", f"{tmp_path}/pictures", "iid", 3)
    assert fed.partition.sizes.tolist() == [4, 4, 4]
    same(load_split(tmp_path / "out"), fed)


def test_overlapping_windows_are_written_with_their_series(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"a": np.arange(240.0), "y": np.arange(240) // 20 % 3, "who": np.arange(240) // 24}
    )
    table.to_csv(tmp_path / "my.csv", index=False)
    fed = written(
        tmp_path / "out", f"{tmp_path}/my.csv:label=y,group=who,keep=a,window=8,stride=4", "iid", 3
    )
    assert fed.train.series is not None
    assert len(fed.train) == 10 * 5  # all series, none of them for test
    same(load_split(tmp_path / "out"), fed)


def test_treatments_are_in_the_arrays_and_nowhere_else(tmp_path: Path, csv: Path) -> None:
    spec, skew = f"{csv}:label=y,drop=id", "iid + noise:sigma=0.5"
    for kind, word in (("same", "csv files"), ("index", "row numbers")):
        with pytest.raises(
            fs.FedskewError, match=f"changes values, which {word} cannot show.*--npz"
        ):
            written(tmp_path / "out", spec, skew, files=kind)
    fed = written(tmp_path / "out", spec, skew, files="arrays")
    assert fed.treated is not None
    found = load_split(tmp_path / "out")
    np.testing.assert_array_equal(found.train.x, fed.train.x)
    assert found.partition == fed.partition


# -- row numbers -------------------------------------------------------------------------------------------------------


def test_row_numbers_are_those_of_the_file(
    tmp_path: Path, csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fed = written(tmp_path / "out", "my.csv:label=y,drop=id,test=0.25", files="index")
    rows = [np.load(path) for path in sorted((tmp_path / "out").glob("*.npy"))]
    assert sorted(np.concatenate(rows).tolist()) == list(range(60))
    labels = pd.read_csv(csv)["y"].to_numpy()
    assert labels[np.load("out/client-002.npy")].tolist() == [
        fed.data.classes[k] for k in fed.train.y[fed.partition.of(2)]
    ]
    assert labels[np.load("out/test.npy")].tolist() == [fed.data.classes[k] for k in fed.test.y]
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(load_split(tmp_path / "out").train.x, fed.train.x)


def test_row_numbers_of_a_file_that_changed_are_refused(tmp_path: Path, csv: Path) -> None:
    written(tmp_path / "out", f"{csv}:label=y,drop=id", files="index")
    csv.write_text(csv.read_text().replace(",a,", ",b,", 1))
    with pytest.raises(fs.FedskewError, match="not those that were written"):
        load_split(tmp_path / "out")
    csv.unlink()
    with pytest.raises(fs.FedskewError, match="is not there"):
        load_split(tmp_path / "out")


# -- one client --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["same", "arrays", "index"])
def test_a_client_alone_has_the_classes_and_features_of_all(
    tmp_path: Path, csv: Path, kind: Any
) -> None:
    fed = written(
        tmp_path / "out", f"{csv}:label=y,drop=id", "classes:k=1", 3, files=kind, client_test=0.2
    )
    assert fed.held_out is not None
    for client in range(3):
        own = load_split(tmp_path / "out", client)
        assert (own.classes, own.features) == (fed.data.classes, fed.data.features)
        for rows, partition in ((own.train, fed.partition), (own.test, fed.held_out)):
            np.testing.assert_array_equal(rows.x, fed.train.x[np.sort(partition.of(client))])
            np.testing.assert_array_equal(rows.y, fed.train.y[np.sort(partition.of(client))])


def test_a_client_without_held_out_rows_is_tested_on_the_test_rows(tmp_path: Path) -> None:
    fed = written(tmp_path / "out", "digits")
    for path in (tmp_path / "out").glob("client-00[013].npz"):
        path.unlink()  # one node has one file
    own = load_split(tmp_path / "out", 2)
    np.testing.assert_array_equal(own.test.x, fed.test.x)
    assert len(own.train) == fed.partition.sizes[2]
    with pytest.raises(fs.FedskewError, match="no client 4: the clients are 0 … 3"):
        load_split(tmp_path / "out", 4)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_a_node_can_be_pointed_at_one_file(tmp_path: Path, frame: pd.DataFrame, kind: str) -> None:
    if kind == "npz":
        np.savez(
            tmp_path / "my.npz",
            x=frame[["whole", "real"]].to_numpy(),
            y=frame["y"].to_numpy().astype(str),
        )
    else:
        getattr(frame, f"to_{kind}")(
            tmp_path / f"my.{kind}", **({"index": False} if kind == "csv" else {})
        )
    options = "" if kind == "npz" else ":label=y"
    fed = written(tmp_path / "out", f"{tmp_path}/my.{kind}{options}", "iid")
    alone = fs.load(f"{tmp_path}/out/client-003.{kind}{options}")
    assert len(alone.train) + len(alone.test) == fed.partition.sizes[3]
    assert alone.classes == fed.data.classes


# -- the folder --------------------------------------------------------------------------------------------------------


def test_the_folder_says_how_it_was_made_and_how_unlike_the_clients_are(
    tmp_path: Path, csv: Path
) -> None:
    fed = written(tmp_path / "out", f"{csv}:label=y,drop=id", seed=3)
    record = json.loads((tmp_path / "out/split.json").read_text())
    assert (record["skew"], record["seed"], record["clients"], record["rows"]) == (
        "dirichlet:alpha=1",
        3,
        4,
        60,
    )
    recognised = {
        "separator": "comma",
        "decimal": "point",
        "thousands": "none",
        "encoding": "utf-8",
    }
    given = {"name": "csv", "path": str(csv), "label": "y", "drop": ["id"]}
    assert record["data"] == {**given, **recognised}
    found = json.loads((tmp_path / "out/heterogeneity.json").read_text())
    assert found["clients"] == 4
    assert 0 < found["labels"]["hellinger"]["mean"] <= 1
    assert fs.Partition.load(tmp_path / "out/partition.npz") == fed.partition


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_split_without_copies_in_another_way_of_writing(tmp_path: Path, encoding: str) -> None:
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"a": draw.normal(5000, 900, 40).round(1), "y": np.arange(40) % 2})
    table = pd.concat([table.iloc[:10], table], ignore_index=True)
    table.to_csv(tmp_path / "my.csv", index=False, sep=";", decimal=",", encoding=encoding)
    spec = f"{tmp_path}/my.csv:label=y,duplicates=drop,test=0.2"
    fed = written(tmp_path / "out", spec, "iid", 3)
    assert (len(fed.train), len(fed.test)) == (32, 8)
    same(load_split(tmp_path / "out"), fed)
    again = fs.load(f"{tmp_path}/out")
    assert (len(again.train), again.classes) == (32, ("0", "1"))


def test_the_same_split_twice_is_the_same_bytes(tmp_path: Path, csv: Path) -> None:
    for name in ("one", "two"):
        written(tmp_path / name, f"{csv}:label=y,drop=id", client_test=0.2)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    for name in files(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), (
            name
        )


def test_a_thousand_clients_sort_by_name(tmp_path: Path) -> None:
    fed = written(tmp_path / "out", "digits", "iid", 1001, files="index")
    names = [path.name for path in sorted((tmp_path / "out").glob("client-*"))]
    assert (names[0], names[-1]) == ("client-0000.npy", "client-1000.npy")
    assert load_split(tmp_path / "out").partition == fed.partition


def damage(folder: Path, change: Callable[[Path], object], expected: str) -> None:
    change(folder)
    with pytest.raises(fs.FedskewError, match=expected):
        load_split(folder)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda out: (out / "split.json").unlink(), "it has no split.json"),
        (lambda out: (out / "split.json").write_text("{"), "split.json cannot be read"),
        (
            lambda out: (out / "split.json").write_text("{}"),
            "split.json is damaged: it lacks classes, clients",
        ),
        (lambda out: (out / "partition.npz").unlink(), "there is no partition file"),
        (lambda out: (out / "client-001.csv").unlink(), "client-001.csv is not there"),
        (
            lambda out: (out / "client-001.csv").write_text("id,odd,text,square,y,site\n"),
            "client-001.csv is not what fedskew split wrote",
        ),
    ],
)
def test_what_is_damaged_is_named(
    tmp_path: Path, csv: Path, change: Callable[[Path], object], expected: str
) -> None:
    written(tmp_path / "out", f"{csv}:label=y,drop=id")
    damage(tmp_path / "out", change, expected)


def test_nothing_remains_of_a_split_that_fails(
    tmp_path: Path, csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedskew.nodes.split_folder._write_partition", full)
    with pytest.raises(fs.FedskewError, match="the disk is full"):
        written(tmp_path / "deep/out", f"{csv}:label=y,drop=id")
    assert files(tmp_path / "deep") == []
