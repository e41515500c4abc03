"""Federations in the layouts of other tools: read again as these tools read them, and by the package itself."""

import csv
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedskew as fs
from fedskew.cli.app import app
from fedskew.core.errors import FedskewError
from fedskew.data.pickled_splits import write_converter
from fedskew.nodes.other_layouts import save_layout
from fedskew.nodes.plain_pickle import pickled

MADE = {"skew": "dirichlet", "seed": 0}


def federation(client_test: float = 0.25) -> fs.Federation:
    """Return eleven clients, so that their order by number is not that by name."""
    return fs.split(fs.load("digits"), "dirichlet", clients=11, client_test=client_test)


def own(fed: fs.Federation, client: int, part: str) -> "fs.data.Rows":
    held = fed.partition
    if part == "test":
        assert fed.held_out is not None
        held = fed.held_out
    return fed.train.take(np.sort(held.of(client)))


def test_pfllib_reads_its_own_way(tmp_path):
    fed = federation()
    save_layout(tmp_path / "out", "pfllib", fed, MADE)
    for part in ("train", "test"):
        for client in range(11):
            # As PFLlib's read_data does
            with (tmp_path / f"out/{part}/{client}.npz").open("rb") as file:
                data = np.load(file, allow_pickle=True)["data"].tolist()
            assert set(data) == {"x", "y"}
            np.testing.assert_array_equal(data["x"], own(fed, client, part).x)
            np.testing.assert_array_equal(data["y"], own(fed, client, part).y)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["num_clients"], config["num_classes"]) == (11, 10)
    sizes = [
        sum(count for _, count in one) for one in config["Size of samples for labels in clients"]
    ]
    assert fed.held_out is not None
    assert sizes == (fed.partition.sizes + fed.held_out.sizes).tolist()


def test_pfllib_there_and_back(tmp_path):
    fed = federation()
    save_layout(tmp_path / "out", "pfllib", fed, MADE)
    path = write_converter("pfllib", tmp_path)
    subprocess.run([sys.executable, path.name, "out", "back"], cwd=tmp_path, check=True)
    back = fs.split(fs.load(str(tmp_path / "back"), labels=("as-is",), standardize=False))
    assert back.clients == 11
    assert back.tested_on is not None
    tests, tested = back.tested_on
    for client in range(11):
        train = back.train.take(back.partition.of(client))
        np.testing.assert_array_equal(train.x, own(fed, client, "train").x)
        np.testing.assert_array_equal(train.y, own(fed, client, "train").y)
        np.testing.assert_array_equal(tests.y[tested.of(client)], own(fed, client, "test").y)


def test_fl_bench_reads_its_own_way(tmp_path):
    fed = federation()
    save_layout(tmp_path / "out", "fl-bench", fed, MADE)
    x = np.load(tmp_path / "out/data.npy")
    y = np.load(tmp_path / "out/targets.npy")
    with (tmp_path / "out/partition.pkl").open("rb") as file:
        partition = pickle.load(file)  # noqa: S301 - written above
    assert partition["separation"]["total"] == 11
    assert partition["separation"]["test"] == list(range(11))
    for client, parts in enumerate(partition["data_indices"]):
        assert parts["val"] == []
        for part in ("train", "test"):
            np.testing.assert_array_equal(x[parts[part]], own(fed, client, part).x)
            np.testing.assert_array_equal(y[parts[part]], own(fed, client, part).y)
    settings = json.loads((tmp_path / "out/args.json").read_text())
    assert (settings["dimension"], settings["class_num"], settings["split"]) == (64, 10, "sample")
    statistics = json.loads((tmp_path / "out/all_stats.json").read_text())
    assert sum(client["x"] for client in statistics.values()) == len(fed.train)


def test_fl_bench_with_test_rows_of_another_part(tmp_path):
    frames = {}
    for place in "ab":
        np.savez(tmp_path / f"{place}.npz", x=np.arange(20.0)[:, None], y=np.arange(20) % 2)
        frames[place] = str(tmp_path / f"{place}.npz")
    fed = fs.split(fs.load("silos", paths=tuple(frames.values())))
    save_layout(tmp_path / "out", "fl-bench", fed, MADE)
    y = np.load(tmp_path / "out/targets.npy")
    indices = pickle.loads((tmp_path / "out/partition.pkl").read_bytes())["data_indices"]  # noqa: S301 - written above
    rows = [row for parts in indices for part in ("train", "test") for row in parts[part]]
    assert sorted(rows) == list(range(40)) == list(range(len(y)))
    assert [len(parts["test"]) for parts in indices] == [4, 4]
    assert indices[0]["test"][0] == len(fed.train)


