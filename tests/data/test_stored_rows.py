"""Rows that stay as they are stored: what reads them, what refuses them, and in which forms they come."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import sleep

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data import stored_rows
from fedskew.data.convert import from_arrays
from fedskew.data.item_datasets import when_used
from fedskew.data.stored_rows import StoredRows
from fedskew.nodes.split_folder import load_split, read_origin, save_split

ROWS = 240
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, 6)).astype(np.float32)
IMAGES = RNG.integers(0, 256, (ROWS, 3, 6, 6), dtype=np.uint8)
Y = np.arange(ROWS) % 3
TRAINING = {"rounds": 1, "device": "cpu", "folder": False, "eval_rows": 5}


class Counted:
    """Rows that remember which of them were read."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x
        self.shape = x.shape
        self.dtype = x.dtype
        self.read: set[int] = set()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        self.read |= set(index.tolist())
        return self.x[index]


class Pairs(Dataset):
    """Images with labels, as torchvision has them."""

    def __init__(self, x: np.ndarray, y: np.ndarray, *, targets: bool = True) -> None:
        self.x = x
        self.y = y
        self.asked: list[int] = []
        if targets:
            self.targets = y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int):
        self.asked.append(row)
        return torch.from_numpy(self.x[row]), int(self.y[row])


class Items(Dataset):
    """Pairs of a list."""

    def __init__(self, rows: list) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int):
        return self.rows[row]


class Crash(BaseException):
    """An exception that no code catches."""


class Named:
    """What of Hugging Face's Dataset is used: names of columns, a format, and columns of some rows."""

    def __init__(self, columns: dict[str, np.ndarray], chosen: list[str] | None = None) -> None:
        self.columns_of = columns
        self.chosen = chosen or list(columns)
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns_of.values())))

    def with_format(self, _: str, columns: list[str]) -> "Named":
        return Named(self.columns_of, columns)

    def __getitem__(self, index):
        return {name: self.columns_of[name][index] for name in self.chosen}


@pytest.fixture
def mapped(tmp_path: Path) -> np.memmap:
    np.save(tmp_path / "x.npy", X)
    return np.load(tmp_path / "x.npy", mmap_mode="r")


def weights(run: fs.Run) -> dict[str, torch.Tensor]:
    return run.model.state_dict()


def same(one: fs.Run, other: fs.Run) -> bool:
    mine, theirs = weights(one), weights(other)
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_splitting_reads_no_features():
    rows = Counted(IMAGES)
    for skew in ("iid", "dirichlet:alpha=0.3", "classes:k=2", "quantity:alpha=1"):
        fs.split((rows, Y), skew, 6, client_test=0.2, client_validation=0.1, validation=0.1)
    assert not rows.read


def test_a_round_reads_the_rows_of_its_clients_and_those_that_are_evaluated():
    rows = Counted(IMAGES)
    fed = fs.split((rows, Y), "iid", 24, client_test=0.25)
    run = fs.train(fed, "logreg", per_round=2, **TRAINING)
    train, test = fed.data.train.x, fed.data.test.x
    tried = train.chosen[:8]
    sampled = train.chosen[run.server.evaluator._train_rows]
    held_out = train.chosen[fed.held_out.rows]
    evaluated = set(np.concatenate([tried, sampled, held_out, test.chosen]).tolist())
    trained = rows.read - evaluated
    own = [set(train.chosen[fed.partition.of(client)].tolist()) for client in range(24)]
    of_round = [mine for mine in own if mine & trained]
    assert len(of_round) == 2
    assert trained <= of_round[0] | of_round[1] <= rows.read


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("model", ["logreg", "mlp"])
def test_a_mapped_file_trains_to_the_bits_of_the_array(mapped, engine: str, model: str):
    found = []
    for x in (X, mapped, Counted(X)):
        fed = fs.split((x, Y), "dirichlet:alpha=0.5", 4, client_test=0.2)
        found.append(fs.train(fed, model, engine=engine, **TRAINING))
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_bytes_train_to_the_bits_of_numbers_between_0_and_1(engine: str):
    # As 1 / 255 is rounded before it is multiplied with, x / 255 may differ in the last bit
    unit = IMAGES * np.float32(1 / 255)
    assert np.abs(unit - IMAGES / 255).max() < 1e-7
    found = []
    for x in (unit, IMAGES, Counted(IMAGES)):
        fed = fs.split((x, Y), "dirichlet:alpha=0.5", 4, client_test=0.2)
        found.append(fs.train(fed, "cnn", engine=engine, **TRAINING))
    assert fed.data.test.x.stored == np.uint8
    assert same(found[0], found[1])
    assert same(found[0], found[2])
    assert found[0].summary["test_loss_last"] == found[1].summary["test_loss_last"]


