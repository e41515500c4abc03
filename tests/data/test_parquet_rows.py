"""Features that stay in a Parquet file: the rows of the file in memory, which groups are decoded, and refusals."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data.readers import parquet_rows
from fedskew.data.readers.parquet_rows import ParquetRows
from fedskew.data.stored_rows import StoredRows, stored
from fedskew.engine.input_rows import InputRows
from fedskew.engine.read_ahead import read_ahead
from fedskew.nodes.split_folder import load_split, read_origin, save_split

pyarrow = pytest.importorskip("pyarrow")

ROWS = 240
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.normal(50, 10, ROWS),
        "dose": RNG.normal(size=ROWS).astype(np.float32),
        "visits": RNG.integers(0, 9, ROWS),
        "smokes": RNG.integers(0, 2, ROWS).astype(bool),
        "outcome": np.array(["ill", "well", "better"])[np.arange(ROWS) % 3],
        "site": np.arange(ROWS) % 4,
    }
)
TOKENS = RNG.integers(0, 50, (ROWS, 5))
IMAGES = RNG.integers(0, 256, (ROWS, 3, 4, 4), dtype=np.uint8)
TRAINING = {"rounds": 2, "device": "cpu", "folder": False, "eval_rows": 20}


def written(folder: Path, frame: pd.DataFrame = FRAME, rows: int = 20) -> Path:
    path = folder / "t.parquet"
    frame.to_parquet(path, row_group_size=rows)
    return path


def of_lists(folder: Path, x: np.ndarray) -> Path:
    """Write rows as nested lists of numbers, as Hugging Face stores images."""
    lists = pyarrow.array(x.tolist(), type=nested(x))
    table = pyarrow.table({"x": lists, "y": np.arange(len(x)) % 3})
    pyarrow.parquet.write_table(table, folder / "l.parquet", row_group_size=20)
    return folder / "l.parquet"


def nested(x: np.ndarray) -> "pyarrow.DataType":
    kind = pyarrow.from_numpy_dtype(x.dtype)
    for _ in x.shape[1:]:
        kind = pyarrow.list_(kind)
    return kind


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the row groups that are decoded, as they are."""
    numbers: list[int] = []
    plain = ParquetRows._decoded

    def noted(self: ParquetRows, number: int) -> np.ndarray:
        numbers.append(number)
        return plain(self, number)

    monkeypatch.setattr(ParquetRows, "_decoded", noted)
    return numbers


@pytest.mark.parametrize("group", [None, "site"])
def test_rows_have_the_bits_of_the_file_in_memory(tmp_path: Path, group: str | None):
    path = written(tmp_path)
    options = {"label": "outcome", "standardize": False, "validation": 0.2}
    if group is None:
        options["drop"] = "site+smokes"
    else:
        options |= {"group": group, "drop": "smokes"}
    whole = fs.load(str(path), **options)
    lazy = fs.load(str(path), lazy=True, **options)
    assert isinstance(lazy.train.x, StoredRows)
    assert lazy.features == whole.features == ("age", "dose", "visits")
    assert (lazy.classes, lazy.groups) == (whole.classes, whole.groups)
    for part in ("train", "test", "validation"):
        ours, theirs = getattr(lazy, part), getattr(whole, part)
        np.testing.assert_array_equal(ours.x[:], theirs.x)
        np.testing.assert_array_equal(ours.y, theirs.y)
    assert "ids and constants" in " ".join(lazy.notes)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_a_run_has_the_bits_of_the_file_in_memory(tmp_path: Path, engine: str):
    path = written(tmp_path)
    found = []
    for lazy in (False, True):
        data = fs.load(f"{path}:label=outcome,drop=site+smokes,standardize=false", lazy=lazy)
        run = fs.train(fs.split(data, "iid", 4), "mlp", engine=engine, **TRAINING)
        found.append(run.model.state_dict())
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])


