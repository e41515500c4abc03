"""The cells of a table's columns: numbers, categories, classes, and what is refused in each."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.streams import Floats, Ints
from fedskew.data.targets import MATRICES, PADDING, Target

if TYPE_CHECKING:
    import pandas as pd

    Frame: TypeAlias = pd.DataFrame
    Column: TypeAlias = pd.Series[Any]

MISSING, OTHER = "missing", "other"
_EXPONENT = r"(e[+-]?\d+)?"
# 5,2  1.234,5  7
_DECIMAL_COMMA = re.compile(rf"[+-]?(\d+|\d{{1,3}}(\.\d{{3}})+)(,\d+)?{_EXPONENT}", re.IGNORECASE)
# 1,234  1.234.567  1 234,5
_GROUPED = re.compile(r"[+-]?\d{1,3}([,.'’ \u00a0\u202f]\d{3})+([.,]\d+)?")
# 3,5 mg  120/min is no such number
_WITH_UNIT = re.compile(r"[<>+-]?\s*\d[\d.,]*\s*(%|[^\W\d_°µμ]*[°µμ]?[^\W\d_][\w/²³%]*)")
_FEW_NUMBERS = 10  # whole numbers with units that may be categories, such as 10 mg and 20 mg


def finite(column: "Column") -> Floats:
    """Return the numbers of a column, NaN where one is missing or infinite; text is refused, and so are times."""
    try:
        if getattr(column.dtype, "kind", "O") in "mMc":  # which NumPy would convert
            raise TypeError
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        raise FedskewError(
            f"column {column.name!r} holds text ({odd_one(column)!r}), and the training rows have numbers there: "
            "correct it"
        ) from None
    return np.where(np.isinf(values), np.nan, values)


def categories(column: "Column") -> tuple[Ints, list[str]]:
    """Return a category number for every row, and the categories as text, 'missing' last."""
    import pandas as pd

    try:
        codes, values = pd.factorize(column)
    except TypeError:
        raise FedskewError(
            f"column {column.name!r} holds lists or the like, expected one value per row"
        ) from None
    texts = [text_of(value) for value in values]
    texts.append(MISSING)
    # Different values may read the same (1 and "1"): they are one category.
    names = list(dict.fromkeys(texts))
    return numbers_of(texts, names)[codes], names


def numbers_of(texts: "Iterable[str]", names: "Iterable[str]") -> Ints:
    """Return the place of each text among the names."""
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[text] for text in texts], dtype=np.int64)


def text_of(value: Any) -> str:
    """Return a cell as text; whole numbers read the same in a column of numbers with and without gaps."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def is_number(text: str) -> bool:
    """Return whether a text reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_text(column: "Column") -> bool:
    """Return whether a column of a file holds text."""
    import pandas as pd

    return pd.api.types.is_object_dtype(column.dtype) or pd.api.types.is_string_dtype(column.dtype)


def refuse_other_numbers(where: str, title: str, texts: "Sequence[str]") -> None:
    """Raise an error for texts most of which are numbers in another way of writing; none of them is quoted."""
    plain = list(map(str.strip, texts))
    fix = f"or say categorical={title} or drop={title}"
    like_numbers = list(filter(_is_written_number, plain))
    if 2 * len(like_numbers) > len(plain) and not all(map(is_number, like_numbers)):
        raise FedskewError(
            f"{where}: column {title!r} holds numbers with commas, or with signs between thousands, with other texts: "
            f"write them with a decimal point and nothing between thousands, {fix}"
        )
    with_unit = list(filter(_WITH_UNIT.fullmatch, plain))
    most = 2 * (len(with_unit) + len(like_numbers)) > len(plain)
    fractions = bool(set(",.") & set("".join(with_unit)))
    if most and with_unit and (fractions or len(with_unit) > _FEW_NUMBERS):
        raise FedskewError(
            f"{where}: column {title!r} holds numbers with their unit: write the numbers alone, all in one unit, {fix}"
        )


def _is_written_number(text: str) -> bool:
    return bool(_GROUPED.fullmatch(text) or _DECIMAL_COMMA.fullmatch(text))


def odd_one(column: "Column") -> str:
    """Return the first text of a column that is no number, or else its first value."""
    texts = [text_of(value) for value in column.dropna().unique().tolist()]
    for text in texts:
        if not is_number(text):
            return text
    if not texts:
        return ""
    return texts[0]


def is_numeric(column: "Column") -> bool:
    """Return whether a column holds numbers; true and false are categories."""
    import pandas as pd

    return pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(
        column.dtype
    )


def need_column(name: str, column: str, columns: Iterable[Any]) -> None:
    """Raise an error for a missing column, with the nearest name."""
    names = [str(known) for known in columns]
    if column not in names:
        raise unknown(f"column of {name}", column, names)


def alike(title: str, other: str) -> bool:
    """Return whether two names differ in nothing but capitals, spaces and punctuation."""
    return title != other and _letters(title) == _letters(other) != ""


def _letters(title: str) -> str:
    return "".join(sign for sign in title.casefold() if sign.isalnum())


def label_columns(label: str, target: Target) -> tuple[str, ...]:
    """The columns that hold the target: one, or with labels or numbers all that are named, ``a+b+c``."""
    if target in MATRICES:
        return tuple(label.split("+"))
    return (label,)


def numbers(name: str, what: str, column: "Column") -> NDArray[np.float32]:
    """A column as float32 numbers; refuses text, and rows without a number."""
    import pandas as pd

    refuse_missing(name, what, column)
    if not pd.api.types.is_numeric_dtype(column.dtype):
        odd = _first_odd(column)
        raise FedskewError(
            f"{name}: {what} holds {odd!r}, and target=number takes numbers: correct it, or leave target= out"
        )
    # What single precision cannot hold becomes infinite, and is refused as such
    with np.errstate(over="ignore"):
        result: NDArray[np.float32] = column.to_numpy(dtype=np.float64).astype(np.float32)
    return result


def _first_odd(column: "Column") -> Any:
    """Return the first value of a column that does not read as a number, or else its first one."""
    for value in column:
        if not is_number(str(value)):
            return value
    return column.iloc[0]


def label_matrix(name: str, columns: "Mapping[str, Column]") -> NDArray[np.uint8]:
    """Columns of 0 and 1 (or of true and false) as a matrix, one column per label."""
    labels = []
    for title, column in columns.items():
        refuse_missing(name, f"column {title!r}", column)
        for value in column.unique():
            if value not in (0, 1):
                raise FedskewError(
                    f"{name}: column {title!r} holds {text_of(value)!r}, and target=labels takes 0 and 1: correct it"
                )
        labels.append(column.to_numpy().astype(np.uint8))
    return np.stack(labels, axis=1)


def number_matrix(name: str, columns: "Mapping[str, Column]") -> NDArray[np.float32]:
    """Columns of numbers as a matrix; refuses text, and rows that lack one."""
    every = []
    for title, column in columns.items():
        every.append(numbers(name, f"column {title!r}", column))
    return np.stack(every, axis=1)


def token_matrix(name: str, columns: "Mapping[str, Column]") -> NDArray[np.int64]:
    """Columns of tokens as a matrix: whole numbers, -1 where a row has none."""
    import pandas as pd

    every = []
    for title, column in columns.items():
        refuse_missing(name, f"column {title!r}", column)
        if not pd.api.types.is_integer_dtype(column.dtype):
            raise FedskewError(
                f"{name}: column {title!r} of y holds {column.dtype} values, and target=tokens takes whole numbers "
                f"from 0, or {PADDING} where there is none: correct it"
            )
        every.append(column.to_numpy(dtype=np.int64))
    return np.stack(every, axis=1)


def refuse_missing(name: str, what: str, part: "Column") -> None:
    """Raise an error if a column of targets or groups has gaps."""
    missing = part.isna().to_numpy()
    if missing.any():
        count = int(missing.sum())
        first = int(np.argmax(missing))
        raise FedskewError(
            f"{name}: {what} is missing in {count} rows (first: row {first}); fill or remove them"
        )


def refuse_fractions(name: str, what: str, part: "Column") -> None:
    """Raise an error for classes that are not whole numbers or text."""
    import pandas as pd

    if pd.api.types.is_float_dtype(part.dtype):
        values = part.to_numpy(dtype=np.float64, na_value=np.nan)
        broken = values[~np.isnan(values) & ((values != np.floor(values)) | np.isinf(values))]
        if len(broken):
            raise FedskewError(
                f"{name}: {what} holds '{broken[0]:g}', labels must be whole numbers or text: round or bin them, "
                'or learn the numbers themselves (target=number, or split(..., task="regression"))'
            )


def refuse_one_class(name: str, what: str, names: tuple[str, ...]) -> None:
    """Raise an error if there is nothing to tell apart."""
    if len(names) < 2:
        raise FedskewError(
            f"{name}: {what} holds one class only ({names[0]}); there is nothing to learn"
        )


def number_labels(
    name: str, what: str, parts: "list[Column]"
) -> tuple[list[Ints], tuple[str, ...]]:
    """Return labels of any type as 0 … K-1 in sorted order over all parts, and their names."""
    for part in parts:
        refuse_fractions(name, what, part)
    numbered, names = number_groups(name, what, parts)
    refuse_one_class(name, what, names)
    return numbered, names


def number_groups(
    name: str, what: str, parts: "list[Column]"
) -> tuple[list[Ints], tuple[str, ...]]:
    """Return values of any type as 0 … K-1 in sorted order over all parts, and their names; none may be missing."""
    codes = []
    values = []
    for part in parts:
        own_codes, own_values = distinct(name, what, part)
        codes.append(own_codes)
        values.append(own_values)
    names = names_in_order(values)
    numbered = []
    for own_codes, own_values in zip(codes, values, strict=True):
        texts = [text_of(value) for value in own_values]
        numbered.append(numbers_of(texts, names)[own_codes])
    return numbered, names


def distinct(name: str, what: str, part: "Column") -> tuple[Ints, list[Any]]:
    """Return the number of every row's value, and the values, as numbers or text; none may be missing."""
    import pandas as pd

    refuse_missing(name, what, part)
    try:
        codes, values = pd.factorize(part)
    except TypeError:
        raise FedskewError(
            f"{name}: {what} holds lists or the like, expected one number or name a row"
        ) from None
    return np.asarray(codes, dtype=np.int64), values.tolist()


