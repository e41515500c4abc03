"""Fleets from a file: what is read, and the errors for bad files."""

from pathlib import Path

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.fleet.machines import Fleet, fleets
from fedskew.fleet.trace import trace

HEADER = "client,rows_per_second,down_mbit,up_mbit,latency,dropout"
LINES = ["0,100,8,2,0.1,0.5", "1,50,16,4,0,0", "2,25,1.5,1,0.2,1"]
HOURS = HEADER + ",from,to"
NOBODY = np.zeros(0, dtype=np.int64)


def there(fleet: Fleet, clock: float) -> np.ndarray:
    """Return which clients are available."""
    mask = np.zeros(fleet.clients, dtype=bool)
    mask[fleet.available(clock, NOBODY).numbers()] = True
    return mask


@pytest.fixture
def write(tmp_path: Path):
    def to_file(*lines: str) -> str:
        path = tmp_path / "machines.csv"
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return to_file


def test_by_hand(write):
    fleet = trace(3, 0, file=write(HEADER, *LINES))
    found = fleet.machines(np.array([2, 0]))
    assert found.rows_per_second.tolist() == [25, 100]
    assert found.down.tolist() == [1.5, 8]
    assert found.up.tolist() == [1, 2]
    assert found.latency.tolist() == [0.2, 0.1]
    assert found.dropout.tolist() == [1, 0.5]
    assert fleet.capacity(np.arange(3)).tolist() == [1.0, 0.5, 0.25]
    assert fleet.windows is None


def test_order_of_lines_and_columns_blanks_and_a_mark_do_not_matter(write, tmp_path: Path):
    plain = trace(2, 0, file=write(HEADER, *LINES[:2])).machines(np.arange(2))
    other = tmp_path / "other.csv"
    header = "latency, client, dropout, up_mbit, rows_per_second, down_mbit"
    text = f"\ufeff{header}\r\n\r\n0, 1, 0, 4, 50, 16\r\n 0.1,0,0.5,2,1e2,8\r\n,,,,,\r\n"
    other.write_text(text, encoding="utf-8", newline="")
    same = trace(2, 0, file=str(other)).machines(np.arange(2))
    for name, values in vars(plain).items():
        assert values.tolist() == getattr(same, name).tolist(), name


def test_rules_and_a_chance_in_place_of_the_files(write):
    choice = fleets.choose(
        f"trace:file={write(HEADER, *LINES)},dropout=0.125,deadline=9,partial=true"
    )
    fleet = fleets.get("trace")(3, 0, **choice.options)
    assert fleet.machines(np.arange(3)).dropout.tolist() == [0.125] * 3
    assert (fleet.deadline, fleet.partial) == (9.0, True)


def test_windows_may_run_past_midnight(write):
    hours = ["28800,43200", "79200,21600", "0,86400"]  # 8 to 12, 22 to 6, always
    fleet = trace(
        3,
        0,
        file=write(HOURS, *(f"{line},{pair}" for line, pair in zip(LINES, hours, strict=True))),
    )
    for hour, wanted in {
        0: [0, 1, 1],
        6: [0, 0, 1],
        8: [1, 0, 1],
        12: [0, 0, 1],
        22: [0, 1, 1],
        29: [0, 1, 1],
    }.items():
        assert there(fleet, 3600.0 * hour).astype(int).tolist() == wanted


def test_the_next_to_be_there(write):
    fleet = trace(2, 0, file=write(HOURS, LINES[0] + ",28800,43200", LINES[1] + ",79200,0"))
    assert fleet.next_available(0.0) == 28_800
    assert fleet.next_available(30_000.5) == 30_000.5
    assert fleet.next_available(43_200.0) == 79_200
    assert fleet.next_available(86_400.0) == 86_400 + 28_800


def test_windows_that_are_the_whole_day_are_none(write):
    assert trace(1, 0, file=write(HOURS, LINES[0] + ",0,86400")).windows is None