def test_half_precision_stays_half_and_trains_to_the_bits_of_single():
    halves = X.astype(np.float16)
    found = []
    for x in (halves, halves.astype(np.float32)):
        found.append(fs.train(fs.split((x, Y), "iid", 4), "mlp", **TRAINING))
    assert found[0].server.fed.train.x.source.dtype == np.float16
    assert same(*found)


def test_tokens_of_an_integer_type_reach_the_model_as_they_are(tmp_path: Path):
    class Bag(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.look = torch.nn.EmbeddingBag(50, 4)
            self.head = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.look(x))

    torch.manual_seed(0)
    model = Bag()
    found = []
    tokens = RNG.integers(0, 50, (ROWS, 5)).astype(np.int32)
    for x in (tokens, Counted(tokens)):
        found.append(fs.train(fs.split((x, Y), "iid", 4), model, **TRAINING))
    assert found[1].server.job.x.dtype == torch.int64
    assert same(*found)


def test_a_folder_of_npy_files_resumes_to_the_same_bits(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    np.save(data / "x.npy", IMAGES)
    np.save(data / "y.npy", np.array(["cat", "dog", "eel"])[Y])
    loaded = fs.load(f"{data}:test=0.25", validation=0.2)
    assert loaded.classes == ("cat", "dog", "eel")
    assert any("pixels are bytes" in note for note in loaded.notes)
    settings = {"rounds": 3, "device": "cpu", "checkpoint_every": 1}
    fed = fs.split(loaded, "iid", 4)
    whole = fs.train(fed, "logreg", folder=tmp_path / "whole", **settings)

    def crash(result, of: int) -> None:
        if result.round["round"] == 2:
            raise Crash

    with pytest.raises(Crash):
        fs.train(fed, "logreg", folder=tmp_path / "crashed", callbacks=crash, **settings)
    assert same(whole, fs.resume(tmp_path / "crashed"))
    changed = IMAGES.copy()
    changed[:] = 255 - changed
    np.save(data / "x.npy", changed)
    again = fs.split(fs.load(f"{data}:test=0.25", validation=0.2), "iid", 4)
    assert again.fingerprint != fed.fingerprint


def test_comparisons_take_a_folder_of_npy_files(tmp_path: Path):
    np.save(tmp_path / "x.npy", IMAGES)
    np.save(tmp_path / "y.npy", Y)
    frame = fs.compare(
        data=str(tmp_path),
        skew=["iid", "dirichlet:alpha=0.5"],
        clients=4,
        algorithm=["fedavg", "fedprox"],
        seeds=range(2),
        model="mlp:hidden=8",
        rounds=1,
        device="cpu",
        validation=0.2,
        out=tmp_path / "out",
    )
    assert len(frame) == 4
    assert frame["score"].between(0, 1).all()


@pytest.mark.parametrize("kind", [">f4", ">f2"])
def test_files_of_another_byte_order_give_the_same_bits(tmp_path: Path, kind: str):
    np.save(tmp_path / "x.npy", X.astype(kind))
    found = []
    for x in (np.load(tmp_path / "x.npy", mmap_mode="r"), X.astype(kind)):
        found.append(fs.train(fs.split((x, Y), "iid", 4), "logreg", **TRAINING))
    assert same(*found)


def test_masks_of_true_and_false_are_no_pixels(tmp_path: Path):
    masks = IMAGES > 128
    np.save(tmp_path / "x.npy", masks)
    for x in (masks, np.load(tmp_path / "x.npy", mmap_mode="r")):
        data = from_arrays((x, Y))
        assert np.asarray(data.train.x).max() == 1


def test_a_number_beyond_float32_is_refused_by_its_row():
    large = X.astype(np.float64)
    large[7, 2] = 1e300
    with pytest.raises(FedskewError, match=r"row 7 holds a number beyond the range of float32"):
        fs.train(fs.split((Counted(large), Y), "iid", 4), "logreg", **TRAINING)


def test_bytes_that_were_not_announced_are_refused():
    source = Counted(IMAGES)
    source.dtype = np.dtype(np.float32)
    with pytest.raises(FedskewError, match="was read as uint8, expected float32"):
        fs.train(fs.split((source, Y), "iid", 4), "logreg", **TRAINING)


@pytest.mark.parametrize(
    ("name", "value"), [("dtype", torch.float32), ("shape", None), ("shape", (ROWS, None))]
)
def test_sources_without_a_plain_shape_and_type_are_refused(name: str, value: object):
    source = Counted(X)
    setattr(source, name, value)
    with pytest.raises(FedskewError, match="expected a type of NumPy and whole numbers"):
        from_arrays((source, Y))


def test_a_source_is_asked_by_one_thread_at_a_time():
    entered = []

    class Watched(Counted):
        def __getitem__(self, index: np.ndarray) -> np.ndarray:
            entered.append(1)
            assert len(entered) == 1
            meeting.wait()  # both threads have begun
            sleep(0.05)
            entered.pop()
            return super().__getitem__(index)

    meeting = Event()
    rows = stored_rows.stored("mine", Watched(X))
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(rows.raw, np.array([row])) for row in (0, 1)]
        meeting.set()
        found = [future.result() for future in asked]
    np.testing.assert_array_equal(np.concatenate(found), X[:2])


