"""Files as hospitals export them: other signs and encodings, classes in several spellings, ids, dates, copies."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedskew as fs
from fedskew.cli.app import app
from fedskew.core.errors import FedskewError
from fedskew.data.catalogue import together

ROWS = 60


def patients(seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": draw.integers(20, 90, ROWS),
            "crp": draw.lognormal(1, 1, ROWS).round(2),
            "ward": draw.choice(["Chirurgie", "Häm"], ROWS),
            "outcome": draw.choice(["yes", "no"], ROWS),
        }
    )


def german(frame: pd.DataFrame) -> str:
    """Return a table as German programs write it."""
    return frame.to_csv(index=False, sep=";", decimal=",")


def write(path: Path, content: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(content.encode(encoding))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of three hospitals, each of which writes its file in its own way."""
    write(tmp_path / "a.csv", patients(0).to_csv(index=False))
    write(tmp_path / "b.csv", german(patients(1)), "latin-1")
    write(tmp_path / "c.csv", patients(2).to_csv(index=False, sep="\t"), "utf-16")
    return tmp_path


def clean() -> fs.Dataset:
    return fs.load({"a": patients(0), "b": patients(1), "c": patients(2)}, label="outcome")


# -- signs and encodings -----------------------------------------------------------------------------------------------


def test_every_file_of_a_federation_is_written_in_its_own_way(folder: Path) -> None:
    data = fs.load(f"{folder}/*.csv:label=outcome")
    np.testing.assert_array_equal(data.train.x, clean().train.x)
    said = " ".join(data.doubts)
    for part in ("b.csv: semicolons", "latin-1", "decimal commas in crp", "c.csv: tabs", "utf-16"):
        assert part in said
    assert "a.csv" not in said


def test_what_is_said_of_one_file_counts_for_it_alone(folder: Path) -> None:
    write(
        folder / "b.csv",
        "age,years;x;outcome\n1,5;2;yes\n2,5;3;no\n3,5;4;no\n4,5;5;yes\n5,5;6;no\n",
    )
    with pytest.raises(FedskewError, match=r"b\.csv.*separator=comma or separator=semicolon"):
        fs.load(f"{folder}/b.csv:label=outcome,test=0.4")
    told = together(
        [f"{folder}/a.csv:label=outcome", f"{folder}/b.csv:separator=semicolon,decimal=comma"]
    )
    data = fs.load(told)
    assert {"age,years", "x", "age"} <= set(data.features)
    assert fs.load(data.recipe["data"]).features == data.features
    again = fs.load(f"{folder}/b.csv:separator=semicolon,label=outcome,test=0.4")
    assert again.features == ("age,years", "x")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    frame = patients(0).assign(ward=lambda rows: rows["ward"] + "–")
    path = write(tmp_path / "t.csv", frame.to_csv(index=False), encoding)
    data = fs.load(f"{path}:label=outcome")
    assert "ward=Häm–" in data.features
    assert (encoding in " ".join(data.doubts)) == (encoding != "utf-8-sig")


def test_a_header_longer_than_the_sample(tmp_path: Path) -> None:
    names = [f"gene_{n:060d}" for n in range(1_500)]
    draw = np.random.default_rng(0)
    lines = [";".join([*names, "y"])]
    for row in range(10):
        lines.append(";".join([*map(str, draw.integers(0, 9, len(names))), str(row % 2)]))
    path = write(tmp_path / "t.csv", "\n".join(lines) + "\n")
    data = fs.load(f"{path}:label=y,test=0.2,max_categories=2")
    assert data.features[-1] == names[-1]


def test_a_cut_off_file_in_utf_16_is_noticed(tmp_path: Path) -> None:
    content = patients(0).to_csv(index=False).encode("utf-16")
    (tmp_path / "t.csv").write_bytes(content[:-20])
    with pytest.raises(FedskewError, match=r"t\.csv: the last line has"):
        fs.load(f"{tmp_path}/t.csv:label=outcome")


