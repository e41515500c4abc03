"""Columns that are not features unless the user keeps them: ids, dates, constants, texts of nearly every row.

The decision follows from what each client tells about its columns, so that files here and files at nodes give the same.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fedskew.data.fitting import ColumnFacts, Description, Request

FEWEST_ROWS = 5  # of a category that a silo on a machine of its own names
NEARLY_ALL = 0.8  # of the values of an id are different
LEAST_ROWS = 30  # that show it, unless the name of the column says so
DENSE = (
    1.5  # times the different numbers of an id is the most that they span: 1, 2, 3, ... with gaps
)
# At the end of a name
_ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "pid", "mrn", "idx", "patientid", "caseid", "recordid"}  # fmt: skip
# At the end of a name after what is numbered, or alone
_NUMBERED = {"nr", "number", "index", "key"}
_OWNERS = {"patient", "case", "record", "person", "subject", "study", "sample", "visit", "row"}
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

EMPTY, CONSTANT, DATES = "no value", "one value in all rows that have it", "dates"
NUMBERS = "a whole number of its own for nearly every row, as ids have"
TEXTS = "a text of its own for nearly every row"


class _Judged(NamedTuple):
    """What a client with values in a column tells about it, and in how many rows it has them."""

    present: int
    facts: "ColumnFacts"

    @property
    def is_id(self) -> bool:
        """Return whether nearly every row has a whole number of its own."""
        facts = self.facts
        return facts.whole and not facts.dates and facts.distinct >= NEARLY_ALL * self.present

    @property
    def is_dense(self) -> bool:
        """Return whether its numbers follow each other, with few gaps."""
        return self.facts.high - self.facts.low < DENSE * self.facts.distinct

    @property
    def has_own_texts(self) -> bool:
        """Return whether nearly every row has a text of its own."""
        return self.facts.texts >= NEARLY_ALL * self.present

    @property
    def are_numbers(self) -> bool:
        """Return whether most texts are numbers: some others are typing errors, which are refused."""
        return 2 * self.facts.numerals > self.facts.texts


def reason_to_leave_out(title: str, described: "Sequence[Description]", max_categories: int) -> str:
    """Return why a column is not a feature; empty if it is one."""
    judged = []
    for one in described:
        facts = one.columns.get(title)
        if facts is not None and facts.kind != "empty" and facts.missing < one.rows:
            judged.append(_Judged(one.rows - facts.missing, facts))
    kinds = {one.facts.kind for one in judged}
    if not kinds:
        return EMPTY
    if kinds == {"time"}:
        return DATES
    if kinds == {"number"}:
        return _reason_of_numbers(title, judged)
    if kinds == {"text"}:
        return _reason_of_texts(title, judged, max_categories)
    return ""


def _reason_of_numbers(title: str, judged: Sequence[_Judged]) -> str:
    ends = set()
    for _, facts in judged:
        ends |= {facts.low, facts.high}
    if len(ends) == 1:
        return CONSTANT
    if not all(map(attrgetter("is_id"), judged)):
        return ""
    follow = all(map(attrgetter("is_dense"), judged)) and _rows(judged) >= LEAST_ROWS
    if follow or _is_named_id(title):
        return NUMBERS
    return ""


def _rows(judged: Sequence[_Judged]) -> int:
    return sum(map(attrgetter("present"), judged))


def _reason_of_texts(title: str, judged: Sequence[_Judged], max_categories: int) -> str:
    if _is_one_text(judged):
        return CONSTANT
    if any(map(attrgetter("are_numbers"), judged)):
        return ""
    rows = _rows(judged)
    own = all(map(attrgetter("has_own_texts"), judged))
    if own and (_is_named_id(title) or rows >= LEAST_ROWS):
        return TEXTS
    texts = [facts.texts for _, facts in judged]
    if max(texts) > max_categories and 2 * sum(texts) > rows:
        return TEXTS
    return ""


def _is_one_text(judged: Sequence[_Judged]) -> bool:
    """Return whether all clients have the same text, each no other and no gap; of few rows it is not told.

    Where other clients lack the column, it says no more than whose a row is.
    """
    told: set[str] = set()
    for present, facts in judged:
        if facts.texts != 1 or facts.missing:
            return False
        if present >= FEWEST_ROWS:
            told |= facts.counts.keys()
    return len(told) == 1


def _is_named_id(title: str) -> bool:
    """Return whether the name of a column says that it is an id.

    >>> _is_named_id("patientId"), _is_named_id("CASE_NR"), _is_named_id("uric_acid")
    (True, True, False)
    >>> _is_named_id("case_count"), _is_named_id("hr_number"), _is_named_id("patient_weight_g")
    (False, False, False)
    """
    words = [word.lower() for word in _WORDS.findall(title) if not word.isdigit()]
    if not words:
        return False
    *before, last = words
    if last in _ID_WORDS:
        return True
    if last in _NUMBERED:
        return not before or before[-1] in _OWNERS
    return not before and last in _OWNERS


def columns_left_out(
    titles: Iterable[str], described: "Sequence[Description]", request: "Request"
) -> dict[str, str]:
    """Return the columns that are not features, with the reason of each, but for those that the user keeps."""
    if request.keep is None:
        return {}
    found = {}
    for title in titles:
        if title in request.keep or title in request.categorical:
            continue
        reason = reason_to_leave_out(title, described, request.max_categories)
        if reason:
            found[title] = reason
    return found


def left_out_sentence(left_out: Mapping[str, str]) -> str:
    """Return one sentence about all columns that are left out; empty if there are none."""
    if not left_out:
        return ""
    titles: dict[str, list[str]] = {}
    for title, reason in left_out.items():
        titles.setdefault(reason, []).append(title)
    said = []
    for reason, same in titles.items():
        said.append(f"{', '.join(same)} ({reason})")
    fixes = [f"keep={'+'.join(left_out)} keeps them", f"drop={'+'.join(left_out)} says so"]
    if DATES in titles:
        fixes.append("dates=days makes numbers of dates")
    return f"left out, as they are not features: {'; '.join(said)}: {', '.join(fixes)}"