def class_counts(name: str, what: str, parts: "Iterable[Column]") -> dict[Any, int]:
    """Return the rows of each class over all parts; classes are whole numbers or text."""
    rows: dict[Any, int] = {}
    for part in parts:
        refuse_fractions(name, what, part)
        codes, values = distinct(name, what, part)
        counts = np.bincount(codes, minlength=len(values)).tolist()
        for value, count in zip(values, counts, strict=True):
            key = value
            if not isinstance(value, (int, float)):
                key = text_of(value)
            rows[key] = rows.get(key, 0) + count
    return rows


def names_in_order(parts: Iterable[Iterable[Any]]) -> tuple[str, ...]:
    """Return the values of all parts as text, in sorted order: numbers by size, text and mixtures by the alphabet.

    >>> names_in_order([[10, 9], [2.0]]), names_in_order([[10, 9], ["9", "b"]])
    (('2', '9', '10'), ('10', '9', 'b'))
    """
    values: list[Any] = []
    kinds = set()
    for part in parts:
        own = list(part)
        values.extend(own)
        if own:
            kinds.add(all(isinstance(value, (int, float)) for value in own))
    if len(kinds) > 1:
        # 1 here and "1" there are the same
        values = [text_of(value) for value in values]
    try:
        ordered = sorted(set(values))
    except TypeError:  # numbers and text in one column have no order of their own
        ordered = sorted(set(values), key=str)
    return tuple(dict.fromkeys(text_of(value) for value in ordered))
