"""Splits of other tools: their folders are written here by hand, as those tools write them."""

import csv
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data.pickled_splits import write_converter

RNG = np.random.default_rng(0)
LABELS = ([0, 1, 1, 0, 1], [2, 3, 3])  # the classes of two clients, who share none


def rows(labels: list[int]) -> dict[str, Any]:
    """Return rows whose first pixel is their class."""
    x = RNG.normal(size=(len(labels), 1, 4, 4)).astype(np.float32)
    x[:, 0, 0, 0] = labels
    return {"x": x, "y": np.array(labels)}


def pfllib(folder: Path) -> list[dict[str, Any]]:
    """Write a data set as PFLlib does: a pickled table per client and part."""
    trains = []
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
    for client, labels in enumerate(LABELS):
        trains.append(rows(labels))
        np.savez_compressed(folder / f"train/{client}.npz", data=trains[-1])
        np.savez_compressed(folder / f"test/{client}.npz", data=rows(labels[:2]))
    (folder / "config.json").write_text("{}")
    return trains


def script(tool: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the script that converts a tool's splits, in a folder."""
    path = write_converter(tool, folder)
    return subprocess.run(
        [sys.executable, path.name, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def class_counts(fed: fs.Federation) -> list[list[int]]:
    return fed.partition.counts(fed.train.y, len(fed.data.classes)).tolist()


@pytest.mark.parametrize("path", ["MNIST", "MNIST/train", "MNIST/train/1.npz", "MNIST/test"])
def test_pickled_files_of_pfllib_are_refused_with_the_command(tmp_path, path):
    pfllib(tmp_path / "MNIST")
    with pytest.raises(FedskewError, match=r"\.npz is pickled by PFLlib.*data converter pfllib"):
        fs.load(str(tmp_path / path))


def test_a_partition_of_fl_bench_is_refused_with_the_command(tmp_path):
    (tmp_path / "partition.pkl").write_bytes(b"cos\nsystem\n")
    with pytest.raises(FedskewError, match=r"partition.pkl is pickled.*data converter fl-bench"):
        fs.load(str(tmp_path))


def test_an_npz_file_of_arrays_is_no_pickle(tmp_path):
    np.savez(tmp_path / "data.npz", data=np.zeros(3))
    with pytest.raises(FedskewError, match="has no array 'x'"):
        fs.load(str(tmp_path / "data.npz"))


@pytest.mark.filterwarnings("ignore:client-00. has no row of class")
def test_pfllib_converted_and_trained(tmp_path):
    trains = pfllib(tmp_path / "MNIST")
    done = script("pfllib", tmp_path, "MNIST", "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 clients: fedskew run --data out:labels=as-is\n"
    fed = fs.split(fs.load(str(tmp_path / "out"), labels=("as-is",), standardize=False))
    assert class_counts(fed) == [[2, 3, 0, 0], [0, 0, 1, 2]]
    for client, train in enumerate(trains):
        np.testing.assert_array_equal(fed.train.x[fed.partition.of(client)], train["x"])
    assert fed.tested_on is not None
    held, tested = fed.tested_on
    assert [held.y[tested.of(client)].tolist() for client in (0, 1)] == [[0, 1], [2, 3]]
    run = fs.train(fed, "logreg", rounds=1, folder=False)
    assert run.summary["rounds"] == 1


def test_pfllib_is_ordered_by_number(tmp_path):
    for part in ("train", "test"):
        (tmp_path / "M" / part).mkdir(parents=True)
        for client in range(11):
            np.savez(tmp_path / f"M/{part}/{client}.npz", data=rows([client, 11]))
    assert script("pfllib", tmp_path, "M", "out").returncode == 0
    with np.load(tmp_path / "out/client-010.npz") as found:
        assert found["y"].tolist() == [10, 11]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("text", "x is not an array of numbers"),
        ("ragged", "x is not an array of numbers"),
        ("test", "is not there"),
        ("name", "is not named by the number"),
        ("out", "exists already"),
    ],
)
def test_what_the_script_for_pfllib_refuses(tmp_path, broken, message):
    pfllib(tmp_path / "M")
    if broken == "text":
        np.savez(tmp_path / "M/train/1.npz", data={"x": ["a", "b"], "y": [0, 1]})
    elif broken == "ragged":
        np.savez(tmp_path / "M/train/1.npz", data={"x": [([1, 2], 2), ([1], 1)], "y": [0, 1]})
    elif broken == "test":
        (tmp_path / "M/test/1.npz").unlink()
    elif broken == "name":
        (tmp_path / "M/train/1.npz").rename(tmp_path / "M/train/one.npz")
    else:
        (tmp_path / "out").mkdir()
    done = script("pfllib", tmp_path, "M", "out")
    assert done.returncode == 1
    assert message in done.stderr
    assert not list(tmp_path.glob("out/*"))


FL_BENCH = """
import numpy as np
class Tensor:
    def __init__(self, path):
        self.path = path
    def numpy(self):
        return np.load(self.path)
class Rows:
    def __init__(self, root, args):
        self.data = Tensor(root / "data.npy")
        self.targets = Tensor(root / "targets.npy")
DATASETS = {"synthetic": Rows}
"""


def fl_bench(root: Path, indices: list[dict[str, list[int]]]) -> None:
    """Write a partition as FL-bench does, and a stand-in for its data sets."""
    (root / "data/utils").mkdir(parents=True)
    (root / "data/utils/datasets.py").write_text(FL_BENCH)
    (root / "data/synthetic").mkdir()
    np.save(root / "data/synthetic/data.npy", np.arange(20, dtype=np.float32)[:, None])
    np.save(root / "data/synthetic/targets.npy", np.arange(20) % 3)
    (root / "data/synthetic/args.json").write_text('{"client_num": 2}')
    partition = {"separation": {}, "data_indices": indices}
    (root / "data/synthetic/partition.pkl").write_bytes(pickle.dumps(partition))


def test_fl_bench_converted(tmp_path):
    parts = [
        {"train": np.array([5, 0, 1]), "val": [2], "test": [3, 4]},
        {"train": [9, 8, 7], "val": [], "test": [6]},
    ]
    fl_bench(tmp_path, parts)
    done = script("fl-bench", tmp_path, "synthetic", "out")
    assert done.returncode == 0, done.stderr
    assert "1 validation rows are written with the training rows" in done.stdout
    fed = fs.split(fs.load(str(tmp_path / "out"), standardize=False))
    held = [fed.train.x[fed.partition.of(client), 0].tolist() for client in (0, 1)]
    assert held == [[5, 0, 1, 2], [9, 8, 7]]
    assert class_counts(fed) == [[1, 1, 2], [1, 1, 1]]
    assert fed.test.x[:, 0].tolist() == [3, 4, 6]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"train": [], "val": [], "test": [6]}, "client 1 has no training rows"),
        ({"train": [6], "val": [], "test": []}, "client 1 has no test rows"),
    ],
)
def test_what_the_script_for_fl_bench_refuses(tmp_path, second, message):
    fl_bench(tmp_path, [{"train": [0, 1], "val": [], "test": [3]}, second])
    done = script("fl-bench", tmp_path, "synthetic", "out")
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_converter_is_never_overwritten(tmp_path):
    write_converter("pfllib", tmp_path)
    with pytest.raises(FedskewError, match="exists already"):
        write_converter("pfllib", tmp_path)
    with pytest.raises(FedskewError, match=r"unknown converter 'pfl'.*pfllib"):
        write_converter("pfl", tmp_path)


