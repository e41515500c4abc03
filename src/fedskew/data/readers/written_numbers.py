"""Numbers as people write them: which signs stand before decimals and between thousands, found for a whole file.

A file is written in one way. Of all ways, those remain in which every number of every column can be read. A decimal
comma, or a sign between thousands, must be shown by a number that cannot be read otherwise (5,2 or 1.234.567). What is
not shown (1,234 or, in a file with decimal commas, 1.234) is refused, with the options that settle it.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.data.cells import is_text
from fedskew.data.readers.csv_format import SIGNS, CsvFormat, DecimalSign, ThousandsSign

if TYPE_CHECKING:
    from fedskew.data.cells import Column, Frame


class Way(NamedTuple):
    """A way to write numbers."""

    decimal: DecimalSign
    thousands: ThousandsSign


_APART = {
    "comma": ",",
    "point": r"\.",
    "space": "[ \u00a0\u202f]",
    "apostrophe": "['’]",
}
_LIKE_A_NUMBER = re.compile(
    "[+-]?[.,]?\\d[\\d.,'’ \u00a0\u202f]*(e[+-]?\\d+)?",
    re.IGNORECASE,
)
_PLAIN: Way = Way("point", "none")


def _pattern(way: Way) -> re.Pattern[str]:
    whole = r"\d+"
    if way.thousands != "none":
        whole = rf"(\d+|[1-9]\d{{0,2}}({_APART[way.thousands]}\d{{3}})+)"
    decimals = rf"{_APART[way.decimal]}\d+"
    end = f"{_APART[way.decimal]}?"
    return re.compile(
        rf"[+-]?({whole}({decimals})?|{decimals}|{whole}{end})(e[+-]?\d+)?", re.IGNORECASE
    )


def _patterns() -> dict[Way, re.Pattern[str]]:
    decimals: tuple[DecimalSign, ...] = ("point", "comma")
    thousands: tuple[ThousandsSign, ...] = ("none", "comma", "point", "space", "apostrophe")
    patterns = {}
    for decimal in decimals:
        for sign in thousands:
            if sign != decimal:
                patterns[Way(decimal, sign)] = _pattern(Way(decimal, sign))
    return patterns


_WAYS = _patterns()


@dataclass(frozen=True)
class _Numbers:
    """A column of numbers: its different texts, the ways in which all of them can be read, and what they show."""

    texts: tuple[str, ...]
    ways: frozenset[Way]
    shows_decimal: frozenset[DecimalSign]
    shows_thousands: frozenset[ThousandsSign]


def with_numbers(
    where: str,
    frame: "Frame",
    given: CsvFormat,
    left_out: Container[str],
    as_text: "Callable[[list[str]], Frame]",
) -> "tuple[Frame, Way, str]":
    """Return a table with its numbers read, the way in which they are written, and a sentence if it is not the usual.

    Columns in ``left_out`` hold no numbers, whatever they look like. ``as_text`` reads columns again as they are
    written, since a first reading takes every point for a decimal one.
    """
    columns = _text_columns(frame, left_out)
    every = dict(columns)
    if columns or _is_said(given) or _may_be_thousands(frame, left_out):
        every |= _columns_with_points(frame, left_out, as_text)
    if not every:
        return frame, Way(given.decimal or "point", given.thousands or "none"), ""
    way = _one_way(where, every, given)
    if way == _PLAIN:
        return frame, way, _doubt(where, every, given)
    if not _is_said(given):
        _refuse_unsettled(where, every, way, given)
    converted = columns
    if way.decimal == "comma":
        converted = every
    frame = frame.copy()
    for title in converted:
        frame[title] = _read(frame, title, way, as_text)
    return frame, way, _sentence(converted, way)


def _is_said(given: CsvFormat) -> bool:
    return bool(given.decimal or given.thousands)


def _read(
    frame: "Frame", title: str, way: Way, as_text: "Callable[[list[str]], Frame]"
) -> "Column":
    """Return a column as numbers."""
    column = frame[title]
    if not is_text(column):
        column = as_text([title])[title]
    texts = column.dropna().astype(str).str.strip()
    if way.thousands != "none":
        texts = texts.str.replace(re.compile(_APART[way.thousands]), "", regex=True)
    plain = texts.str.replace(SIGNS[way.decimal], ".", regex=False)
    return plain.astype(float).reindex(frame.index)


# -- columns -----------------------------------------------------------------------------------------------------------


def _text_columns(frame: "Frame", left_out: Container[str]) -> dict[str, _Numbers]:
    """Return the columns of text that hold numbers with signs inside, and nothing else."""
    found = {}
    for title, column in frame.items():
        if title in left_out or not is_text(column):
            continue
        texts = column.dropna().astype(str).str.strip().unique().tolist()
        if all(map(str.isdigit, texts)) or not all(map(_LIKE_A_NUMBER.fullmatch, texts)):
            continue
        numbers = _numbers(texts)
        if numbers is not None:
            found[str(title)] = numbers
    return found


def _columns_with_points(
    frame: "Frame", left_out: Container[str], as_text: "Callable[[list[str]], Frame]"
) -> dict[str, _Numbers]:
    """Return the columns that were read as numbers with a fraction, as they are written."""
    titles = _fractions(frame, left_out)
    found: dict[str, _Numbers] = {}
    if not titles:
        return found
    table = as_text(titles)
    for title in titles:
        texts = table[title].dropna().str.strip().unique().tolist()
        numbers = _numbers([text for text in texts if "." in text])
        if numbers is not None and numbers.texts:
            found[title] = numbers
    return found


def _fractions(frame: "Frame", left_out: Container[str]) -> list[str]:
    titles = []
    for title in frame.columns:
        if title not in left_out and getattr(frame[title].dtype, "kind", "O") == "f":
            titles.append(str(title))
    return titles


def _may_be_thousands(frame: "Frame", left_out: Container[str]) -> bool:
    """Return whether all fractions of a table have three digits after one to three others, as thousands have."""
    found = False
    for title in _fractions(frame, left_out):
        values = frame[title].to_numpy(dtype=np.float64)
        values = np.abs(values[np.isfinite(values)])
        fractions = values[values % 1 != 0]
        found |= len(fractions) > 0
        thousands = np.round(fractions * 1000)
        like = (fractions >= 1) & (fractions < 1000) & (np.abs(fractions * 1000 - thousands) < 1e-6)
        if not like.all():
            return False
    return found


def _numbers(texts: Iterable[str]) -> _Numbers | None:
    """Return the ways in which texts can be read; None if one of them can be read in no way."""
    ways = frozenset(_WAYS)
    decimals: set[DecimalSign] = set()
    thousands: set[ThousandsSign] = set()
    texts = tuple(texts)
    for text in texts:
        own = _ways_of(text)
        if not own:
            return None
        ways &= own
        own_decimals, own_thousands = map(set, zip(*own, strict=True))
        if len(own_decimals) == 1:
            decimals |= own_decimals
        if len(own_thousands) == 1:
            thousands |= own_thousands
    return _Numbers(texts, ways, frozenset(decimals), frozenset(thousands))


def _ways_of(text: str) -> frozenset[Way]:
    return frozenset(way for way, pattern in _WAYS.items() if pattern.fullmatch(text))


# -- the way of a file -------------------------------------------------------------------------------------------------


def _one_way(where: str, columns: Mapping[str, _Numbers], given: CsvFormat) -> Way:
    """Return the way in which all columns are written; an error if there is none, or it is not shown."""
    ways = _possible(where, columns, given)
    if not _is_said(given):
        decimals: set[DecimalSign] = {"point"}
        thousands: set[ThousandsSign] = {"none"}
        for numbers in columns.values():
            decimals |= numbers.shows_decimal
            thousands |= numbers.shows_thousands
        shown = set()
        for way in ways:
            if way.decimal in decimals and way.thousands in thousands:
                shown.add(way)
        if not shown:
            raise _not_shown(where, columns, ways)
        ways = shown
    # Those that remain read all numbers alike; the usual signs come first
    order = list(_WAYS)
    return min(ways, key=order.index)


def _possible(where: str, columns: Mapping[str, _Numbers], given: CsvFormat) -> set[Way]:
    """Return the ways in which all columns can be read; an error names the columns that exclude each other."""
    ways = set()
    for way in _WAYS:
        if given.decimal in (None, way.decimal) and given.thousands in (None, way.thousands):
            ways.add(way)
    asked = set(ways)
    first = ""
    for title, numbers in columns.items():
        if not ways & numbers.ways:
            raise _contradiction(where, first, title, columns, asked)
        ways &= numbers.ways
        first = first or title
    return ways


def _contradiction(
    where: str, first: str, title: str, columns: Mapping[str, _Numbers], asked: set[Way]
) -> FedskewError:
    """Return the error for a column that is written in another way than those before it, or than was said."""
    fix = f"write numbers in one way, or say categorical={title} or drop={title}"
    ways = columns[title].ways
    if not ways:
        return FedskewError(f"{where}: column {title!r} has numbers of two ways of writing: {fix}")
    if not ways & asked:
        return FedskewError(
            f"{where}: column {title!r} has numbers that decimal= and thousands= do not read: correct these options; "
            f"{fix}"
        )
    return FedskewError(
        f"{where}: columns {first!r} and {title!r} have numbers with other decimal signs or thousands: {fix}"
    )


def _not_shown(where: str, columns: Mapping[str, _Numbers], ways: set[Way]) -> FedskewError:
    """Return the error for numbers that may have decimals or thousands; no number of the file is quoted."""
    sign = "comma"
    signs = set(map(attrgetter("thousands"), ways))
    if "point" in signs and "comma" not in signs:
        sign = "point"
    title = next(iter(columns))
    for name, numbers in columns.items():
        if SIGNS[sign] in "".join(numbers.texts):
            title = name
    return _unsettled(where, title, sign)


def _refuse_unsettled(
    where: str, columns: Mapping[str, _Numbers], way: Way, given: CsvFormat
) -> None:
    """Raise an error for a column that only another would settle: a code such as 1.234.567 is no evidence for 7.420.

    The decimal sign of a file is one for all columns, unless commas also divide its columns.
    """
    for title, numbers in columns.items():
        if numbers.shows_decimal or numbers.shows_thousands:
            continue
        for sign in ("comma", "point"):
            if SIGNS[sign] not in "".join(numbers.texts):
                continue
            settled = way.decimal == sign and (sign == "point" or given.separator != "comma")
            if not settled:
                raise _unsettled(where, title, sign)


def _unsettled(where: str, title: str, sign: str) -> FedskewError:
    """Return the error for a column whose numbers may have decimals or thousands; none of them is quoted."""
    return FedskewError(
        f"{where}: column {title!r} has {sign}s before three digits, which may be thousands or decimals "
        f"(1{SIGNS[sign]}000 is 1000 or 1): say thousands={sign} or decimal={sign}"
    )


def _doubt(where: str, columns: Mapping[str, _Numbers], given: CsvFormat) -> str:
    """Return a doubt about points that may divide thousands; an error where columns are not divided by commas."""
    for numbers in columns.values():
        if _is_said(given) or "point" in numbers.shows_decimal:
            return ""
    title = next(iter(columns))
    may_be = f"column {title!r} has points before three digits, which may be thousands or decimals (1.000 is 1000 or 1)"
    if given.separator != "comma":
        raise FedskewError(f"{where}: {may_be}: say thousands=point or decimal=point")
    return (
        f"{may_be}, read as decimals: say thousands=point if they are thousands, or decimal=point"
    )


def _sentence(columns: Mapping[str, _Numbers], way: Way) -> str:
    """Return in which columns numbers are not written in the usual way."""
    said = []
    if way.decimal == "comma":
        said.append(f"decimal commas in {_with_sign(columns, ',')}")
    if way.thousands != "none":
        titles = _with_sign(columns, _APART[way.thousands].strip("[]").replace("\\", ""))
        said.append(f"{way.thousands}s between thousands in {titles}")
    return " and ".join(said) + ", read as numbers"


def _with_sign(columns: Mapping[str, _Numbers], signs: str) -> str:
    """Return the columns that have one of these signs in a number."""
    titles = []
    for title, numbers in columns.items():
        if set(signs) & set("".join(numbers.texts)):
            titles.append(title)
    return ", ".join(titles)
