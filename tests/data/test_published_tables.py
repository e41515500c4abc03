"""covtype, unsw-nb15, nf-unsw-nb15, vehicles and driving-behavior from hand-made files."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.data import load
from fedskew.data.sources.published_tables import _NETFLOW_COUNTS


def covtype_lines(rows: int = 70) -> list[str]:
    result = []
    for n in range(rows):
        numeric = [2000 + n, n, 3, *range(7)]
        hot = [int(n % 4 == area) for area in range(4)] + [
            int(n % 40 == soil) for soil in range(40)
        ]
        result.append(",".join(map(str, [*numeric, *hot, n % 7 + 1])) + "\n")
    return result


def test_covtype(data_root: Path) -> None:
    (data_root / "covtype").mkdir()
    (data_root / "covtype" / "covtype.data.gz").write_bytes(
        gzip.compress("".join(covtype_lines()).encode())
    )
    data = load("covtype:test=0.5")
    assert data.shape == (54,)
    assert np.bincount(data.test.y).tolist() == [5] * 7
    assert data.classes[2] == "Ponderosa Pine"
    assert (data.features[0], data.features[10], data.features[53]) == (
        "Elevation",
        "Wilderness_Area1",
        "Soil_Type40",
    )
    np.testing.assert_allclose(data.train.x[:, 0].mean(), 0, atol=1e-5)
    np.testing.assert_allclose(data.train.x[:, 0].std(), 1, atol=1e-5)
    assert set(data.train.x[:, 2].tolist()) == {0}  # constant
    elevation, label = (
        np.concatenate([part(data.train), part(data.test)])
        for part in (lambda r: r.x[:, 0], lambda r: r.y)
    )
    assert label[np.argsort(elevation)].tolist() == [n % 7 for n in range(70)]
    assert set(np.unique(data.train.x[:, 10:])) == {0, 1}
    assert data.notes[0] == "covtype.data.gz holds 70 of the published 581,012 rows"
    (data_root / "covtype" / "sample.data").write_text("".join(covtype_lines(14)))
    assert len(load("covtype:file=sample.data,test=0.5").train) == 7
    two = load("covtype:types=frequent,test=0.5")
    assert two.classes == ("Spruce/Fir", "Lodgepole Pine")
    assert np.bincount(np.concatenate([two.train.y, two.test.y])).tolist() == [10, 10]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "is empty"),
        (
            [*covtype_lines(3), "1,2,3\n"],
            r"not a table of 55 numbers a line \(line 4\): it is cut off",
        ),
        (["1,2,3\n"], r"not a table of 55 numbers a line \(3 columns\)"),
        ([covtype_lines(1)[0].replace("2000", "abc")], "not a table of 55 numbers a line: .*abc"),
        (
            [covtype_lines(1)[0].rstrip()[:-1] + "9\n"],
            "the last column must hold cover types 1 … 7",
        ),
    ],
)
def test_covtype_damaged(data_root: Path, lines: list[str], message: str) -> None:
    (data_root / "covtype").mkdir()
    (data_root / "covtype" / "covtype.data").write_text("".join(lines))
    with pytest.raises(FedskewError, match=message):
        load("covtype")


def write_unsw(folder: Path, part: str, rows: int) -> None:
    folder.mkdir(exist_ok=True)
    kinds = ["Normal", "Exploits", "Worms"]
    body = "".join(
        f"{n},0.{n},{'tcp' if n % 2 else 'udp'},-,FIN,{n},{kinds[n % 3]},{int(n % 3 > 0)}\n"
        for n in range(rows)
    )
    (folder / f"UNSW_NB15_{part}-set.csv").write_text(
        "\ufeffid,dur,proto,service,state,spkts,attack_cat,label\n" + body
    )


def test_unsw_nb15(data_root: Path) -> None:
    write_unsw(data_root / "unsw-nb15", "training", 12)
    with pytest.raises(
        FedskewError,
        match=r"testing-set\.csv is not there; download .* and put both into .*, or use unsw-nb15:part=train",
    ):
        load("unsw-nb15")
    own = load("unsw-nb15:part=train,test=0.25")
    assert (len(own.train), len(own.test)) == (9, 3)
    write_unsw(data_root / "unsw-nb15", "testing", 6)
    data = load("unsw-nb15")
    assert (len(data.train), len(data.test)) == (12, 6)
    assert data.classes == ("Exploits", "Normal", "Worms")
    assert data.features == ("dur", "proto=tcp", "proto=udp", "service=-", "state=FIN", "spkts")


def test_unsw_nb15_with_the_shares_of_netflow_records(data_root: Path) -> None:
    write_unsw(data_root / "unsw-nb15", "training", 12)
    with pytest.raises(
        FedskewError, match="needs flows of all classes, and there are none of Analysis"
    ):
        load("unsw-nb15:part=train,shares=netflow")
    kinds = list(_NETFLOW_COUNTS)
    path = data_root / "unsw-nb15" / "UNSW_NB15_training-set.csv"
    lines = ["id,dur,proto,attack_cat,label\n"]
    for n in range(30_000):
        kind = kinds[max(n % 30 - 20, 0)]  # 21 of 30 normal, one of each attack
        lines.append(f"{n},{n},tcp,{kind},0\n")
    path.write_text("".join(lines))
    data = load("unsw-nb15:part=train,shares=netflow,drop=proto,standardize=false,test=0.2")
    counts = np.bincount(np.concatenate([data.train.y, data.test.y]))
    found = dict(zip(data.classes, counts.tolist(), strict=True))
    scale = 21_000 / 1_550_712  # normal flows are the scarcest for their share
    assert found == {name: round(count * scale) for name, count in _NETFLOW_COUNTS.items()}
    assert found["Normal"] / sum(found.values()) == pytest.approx(0.955, abs=0.001)
    assert data.features == ("dur",)
    assert (np.diff(data.train.x[:, 0]) > 0).all()  # as it is stored, in its own units


def test_nf_unsw_nb15_leaves_out_what_gives_the_attack_away(data_root: Path) -> None:
    columns = (
        "IPV4_SRC_ADDR,L4_SRC_PORT,IPV4_DST_ADDR,L4_DST_PORT,PROTOCOL,L7_PROTO,IN_BYTES,OUT_BYTES,IN_PKTS,OUT_PKTS,"
        "TCP_FLAGS,FLOW_DURATION_MILLISECONDS,Label,Attack\n"
    )
    body = "".join(
        f"1.2.3.{n},{n},4.5.6.{n},80,6,7.0,{n},5,1,1,27,0,{n % 2},{['Benign', 'DoS'][n % 2]}\n"
        for n in range(20)
    )
    (data_root / "nf-unsw-nb15").mkdir()
    (data_root / "nf-unsw-nb15" / "NF-UNSW-NB15.csv").write_text(columns + body)
    data = load("nf-unsw-nb15:test=0.5")
    assert data.classes == ("Benign", "DoS")
    assert [
        feature for feature in data.features if "ADDR" in feature or feature in ("Label", "Attack")
    ] == []
    assert len(data.features) == 10
    assert len(data.test) == 10


def write_vehicle(folder: Path, name: str, header: str = "TimeStamp,Speed,gFz,Label") -> None:
    folder.mkdir(exist_ok=True)
    states = ["idle", "driving", "dumping"]
    body = "".join(f"2020-01-01 00:00:{n},{n},{n * 2},{states[n // 4 % 3]}\n" for n in range(48))
    (folder / name).write_text(header + "\n" + body)


def test_vehicles(data_root: Path) -> None:
    with pytest.raises(
        FedskewError,
        match=r"vehicles is not there; download https://www.kaggle.com/.* put its \.csv files into",
    ):
        load("vehicles")
    (data_root / "vehicles").mkdir()
    with pytest.raises(FedskewError, match=r"there is no \.csv file in"):
        load("vehicles")
    write_vehicle(data_root / "vehicles", "one.csv")
    single = load("vehicles")
    assert single.features == ("Speed", "gFz")
    assert single.classes == ("driving", "dumping", "idle")
    assert single.groups == ()
    assert load("vehicles:drop=TimeStamp+Speed").features == ("gFz",)
    write_vehicle(data_root / "vehicles", "two.csv")
    double = load("vehicles:window=4,test=0.5")
    assert double.groups == ("one", "two")
    assert double.shape == (2, 4)
    assert len(double.train) == len(double.test) == 12
    write_vehicle(data_root / "vehicles", "two.csv", "TimeStamp,Speed,other,Label")
    with pytest.raises(FedskewError, match=r"two\.csv has other columns than .*one\.csv"):
        load("vehicles")


def test_vehicles_with_another_label_column(data_root: Path) -> None:
    write_vehicle(data_root / "vehicles", "one.csv", "time,Speed,gFz,state")
    with pytest.raises(FedskewError, match="unknown column of vehicles 'label'"):
        load("vehicles")
    assert load("vehicles:label=state").features == ("Speed", "gFz")


def test_driving_behavior(data_root: Path) -> None:
    folder = data_root / "driving-behavior"
    folder.mkdir()
    for part, rows in (("train", 12), ("test", 9)):
        body = "".join(
            f"{n},0,0,0,0,1,{['SLOW', 'NORMAL', 'AGGRESSIVE'][n % 3]},{n}\n" for n in range(rows)
        )
        (folder / f"{part}_motion_data.csv").write_text(
            "AccX,AccY,AccZ,GyroX,GyroY,GyroZ,Class,Timestamp\n" + body
        )
    data = load("driving-behavior")
    assert (len(data.train), len(data.test)) == (12, 9)
    assert data.features == ("AccX", "AccY", "AccZ", "GyroX", "GyroY", "GyroZ")
    windows = load("driving-behavior:window=6,stride=3")
    assert (len(windows.train), len(windows.test)) == (3, 2)