def test_standardised_rows_are_those_in_memory_to_single_precision(tmp_path: Path):
    path = written(tmp_path)
    whole = fs.load(f"{path}:label=outcome,drop=site+smokes")
    lazy = fs.load(f"{path}:label=outcome,drop=site+smokes,lazy=true")
    np.testing.assert_allclose(lazy.train.x[:], whole.train.x, atol=2e-6)
    assert "3 of 3 columns standardised" in " ".join(lazy.notes)


def test_a_second_file_has_the_test_rows(tmp_path: Path):
    path = written(tmp_path)
    other = tmp_path / "test.parquet"
    FRAME[::-1].reset_index(drop=True).to_parquet(other)
    options = {"label": "outcome", "drop": "site", "standardize": False, "lazy": True}
    data = fs.load(str(path), test_path=str(other), **options)
    np.testing.assert_array_equal(data.test.x[:], data.train.x[np.arange(ROWS)[::-1]])


def test_targets_may_be_numbers_or_several_labels(tmp_path: Path):
    path = written(tmp_path)
    numbers = fs.load(f"{path}:label=age,target=number,drop=outcome+site,lazy=true")
    np.testing.assert_allclose(numbers.train.y, FRAME.age.to_numpy(np.float32)[rows_of(numbers)])
    path = written(tmp_path, FRAME.assign(old=(FRAME.age > 50) * 1, ill=(FRAME.site > 1) * 1))
    labels = fs.load(f"{path}:label=old+ill,target=labels,drop=outcome,lazy=true")
    assert labels.classes == ("old", "ill")
    spelled = fs.load(f"{path}:label=outcome,labels=ill:ILL+fine:well:better,lazy=true")
    assert spelled.classes == ("fine", "ill")


def rows_of(data: fs.Dataset) -> np.ndarray:
    return data.train.x.chosen


@pytest.mark.parametrize("x", [TOKENS, TOKENS / 7, IMAGES, TOKENS.astype(np.int32)])
def test_a_column_of_lists_is_the_features(tmp_path: Path, x: np.ndarray):
    data = fs.load(f"{of_lists(tmp_path, x)}:label=y,lazy=true")
    assert data.shape == x.shape[1:]
    assert data.train.x.stored == x.dtype
    np.testing.assert_array_equal(data.train.x.raw(np.arange(9)), x[rows_of(data)[:9]])
    assert ("pixels are bytes" in " ".join(data.notes)) == (x is IMAGES)


def test_lists_of_a_fixed_size_are_read_like_others(tmp_path: Path):
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(TOKENS.ravel()), 5)
    table = pyarrow.table({"x": lists, "y": np.arange(ROWS) % 2})
    pyarrow.parquet.write_table(table, tmp_path / "f.parquet", row_group_size=50)
    rows = ParquetRows(tmp_path / "f.parquet", ["x"])
    np.testing.assert_array_equal(rows[np.array([0, 60, 239])], TOKENS[[0, 60, 239]])


def test_each_row_group_is_decoded_once_for_a_request(tmp_path: Path, decoded: list[int]):
    rows = ParquetRows(written(tmp_path), ["age", "visits"])
    rows[np.array([239, 3, 100, 1, 235, 102])]
    assert decoded == [0, 5, 11]
    rows[np.array([4, 101])]
    assert decoded == [0, 5, 11]