def test_damaged_utf8_is_no_latin_1(tmp_path: Path) -> None:
    content = patients(0).to_csv(index=False).encode()
    (tmp_path / "t.csv").write_bytes(content + b"30,1.5,\xe4,yes\n")
    with pytest.raises(FedskewError, match=r"t\.csv is neither UTF-8 nor Latin-1.*encoding="):
        fs.load(f"{tmp_path}/t.csv:label=outcome")
    assert fs.load(f"{tmp_path}/t.csv:label=outcome,encoding=latin-1").shape == (5,)
    with pytest.raises(FedskewError, match=r"encoding=utf-9: no such encoding"):
        fs.load(f"{tmp_path}/t.csv:label=outcome,encoding=utf-9")


@pytest.mark.parametrize("sign", [";", "\t"])
def test_points_that_may_divide_thousands(tmp_path: Path, sign: str) -> None:
    lines = [f"{n % 9 + 1}.{n + 100}{sign}{'yes' if n % 2 else 'no'}\n" for n in range(40)]
    path = write(tmp_path / "t.csv", f"cost{sign}y\n" + "".join(lines))
    with pytest.raises(FedskewError, match=r"column 'cost'.*thousands=point or decimal=point"):
        fs.load(f"{path}:label=y")
    large = fs.load(f"{path}:label=y,thousands=point,standardize=false")
    small = fs.load(f"{path}:label=y,decimal=point,standardize=false")
    np.testing.assert_allclose(large.train.x, 1000 * small.train.x, rtol=1e-6)
    commas = write(tmp_path / "u.csv", path.read_text().replace(sign, ","))
    doubtful = fs.load(f"{commas}:label=y,standardize=false")
    np.testing.assert_array_equal(doubtful.train.x, small.train.x)
    assert any("u.csv" in line and "thousands=point" in line for line in doubtful.doubts)


def test_one_sign_cannot_be_both(folder: Path) -> None:
    with pytest.raises(FedskewError, match="decimal=comma and thousands=comma"):
        fs.load(f"{folder}/a.csv:label=outcome,decimal=comma,thousands=comma")


@pytest.mark.parametrize("cell", ["3,5 mg", "12.5 %", "7.25mmol/l"])
def test_numbers_with_their_unit_are_refused(tmp_path: Path, cell: str) -> None:
    frame = patients(0).assign(dose=cell)
    frame.loc[::2, "dose"] = cell.replace("5", "6")
    path = write(tmp_path / "t.csv", frame.to_csv(index=False, sep=";"))
    with pytest.raises(FedskewError, match=r"column 'dose'.*unit.*categorical=dose or drop=dose"):
        fs.load(f"{path}:label=outcome")
    assert "dose" in " ".join(fs.load(f"{path}:label=outcome,categorical=dose").features)


# -- classes -----------------------------------------------------------------------------------------------------------


def spelled(*spellings: tuple[str, str]) -> dict[str, pd.DataFrame]:
    """Return the tables of clients, each of which writes yes and no in its own way."""
    frames = {}
    for number, (positive, negative) in enumerate(spellings):
        frame = patients(number)
        frames["abcd"[number]] = frame.assign(
            outcome=frame["outcome"].map({"yes": positive, "no": negative})
        )
    return frames


@pytest.mark.parametrize(
    ("spellings", "fixes"),
    [
        ([("yes", "no"), ("Y", "N"), (1, 0), (True, False)], ["yes:Y:1:True", "no:N:0:False"]),
        ([("yes", "no"), ("Yes", "No")], ["yes:Yes", "no:No"]),
        ([("died", "alive"), ("died ", "alive")], ["died:died ", "alive"]),
        ([("positive", "negative"), ("pos", "neg")], ["positive:pos", "negative:neg"]),
        ([("ja", "nein"), ("j", "n")], ["ja:j", "nein:n"]),
    ],
)
def test_other_spellings_are_refused_with_the_fix(
    spellings: list[tuple[str, str]], fixes: list[str]
) -> None:
    frames = spelled(*spellings)
    with pytest.raises(FedskewError, match=r"column 'outcome'.*labels=") as refused:
        fs.load(frames, label="outcome")
    for fix in fixes:
        assert fix in str(refused.value)
    data = fs.load(frames, label="outcome", labels="+".join(fixes))
    assert data.classes == tuple(sorted(fix.split(":")[0] for fix in fixes))
    plain = fs.load(spelled(*spellings[:1] * len(spellings)), label="outcome")
    np.testing.assert_array_equal(data.train.y, plain.train.y)
    assert len(fs.load(frames, label="outcome", labels="as-is").classes) > 2