# -- LEAF --------------------------------------------------------------------------------------------------------------


def leaf(path: Path, users: dict[str, tuple[Any, Any]]) -> None:
    """Write a file as LEAF does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content))


def test_leaf_by_sample(tmp_path):
    leaf(
        tmp_path / "train/a.json",
        {"w2": ([[0, 1, 2, 3], [1, 1, 1, 1]], [4, 5]), "w1": ([[9, 9, 9, 9]], [5])},
    )
    leaf(tmp_path / "train/b.json", {"w0": ([[2, 2, 2, 2], [3, 3, 3, 3]], [4, 4])})
    leaf(
        tmp_path / "test/a.json",
        {"w1": ([[7, 7, 7, 7]], [5]), "w2": ([], []), "w0": ([[6, 6, 6, 6]], [4])},
    )
    fed = fs.split(fs.load(str(tmp_path), shape=(1, 2, 2), standardize=False))
    assert fed.client_names == ("w2", "w1", "w0")
    assert class_counts(fed) == [[1, 1], [0, 1], [2, 0]]
    assert fed.data.shape == (1, 2, 2)
    assert fed.train.x[0].ravel().tolist() == [0, 1, 2, 3]
    assert fed.tested_on is not None
    held, tested = fed.tested_on
    assert [held.x[tested.of(client), 0, 0, 0].tolist() for client in range(3)] == [[], [7], [6]]


def test_leaf_by_user_is_scored_together(tmp_path):
    leaf(tmp_path / "train/a.json", {"a": ([[0.0], [1.0]], [0, 1]), "b": ([[2.0]], [1])})
    leaf(tmp_path / "test/a.json", {"c": ([[3.0], [4.0]], [0, 1])})
    data = fs.load(str(tmp_path))
    assert data.groups == ("a", "b")
    assert any("1 clients have test rows only" in note for note in data.notes)
    fed = fs.split(data)
    assert fed.tested_on is None
    assert len(fed.test) == 2


def test_leaf_that_is_not_divided(tmp_path):
    leaf(tmp_path / "data.json", {name: ([[i] for i in range(10)], [0, 1] * 5) for name in "ab"})
    fed = fs.split(fs.load("leaf", path=str(tmp_path)))
    assert fed.partition.sizes.tolist() == [8, 8]


@pytest.mark.parametrize(
    ("users", "options", "message"),
    [
        ({"a": (["some text"], [0])}, {}, "x holds text"),
        ({"a": ([[1, 2], [1]], [0, 1])}, {}, "is not LEAF's JSON"),
        ({"a": ([[1, 2]], [0, 1])}, {}, "1 rows but not as many labels"),
        ({"a": ([[1, 2]], [0]), "b": ([[1]], [1])}, {}, "b has rows of shape"),
        ({"a": ([[1, 2]], [0])}, {"shape": (3,)}, "shape=3 does not fit rows of 2 numbers"),
        ({"a": ([], [])}, {}, "no user has any rows"),
        ({}, {}, "it names no users"),
    ],
)
def test_damaged_leaf(tmp_path, users, options, message):
    leaf(tmp_path / "train/a.json", users)
    with pytest.raises(FedskewError, match=message):
        fs.load("leaf", path=str(tmp_path), **options)


def test_no_leaf(tmp_path):
    with pytest.raises(FedskewError, match=r"has no \.json files of LEAF"):
        fs.load("leaf", path=str(tmp_path))
    with pytest.raises(FedskewError, match="is not a folder of LEAF"):
        fs.load("leaf", path=str(tmp_path / "none"))


# -- FedScale ----------------------------------------------------------------------------------------------------------


def client_map(path: Path, lines: list[tuple[str, str, str, Any]]) -> Path:
    """Write a client map as FedScale does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["client_id", "sample_path", "label_name", "label_id"])
        table.writerows(lines)
    return path


