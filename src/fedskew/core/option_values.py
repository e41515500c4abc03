"""Values of options: converted to the type that an annotation names, and that type in words."""

import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "none",
    Mapping: "a table",
}
# What a value that is not of the wanted type makes ``converted`` raise
NOT_OF_TYPE = (TypeError, KeyError, ValueError, OverflowError)


def type_name(kind: Any) -> str:
    """Return a type in words for users.

    >>> type_name(int | None), type_name(tuple[str, ...])
    ('a whole number or none', 'a list of text (a+b+c)')
    """
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(type_name(part) for part in get_args(kind))
    if get_origin(kind) is tuple:
        return f"a list of {type_name(get_args(kind)[0])} (a+b+c)"
    return _NAMES.get(get_origin(kind) or kind, getattr(kind, "__name__", str(kind)))


def converted(value: Any, kind: Any) -> Any:
    """Return ``value`` as ``kind``; raise one of ``NOT_OF_TYPE`` if it is not one.

    >>> converted("0.5+1", tuple[float, ...]), converted("none", int | None)
    ((0.5, 1.0), None)
    """
    origin = get_origin(kind)
    if origin is Annotated:
        return converted(value, get_args(kind)[0])
    if origin is Literal:
        return _one_of(value, get_args(kind))
    if origin in (Union, types.UnionType):
        return _of_union(value, get_args(kind))
    if origin is tuple:
        return _tuple_of(value, get_args(kind)[0])
    if kind is bool:
        return _TRUTH[str(value).lower()]
    if isinstance(value, bool):
        raise TypeError(value)
    return _plain(value, kind)


def _plain(value: Any, kind: Any) -> Any:
    """Return a number, a text or a table."""
    if kind is int:
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(value)
        return int(value)
    if kind is float:
        return float(value)
    if kind is str and isinstance(value, (int, float)):
        return str(value)
    if not isinstance(value, get_origin(kind) or kind):
        raise TypeError(value)
    return value


def _one_of(value: Any, allowed: tuple[Any, ...]) -> Any:
    for one in allowed:
        if str(value) == str(one):
            return one
    raise ValueError(value)


def _tuple_of(value: Any, kind: Any) -> tuple[Any, ...]:
    parts = value
    if isinstance(value, str):
        parts = value.split("+")
    return tuple(converted(part, kind) for part in parts)


def _of_union(value: Any, kinds: tuple[Any, ...]) -> Any:
    if type(None) in kinds and (value is None or str(value).lower() == "none"):
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return converted(value, kind)
            except NOT_OF_TYPE:
                continue
    raise ValueError(value)