def test_leaf_there_and_back(tmp_path):
    fed = federation()
    save_layout(tmp_path / "out", "leaf", fed, MADE)
    written = json.loads((tmp_path / "out/train/data.json").read_text())
    assert written["num_samples"] == fed.partition.sizes.tolist()
    back = fs.split(fs.load(str(tmp_path / "out"), shape=(1, 8, 8), standardize=False))
    assert back.client_names == tuple(map(str, range(11)))
    assert back.tested_on is not None
    tests, tested = back.tested_on
    for client in range(11):
        train = back.train.take(back.partition.of(client))
        np.testing.assert_array_equal(train.x, own(fed, client, "train").x)
        np.testing.assert_array_equal(train.y, own(fed, client, "train").y)
        np.testing.assert_array_equal(tests.x[tested.of(client)], own(fed, client, "test").x)


def test_fedscale_there_and_back(tmp_path):
    fed = federation(0)
    save_layout(tmp_path / "out", "fedscale", fed, MADE)
    path = tmp_path / "out/client_data_mapping/train.csv"
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["client_id", "sample_path", "label_name", "label_id"]
    assert [int(line[0]) for line in lines] == fed.partition.owner.tolist()
    back = fs.split(fed.data, f"fedscale:path={path}")
    held = {tuple(np.sort(fed.partition.of(client)).tolist()) for client in range(11)}
    assert {tuple(back.partition.of(client).tolist()) for client in range(11)} == held


@pytest.mark.parametrize("layout", ["pfllib", "fl-bench", "leaf"])
def test_clients_without_test_rows(tmp_path, layout):
    with pytest.raises(FedskewError, match=f"--layout {layout} needs test rows .* --client-test"):
        save_layout(tmp_path / "out", layout, federation(0), MADE)
    assert not list(tmp_path.glob("*out*"))


def test_what_a_client_map_cannot_say(tmp_path):
    with pytest.raises(FedskewError, match="leave --client-test out"):
        save_layout(tmp_path / "out", "fedscale", federation(), MADE)
    data = fs.load("digits")
    noisy = fs.split(data, "iid + noise:sigma=1", clients=3)
    with pytest.raises(FedskewError, match="leave the treatment out"):
        save_layout(tmp_path / "out", "fedscale", noisy, {"skew": "iid + noise:sigma=1"})
    overlap = fs.split(data, "wgc:overlap=true", clients=3)
    with pytest.raises(FedskewError, match="choose a skew that gives each row to one client"):
        save_layout(tmp_path / "out", "fedscale", overlap, MADE)


def test_numbers_to_predict_have_no_layout(tmp_path):
    fed = fs.split((np.zeros((40, 2)), np.arange(40.0)), "iid", clients=2, task="regression")
    with pytest.raises(FedskewError, match="is for classes"):
        save_layout(tmp_path / "out", "leaf", fed, MADE)


def test_a_pickle_is_what_pickle_reads():
    value = {"a": [0, -3, 2**70], "b": {"": []}, "c d": "it's"}
    assert pickle.loads(pickled(value)) == value  # noqa: S301 - written here
    for odd in ("ä", "a\nb", "a\\u0041"):
        with pytest.raises(FedskewError, match="cannot be written as a pickle"):
            pickled([odd])


def test_the_command_writes_a_layout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["split", "--data", "digits", "--skew", "iid", "--clients", "3", "--out", "out"]
    done = CliRunner().invoke(app, [*words, "--client-test", "0.2", "--layout", "leaf"])
    assert done.exit_code == 0, done.output
    assert {path.name for path in Path("out").rglob("*")} == {"train", "test", "data.json"}
    assert "3 clients of 383 … 384 rows" in done.output
    for extra in (["--layout", "pfllb"], ["--layout", "leaf", "--npz"]):
        refused = CliRunner().invoke(app, [*words[:-1], "other", *extra])
        assert isinstance(refused.exception, FedskewError)
        assert not Path("other").exists()
