"""Files of several clients: which files, one schema over all, their own test rows, and differences in words."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data.catalogue import choose, together
from fedskew.data.schema import Numeric

Frames = dict[str, pd.DataFrame]


@pytest.fixture
def folder(tmp_path: Path, hospitals: Frames, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("files").mkdir()
    for name, frame in hospitals.items():
        frame.to_csv(f"files/{name}.csv", index=False)
    return tmp_path


def same(one: fs.Dataset, other: fs.Dataset) -> bool:
    pairs = ((one.train, other.train), (one.test, other.test))
    equal = all(
        np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y) and np.array_equal(a.group, b.group)  # type: ignore[arg-type]
        for a, b in pairs
    )
    return equal and (one.classes, one.groups, one.features) == (
        other.classes,
        other.groups,
        other.features,
    )


def test_one_client_a_file_however_they_are_given(folder: Path, hospitals: Frames) -> None:
    data = fs.load("files/hospital_*.csv:label=outcome")
    assert data.groups == ("hospital_A", "hospital_B", "hospital_C", "hospital_D")
    fed = fs.split(data)
    assert fed.client_names == data.groups
    assert fed.recipe["skew"] == {"name": "natural", "groups": None}
    assert fed.partition.sizes.tolist() == [192, 224, 256, 288]
    assert same(data, fs.load("files:label=outcome"))
    assert same(
        data, fs.load(together([f"files/hospital_{name}.csv:label=outcome" for name in "DBCA"]))
    )
    assert same(data, fs.load(hospitals, label="outcome"))
    assert same(data, fs.load(dict(reversed(hospitals.items())), label="outcome"))
    for name, frame in hospitals.items():
        frame.to_parquet(f"{name}.parquet")
    assert same(data, fs.load("hospital_*.parquet:label=outcome"))
    again = fs.load(data.recipe["data"])
    assert same(data, again)


def test_every_client_splits_for_itself(folder: Path, hospitals: Frames) -> None:
    data = fs.load("files:label=outcome,test=0.25", validation=0.2, seed=3)
    for number, frame in enumerate(hospitals.values()):
        counts = frame["outcome"].value_counts()
        for rows, share in ((data.test, 0.25), (data.validation, 0.15), (data.train, 0.6)):
            assert rows is not None
            assert rows.group is not None
            own = rows.y[rows.group == number]
            assert len(own) == pytest.approx(share * len(frame), abs=1.5)
            for place, name in enumerate(data.classes):
                assert (own == place).sum() == pytest.approx(share * counts.get(name, 0), abs=2)
    # A client's test rows are the same whoever else takes part.
    alone = fs.load(
        {"hospital_A": hospitals["hospital_A"], "hospital_B": hospitals["hospital_B"]},
        label="outcome",
    )
    whole = fs.load(hospitals, label="outcome")
    place = {name: whole.classes.index(name) for name in alone.classes}
    assert alone.test.group is not None
    assert whole.test.group is not None
    mine = [place[alone.classes[y]] for y in alone.test.y[alone.test.group == 0]]
    assert mine == whole.test.y[whole.test.group == 0].tolist()


def test_differences_are_named(hospitals: Frames) -> None:
    data = fs.load(hospitals, label="outcome")
    unit, *others = data.differences
    assert unit.startswith("hospital_D: column 'creatinine' looks like another unit: its median (")
    assert float(unit.split("are about ")[1].split()[0]) == pytest.approx(88.4, rel=0.1)
    assert data.schema is not None
    bmi = next(column for column in data.schema.columns if column.name == "bmi")
    assert isinstance(bmi, Numeric)
    assert bmi.optional
    wards = data.silos[2].columns["ward"].counts
    assert others == [
        f"hospital_C lacks column 'bmi': filled with the median {bmi.fill:g}",
        "hospital_B has no row of class 'transferred' (column 'outcome')",
        f"only hospital_C has 'geriatrics' ({wards['geriatrics']} rows) in column 'ward'",
    ]
    gaps = [silo.columns["bmi"].missing for silo in data.silos if "bmi" in silo.columns]
    assert all(5 < gap < 60 for gap in gaps)
    lacking = data.train.x[data.train.group == 2][:, data.features.index("bmi")]
    assert set(lacking.tolist()) == {np.float32((bmi.fill - bmi.mean) / bmi.deviation).item()}


def test_silos_that_agree_have_no_differences(hospitals: Frames) -> None:
    first = hospitals["hospital_A"]
    halves = {"a": first.iloc[:120], "b": first.iloc[120:]}
    assert fs.load(halves, label="outcome").differences == ()


def test_a_column_of_another_spelling_is_noticed(hospitals: Frames) -> None:
    hospitals["hospital_B"] = hospitals["hospital_B"].rename(columns={"age": "Age "})
    found = fs.load(hospitals, label="outcome").differences
    assert sum("is 'Age ' the same column? Then rename it" in line for line in found) == 1
    assert sum("is 'age' the same column? Then rename it" in line for line in found) == 1
    assert sum("is '" in line for line in found) == 2


def test_a_text_of_another_spelling_is_noticed(hospitals: Frames) -> None:
    first = hospitals["hospital_B"]
    hospitals["hospital_B"] = first.assign(ward=first["ward"].replace("icu", "ICU"))
    found = fs.load(hospitals, label="outcome").differences
    assert (
        sum(
            "only hospital_B has 'ICU'" in line and "are 'ICU' and 'icu' the same?" in line
            for line in found
        )
        == 1
    )
    assert sum("the same?" in line for line in found) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"files/odd\.csv is empty"),
        ("age outcome\n3 died of\n", "unknown column of files/odd.csv 'outcome'"),
    ],
)
def test_a_file_without_columns(folder: Path, text: str, message: str) -> None:
    Path("files/odd.csv").write_text(text)
    with pytest.raises(FedskewError, match=message):
        fs.load("files:label=outcome")


def test_options_beside_the_path(folder: Path) -> None:
    wanted = fs.load("files/hospital_*.csv:label=outcome,drop=sex")
    found = fs.load("files/hospital_*.csv", label="outcome", drop="sex")
    assert same(wanted, found)
    assert found.recipe == wanted.recipe
    with pytest.raises(FedskewError, match="load: label is given twice, as outcome and as age"):
        fs.load("files:label=outcome", label="age")


def test_overlapping_windows_need_test_rows(folder: Path) -> None:
    Path("windows").mkdir()
    np.savez("windows/a.npz", x=np.zeros((9, 2)), y=np.arange(9) % 2, series=np.zeros(9, int))
    with pytest.raises(FedskewError, match=r"a\.npz holds windows that overlap, and no test rows"):
        fs.load("windows")


def test_a_type_conflict_names_file_column_and_value(hospitals: Frames) -> None:
    hospitals["hospital_B"]["age"] = (
        hospitals["hospital_B"]["age"].astype(str).replace("60.0", "about 60")
    )
    with pytest.raises(
        FedskewError,
        match=r"hospital_B: column 'age' holds text \('about 60'\), and numbers in hospital_A \(\d+\): correct it, "
        "or say categorical=age or drop=age",
    ):
        fs.load(hospitals, label="outcome")
    assert (
        "age=about 60"
        in fs.load(hospitals, label="outcome", categorical="age", max_categories=200).features
    )
    assert "age" not in fs.load(hospitals, label="outcome", drop="age").features


def test_a_file_without_values_of_a_column(hospitals: Frames) -> None:
    hospitals["hospital_A"]["sex"] = None
    data = fs.load(hospitals, label="outcome")
    assert (
        "hospital_A has no value in column 'sex': filled as missing values are" in data.differences
    )
    assert "sex=missing" in data.features


def test_classes_as_numbers_here_and_text_there(hospitals: Frames) -> None:
    for name, frame in hospitals.items():
        number = frame["outcome"].map({"died": 0, "discharged": 1, "transferred": 10})
        frame["outcome"] = number.astype(str) if name == "hospital_B" else number
    assert fs.load(hospitals, label="outcome").classes == ("0", "1", "10")


def test_own_and_common_test_files(folder: Path, hospitals: Frames) -> None:
    for name, frame in hospitals.items():
        frame.iloc[:40].to_csv(f"files/{name}-test.csv", index=False)
    data = fs.load("files:label=outcome")
    assert data.groups == tuple(hospitals)
    assert len(data.test) == 160
    assert data.test.group is not None
    assert np.bincount(data.test.group).tolist() == [40] * 4
    assert len(data.train) == sum(map(len, hospitals.values()))


def test_own_test_files_that_do_not_fit(folder: Path, hospitals: Frames) -> None:
    for change, message in [
        ({"age": "old"}, r"hospital_A: the test table: column 'age' holds text \('old'\)"),
        ({"ward": 3}, r"hospital_A: the test table: column 'ward' holds numbers \('3'\)"),
    ]:
        hospitals["hospital_A"].head(20).assign(**change).to_csv(
            "files/hospital_A-test.csv", index=False
        )
        with pytest.raises(FedskewError, match=message):
            fs.load("files:label=outcome")


def test_a_folder_with_a_label_holds_tables(folder: Path) -> None:
    Path("files/older").mkdir()
    assert fs.load("files:label=outcome").groups == (
        "hospital_A",
        "hospital_B",
        "hospital_C",
        "hospital_D",
    )
    Path("nothing").mkdir()
    with pytest.raises(
        FedskewError, match="nothing: no file of that name; expected files that end in"
    ):
        fs.load("nothing:label=outcome")


def test_numbers_whose_squares_vanish_are_kept_as_they_are(hospitals: Frames) -> None:
    tiny = {name: frame.assign(age=frame["age"] * 1e-320) for name, frame in hospitals.items()}
    data = fs.load(tiny, label="outcome")
    assert data.schema is not None
    column = data.schema.columns[0]
    assert isinstance(column, Numeric)
    assert (column.name, column.deviation) == ("age", 1.0)
    assert np.isfinite(data.train.x).all()


def test_npz_files_equal_their_pooled_rows(tmp_path: Path) -> None:
    rng, wanted = np.random.default_rng(0), []
    for name in "ba":
        x, y = 1e6 + rng.normal(3, 2, (60, 3, 4)), rng.integers(0, 3, 60)
        np.savez(tmp_path / f"{name}.npz", x=x[:40], y=y[:40], x_test=x[40:], y_test=y[40:])
        wanted.append((x, y))
    data = fs.load(f"{tmp_path}/*.npz")
    assert data.groups == ("a", "b")
    assert data.train.group is not None
    assert np.bincount(data.train.group).tolist() == [40, 40]
    pooled = np.concatenate([wanted[1][0][:40], wanted[0][0][:40]])
    axes = (0, 2)
    scaled = (pooled - pooled.mean(axes, keepdims=True)) / (pooled - 1e6).std(axes, keepdims=True)
    np.testing.assert_allclose(data.train.x, scaled, atol=2e-6)
    np.testing.assert_array_equal(
        data.test.y, np.concatenate([wanted[1][1][40:], wanted[0][1][40:]])
    )
    x = rng.normal(5, 1, (50, 2))
    np.savez(tmp_path / "c.npz", x=x * 1000, y=np.zeros(50, int))
    with pytest.raises(
        FedskewError, match=r"c\.npz has no test rows, and .*a\.npz has: give all of them, or none"
    ):
        fs.load(f"{tmp_path}/*.npz")
    np.savez(tmp_path / "e.npz", x=x[:, None], y=np.arange(50) % 2)
    with pytest.raises(
        FedskewError, match=r"e has rows of shape \(1, 2\), and c has rows of shape \(2,\)"
    ):
        fs.load({"name": "silos", "paths": (f"{tmp_path}/c.npz", f"{tmp_path}/e.npz")})
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(50) % 2)
    found = fs.load(
        {"name": "silos", "paths": (f"{tmp_path}/c.npz", f"{tmp_path}/d.npz")}
    ).differences
    factors = [
        float(line.split("are about ")[1].split(" times d's")[0])
        for line in found
        if "another unit" in line
    ]
    assert factors == pytest.approx([1000, 1000], rel=0.1)
    assert "c has no row of class '1' (column 'y')" in found


@pytest.mark.parametrize("options", ["", " --npz"])
def test_a_folder_that_split_wrote(
    folder: Path, hospitals: Frames, fedskew, monkeypatch, options: str
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("fedskew.plots.split_figure.draw_split", lambda *args: b"picture")
    pd.concat([frame.assign(site=name) for name, frame in hospitals.items()]).to_csv(
        "all.csv", index=False
    )
    spec = "--data all.csv:label=outcome,test=0.2 --group site --skew natural"
    assert fedskew(f"split {spec} --out nodes{options}") == 0
    record = json.loads(Path("nodes/split.json").read_text())
    assert record["names"] == list(hospitals)
    assert Path(f"nodes/hospital_B{'.npz' if options else '.csv'}").is_file()
    fed = fs.split(fs.load("nodes"))
    assert fed.client_names == tuple(hospitals)
    assert len(fed.test) == len(fs.load_split("nodes").test)
    assert fed.data.classes == ("died", "discharged", "transferred")
    assert not any(name.startswith("site") for name in fed.data.features)
    assert len(fs.load_split("nodes", "hospital_B").train) == fed.partition.sizes[1]
    with pytest.raises(FedskewError, match="unknown client of nodes 'hospital_X'"):
        fs.load_split("nodes", "hospital_X")
    assert fedskew(f"split {spec} --out numbers --index") == 0
    with pytest.raises(
        FedskewError, match="numbers holds row numbers only: split again without --index"
    ):
        fs.load("numbers")


def test_names_where_clients_are_groups_and_numbers_elsewhere(hospitals: Frames) -> None:
    data = fs.load(hospitals, label="outcome")
    fed = fs.split(data)
    assert fed.named
    assert fed.client_number("hospital_C") == fed.client_number(2) == 2
    with pytest.raises(FedskewError, match="unknown client 'hospital_E': did you mean"):
        fed.client_number("hospital_E")
    mixed = fs.split(data, "iid", clients=3)
    assert not mixed.named
    assert mixed.client_names == ("0", "1", "2")
    with pytest.raises(
        FedskewError,
        match=r"clients=3: .* comes with its 4 clients \(hospital_A, .*leave clients out",
    ):
        fs.split(data, clients=3)
    assert fs.split(data, clients=4).partition == fed.partition


def test_a_frame_with_columns_of_all_kinds(hospitals: Frames, tmp_path: Path) -> None:
    frame = hospitals["hospital_A"]
    frame.to_csv(tmp_path / "a.csv", index=False)
    read, made = fs.load(f"{tmp_path}/a.csv:label=outcome"), fs.load(frame, label="outcome")
    np.testing.assert_array_equal(read.train.x, made.train.x)
    np.testing.assert_array_equal(read.test.y, made.test.y)
    assert fs.split(made, "iid", clients=2).clients == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("files/clinic_*.csv:label=outcome", "no file of that name"),
        ("files", "label= is missing"),
        ("files:label=result", r"unknown column of files/hospital_A.csv 'result'"),
        ("files:label=outcome,drop=nothing", "unknown column of all files 'nothing'"),
        ("files:label=outcome,categorical=nothing", "unknown column of .* 'nothing'"),
        ("files:label=outcome,group=ward", "unknown option of data set silos 'group'"),
    ],
)
def test_what_is_wrong_with_files(folder: Path, spec: str, message: str) -> None:
    with pytest.raises(FedskewError, match=message):
        fs.load(spec)


def test_other_mistakes(folder: Path, hospitals: Frames) -> None:
    with pytest.raises(
        FedskewError, match="several --data are files of clients, and digits is a data set"
    ):
        together(["files/hospital_A.csv:label=outcome", "digits"])
    with pytest.raises(FedskewError, match="label=b here and label=a before"):
        together(["files/hospital_A.csv:label=a", "files/hospital_B.csv:label=b"])
    Path("other").mkdir()
    hospitals["hospital_A"].to_csv("other/hospital_A.csv", index=False)
    with pytest.raises(FedskewError, match="both name the client 'hospital_A': rename one of them"):
        fs.load(together(["files:label=outcome", "other"]))
    np.savez("files/odd.npz", x=np.zeros((3, 1)), y=np.zeros(3))
    with pytest.raises(FedskewError, match=r"odd\.npz holds arrays, and other files tables"):
        fs.load("files:label=outcome")
    with pytest.raises(FedskewError, match="a data frame needs label="):
        fs.load(hospitals)
    with pytest.raises(
        FedskewError, match="unknown option of a data frame 'lable': did you mean 'label'"
    ):
        fs.load(hospitals, lable="outcome")
    with pytest.raises(FedskewError, match="group=ward: every data frame is a client already"):
        fs.load(hospitals, label="outcome", group="ward")
    with pytest.raises(FedskewError, match="expected a data frame of each client, got int"):
        fs.load({"a": 3}, label="y")
    for names in ((1, "1"), ("", "b")):
        with pytest.raises(FedskewError, match="give each a name of its own"):
            fs.load(dict.fromkeys(names, hospitals["hospital_A"]), label="outcome")
    assert str(choose("files/hospital_A.csv:label=outcome")).startswith("csv:")