def test_labels_are_those_of_the_items():
    class Turned(Pairs):
        def __getitem__(self, row: int):
            x, label = super().__getitem__(row)
            return x, 2 - label

    class Method(Pairs):
        def labels(self) -> int:
            return 0

    assert when_used("mine", Turned(X, Y))[1] == (2 - Y).tolist()
    assert when_used("mine", Method(X, Y, targets=False))[1] == Y.tolist()


def test_items_of_another_type_are_refused():
    rows = [([0, 1], 0), ([0.5, 1.0], 1)] * 20
    with pytest.raises(FedskewError, match="item 1 has features of type float64, and item 0"):
        when_used("mine", Items(rows))[0][np.array([0, 1])]


@pytest.mark.parametrize("options", ["", ":test=0.25"])
@pytest.mark.parametrize("skew", ["iid", "iid + relabel:fraction=0.5"])
def test_split_writes_files_that_are_read_again(tmp_path: Path, options: str, skew: str):
    data = tmp_path / "data"
    data.mkdir()
    np.save(data / "x.npy", IMAGES)
    np.save(data / "y.npy", Y)
    origin = read_origin(f"{data}{options}")
    assert len(origin.data.train) == {"": ROWS, ":test=0.25": 180}[options]
    fed = fs.split(origin.data, skew, 3)
    save_split(tmp_path / "nodes", origin, fed, {"skew": skew}, files="arrays")
    again = load_split(tmp_path / "nodes")
    assert again.partition == fed.partition
    np.testing.assert_array_equal(again.train.x, fed.train.x[:])
    np.testing.assert_array_equal(again.train.y, fed.train.y)


def test_predictions_refuse_images_that_are_scaled_already():
    run = fs.train(fs.split((IMAGES, Y), "iid", 4), "logreg", **TRAINING)
    test = run.server.fed.test
    for scaled in (test.x[:], IMAGES / 255):
        with pytest.raises(FedskewError, match="divided by 255 already"):
            run.predict(scaled)
    with pytest.raises(FedskewError, match="scaled when they are read"):
        run.predict(test.x)
    for raw in (IMAGES, IMAGES.astype(np.float64), np.zeros((2, 3, 6, 6))):
        assert len(run.predict(raw)) == len(raw)


