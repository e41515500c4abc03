"""Differences between clients' tables, in words, from what each tells about itself: found before any training."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from fedskew.data.cells import MISSING, OTHER, alike, text_of
from fedskew.data.fitting import ColumnFacts, Description
from fedskew.data.schema import Numeric, Schema

Quartiles: TypeAlias = tuple[float, float, float]

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
        if not lacking:
            continue
        filled = repr(MISSING)
        if isinstance(column, Numeric):
            filled = f"the median {column.fill:.6g}"
        own = _own(schema, described, lacking)
        same = [title for title in own if alike(title, column.name)]
        hint = ""
        if same:
            hint = f"; is {same[0]!r} the same column? Then rename it"
        yield f"{_listed(lacking)} {_lack(lacking)} column {column.name!r}: filled with {filled}{hint}"


def _own(schema: Schema, described: Sequence[Description], names: Sequence[str]) -> list[str]:
    """Return the columns that some of the named silos have and others of all silos have not."""
    here: set[str] = set()
    for one in described:
        if one.name in names:
            here.update(one.columns)
    own: list[str] = []
    for column in schema.columns:
        if column.name in here and any(column.name not in one.columns for one in described):
            own.append(column.name)
    return own


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
        lacking = [name for name in schema.label.classes if name not in present]
        if lacking:
            listed = _listed(list(map(repr, lacking)))
            hint = _hint(lacking, present)
            yield f"{one.name} has no row of class {listed} (column {schema.label.columns[0]!r}){hint}"


def _categories(schema: Schema, described: Sequence[Description]) -> Iterator[str]:
    for column in schema.columns:
        told: dict[str, Mapping[str, int]] = {}
        for one in described:
            facts = one.columns.get(column.name)
            if facts is not None and facts.counts:
                told[one.name] = facts.counts
        if len(told) > 1:
            yield from _lone_categories(column.name, told)


def _lone_categories(title: str, told: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield a sentence for each silo with categories that no other silo has; ``told`` are the rows of each."""
    having: dict[str, list[str]] = {}
    for name, counts in told.items():
        for value in counts.keys() - {MISSING, OTHER}:
            having.setdefault(value, []).append(name)
    for name, counts in told.items():
        alone = sorted(value for value, names in having.items() if names == [name])
        if alone:
            shown = [f"{value!r} ({counts[value]} rows)" for value in alone]
            hint = _hint(alone, having.keys() - set(alone))
            yield f"only {name} has {_listed(shown)} in column {title!r}{hint}"


def _hint(texts: Iterable[str], others: Iterable[str]) -> str:
    """Return a question about a text that differs from another in nothing but capitals and spaces."""
    known = {_plain(other): other for other in sorted(others)}
    for text in texts:
        other = known.get(_plain(text))
        if other is not None:
            return f"; are {text!r} and {other!r} the same? Then write them alike"
    return ""


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


# -- units -------------------------------------------------------------------------------------------------------------


def _units(schema: Schema, described: Sequence[Description]) -> Iterator[str]:
    """Yield a suspicion for each silo in which median and spread of a column are those of the others times a factor.

    Silos are compared with the one whose median is the middle of all (of two, with the one whose is smaller).
    """
    for column in schema.columns:
        known = _with_quartiles(column.name, described)
        if not isinstance(column, Numeric) or len(known) < 2:
            continue
        known.sort(key=lambda entry: (entry[1][1], entry[1], entry[0].name))
        usual = known[(len(known) - 1) // 2][1]
        for one, quartiles in known:
            factor = factor_between(quartiles, usual)
            if factor is not None:
                yield (
                    f"{one.name}: column {column.name!r} looks like another unit: its median ({quartiles[1]:.4g}) and "
                    f"its spread are about {factor:.3g} times {_others(one, described)} (median {usual[1]:.4g})"
                )


def _with_quartiles(
    title: str, described: Sequence[Description]
) -> list[tuple[Description, Quartiles]]:
    """Return the silos with enough numbers in a column, and its quartiles there."""
    known = []
    for one in described:
        facts = one.columns.get(title)
        if facts and facts.quartiles and _enough(one, facts):
            known.append((one, facts.quartiles))
    return known


def _others(one: Description, described: Sequence[Description]) -> str:
    """Return whose numbers those of a silo are compared with."""
    if len(described) > 2:
        return "the others'"
    others = [other.name for other in described if other is not one]
    return f"{others[0]}'s"


def _enough(one: Description, facts: ColumnFacts) -> bool:
    return one.rows - facts.missing >= LEAST_ROWS


def factor_between(quartiles: Quartiles, usual: Quartiles) -> float | None:
    """Return by what factor numbers differ from the usual ones in both median and spread; None if by none.

    >>> factor_between((71.0, 88.0, 107.0), (0.8, 1.0, 1.2))
    88.0
    """
    spread = quartiles[2] - quartiles[0]
    usual_spread = usual[2] - usual[0]
    if min(spread, usual_spread) <= 0 or quartiles[1] * usual[1] <= 0:
        return None
    # About zero a median has no factor
    if min(abs(quartiles[1]) / spread, abs(usual[1]) / usual_spread) < 0.25:
        return None
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
    listed = ", ".join(names[:_LISTED])
    if len(names) > _LISTED:
        listed += f" and {len(names) - _LISTED} more"
    return listed
