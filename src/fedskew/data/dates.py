"""Columns of dates: recognised as such, and as numbers of days where that is asked for."""

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats
from fedskew.data.cells import finite, is_numeric, is_text

if TYPE_CHECKING:
    from fedskew.data.cells import Column

AsNumbers: TypeAlias = Literal["days"]

_MOST = 0.95  # of the values of a column of dates are dates: others are typing errors
_EARLIEST, _LATEST = 1900, 2100  # years
_TIME = r"([ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?"
_ISO = re.compile(rf"\d{{4}}-\d{{2}}-\d{{2}}{_TIME}")
_PARTS = re.compile(rf"(\d{{1,2}})([./-])(\d{{1,2}})\2(\d{{4}}|\d{{2}}){_TIME}")
_COMPACT = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")  # 20240131


def are_dates(column: "Column") -> bool:
    """Return whether a column holds dates: times of pandas, texts such as 2024-01-31, or numbers such as 20240131."""
    if _are_times(column):
        return True
    present = column.dropna()
    if not len(present):
        return False
    if is_numeric(column):
        return _are_compact_dates(present)
    if not is_text(column):
        return False
    texts = present.astype(str).str.strip()
    # Most columns of text hold no dates, and their first texts say so
    if not any(map(_is_written_date, texts.iloc[:20])):
        return False
    return float(texts.map(_is_written_date).mean()) >= _MOST


def _are_times(column: "Column") -> bool:
    import pandas as pd

    return bool(
        pd.api.types.is_datetime64_any_dtype(column.dtype)
        or pd.api.types.is_timedelta64_dtype(column.dtype)
    )


def _is_written_date(text: str) -> bool:
    return bool(_ISO.fullmatch(text) or _PARTS.fullmatch(text))


def _are_compact_dates(column: "Column") -> bool:
    """Return whether whole numbers read as dates, 20240131."""
    values = finite(column)
    values = values[~np.isnan(values)]
    if not len(values):
        return False
    near = (values >= _EARLIEST * 10_000) & (values < _LATEST * 10_000) & (values % 1 == 0)
    if near.mean() < _MOST:
        return False
    texts = values[near].astype(np.int64).astype(str)
    dates = [bool(_COMPACT.fullmatch(text)) for text in texts]
    return sum(dates) >= _MOST * len(values)


def days_of(where: str, column: "Column") -> Floats:
    """Return the days from 1970-01-01 to each date, NaN where one is missing; what is no date is refused."""
    import pandas as pd

    if pd.api.types.is_timedelta64_dtype(column.dtype):
        seconds = column.dt.total_seconds().to_numpy(dtype=np.float64)
        return np.asarray(seconds / 86_400)
    if _are_times(column):
        times = pd.to_datetime(column, utc=True)
        return np.asarray((times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1))
    texts = column.astype(object).map(_date_text, na_action="ignore")
    days_by_text = _days_by_text(where, str(column.name), texts.dropna().unique().tolist())
    return np.asarray(texts.map(days_by_text), dtype=np.float64)


def _date_text(value: object) -> str:
    """Return a cell as text; numbers such as 20240131.0 are whole."""
    if isinstance(value, (int, float, np.number)):
        return f"{value:.0f}"
    return str(value).strip()


def _days_by_text(where: str, title: str, texts: list[str]) -> dict[str, float]:
    day_first = _day_first(where, title, texts)
    days = {}
    for text in texts:
        try:
            moment = _moment(text, day_first)
        except ValueError:
            raise FedskewError(
                f"{where}: column {title!r} holds a value that is not a date among dates: correct it, or "
                f"say drop={title}"
            ) from None
        days[text] = moment.timestamp() / 86_400
    return days


def _moment(text: str, day_first: bool) -> datetime:
    """Return a date and its time of day; without a time zone it is UTC."""
    parts = _PARTS.fullmatch(text)
    if parts is None:
        return _in_utc(datetime.fromisoformat(text))
    first, _, second, year = parts.groups()[:4]
    if len(year) < 4:
        raise ValueError(text)
    day, month = first, second
    if not day_first:
        day, month = second, first
    time = parts.group(5) or ""
    clock = time.strip(" T").rjust(5, "0")
    if not time:
        clock = "00:00"
    return _in_utc(datetime.fromisoformat(f"{year}-{month:0>2}-{day:0>2}T{clock}"))


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    return moment


def _day_first(where: str, title: str, texts: list[str]) -> bool:
    """Return whether 3/4/2024 is in April: by dates that can be read in one way only; points stand after days."""
    firsts = [0]
    seconds = [0]
    points = False
    for text in texts:
        parts = _PARTS.fullmatch(text)
        if parts is None:
            continue
        points |= parts.group(2) == "."
        if len(parts.group(4)) < 4:
            raise FedskewError(
                f"{where}: column {title!r} has dates with years of two digits: write four, or say drop={title}"
            )
        firsts.append(int(parts.group(1)))
        seconds.append(int(parts.group(3)))
    if max(firsts) > 12 and max(seconds) > 12:
        raise FedskewError(
            f"{where}: column {title!r} has dates with the day first and with the month first: write 2024-01-31"
        )
    if points or max(firsts) > 12:
        return True
    if max(seconds) > 12 or len(firsts) == 1:
        return False
    raise FedskewError(
        f"{where}: column {title!r} has dates whose day and month cannot be told apart: write 2024-04-03, or "
        f"say drop={title}"
    )