def test_predictions_take_the_bytes_that_trained():
    run = fs.train(fs.split((IMAGES, Y), "iid", 4), "logreg", **TRAINING)
    found = run.predict(IMAGES[run.server.fed.test.x.source[:, 0, 0, 0].argsort()[:5]])
    assert len(found) == 5
    assert run.pipeline.factor == (1 / 255,) * 3


def test_a_file_is_let_go_again_and_again(mapped, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_rows, "_PAGES_KEPT", 10)
    rows = stored_rows.MappedRows(mapped)
    for _ in range(3):
        np.testing.assert_array_equal(rows[np.array([5, 3])], X[[5, 3]])
    assert rows._read <= 10
    assert stored_rows._file_of(np.load(mapped.filename, mmap_mode="c")) is None


def test_standardising_fits_a_sample_of_rows_that_are_not_in_memory(
    monkeypatch: pytest.MonkeyPatch,
):
    whole = from_arrays((IMAGES, Y), standardize=True)
    few = from_arrays((Counted(IMAGES), Y), standardize=True)
    assert whole.schema == few.schema  # all rows are less than a sample
    np.testing.assert_allclose(np.asarray(whole.train.x).mean((0, 2, 3)), 0, atol=1e-5)
    monkeypatch.setattr("fedskew.data.readers.arrays._SAMPLE", 20)
    rows = Counted(IMAGES)
    sampled = from_arrays((rows, Y), standardize=True)
    assert len(rows.read) == 20
    assert "deviation of 20 training rows" in " ".join(sampled.notes)


def test_skews_by_features_take_what_fits_and_refuse_the_rest(monkeypatch: pytest.MonkeyPatch):
    whole = fs.split((X, Y), "wgc", 3)
    assert fs.split((Counted(X), Y), "wgc", 3).partition.digest == whole.partition.digest
    few = fs.measure(fs.split((Counted(X), Y), "iid", 3))
    assert str(few) == str(fs.measure(fs.split((X, Y), "iid", 3)))
    monkeypatch.setattr(stored_rows, "MOST_WHOLE", 100)
    for skew in ("wgc", "iid + noise"):
        with pytest.raises(FedskewError, match="give fewer rows"):
            fs.split((Counted(X), Y), skew, 3)
    with pytest.raises(FedskewError, match="measure needs all features in memory, and 192 rows"):
        fs.measure(fs.split((Counted(X), Y), "iid", 3))


def with_nan(row: int) -> Counted:
    x = X.copy()
    x[row, 2] = np.nan
    return Counted(x)


class OtherShape(Counted):
    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        return super().__getitem__(index)[:, :2]


def test_a_bad_row_is_refused_by_its_number_when_it_is_read():
    fed = fs.split((with_nan(17), Y), "iid", 3)
    with pytest.raises(FedskewError, match="arrays: row 17 holds NaN or infinity"):
        fs.train(fed, "logreg", **TRAINING)
    with pytest.raises(FedskewError, match=r"rows from row 0 on were read with shape \(2, 2\)"):
        fs.train(fs.split((OtherShape(X), Y), "iid", 3), "logreg", **TRAINING)
    items = Pairs(X, Y)
    fed = fs.split(items, "iid", 3, lazy=True)
    items.x = np.zeros((ROWS, 4), np.float32)
    with pytest.raises(FedskewError, match=r"item \d+ has features of shape \(4,\), and item 0"):
        fs.train(fed, "logreg", **TRAINING)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((Counted(X), Y[:-1]), "240 rows of features but 239 labels"),
        ((Counted(X), Y - 1), "have the label -1"),
        ((Counted(np.array([["a"]] * ROWS)), Y), "x holds <U1 values, not numbers"),
        ((Counted(Y), Y), "has no features"),
        ((Counted(X[:0]), Y[:0]), "is empty"),
        ((IMAGES[:, 0, 0], Y, Y, Y), "expected"),
    ],
)
def test_refusals(data, message: str):
    with pytest.raises(FedskewError, match=message):
        fs.split(data, "iid", 3)


