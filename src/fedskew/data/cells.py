"""The cells of a table's columns: numbers, categories, classes, and what is refused in each."""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.streams import Floats, Ints
from fedskew.data.targets import Target

if TYPE_CHECKING:
    import pandas as pd

    Frame: TypeAlias = pd.DataFrame
    Column: TypeAlias = pd.Series[Any]

MISSING, OTHER = "missing", "other"
DECIMAL_COMMAS = "decimal commas"  # in the attrs of a table: its columns in which numbers have one
_EXPONENT = r"(e[+-]?\d+)?"
# 5,2  1.234,5  7
_DECIMAL_COMMA = re.compile(rf"[+-]?(\d+|\d{{1,3}}(\.\d{{3}})+)(,\d+)?{_EXPONENT}", re.IGNORECASE)
# Numbers whose comma, or point, stands before no thousands: 5,2 and 0,125 but not 1,234.
_NO_THOUSANDS = re.compile(rf"[+-]?(0,\d+|[\d.]+,(\d{{1,2}}|\d{{4,}})){_EXPONENT}", re.IGNORECASE)
_DECIMAL_POINT = re.compile(rf"[+-]?(0?\.\d+|\d+\.(\d{{1,2}}|\d{{4,}})){_EXPONENT}", re.IGNORECASE)
# 1,234  1.234.567  1 234,5
_GROUPED = re.compile(r"[+-]?\d{1,3}([,.'’ \u00a0\u202f]\d{3})+([.,]\d+)?")


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
            f"column {column.name!r} holds lists or the like, expected one value a row"
        ) from None
    texts = [*(text_of(value) for value in values), MISSING]
    # Different values may read the same (1 and "1"): they are one category.
    names = list(dict.fromkeys(texts))
    position = {text: number for number, text in enumerate(names)}
    return np.array([position[text] for text in texts], dtype=np.int64)[codes], names


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


def with_decimal_commas(
    where: str, frame: "Frame", left_out: "Container[str]", as_text: "Callable[[list[str]], Frame]"
) -> "Frame":
    """Return a table of a file in which numbers are written with a decimal comma, if it is one, with these as numbers.

    It is one if all texts of a column read as such numbers, a comma in one of them can stand before no thousands (5,2
    but not 1,234), and no other column has decimal points. ``as_text`` reads columns again as they are written: points
    that may divide thousands, and that the first reading has taken for decimal ones, are refused.
    """
    found: dict[str, Column] = {}
    for title, column in frame.items():
        if title in left_out or not is_text(column):
            continue
        texts = column.dropna().astype(str).str.strip()
        if texts.str.fullmatch(_DECIMAL_COMMA).all() and texts.str.contains(",", regex=False).any():
            found[str(title)] = texts
    if not any(texts.str.fullmatch(_NO_THOUSANDS).any() for texts in found.values()):
        return frame
    with_points = []
    for title in frame.columns:
        if getattr(frame[title].dtype, "kind", "O") == "f":
            with_points.append(str(title))
    if with_points:
        written = as_text(with_points)
    else:
        written = frame[[]]
    if any(
        column.dropna().str.strip().str.fullmatch(_DECIMAL_POINT).any()
        for _, column in written.items()
    ):
        return frame
    for title, column in written.items():
        if column.dropna().str.contains(".", regex=False).any():
            raise FedskewError(
                f"{where}: column {next(iter(found))!r} has decimal commas, and column {title!r} has points: write "
                f"numbers in one way, say categorical={next(iter(found))}, or leave one out with drop={title}"
            )
    frame = frame.copy()
    for title, texts in found.items():
        plain = texts.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        frame[title] = plain.astype(float).reindex(frame.index)
    frame.attrs[DECIMAL_COMMAS] = list(found)
    return frame


def is_text(column: "Column") -> bool:
    """Return whether a column of a file holds text."""
    import pandas as pd

    return pd.api.types.is_object_dtype(column.dtype) or pd.api.types.is_string_dtype(column.dtype)


