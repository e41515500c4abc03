"""A fleet from a file of measured machines, one row per client."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Unpack

import numpy as np

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.files import reading
from fedskew.core.registry import Bounds, NonNegative, Option, PartialShare, Positive, Share
from fedskew.core.streams import Floats, Ints
from fedskew.fleet.availability import DAY, Windows
from fedskew.fleet.machines import Fleet, Machines, Rules, preset


def _column(name: str, bounds: Bounds | None, kind: type = float) -> Option:
    return Option(name, kind, None, bounds, "")


_CLIENT = _column("client", None, int)
_MACHINE = (
    _column("rows_per_second", Positive),
    _column("seconds_per_step", NonNegative),
    _column("down_mbit", Positive),
    _column("up_mbit", Positive),
    _column("latency", NonNegative),
    _column("dropout", Share),
)
_WINDOW = (_column("from", Bounds(0, DAY - 1), int), _column("to", Bounds(0, DAY), int))
_FREE = "seconds_per_step"  # 0 where the file has no such column
_NEEDED = [option.name for option in (_CLIENT, *_MACHINE) if option.name != _FREE]
_WINDOWED = [option.name for option in _WINDOW]
_KNOWN = [*_NEEDED, _FREE, *_WINDOWED]


@preset("trace")
def trace(
    clients: int,
    seed: int,
    /,
    *,
    file: str,
    dropout: Annotated[float | None, PartialShare] = None,
    **rules: Unpack[Rules],
) -> Fleet:
    """Machines from a CSV file with one row per client.

    Columns, in any order: client (from 0), rows_per_second, down_mbit, up_mbit, latency, dropout; optional:
    seconds_per_step, the time of every step beside that of its rows (0 without); from and to, the seconds of the day
    between which a client is available (to may be past midnight). Every client has exactly one row.

    Args:
        file: the CSV file
        dropout: probability of every client to drop out of a round, instead of the file's column

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "machines.csv"
    ...     header = "client,rows_per_second,down_mbit,up_mbit,latency,dropout"
    ...     _ = path.write_text(f"{header}\\n1,50,8,2,0.1,0\\n0,200,8,2,0.1,0\\n")
    ...     trace(2, 0, file=str(path)).capacity(np.array([0, 1]))
    array([1.  , 0.25])
    """
    path = Path(file).expanduser()
    found = _read(path, clients)
    if dropout is not None:
        found["dropout"] = np.full(clients, dropout)
    columns = [found.get(option.name, np.zeros(clients)) for option in _MACHINE]

    def machines_of(some: Ints) -> Machines:
        return Machines(*(column[some] for column in columns))

    return Fleet(clients, machines_of, _windows(path, found), **rules)


def _windows(path: Path, found: dict[str, Floats]) -> Windows | None:
    if "from" not in found:
        return None
    start, end = (found[option.name].astype(np.int64) for option in _WINDOW)
    for client in np.flatnonzero(start == end)[:1]:
        raise FedskewError(
            f"{path} client {client}: from and to are both {end[client]}: write 0 and {DAY} for the whole day"
        )
    length = np.where(end - start == DAY, DAY, (end - start) % DAY)
    if (length == DAY).all():
        return None
    return Windows(start, length)


def _read(path: Path, clients: int) -> dict[str, Floats]:
    """Return the columns by name, in order of the clients' numbers."""
    if not path.is_file():
        raise FedskewError(
            f"fleet trace: there is no file {path}: give file= a CSV file with columns {', '.join(_NEEDED)}"
        )
    with reading(path), path.open(newline="", encoding="utf-8-sig") as text:
        lines = _lines(path, text)
        _, header = next(lines, (0, []))
        options = _options(path, header)
        values = np.zeros((clients, len(options)))
        line_of = np.zeros(clients, dtype=np.int64)
        for number, fields in lines:
            if len(fields) != len(header):
                raise FedskewError(
                    f"{path} line {number} has {len(fields)} of the header's {len(header)} columns: complete it"
                )
            cells = dict(zip(header, fields, strict=True))
            client = _client(path, number, cells["client"], line_of)
            line_of[client] = number
            where = f"{path} line {number}, client {client}"
            values[client] = [option.convert(cells[option.name], where) for option in options]
    for client in np.flatnonzero(line_of == 0)[:1]:
        raise FedskewError(
            f"{path} has no line for client {client}: write one for each of the {clients}, 0 to {clients - 1}"
        )
    columns: dict[str, Floats] = {}
    for option, column in zip(options, values.T.copy(), strict=True):
        columns[option.name] = column
    return columns


def _lines(path: Path, text: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of every line that is not blank, with its number."""
    reader = csv.reader(text)
    try:
        for fields in reader:
            tidy = [" ".join(field.split()) for field in fields]
            if any(tidy):
                yield reader.line_num, tidy
    except csv.Error as error:
        raise FedskewError(
            f"{path} line {reader.line_num} is not CSV ({error}): write values with commas between"
        ) from None


def _options(path: Path, header: Sequence[str]) -> list[Option]:
    if not header:
        raise FedskewError(
            f"{path} is empty: write a header, {','.join(_NEEDED)}, and one line per client"
        )
    for name in header:
        if name not in _KNOWN:
            raise unknown(f"column of {path}", name, _KNOWN)
        if header.count(name) > 1:
            raise FedskewError(f"{path} line 1: column {name} is there twice: keep one")
    needed = list(_NEEDED)
    if set(_WINDOWED) & set(header):
        needed += _WINDOWED
    for name in needed:
        if name not in header:
            raise FedskewError(
                f"{path} line 1: there is no column {name}: add it, the columns are {', '.join(needed)}"
            )
    return [option for option in (*_MACHINE, *_WINDOW) if option.name in header]


def _client(path: Path, number: int, text: str, line_of: Ints) -> int:
    client: int = _CLIENT.convert(text, f"{path} line {number}")
    clients = len(line_of)
    if not 0 <= client < clients:
        raise FedskewError(
            f"{path} line {number}: client {text} is none of the {clients} clients, 0 to {clients - 1}: remove the line"
        )
    if line_of[client]:
        raise FedskewError(
            f"{path} line {number}: client {client} is already in line {line_of[client]}: keep one of them"
        )
    return client
