"""200 hospital sets, written in all the ways of hospitals: read as the clean set, or refused for the right reason."""

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError

SETS = 200
ROWS = 60
HOSPITALS = ("north", "south", "west")
SEPARATORS = (",", ";", "\t")
SPELLINGS = {
    "yes and no": ("yes", "no"),
    "Y and N": ("Y", "N"),
    "1 and 0": ("1", "0"),
    "TRUE and FALSE": ("TRUE", "FALSE"),
    "capitals": ("Yes", "No"),
    "spaces": ("yes ", " no"),
}


@dataclass(frozen=True)
class Writing:
    """How a hospital writes its file."""

    separator: str
    decimal: str
    thousands: str
    encoding: str
    spelling: str
    ids: bool
    duplicates: bool
    unit: str
    whole: bool


def clean(seed: int, ways: dict[str, Writing]) -> dict[str, pd.DataFrame]:
    """Return the numbers of three hospitals, with one text that is not ASCII; some have whole costs."""
    draw = np.random.default_rng(seed)
    frames = {}
    for name in HOSPITALS:
        frames[name] = pd.DataFrame(
            {
                "age": draw.integers(20, 90, ROWS),
                "crp": draw.lognormal(1, 1, ROWS).round(2),
                "cost": draw.uniform(300, 9000, ROWS).round(int(not ways[name].whole)),
                "ward": draw.choice(["Chirurgie", "Häm"], ROWS),
                "outcome": draw.choice(["yes", "no"], ROWS),
            }
        )
    return frames


def drawn(draw: random.Random) -> Writing:
    """Return one way to write a file."""
    decimal = draw.choice(".,")
    other = {".": ",", ",": "."}[decimal]
    return Writing(
        separator=draw.choice(SEPARATORS),
        decimal=decimal,
        thousands=draw.choice(["", "", other, " ", "'"]),
        encoding=draw.choice(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
        spelling=draw.choice(["yes and no"] * 60 + list(SPELLINGS)),
        ids=draw.random() < 0.3,
        duplicates=draw.random() < 0.2,
        unit=draw.choice([""] * 25 + [" mg", " %"]),
        whole=draw.random() < 0.06,
    )


def number(value: float, decimals: int, writing: Writing) -> str:
    """Return a number as the hospital writes it."""
    text = f"{value:,.{decimals}f}"
    return text.translate(str.maketrans({",": writing.thousands, ".": writing.decimal}))


def written(frame: pd.DataFrame, writing: Writing) -> pd.DataFrame:
    """Return the cells as texts."""
    positive, negative = SPELLINGS[writing.spelling]
    texts = frame.astype(object)
    texts["crp"] = [number(value, 2, writing) + writing.unit for value in frame["crp"]]
    decimals = int(not writing.whole)
    texts["cost"] = [number(value, decimals, writing) for value in frame["cost"]]
    texts["outcome"] = [{"yes": positive, "no": negative}[text] for text in frame["outcome"]]
    if writing.ids:
        texts.insert(0, "patient", range(1000, 1000 + len(texts)))
        texts.insert(3, "admitted", 20240101 + np.arange(len(texts)) % 28)
        texts.insert(4, "site", "A")
    if writing.duplicates:
        texts = pd.concat([texts, texts.iloc[:6]], ignore_index=True)
    return texts


def write(folder: Path, number_of_set: int) -> dict[str, Writing]:
    """Write the files of one set; most hospitals of a set write alike in what must be said, as labels."""
    draw = random.Random(number_of_set)
    ways = {name: drawn(draw) for name in HOSPITALS}
    folder.mkdir()
    for name, frame in clean(number_of_set, ways).items():
        way = ways[name]
        texts = written(frame, way)
        content = texts.to_csv(index=False, sep=way.separator)
        (folder / f"{name}.csv").write_bytes(content.encode(way.encoding))
    return ways


def reasons(ways: dict[str, Writing]) -> list[str]:
    """Return the words of which an error must have one, if a set is to be refused."""
    found = []
    if len({way.spelling for way in ways.values()}) > 1:
        found.append("labels=")
    for way in ways.values():
        if way.unit:
            found.append("unit")
        if way.whole and way.thousands in (",", "."):
            found.append("thousands=")
    return found


def rows_of(data: fs.Dataset) -> list[tuple[float, ...]]:
    """Return all rows in their order of numbers: hospital, features in the order of their names, class."""
    order = np.argsort(data.features)
    rows: list[tuple[float, ...]] = []
    for part in (data.train, data.test):
        assert part.group is not None
        table = np.column_stack([part.group, part.x[:, order].round(3), part.y])
        rows.extend(map(tuple, table.tolist()))
    return sorted(rows)


def is_read_right(data: fs.Dataset, plain: fs.Dataset, ways: dict[str, Writing]) -> bool:
    """Return whether the rows are those of the clean set, and all that was recognised is said."""
    said = " ".join(data.doubts)
    for name, way in ways.items():
        if way.decimal == "," and f"{name}.csv" not in said:
            return False
        if way.duplicates and "equal an earlier one" not in said and "equal a training" not in said:
            return False
    if any(way.ids for way in ways.values()) and "patient" not in said:
        return False
    if sorted(data.features) != sorted(plain.features) or len(data.classes) != 2:
        return False
    repeated = any(way.duplicates for way in ways.values())
    own, clean_rows = Counter(rows_of(data)), Counter(rows_of(plain))
    if repeated:
        return own.keys() == clean_rows.keys()
    return own == clean_rows


def outcome(folder: Path, number_of_set: int) -> str:
    """Write a set, read it, and say what became of it."""
    place = folder / str(number_of_set)
    ways = write(place, number_of_set)
    plain = fs.load(clean(number_of_set, ways), label="outcome", standardize=False)
    expected = reasons(ways)
    try:
        data = fs.load(f"{place}:label=outcome,standardize=false")
    except FedskewError as refusal:
        if any(word in str(refusal) for word in expected):
            return "refused rightly"
        return f"refused wrongly: {refusal} {ways}"
    if expected:
        return f"read, and should have been refused for {expected}: {ways}"
    if is_read_right(data, plain, ways):
        return "read right"
    return f"read wrong: {ways} {data.doubts}"


@pytest.mark.filterwarnings("ignore")
def test_mutated_hospitals_are_read_right_or_refused(tmp_path: Path) -> None:
    outcomes = Counter(outcome(tmp_path, number_of_set) for number_of_set in range(SETS))
    assert set(outcomes) == {"read right", "refused rightly"}, outcomes.most_common(4)
    assert outcomes["read right"] >= SETS // 3
    assert outcomes["refused rightly"] >= SETS // 3