BAD = {
    "negative speed": (
        [HEADER, "0,-5,8,2,0,0"],
        "line 2, client 0: rows_per_second=-5 is out of range, it must be > 0",
    ),
    "no speed": (
        [HEADER, LINES[0], "1,0,8,2,0,0"],
        "line 3, client 1: rows_per_second=0 is out of range, it must be > 0",
    ),
    "no line down": ([HEADER, "0,5,0,2,0,0"], "line 2, client 0: down_mbit=0 is out of range"),
    "no line up": ([HEADER, "0,5,8,-2,0,0"], "line 2, client 0: up_mbit=-2 is out of range"),
    "latency": (
        [HEADER, "0,5,8,2,-0.1,0"],
        "line 2, client 0: latency=-0.1 is out of range, it must be >= 0",
    ),
    "chance": (
        [HEADER, "0,5,8,2,0,1.5"],
        "line 2, client 0: dropout=1.5 is out of range, it must be >= 0 and <= 1",
    ),
    "nan": (
        [HEADER, "0,nan,8,2,0,0"],
        "line 2, client 0: rows_per_second=nan is out of range, it must be > 0",
    ),
    "infinite": ([HEADER, "0,inf,8,2,0,0"], "rows_per_second=inf is out of range"),
    "not a number": (
        [HEADER, "0,fast,8,2,0,0"],
        "line 2, client 0: rows_per_second=fast is not a number",
    ),
    "nothing": ([HEADER, "0,5,,2,0,0"], "line 2, client 0: down_mbit= is not a number"),
    "two lines in quotes": (
        [HEADER, '0,"5\n6",8,2,0,0'],
        "client 0: rows_per_second=5 6 is not a number",
    ),
    "client in words": ([HEADER, "first,5,8,2,0,0"], "line 2: client=first is not a whole number"),
    "half a client": ([HEADER, "0.5,5,8,2,0,0"], "line 2: client=0.5 is not a whole number"),
    "short": ([HEADER, "0,5,8,2,0"], "line 2 has 5 of the header's 6 columns: complete it"),
    "long": ([HEADER, "0,5,8,2,0,0,9"], "line 2 has 7 of the header's 6 columns"),
    "missing": (
        [HEADER, LINES[0], LINES[2]],
        "has no line for client 1: write one for each of the 3, 0 to 2",
    ),
    "header only": ([HEADER], "has no line for client 0"),
    "twice": (
        [HEADER, *LINES, LINES[1]],
        "line 5: client 1 is already in line 3: keep one of them",
    ),
    "one more": (
        [HEADER, *LINES, "3,5,8,2,0,0"],
        "line 5: client 3 is none of the 3 clients, 0 to 2: remove the line",
    ),
    "below": ([HEADER, "-1,5,8,2,0,0"], "line 2: client -1 is none of the 3 clients"),
    "no column": (
        ["client,rows_per_second,down_mbit,latency,dropout"],
        "line 1: there is no column up_mbit: add it",
    ),
    "half the hours": (
        [HEADER + ",from", "0,5,8,2,0,0,0"],
        "there is no column to: add it, the columns are client, .*, from, to",
    ),
    "other column": ([HEADER + ",form,to"], "unknown column of .* 'form': did you mean 'from'"),
    "column twice": ([HEADER + ",latency"], "column latency is there twice: keep one"),
    "semicolons": ([HEADER.replace(",", ";")], "unknown column of .* 'client;rows_per_second;"),
    "empty": ([""], "is empty: write a header, client,rows_per_second,.*, and one line per client"),
    "late hour": (
        [HOURS, LINES[0] + ",86400,5"],
        "line 2, client 0: from=86400 is out of range, it must be >= 0 and <= 86399",
    ),
    "late end": (
        [HOURS, LINES[0] + ",5,86401"],
        "line 2, client 0: to=86401 is out of range, it must be >= 0 and <= 86400",
    ),
    "half a second": (
        [HOURS, LINES[0] + ",1.5,5"],
        "line 2, client 0: from=1.5 is not a whole number",
    ),
    "no time": (
        [HOURS, *(f"{line},7,{7 + i % 2}" for i, line in enumerate(LINES, 1))],
        "client 1: from and to are both 7: write 0 and 86400 for the whole day",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file(write, case: str):
    lines, says = BAD[case]
    path = write(*lines)
    with pytest.raises(FedskewError, match=says) as caught:
        trace(3, 0, file=path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_no_bytes(tmp_path: Path):
    path = tmp_path / "empty.csv"
    path.touch()
    with pytest.raises(FedskewError, match=r"empty\.csv is empty: write a header"):
        trace(1, 0, file=str(path))


@pytest.mark.parametrize("name", ["absent.csv", "."])
def test_no_file(tmp_path: Path, name: str):
    with pytest.raises(
        FedskewError,
        match=r"fleet trace: there is no file .*: give file= a CSV file with columns client, ",
    ):
        trace(1, 0, file=str(tmp_path / name))


def test_not_text(tmp_path: Path):
    path = tmp_path / "latin.csv"
    path.write_bytes(b"client,\xe9\n")
    with pytest.raises(FedskewError, match=r"latin\.csv is not UTF-8 text"):
        trace(1, 0, file=str(path))


def test_not_csv(tmp_path: Path):
    path = tmp_path / "long.csv"
    path.write_text(HEADER + "\n" + "x" * 200_000 + ",1,2,3,4,5\n")
    with pytest.raises(
        FedskewError, match=r"long\.csv line 2 is not CSV \(field larger than field limit"
    ):
        trace(1, 0, file=str(path))
