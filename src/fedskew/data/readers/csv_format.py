"""How a CSV file is written: its encoding, the sign between its columns, and the signs inside its numbers."""

import codecs
import csv as text_table
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from fedskew.core.errors import FedskewError
from fedskew.core.files import open_unpacked, read_bytes, reading
from fedskew.core.registry import options_of, validate

Separator: TypeAlias = Literal["comma", "semicolon", "tab", "space"]
DecimalSign: TypeAlias = Literal["point", "comma"]
ThousandsSign: TypeAlias = Literal["none", "comma", "point", "space", "apostrophe"]

SIGNS: dict[str, str] = {"comma": ",", "semicolon": ";", "tab": "\t", "space": " ", "point": "."}
_COMMON: tuple[Separator, ...] = ("comma", "semicolon", "tab")
_SAMPLE = 1 << 16  # characters, or bytes at the end, of a file that show how it is written
_CHUNK = 1 << 20  # bytes decoded at a time
# A sign of several bytes in UTF-8, of which Latin-1 would make a capital letter and a symbol
_UTF8_SIGN = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
_CONTROL = re.compile(rb"[\x80-\x9f]")  # letters in Windows-1252, and nothing readable in Latin-1


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written; what is None is recognised from the file.

    Args:
        separator: character between the columns
        decimal: sign before the decimals of a number
        thousands: sign between the thousands of a number
        encoding: encoding of the text, such as utf-8, utf-16, latin-1 or cp1250
    """

    separator: Separator | None = None
    decimal: DecimalSign | None = None
    thousands: ThousandsSign | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.decimal is not None and self.decimal == self.thousands:
            raise FedskewError(
                f"decimal={self.decimal} and thousands={self.thousands}: one sign cannot be both"
            )
        if self.encoding is None:
            return
        try:
            codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            raise FedskewError(
                f"encoding={self.encoding}: no such encoding; known are utf-8, utf-16, latin-1, cp1250, ..."
            ) from None


@dataclass(frozen=True)
class ReadFile:
    """A file that was read: its name, how it is written, and what was recognised, in words."""

    name: str
    written: CsvFormat
    said: str


READ = "read"  # in the attrs of a table: the file that it was read from
AS_RECOGNISED = CsvFormat()
OPTIONS = tuple(options_of(CsvFormat))


def format_from(options: Mapping[str, Any]) -> CsvFormat:
    """Return the format that the options of a data set give."""
    given = {}
    for name in OPTIONS:
        given[name] = options.get(name)
    return CsvFormat(**given)


def file_and_format(text: str, common: CsvFormat = AS_RECOGNISED) -> tuple[str, CsvFormat]:
    """Return a path, and how its file is written: what is said of the file alone comes before what is said of all.

    >>> file_and_format("b.csv:separator=semicolon:decimal=comma")[1].decimal
    'comma'
    """
    path, colon, rest = text.partition(":")
    if not colon or _is_there(text):
        return text, common
    given: dict[str, Any] = {}
    for part in rest.replace(",", ":").split(":"):
        name, equals, value = part.partition("=")
        if not equals:
            return text, common  # the name of a file may have a colon
        given[name.strip()] = value.strip()
    return path, replace(common, **validate(CsvFormat, given, path))


def _is_there(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # an impossible name of a file
        return False


def recognised(path: Path, given: CsvFormat) -> CsvFormat:
    """Return the format of a file with its encoding and its separator, recognised where they are not given."""
    encoding = given.encoding
    if encoding is None:
        encoding = _recognised_encoding(path)
    separator = given.separator
    if separator is None:
        separator = _recognised_separator(path, encoding)
    return replace(given, encoding=encoding, separator=separator)


def sign_of(written: CsvFormat) -> str:
    """Return the character between the columns of a file whose separator is known."""
    assert written.separator is not None
    return SIGNS[written.separator]


def format_note(given: CsvFormat, written: CsvFormat) -> str:
    """Return what was recognised of a file and is not as usual (commas, UTF-8), in words; empty if nothing is."""
    said = []
    if given.separator is None and written.separator != "comma":
        said.append(f"{written.separator}s between its columns")
    if given.encoding is None and written.encoding not in ("utf-8", "utf-8-sig"):
        said.append(f"the encoding {written.encoding}")
    return " and ".join(said)


# -- encoding ----------------------------------------------------------------------------------------------------------


def _recognised_encoding(path: Path) -> str:
    """Return the encoding of a text file: by its first bytes, or UTF-8 if it is that, or else Latin-1."""
    with reading(path), open_unpacked(path) as file:
        start = file.read(4096)
        by_start = _encoding_by_start(start)
        if by_start:
            return by_start
        if _is_utf8(start, file):
            return "utf-8"
    return _one_byte_encoding(path)


def _encoding_by_start(start: bytes) -> str:
    """Return the encoding that a byte order mark tells, or that every second byte is zero; empty if neither is."""
    if start.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    half = len(start) // 2
    first_zeros = start[0::2].count(0)
    second_zeros = start[1::2].count(0)
    if half and not first_zeros and 2 * second_zeros > half:
        return "utf-16-le"
    if half and not second_zeros and 2 * first_zeros > half:
        return "utf-16-be"
    return ""


def _is_utf8(start: bytes, file: IO[bytes]) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        chunk = start
        while chunk:
            decoder.decode(chunk)
            chunk = file.read(_CHUNK)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _one_byte_encoding(path: Path) -> str:
    """Return Latin-1, or Windows-1252 where it has signs that Latin-1 lacks; a damaged UTF-8 file is refused."""
    content = read_bytes(path)
    if _UTF8_SIGN.search(content):
        raise FedskewError(
            f"{path} is neither UTF-8 nor Latin-1 text, as it has bytes of both: get it again, or say encoding="
        )
    if not _CONTROL.search(content):
        return "latin-1"
    try:
        content.decode("cp1252")
    except UnicodeDecodeError as error:
        raise FedskewError(
            f"{path} is not UTF-8 text, nor Latin-1 (byte {error.start}): say encoding=, such as encoding=cp1250, or "
            "convert it"
        ) from None
    return "cp1252"


# -- separator ---------------------------------------------------------------------------------------------------------


def header_of(path: Path, written: CsvFormat) -> list[str]:
    """Return the names in the first line that is not empty."""
    try:
        records = _records(path, written.encoding or "utf-8", sign_of(written))
    except text_table.Error as error:
        raise FedskewError(
            f"{path} has no header line that can be read ({error}): write the names of its columns"
        ) from None
    if not records:
        raise FedskewError(f"{path} is empty")
    return records[0]


def _recognised_separator(path: Path, encoding: str) -> Separator:
    """Return the separator that the header has; of several, the one that divides all lines alike."""
    in_header: list[Separator] = []
    alike: list[Separator] = []
    for separator in _COMMON:
        widths = _widths(path, encoding, SIGNS[separator])
        if widths and widths[0] > 1:
            in_header.append(separator)
            if len(set(widths)) == 1:
                alike.append(separator)
    if not in_header:
        return _space_or_comma(path, encoding)
    if len(in_header) == 1:
        return in_header[0]
    if len(alike) == 1:
        return alike[0]
    ways = " or ".join(f"separator={separator}" for separator in in_header)
    raise FedskewError(
        f"{path}: its header may be divided in several ways: say {ways}, for this file alone as "
        f"{path.name}:separator={in_header[0]}"
    )


def _space_or_comma(path: Path, encoding: str) -> Separator:
    """Return a space if it divides all lines alike, and otherwise a comma, as there is one column only."""
    widths = set(_widths(path, encoding, " "))
    if len(widths) == 1 and max(widths) > 1:
        return "space"
    return "comma"


def _widths(path: Path, encoding: str, sign: str) -> list[int]:
    """Return the numbers of fields of the first lines; none if they cannot be divided so."""
    try:
        return list(map(len, _records(path, encoding, sign)))
    except text_table.Error:  # a field too long to be one
        return []


def _records(path: Path, encoding: str, sign: str) -> list[list[str]]:
    """Return the fields of the first lines that are not empty, without one that the sample cuts off."""
    with reading(path), open_unpacked(path) as file:
        text = io.TextIOWrapper(file, encoding=_with_mark(encoding), newline="")
        sample = text.readlines(_SAMPLE)  # whole lines, as a header may be longer
        complete = not text.read(1)
    records = list(filter(None, text_table.reader(sample, delimiter=sign)))
    if len(records) > 1 and not complete:
        records.pop()
    return records


def _with_mark(encoding: str) -> str:
    """Return the encoding that also reads a byte order mark."""
    if codecs.lookup(encoding).name == "utf-8":
        return "utf-8-sig"
    return encoding


def last_lines(path: Path, encoding: str) -> list[str]:
    """Return the lines in the last bytes of a file that is not compressed; of the first, only the end."""
    with reading(path), path.open("rb") as file:
        start = file.read(2)
        size = file.seek(0, 2)
        place = max(0, size - _SAMPLE)
        file.seek(place - place % 2)  # where a sign of UTF-16 begins
        content = file.read()
    if encoding == "utf-16":
        encoding = "utf-16-be"
        if start == codecs.BOM_UTF16_LE:
            encoding = "utf-16-le"
    text = content.decode(encoding, errors="replace").rstrip("\r\n")
    # Other signs that end a line of text are part of a cell
    return re.split(r"\r\n|\r|\n", text)