def test_images_of_a_client_map(tmp_path):
    for name, grey in (("a", 10), ("b", 20), ("c", 30), ("d", 40)):
        Image.new("L", (2, 2), grey).save(tmp_path / f"{name}.png")
    folder = tmp_path / "client_data_mapping"
    lines = [("u7", "a.png", "cat", 0), ("u3", "b.png", "dog", 1), ("u7", "c.png", "dog", 1)]
    path = client_map(folder / "train.csv", lines)
    client_map(folder / "test.csv", [("u3", "d.png", "cat", 0)])
    fed = fs.split(fs.load("fedscale", path=str(path), color="gray", scale="unit"))
    assert fed.client_names == ("u3", "u7")
    assert class_counts(fed) == [[0, 1], [1, 1]]
    grey = fed.train.x[:, 0, 0, 0] * 255
    np.testing.assert_allclose(grey, [10, 20, 30], atol=1e-4)
    assert fed.tested_on is not None
    assert fed.tested_on[1].sizes.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,path\n", "not a client map of FedScale"),
        ("client_id,sample_path,label_name,label_id\n", "has no samples"),
        ("client_id,sample_path,label_name,label_id\n1,a.png,cat\n", "line 2 does not have"),
        ("client_id,sample_path,label_name,label_id\n1,a.png,cat,x\n", "line 2 does not have"),
    ],
)
def test_damaged_client_maps(tmp_path, text, message):
    (tmp_path / "map.csv").write_text(text)
    with pytest.raises(FedskewError, match=message):
        fs.load("fedscale", path=str(tmp_path / "map.csv"))


def test_a_client_map_as_a_skew(tmp_path):
    data = fs.load("digits")
    lines = [(f"c{row % 3}", str(row), "", y) for row, y in enumerate(data.train.y.tolist())]
    path = client_map(tmp_path / "map.csv", lines)
    fed = fs.split(data, f"fedscale:path={path}")
    assert fed.clients == 3
    assert fed.partition.of(1)[:3].tolist() == [1, 4, 7]
    assert fed.recipe["clients"] == 3
    with pytest.raises(FedskewError, match="names 3 clients, and 5 are asked for"):
        fs.split(data, f"fedscale:path={path}", clients=5)
    client_map(path, lines[:-1])
    with pytest.raises(FedskewError, match="maps 1437 rows, and the data has 1438"):
        fs.split(data, f"fedscale:path={path}")
    client_map(path, [*lines[:-1], ("c0", "1437", "", (int(data.train.y[-1]) + 1) % 10)])
    with pytest.raises(FedskewError, match="line 1439 has label_id"):
        fs.split(data, f"fedscale:path={path}")
