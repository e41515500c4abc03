"""Differences between clients' tables, in words, from what each tells about itself: found before any training."""

import math
from collections.abc import Iterable, Iterator, Sequence

from fedskew.data.cells import MISSING, alike, text_of
from fedskew.data.fitting import ColumnFacts, Description
from fedskew.data.schema import Numeric, Schema

LEAST_ROWS = 20  # numbers of a column that a silo needs to be compared with the others
LEAST_FACTOR = 2.0  # between columns that may have other units
# The factors of the median and of the spread agree if their logarithms do to this share
AGREEMENT = 0.2
_LISTED = 5  # names in one sentence


def differences(schema: Schema, described: Sequence[Description]) -> tuple[str, ...]:
    """Return a sentence for each: columns, units, categories and classes that are not the same in all silos."""
    if len(described) < 2:
        return ()
    found = [
        *_units(schema, described),
        *_absent_columns(schema, described),
        *_empty_columns(described),
    ]
    return (*found, *_classes(schema, described), *_categories(schema, described))


def _absent_columns(schema: Schema, described: Sequence[Description]) -> Iterator[str]:
    for column in schema.columns:
        lacking = [one.name for one in described if column.name not in one.columns]
        if lacking:
            if isinstance(column, Numeric):
                filled = f"the median {column.fill:.6g}"
            else:
                filled = repr(MISSING)
            same = next(
                (title for title in _own(schema, described, lacking) if alike(title, column.name)),
                None,
            )
            if same:
                hint = f"; is {same!r} the same column? Then rename it"
            else:
                hint = ""
            yield f"{_listed(lacking)} {_lack(lacking)} column {column.name!r}: filled with {filled}{hint}"


def _own(schema: Schema, described: Sequence[Description], names: Sequence[str]) -> list[str]:
    """Return the columns that some of the named silos have and others of all silos have not."""
    here = set()
    for one in described:
        if one.name in names:
            for title in one.columns:
                here.add(title)
    result: list[str] = []
    for c in schema.columns:
        if c.name in here and any(c.name not in one.columns for one in described):
            result.append(c.name)
    return result


def _empty_columns(described: Sequence[Description]) -> Iterator[str]:
    for one in described:
        empty = []
        for title, facts in one.columns.items():
            if facts.missing == one.rows:
                empty.append(repr(title))
        if empty:
            yield f"{one.name} has no value in column {_listed(empty)}: filled as missing values are"


def _classes(schema: Schema, described: Sequence[Description]) -> Iterator[str]:
    if schema.label.target != "class":
        return
    for one in described:
        present = {text_of(value) for value in one.classes}
        lacking = [repr(name) for name in schema.label.classes if name not in present]
        if lacking:
            hint = _hint([name for name in schema.label.classes if name not in present], present)
            yield f"{one.name} has no row of class {_listed(lacking)} (column {schema.label.columns[0]!r}){hint}"


def _categories(schema: Schema, described: Sequence[Description]) -> Iterator[str]:
    for column in schema.columns:
        having: dict[str, list[Description]] = {}
        told = []
        for one in described:
            if column.name in one.columns and one.columns[column.name].counts:
                told.append(one)
        for one in told:
            for value in one.columns[column.name].counts.keys() - {MISSING}:
                having.setdefault(value, []).append(one)
        for one in told if len(told) > 1 else ():
            counts = one.columns[column.name].counts
            alone = sorted(value for value, who in having.items() if who == [one])
            if alone:
                shown = [f"{value!r} ({counts[value]} rows)" for value in alone]
                hint = _hint(alone, having.keys() - set(alone))
                yield f"only {one.name} has {_listed(shown)} in column {column.name!r}{hint}"


def _hint(texts: Iterable[str], others: Iterable[str]) -> str:
    """Return a question about a text that differs from another in nothing but capitals and spaces."""
    known = {_plain(other): other for other in sorted(others)}
    same = next(((text, known[_plain(text)]) for text in texts if _plain(text) in known), None)
    if same:
        return f"; are {same[0]!r} and {same[1]!r} the same? Then write them alike"
    return ""


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


# -- units -------------------------------------------------------------------------------------------------------------


def _units(schema: Schema, described: Sequence[Description]) -> Iterator[str]:
    """Yield a suspicion for each silo in which median and spread of a column are those of the others times a factor.

    Silos are compared with the one whose median is the middle of all (of two, with the one whose is smaller).
    """
    for column in schema.columns:
        silos = [(one, one.columns.get(column.name)) for one in described]
        known = []
        for one, facts in silos:
            if facts and facts.quartiles and _enough(one, facts):
                known.append((one, facts.quartiles))
        if not isinstance(column, Numeric) or len(known) < 2:
            continue
        known.sort(key=lambda entry: (entry[1][1], entry[1], entry[0].name))
        usual = known[(len(known) - 1) // 2][1]
        for one, quartiles in known:
            factor = factor_between(quartiles, usual)
            if factor is not None:
                if len(described) > 2:
                    others = "the others'"
                else:
                    others = f"{next(o.name for o in described if o is not one)}'s"
                yield (
                    f"{one.name}: column {column.name!r} looks like another unit: its median ({quartiles[1]:.4g}) and "
                    f"its spread are about {factor:.3g} times {others} (median {usual[1]:.4g})"
                )


def _enough(one: Description, facts: ColumnFacts) -> bool:
    return one.rows - facts.missing >= LEAST_ROWS


def factor_between(
    quartiles: tuple[float, float, float], usual: tuple[float, float, float]
) -> float | None:
    """Return by what factor numbers differ from the usual ones in both median and spread; None if by none.

    >>> factor_between((71.0, 88.0, 107.0), (0.8, 1.0, 1.2))
    88.0
    """
    spread = quartiles[2] - quartiles[0]
    usual_spread = usual[2] - usual[0]
    centred = (
        min(abs(quartiles[1]) / max(spread, 1e-300), abs(usual[1]) / max(usual_spread, 1e-300))
        < 0.25
    )
    if min(spread, usual_spread) <= 0 or quartiles[1] * usual[1] <= 0 or centred:
        return None  # about zero a median has no factor
    factor = quartiles[1] / usual[1]
    size = abs(math.log(factor))
    agree = abs(math.log(spread / usual_spread) - math.log(factor)) <= AGREEMENT * size
    if agree and size >= math.log(LEAST_FACTOR):
        return factor
    return None


def _lack(names: Sequence[str]) -> str:
    if len(names) == 1:
        return "lacks"
    return "lack"


def _listed(names: Sequence[str]) -> str:
    if len(names) > _LISTED:
        more = f" and {len(names) - _LISTED} more"
    else:
        more = ""
    return ", ".join(names[:_LISTED]) + more
