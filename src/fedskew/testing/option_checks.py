"""Checks of the hyper-parameters: declared, documented, frozen, spelled, and validated."""

import inspect
import math
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from fedskew.algorithms.contract import Algorithm, algorithms, resolve
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Option, options_of
from fedskew.testing.check_report import ContractError, Passed
from fedskew.testing.lab import Lab

UNKNOWN = "no_such_option"


def options_are_guarded(lab: Lab) -> Passed:
    """Check that every bad value is rejected with a message that names the option, all problems at once."""
    algorithm = lab.algorithm
    options = refused = 0
    problems: list[str] = []
    for part in algorithm.parts or (type(algorithm),):
        alone = part(**vars(algorithm.own(part)))
        known = options_of(part)
        options += len(known)
        problems += _undocumented(part, known)
        for option in known.values():
            for value in bad_values(option):
                refused += 1
                problem = _accepts(alone, option.name, value, option)
                if problem:
                    problems.append(problem)
    problems += [
        *_not_frozen(algorithm),
        *_unknown(algorithm),
        *_misspelled(algorithm),
    ]
    if problems:
        raise ContractError("; ".join(problems))
    registered = algorithms.name_of(type(algorithm)) is not None
    if registered:
        spelled = f"{algorithm} reads back"
    else:
        spelled = "not registered, so no spelling to read back"
    return Passed(
        f"{options} option{'' if options == 1 else 's'}, {refused} bad values refused; frozen, documented; "
        f"{spelled}"
    )


def bad_values(option: Option) -> list[Any]:
    """Return values that the option must reject: of another type, not finite, or just beyond its bounds."""
    kinds = list(_kinds(option.type))
    values: list[Any] = [object()]
    numeric = {int, float} & set(kinds)
    if numeric and str not in kinds:
        values += [math.nan, math.inf, -math.inf, "many", *([] if bool in kinds else [True])]
    if numeric == {int}:
        values.append(1.5)
    if bool in kinds and str not in kinds:
        values.append("perhaps")
    if any(get_origin(kind) is Literal for kind in kinds) and str not in kinds:
        values.append("neither of them")
    if option.bounds is not None and numeric:
        values += _past_the_ends(option, whole=numeric == {int})
    if get_origin(option.type) is tuple:
        return [(value,) for value in values]
    return values


def _kinds(kind: Any) -> Iterator[Any]:
    """Return the plain types inside unions and tuples."""
    if get_origin(kind) in (Union, types.UnionType, tuple):
        for part in get_args(kind):
            yield from _kinds(part)
    else:
        yield kind


def _past_the_ends(option: Option, whole: bool) -> Iterator[float]:
    bounds = option.bounds
    assert bounds is not None
    for end, open_end, away in (
        (bounds.low, bounds.above, -math.inf),
        (bounds.high, bounds.below, math.inf),
    ):
        if math.isinf(end):
            continue
        if whole:
            yield int(end) if open_end else int(end) + int(math.copysign(1, away))
        else:
            yield end if open_end else math.nextafter(end, away)


def _accepts(algorithm: Algorithm, name: str, value: Any, option: Option) -> str | None:
    """Return what is wrong about how the algorithm handles a bad value; None if it rejects it as it should."""
    shown = f"{name}={'an object' if type(value) is object else value!r}"
    try:
        type(algorithm)(**{**algorithm.options(), name: value})
    except FedskewError as refusal:
        if re.search(rf"\b{name}\b", str(refusal)):
            return None
        return f"{shown} is refused without naming {name}: {refusal}"
    except Exception as other:  # any other exception than the one for users
        return f"{shown} raises {type(other).__name__}, not FedskewError"
    if option.bounds:
        limit = f"it must be {option.bounds}"
    else:
        limit = f"it must be {option.type_name()}, Annotated with Bounds"
    return f"{shown} is accepted, {limit}; a __post_init__ must call super().__post_init__()"


def _undocumented(kind: type[Algorithm], known: Mapping[str, Option]) -> Iterator[str]:
    doc = kind.__doc__ or ""
    if not doc or doc.startswith(f"{kind.__name__}("):  # the default docstring of a dataclass
        yield "the class has no docstring, which is its help text"
    for option in known.values():
        if not option.help:
            yield f"option {option.name} is not in the docstring: add it under Args"
    for name, annotation in inspect.get_annotations(kind).items():
        if name not in known and ClassVar not in (annotation, get_origin(annotation)):
            yield f"{name} is annotated but no option: use @dataclass(frozen=True) for the class, or make it a ClassVar"


def _not_frozen(algorithm: Algorithm) -> Iterator[str]:
    name = next(iter(algorithm.options()), "extra")
    try:
        setattr(replace(algorithm), name, None)
    except AttributeError:  # FrozenInstanceError is one
        return
    yield f"{name} can be set after construction: decorate the class with @dataclass(frozen=True)"


def _unknown(algorithm: Algorithm) -> Iterator[str]:
    try:
        type(algorithm)(**{**algorithm.options(), UNKNOWN: 1})
        yield f"an unknown option, {UNKNOWN}=1, is accepted"
    except (TypeError, FedskewError):
        pass
    name = algorithms.name_of(type(algorithm))
    if name is None:
        return
    try:
        resolve(f"{name}:{UNKNOWN}=1")
        yield f"{name}:{UNKNOWN}=1 is accepted"
    except FedskewError as refusal:
        if UNKNOWN not in str(refusal):
            yield f"{name}:{UNKNOWN}=1 is refused without naming {UNKNOWN}: {refusal}"


def _misspelled(algorithm: Algorithm) -> Iterator[str]:
    if algorithms.name_of(type(algorithm)) is None:
        return
    try:
        same = resolve(str(algorithm)) == algorithm
    except FedskewError as refusal:
        yield f"its spelling {algorithm} is refused: {refusal}"
        return
    if not same:
        yield f"its spelling {algorithm} reads back as {resolve(str(algorithm))}"