def test_no_class_in_common(tmp_path: Path) -> None:
    frames = spelled(("healthy", "sick"), ("control", "patient"))
    with pytest.raises(FedskewError, match=r"'control'.*no class in common.*labels=as-is"):
        fs.load(frames, label="outcome")
    assert len(fs.load(frames, label="outcome", labels="as-is").classes) == 4
    mapped = fs.load(frames, label="outcome", labels="healthy:control+sick:patient")
    assert mapped.classes == ("healthy", "sick")
    # Digits that each client has other ones of, joined by common ones
    digits = {}
    for client in range(3):
        frame = patients(client)
        digits[f"c{client}"] = frame.assign(outcome=client + np.arange(len(frame)) % 2)
    assert len(fs.load(digits, label="outcome").classes) == 4


def test_letters_are_no_spellings_of_yes_and_no() -> None:
    frame = pd.concat([patients(0)] * 3, ignore_index=True)
    letters = frame.assign(outcome=[chr(ord("A") + n % 26) for n in range(len(frame))])
    assert len(fs.load(letters, label="outcome", test=0.4).classes) == 26


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("yes:Y", r"holds the class 'no', which labels=yes:Y does not name"),
        ("yes:Y+no:Y", r"'Y' is not a spelling of one class alone"),
        ("yes:+no", r"labels=yes:\+no"),
    ],
)
def test_labels_that_do_not_fit(labels: str, message: str) -> None:
    with pytest.raises(FedskewError, match=message):
        fs.load(patients(0), label="outcome", labels=labels)


def test_clients_of_a_split_need_no_labels(tmp_path: Path) -> None:
    from fedskew.nodes.split_folder import read_origin, save_split

    path = write(tmp_path / "t.csv", german(patients(0)))
    origin = read_origin(f"{path}:label=outcome")
    fed = fs.split(origin.data, "shards:per_client=1", 2)
    made_by = {"skew": "shards:per_client=1", "seed": 0, "client_test": 0.0}
    save_split(tmp_path / "nodes", origin, fed, made_by, pictures=())
    data = fs.load(f"{tmp_path}/nodes:test=0.1")
    assert data.classes == ("no", "yes")
    assert data.shape == (4,)


# -- columns that are not features ----------------------------------------------------------------------------------


def with_odd_columns(seed: int) -> pd.DataFrame:
    days = pd.date_range("2024-01-01", periods=ROWS, freq="D")
    return patients(seed).assign(
        patient_id=np.arange(ROWS)[::-1] + 500,
        note=[f"text {n}" for n in range(ROWS)],
        birth=days.strftime("%Y%m%d").astype(int),
        admitted=days.strftime("%d.%m.%Y"),
        site="north",
        unused=np.nan,
    )


ODD = ("patient_id", "note", "birth", "admitted", "site", "unused")


def test_columns_that_are_no_features_are_named_in_one_sentence() -> None:
    data = fs.load({"a": with_odd_columns(0), "b": with_odd_columns(1)}, label="outcome")
    assert data.features == ("age", "crp", "ward=Chirurgie", "ward=Häm")
    (sentence,) = [line for line in data.doubts if "left out" in line]
    for title in ODD:
        assert title in sentence
    for part in ("ids", "dates", "one value", "no value", "keep=", "drop=", "dates=days"):
        assert part in sentence


def test_columns_that_are_kept() -> None:
    data = fs.load(with_odd_columns(0), label="outcome", keep="patient_id+site+birth")
    assert {"patient_id", "site=north", "birth"} <= set(data.features)
    with pytest.raises(FedskewError, match=r"unknown column of .* 'birht': did you mean 'birth'"):
        fs.load(with_odd_columns(0), label="outcome", keep="birht")


def test_measurements_are_features() -> None:
    draw = np.random.default_rng(0)
    frame = patients(0).assign(
        platelets=draw.integers(150_000, 450_000, ROWS),
        weight=draw.normal(70, 10, ROWS),
        year=draw.integers(1990, 2024, ROWS),
        uric_acid=draw.integers(100, 600, ROWS),
    )
    assert {"platelets", "weight", "year", "uric_acid"} <= set(
        fs.load(frame, label="outcome").features
    )