def test_as_many_row_groups_are_kept_as_stated(
    tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(parquet_rows, "KEPT", 3 * 20 * 2 * 8)  # three groups of 20 rows
    rows = ParquetRows(written(tmp_path), ["age", "visits"])
    rows[np.arange(0, 240, 20)]
    assert decoded == list(range(12))
    rows[np.array([225, 185, 5])]  # 9 and 11 are kept, and used before 0 is decoded
    assert decoded[12:] == [0]
    assert sum(group.nbytes for group in rows._kept.values()) <= parquet_rows.KEPT


def test_a_group_is_decoded_once_for_the_requests_that_are_read_together(
    tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(parquet_rows, "KEPT", 0)  # one group
    rows = ParquetRows(written(tmp_path), ["age"])
    inputs = InputRows(stored("t", rows), torch.float64, torch.device("cpu"))
    order = torch.from_numpy(RNG.permutation(ROWS))
    with read_ahead(inputs, order.split(1)) as ahead:
        for row in order.split(1):
            assert ahead.index_select(0, row).item() == np.float32(FRAME.age[int(row)])
    # In eight pieces, each with the group that is kept and at most 11 others
    assert len(decoded) <= 12 + 7 * 11


def bad(**columns: object) -> pd.DataFrame:
    return FRAME.drop(columns="site").assign(**columns)


HOLES = FRAME.dose.where(FRAME.index != 47).astype("Float32")


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (
            bad(city="Bonn"),
            "",
            "column 'city' holds .*string, no floats or whole numbers: convert it .*drop=city",
        ),
        (bad(when=pd.Timestamp("2026-01-01")), "", "column 'when' holds timestamp"),
        (bad(kind=FRAME.outcome.astype("category")), "", "column 'kind' holds dictionary"),
        (bad(dose=HOLES), ",standardize=false", "column 'dose' has no value in row 47: fill it"),
        (bad(x=list(TOKENS)), "", "'x' holds lists beside 4 more"),
        (FRAME[["outcome"]], "", "no feature column is left"),
        (FRAME, ",drop=sites", "column of .* 'sites'"),
        (FRAME, ",window=3", "window= needs all features in memory"),
        (FRAME, ",categorical=site", "categorical= needs all features"),
        (FRAME, ",duplicates=drop", "duplicates= needs all features"),
        (FRAME, ",target=tokens", "target=tokens is for arrays"),
    ],
)
def test_refusals(tmp_path: Path, frame: pd.DataFrame, options: str, message: str):
    path = written(tmp_path, frame)
    with pytest.raises(FedskewError, match=message):
        fs.load(f"{path}:label=outcome,lazy=true{options}")


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path):
    table = pyarrow.table([[1.0, 2.0], [3.0, 4.0], [0, 1]], names=["dose", "dose", "outcome"])
    pyarrow.parquet.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(FedskewError, match="column 'dose' is there twice: rename one"):
        fs.load(tmp_path / "twice.parquet", label="outcome", lazy=True)


def test_nan_is_refused_by_its_row_when_it_is_read(tmp_path: Path):
    table = pyarrow.table(
        {"dose": np.where(np.arange(ROWS) == 47, np.nan, 1.0), "y": TOKENS[:, 0] % 2}
    )
    pyarrow.parquet.write_table(table, tmp_path / "n.parquet")
    data = fs.load(f"{tmp_path / 'n.parquet'}:label=y,lazy=true,standardize=false")
    with pytest.raises(FedskewError, match="row 47 holds NaN"):
        data.train.x[:], data.test.x[:]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1, 2], "column 'x' has 2 values in row 33 .axis 1., and 5 in row 0"),
        (None, "column 'x' has no value in row 33"),
        ([1, 2, None, 4, 5], "column 'x' has no value in row 33"),
    ],
)
def test_lists_of_another_length_are_refused_by_their_row(
    tmp_path: Path, row: list[int] | None, message: str
):
    lists = TOKENS.tolist()
    lists[33] = row
    table = pyarrow.table({"x": lists, "y": np.arange(ROWS) % 3})
    pyarrow.parquet.write_table(table, tmp_path / "r.parquet", row_group_size=20)
    with pytest.raises(FedskewError, match=message):
        ParquetRows(tmp_path / "r.parquet", ["x"])[np.array([21])]


def test_csv_files_are_not_read_lazily(tmp_path: Path):
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(FedskewError, match="is not a Parquet file, which lazy=true needs"):
        fs.load(f"{tmp_path / 't.csv'}:label=outcome,lazy=true")


def test_damaged_files_are_refused(tmp_path: Path):
    path = written(tmp_path)
    content = bytearray(path.read_bytes())
    whole = ParquetRows(path, ["age"])
    path.write_bytes(content[:-100])
    with pytest.raises(FedskewError, match="is not a Parquet file or damaged: its description"):
        ParquetRows(path, ["age"])
    with pytest.raises(FedskewError, match="has changed since it was opened"):
        whole[np.array([1])]
    place = whole._file.metadata.row_group(3).column(0).data_page_offset
    content[place : place + 20] = bytes(20)
    path.write_bytes(content)
    with pytest.raises(FedskewError, match="damaged: rows 60 to 79 cannot be read"):
        ParquetRows(path, ["age"])[np.array([5, 61])]