def test_parts_of_two_types_are_refused():
    with pytest.raises(FedskewError, match="give both in one type"):
        from_arrays((IMAGES, Y), test=(IMAGES / 255, Y))
    with pytest.raises(FedskewError, match="lazy=True is for map-style data sets"):
        fs.split((X, Y), "iid", 3, lazy=True)


def test_workers_take_what_fits_into_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_rows, "MOST_WHOLE", 100)
    with pytest.raises(FedskewError, match="workers: each of them needs all features in memory"):
        fs.train(fs.split((Counted(X), Y), "iid", 3), "logreg", workers=2, **TRAINING)


@pytest.mark.parametrize("targets", [True, False])
def test_lazy_data_sets_are_read_when_they_are_used(targets: bool):
    items = Pairs(IMAGES, Y, targets=targets)
    fed = fs.split(items, "iid", 3, lazy=True)
    if targets:
        assert len(items.asked) == 11  # the first for its shape, ten to compare their labels
    else:
        assert set(items.asked) == set(range(ROWS))  # once, for its label
    collected = fs.split(Pairs(IMAGES, Y), "iid", 3)
    assert same(fs.train(fed, "logreg", **TRAINING), fs.train(collected, "logreg", **TRAINING))


def test_lazy_data_sets_of_clients():
    clients = {"north": Pairs(X[:100], Y[:100]), "south": Pairs(X[100:], Y[100:])}
    fed = fs.split(clients, lazy=True, validation=0.2)
    assert fed.client_names == ("north", "south")
    assert isinstance(fed.train.x, StoredRows)
    collected = fs.split(clients, validation=0.2)
    np.testing.assert_array_equal(fed.train.x[:], collected.train.x)
    np.testing.assert_array_equal(fed.validation.x[:], collected.validation.x)


def test_a_data_set_with_named_columns():
    columns = {"image": np.moveaxis(IMAGES, 1, -1), "kind": Y, "writer": Y % 2}
    data = fs.load(Named(columns), label="kind", group="writer", validation=0.2)
    assert data.shape == (3, 6, 6)
    assert len(data.groups) == 2
    rows = data.train.x.raw(np.arange(4))
    np.testing.assert_array_equal(rows, IMAGES[data.train.x.chosen[:4]])
    fed = fs.split(Named({"image": X, "kind": Y}), "iid", 3, label="kind")
    assert same(
        fs.train(fed, "logreg", **TRAINING),
        fs.train(fs.split((X, Y), "iid", 3), "logreg", **TRAINING),
    )
    for options, message in (
        ({}, "give label="),
        ({"label": "kin"}, "kin"),
        ({"label": "kind"}, "image, writer are left"),
        ({"label": "kind", "drop": "writer"}, "drop"),
    ):
        with pytest.raises(FedskewError, match=message):
            fs.load(Named(columns), **options)
    text = Named({"image": np.array(["a"] * ROWS), "kind": Y})
    with pytest.raises(FedskewError, match="row 0 of image holds <U1 values, not numbers"):
        fs.load(text, label="kind")


def test_hugging_face():
    datasets = pytest.importorskip("datasets", reason="fedskew[hf] is not installed")
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"x": list(X), "y": Y})
    given = datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint="test")
    fed = fs.split(given, "iid", 3, label="y")
    assert isinstance(fed.train.x, StoredRows)
    assert same(
        fs.train(fed, "logreg", **TRAINING),
        fs.train(fs.split((X, Y), "iid", 3), "logreg", **TRAINING),
    )


def of_clients() -> list[Dataset]:
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return [
        torch.utils.data.Subset(pairs, range(120)),
        torch.utils.data.Subset(pairs, range(120, ROWS)),
    ]


