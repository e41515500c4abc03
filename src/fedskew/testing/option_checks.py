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
from fedskew.core.registry import Bounds, Option, options_of
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
    spelled = f"{algorithm} reads back"
    if algorithms.name_of(type(algorithm)) is None:
        spelled = "not registered, so no spelling to read back"
    count = f"{options} options"
    if options == 1:
        count = "1 option"
    return Passed(f"{count}, {refused} bad values refused; frozen, documented; {spelled}")


def bad_values(option: Option) -> list[Any]:
    """Return values that the option must reject: of another type, not finite, or just beyond its bounds."""
    kinds = list(_kinds(option.type))
    numeric = {int, float} & set(kinds)
    values = [object(), *_of_another_type(kinds, numeric)]
    if option.bounds is not None and numeric:
        values += _past_the_ends(option.bounds, whole=numeric == {int})
    if get_origin(option.type) is tuple:
        return [(value,) for value in values]
    return values


def _of_another_type(kinds: list[Any], numeric: set[type]) -> Iterator[Any]:
    """Yield values that are of none of these types, of which ``numeric`` are numbers."""
    text = str in kinds
    if numeric and not text:
        yield from (math.nan, math.inf, -math.inf, "many")
        if bool not in kinds:
            yield True
    if numeric == {int}:
        yield 1.5
    if text:
        return
    if bool in kinds:
        yield "perhaps"
    if any(get_origin(kind) is Literal for kind in kinds):
        yield "neither of them"


def _kinds(kind: Any) -> Iterator[Any]:
    """Return the plain types inside unions and tuples."""
    if get_origin(kind) in (Union, types.UnionType, tuple):
        for part in get_args(kind):
            yield from _kinds(part)
    else:
        yield kind


def _past_the_ends(bounds: Bounds, whole: bool) -> Iterator[float]:
    """Yield the nearest numbers beyond the bounds; a bound that does not belong to them is one itself."""
    ends = (
        (bounds.low, bounds.above, -math.inf),
        (bounds.high, bounds.below, math.inf),
    )
    for end, open_end, away in ends:
        if math.isinf(end):
            continue
        if whole:
            end = int(end)
            past: float = end + int(math.copysign(1, away))
        else:
            past = math.nextafter(end, away)
        if open_end:
            past = end
        yield past


def _accepts(algorithm: Algorithm, name: str, value: Any, option: Option) -> str | None:
    """Return what is wrong about how the algorithm handles a bad value; None if it rejects it as it should."""
    shown = f"{name}={value!r}"
    if type(value) is object:
        shown = f"{name}=an object"
    try:
        type(algorithm)(**{**algorithm.options(), name: value})
    except FedskewError as refusal:
        if re.search(rf"\b{name}\b", str(refusal)):
            return None
        return f"{shown} is refused without naming {name}: {refusal}"
    except Exception as other:  # any other exception than the one for users
        return f"{shown} raises {type(other).__name__}, not FedskewError"
    limit = f"it must be {option.type_name()}, Annotated with Bounds"
    if option.bounds:
        limit = f"it must be {option.bounds}"
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