def test_pages_are_checked_where_the_file_has_checksums(tmp_path: Path):
    path = tmp_path / "c.parquet"
    table = pyarrow.table({"age": FRAME.age})
    plain = {"compression": "none", "use_dictionary": False}
    pyarrow.parquet.write_table(table, path, write_page_checksum=True, **plain)
    content = bytearray(path.read_bytes())
    content[content.index(FRAME.age[5].tobytes())] ^= 1  # a bit of a number
    path.write_bytes(content)
    with pytest.raises(FedskewError, match="damaged: rows 0 to 239 cannot be read"):
        ParquetRows(path, ["age"])[np.array([5])]


def test_lists_of_true_and_false_are_no_pixels(tmp_path: Path):
    data = fs.load(f"{of_lists(tmp_path, IMAGES > 128)}:label=y,lazy=true")
    np.testing.assert_array_equal(data.train.x[:], IMAGES[rows_of(data)] > 128)


def test_a_file_that_has_changed_is_refused(tmp_path: Path):
    path = written(tmp_path)
    fed = fs.split(fs.load(f"{path}:label=outcome,drop=site,lazy=true"), "iid", 3)
    os.utime(path, ns=(1, 1))
    with pytest.raises(FedskewError, match=r"t.parquet has changed since it was opened"):
        fs.train(fed, "logreg", **TRAINING)


def test_row_groups_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path)
    monkeypatch.setattr(parquet_rows, "MOST_WHOLE", 20 * 8 - 1)
    with pytest.raises(FedskewError, match="row group 0 has 20 rows, which take"):
        ParquetRows(path, ["age"])


def test_an_index_without_a_name_is_no_feature(tmp_path: Path):
    shuffled = FRAME.sample(frac=1, random_state=0)
    data = fs.load(f"{written(tmp_path, shuffled)}:label=outcome,lazy=true")
    assert "__index_level_0__" not in data.features


SPECS = {
    "columns": lambda folder: f"{written(folder)}:label=outcome,drop=site,lazy=true",
    "lists": lambda folder: f"{of_lists(folder, TOKENS)}:label=y,lazy=true",
}


@pytest.mark.parametrize("kind", SPECS)
def test_split_writes_arrays_that_are_read_again(tmp_path: Path, kind: str):
    origin = read_origin(SPECS[kind](tmp_path))
    assert len(origin.data.train) == ROWS
    fed = fs.split(origin.data, "iid", 3)
    save_split(tmp_path / "nodes", origin, fed, {"skew": "iid"})
    again = load_split(tmp_path / "nodes")
    assert again.partition == fed.partition
    np.testing.assert_array_equal(again.train.x, fed.train.x[:])


@pytest.mark.parametrize("kind", SPECS)
def test_a_study_sets_validation_rows_aside(tmp_path: Path, kind: str):
    frame = fs.compare(
        data=SPECS[kind](tmp_path),
        clients=3,
        algorithm=["fedavg", "fedprox"],
        grid={"mu": [0.01, 0.1]},
        choose="validation",
        seeds=range(2),
        model="logreg",
        rounds=1,
        device="cpu",
        validation=0.2,
        out=tmp_path / "out",
    )
    assert frame["score"].between(0, 1).all()


def test_a_run_on_a_file_resumes_to_the_same_bits(tmp_path: Path):
    data = fs.load(SPECS["columns"](tmp_path), validation=0.2)
    fed = fs.split(data, "iid", 3)
    settings = {"device": "cpu", "checkpoint_every": 1, "rounds": 2}
    whole = fs.train(fed, "logreg", folder=tmp_path / "whole", **settings)
    fs.train(fed, "logreg", folder=tmp_path / "part", stop_after=1, **settings)
    resumed = fs.resume(tmp_path / "part")
    for name, value in whole.model.state_dict().items():
        np.testing.assert_array_equal(value, resumed.model.state_dict()[name])