FRAME = pd.DataFrame(X, columns=list("abcdef")).assign(kind=Y)
KINDS = {
    "arrays": ((X, Y), {}),
    "tensors": ((torch.from_numpy(X), torch.from_numpy(Y)), {}),
    "frame": (FRAME, {"label": "kind"}),
    "data set": (TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), {}),
    "lazy data set": (Pairs(X, Y), {"lazy": True}),
    "data sets of clients": (of_clients(), {}),
    "lazy data sets of clients": (of_clients(), {"lazy": True}),
    "rows": (Counted(X), {}),
    "named columns": (Named({"x": X, "kind": Y}), {"label": "kind"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_validation_rows_of_every_kind_of_data(kind: str):
    data, options = KINDS[kind]
    if kind == "rows":
        data = (data, Y)
    fed = fs.split(data, validation=0.25, **options)
    assert len(fed.validation) == 48
    assert len(fed.partition.rows) == 144
    assert len(fed.test) == 48
    run = fs.train(fed, "logreg", **{**TRAINING, "rounds": 2, "stop_after": 1})
    assert 0 <= run.summary["validation_accuracy_last"] <= 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def test_sources_are_asked_for_each_row_once_and_in_order():
    class Asked(Counted):
        def __getitem__(self, index: np.ndarray) -> np.ndarray:
            asked.append(index.tolist())
            return super().__getitem__(index)

    asked: list[list[int]] = []
    rows = stored_rows.stored("mine", Asked(X)).take(np.arange(20, 30))
    np.testing.assert_array_equal(rows.raw(np.array([7, 2, 7, 0])), X[[27, 22, 27, 20]])
    np.testing.assert_array_equal(rows.raw(np.array([1, 3])), X[[21, 23]])
    assert rows.raw(np.array([], dtype=np.int64)).shape == (0, 6)
    assert asked == [[20, 22, 27], [21, 23]]


@pytest.mark.parametrize("as_objects", [True, False])
def test_ragged_rows_are_refused_by_their_number(as_objects: bool):
    class Ragged(Counted):
        def __getitem__(self, index: np.ndarray):
            rows = [self.x[number] for number in index]
            for place, number in enumerate(index):
                if number == 31:
                    rows[place] = rows[place][:4]
            if not as_objects:
                return rows
            found = np.empty(len(rows), dtype=object)
            found[:] = rows
            return found

    rows = stored_rows.stored("mine", Ragged(X))
    with pytest.raises(FedskewError, match=r"mine: row 31 was read with shape \(4,\), expected"):
        rows.raw(np.array([40, 31, 2]))


@pytest.mark.parametrize("how", ["shorter", "longer", "rewritten", "replaced"])
def test_a_file_that_has_changed_is_refused(file: Path, how: str):
    fed = fs.split((np.load(file, mmap_mode="r"), Y), "iid", 3)
    content = file.read_bytes()
    if how == "shorter":
        os.truncate(file, 500)  # reading what is gone would end the process
    elif how == "longer":
        file.write_bytes(content + b"0")
    elif how == "rewritten":
        os.utime(file, ns=(1, 1))
    else:
        (file.parent / "other").write_bytes(content)
        (file.parent / "other").replace(file)
    with pytest.raises(FedskewError, match=r"x.npy has changed since it was opened .*: load it"):
        fs.train(fed, "logreg", **TRAINING)


def test_a_file_that_was_cut_off_before_it_is_split_is_refused(file: Path):
    x = np.load(file, mmap_mode="r")
    os.truncate(file, 500)
    with pytest.raises(FedskewError, match="has 500 bytes, and had 5,888 when it was opened"):
        fs.split((x, Y), "iid", 3)


def test_a_file_that_is_deleted_stays_readable(file: Path):
    x = np.load(file, mmap_mode="r")
    fed = fs.split((x, Y), "iid", 3)
    file.unlink()
    assert len(fs.train(fed, "logreg", **TRAINING).rounds) == 1


def test_a_sample_sees_what_alternates():
    x = np.zeros((8192, 1), dtype=np.float32)
    x[1::2] = 1
    rows = stored_rows.stored("mine", Counted(x))
    assert 0.47 < rows.sample(4096).mean() < 0.53
    assert rows.sample(9000).shape == x.shape