def test_dates_become_days() -> None:
    data = fs.load(with_odd_columns(0), label="outcome", dates="days", standardize=False)
    for title in ("birth", "admitted"):
        place = data.features.index(title)
        days = np.concatenate([data.train.x[:, place], data.test.x[:, place]])
        first = (pd.Timestamp("2024-01-01") - pd.Timestamp("1970-01-01")).days
        assert sorted(days.tolist()) == list(range(first, first + ROWS))
    odd = with_odd_columns(0).assign(seen="03/04/2024")
    with pytest.raises(FedskewError, match=r"column 'seen'.*cannot be told apart"):
        fs.load(odd, label="outcome", dates="days")


# -- copies ------------------------------------------------------------------------------------------------------------


def test_copies_are_counted_and_dropped(tmp_path: Path) -> None:
    frames = {"a": pd.concat([patients(0)] * 2, ignore_index=True), "b": patients(0)}
    data = fs.load(frames, label="outcome")
    said = " ".join(data.doubts)
    for part in (
        "training rows equal an earlier one",
        "(a ",
        "at several clients",
        "test rows equal",
    ):
        assert part in said
    dropped = fs.load(frames, label="outcome", duplicates="drop")
    assert len(dropped.train) + len(dropped.test) == 2 * ROWS
    assert "earlier one" not in " ".join(dropped.doubts)
    alone = fs.load(frames["a"], label="outcome", duplicates="drop")
    assert alone.doubts == ()
    np.savez(tmp_path / "t.npz", x=np.ones((20, 2)), y=np.arange(20) % 2)
    assert "4 of 4 test rows equal a training row" in " ".join(fs.load(f"{tmp_path}/t.npz").doubts)


@pytest.mark.parametrize(
    ("text", "column", "options"),
    [
        ("dni,ph,y\n26.859.467,7.420,a\n43.129.960,7.242,b\n", "ph", "drop=dni,decimal=point"),
        ("code;lab;y\n9.101.222;7.602;a\n9.101.223;7.114;b\n", "lab", "drop=code,decimal=point"),
        ('list,cost,y\n"1,2","9,478",a\n"3,4","1,040",b\n', "cost", "drop=list,thousands=comma"),
    ],
)
def test_a_code_in_one_column_settles_no_other(
    tmp_path: Path, text: str, column: str, options: str
) -> None:
    """A number of the other column would be read as a thousand times what it is, without a word."""
    header, *lines = text.splitlines()
    path = write(tmp_path / "t.csv", "\n".join([header, *lines * 20]) + "\n")
    with pytest.raises(FedskewError, match=rf"t\.csv: column '{column}'.*thousands=.*decimal="):
        fs.load(f"{path}:label=y,test=0.2")
    data = fs.load(f"{path}:label=y,test=0.2,standardize=false,{options}")
    largest = {"ph": 7.42, "lab": 7.602, "cost": 9478.0}[column]
    assert float(data.train.x.max()) == pytest.approx(largest)


def test_a_split_of_spelled_classes_is_read_again(tmp_path: Path) -> None:
    """Its arrays have the numbers of classes, to which no spelling goes."""
    rng = np.random.default_rng(0)
    for name, classes in (("a", ["no", "yes"]), ("b", ["N", "Y"]), ("c", ["0", "1"])):
        frame = pd.DataFrame({"x": rng.normal(size=40), "outcome": rng.choice(classes, 40)})
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    data = f"{tmp_path}/*.csv:label=outcome,labels=no:N:0+yes:Y:1"
    made = CliRunner().invoke(app, ["split", "--data", data, "--out", str(tmp_path / "split")])
    assert made.exit_code == 0, made.output
    assert fs.load(str(tmp_path / "split")).classes == ("no", "yes")


def test_a_text_among_numbers_of_one_client_is_shown(tmp_path: Path) -> None:
    for seed, name in enumerate("abc"):
        frame = patients(seed).astype({"crp": str})
        if name == "a":
            frame.loc[::10, "crp"] = "n.a."
        write(tmp_path / f"{name}.csv", frame.to_csv(index=False))
    with pytest.raises(FedskewError, match=r"a: column 'crp' holds text \('n\.a\.'\)"):
        fs.load(f"{tmp_path}/*.csv:label=outcome")