def refuse_other_numbers(where: str, title: str, texts: "Sequence[str]") -> None:
    """Raise an error for texts most of which are numbers in another way of writing; none of them is quoted."""
    numbers = []
    for text in texts:
        if _GROUPED.fullmatch(text.strip()) or _DECIMAL_COMMA.fullmatch(text.strip()):
            numbers.append(text)
    odd = [text for text in numbers if not is_number(text)]
    if not odd or 2 * len(numbers) <= len(texts):
        return
    raise FedskewError(
        f"{where}: column {title!r} holds numbers with commas, or with signs between thousands: write them with a "
        f"decimal point and nothing between thousands, or say categorical={title} or drop={title}"
    )


def odd_one(column: "Column") -> str:
    """Return the first text of a column that is no number, or else its first value."""
    texts = [text_of(value) for value in column.dropna().unique().tolist()]
    return next((text for text in texts if not is_number(text)), texts[0] if texts else "")


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
    """The columns that hold the target: one, or with ``target=labels`` all that are named, ``a+b+c``."""
    if target == "labels":
        return tuple(label.split("+"))
    return (label,)


def numbers(name: str, what: str, column: "Column") -> NDArray[np.float32]:
    """A column as float32 numbers; refuses text, and rows without a number."""
    import pandas as pd

    refuse_missing(name, what, column)
    if not pd.api.types.is_numeric_dtype(column.dtype):
        odd = next((value for value in column if not is_number(str(value))), column.iloc[0])
        raise FedskewError(
            f"{name}: {what} holds {odd!r}, and target=number takes numbers: correct it, or leave target= out"
        )
    # What single precision cannot hold becomes infinite, and is refused as such
    with np.errstate(over="ignore"):
        result: NDArray[np.float32] = column.to_numpy(dtype=np.float64).astype(np.float32)
    return result


def label_matrix(name: str, columns: "Mapping[str, Column]") -> NDArray[np.uint8]:
    """Columns of 0 and 1 (or of true and false) as a matrix, one column a label."""
    result = []
    for title, column in columns.items():
        refuse_missing(name, f"column {title!r}", column)
        odd = next((value for value in column.unique() if value not in (0, 1)), None)
        if odd is not None:
            raise FedskewError(
                f"{name}: column {title!r} holds {text_of(odd)}, and target=labels takes 0 and 1: correct it"
            )
        result.append(column.to_numpy().astype(np.uint8))
    return np.stack(result, axis=1)


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
                f"{name}: {what} holds {broken[0]:g}, labels must be whole numbers or text: round or bin them, "
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
    found, names = number_groups(name, what, parts)
    refuse_one_class(name, what, names)
    return found, names


def number_groups(
    name: str, what: str, parts: "list[Column]"
) -> tuple[list[Ints], tuple[str, ...]]:
    """Return values of any type as 0 … K-1 in sorted order over all parts, and their names; none may be missing."""
    found = [distinct(name, what, part) for part in parts]
    names = names_in_order([values for _, values in found])
    place = {text: number for number, text in enumerate(names)}
    ranks = []
    for _, values in found:
        ranks.append(np.array([place[text_of(value)] for value in values], dtype=np.int64))
    return [rank[codes] for rank, (codes, _) in zip(ranks, found, strict=True)], names


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
    result: dict[Any, int] = {}
    for part in parts:
        refuse_fractions(name, what, part)
        codes, values = distinct(name, what, part)
        plain = []
        for value in values:
            plain.append(value if isinstance(value, (int, float)) else text_of(value))
        for value, count in zip(
            plain, np.bincount(codes, minlength=len(plain)).tolist(), strict=True
        ):
            result[value] = result.get(value, 0) + count
    return result


def names_in_order(parts: Iterable[Iterable[Any]]) -> tuple[str, ...]:
    """Return the values of all parts as text, in sorted order: numbers by size, text and mixtures by the alphabet.

    >>> names_in_order([[10, 9], [2.0]]), names_in_order([[10, 9], ["9", "b"]])
    (('2', '9', '10'), ('10', '9', 'b'))
    """
    lists = [list(part) for part in parts]
    if len({all(isinstance(value, (int, float)) for value in part) for part in lists if part}) > 1:
        # 1 here and "1" there are the same
        lists = [[text_of(value) for value in part] for part in lists]
    values = set()
    for part in lists:
        for value in part:
            values.add(value)
    try:
        ordered = sorted(values)
    except TypeError:  # numbers and text in one column have no order of their own
        ordered = sorted(values, key=str)
    return tuple(dict.fromkeys(text_of(value) for value in ordered))
