"""Registries of components by name; options, defaults, bounds and help are read from signatures and docstrings."""

import importlib
import inspect
import math
import pkgutil
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.plugins import OWN, load_entry_points, place

T = TypeVar("T", bound=Callable[..., Any])
Thing = TypeVar("Thing", bound=Callable[..., Any])
YOURS = "; for one of your own: fedskew --import FILE"  # where names are not known


@dataclass(frozen=True)
class Bounds:
    """Allowed range of a number, declared in its annotation: ``Annotated[float, Bounds(0, 1)]``."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # the low end itself is not allowed
    below: bool = False  # the high end itself is not allowed

    def holds(self, value: float) -> bool:
        """Return whether the value is finite and within the bounds."""
        if self.above:
            low = value > self.low
        else:
            low = value >= self.low
        if self.below:
            high = value < self.high
        else:
            high = value <= self.high
        # A whole number may be too large for math.isfinite
        return low and high and abs(value) < math.inf

    def __str__(self) -> str:
        if self.low == -math.inf:
            low = ""
        else:
            low = f"{'>' if self.above else '>='} {self.low:g}"
        if self.high == math.inf:
            high = ""
        else:
            high = f"{'<' if self.below else '<='} {self.high:g}"
        return " and ".join(part for part in (low, high) if part) or "finite"


# Beyond it seeds repeat, whole numbers need more than 64 bits, and products of two options overflow float32.
LIMIT = 2**63
Positive = Bounds(0, above=True)
NonNegative = Bounds(0)
AtLeastOne = Bounds(1)
Share = Bounds(0, 1)  # a fraction, both ends allowed
PartialShare = Bounds(0, 1, below=True)  # a fraction below 1


@dataclass(frozen=True)
class Option:
    """One option of a component: everything that help, validation and docs need."""

    name: str
    type: Any
    default: Any  # inspect.Parameter.empty: required
    bounds: Bounds | None
    help: str

    @property
    def required(self) -> bool:
        """Return whether the option has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def numeric(self) -> bool:
        """Return whether it takes a number."""
        return bool({int, float} & {self.type, *get_args(self.type)})

    def type_name(self) -> str:
        """Return the type in words for users."""
        return _type_name(self.type)

    def convert(self, value: Any, where: str) -> Any:
        """Return ``value`` (text from the command line, or a typed value) as this option's type, within its bounds."""
        try:
            result = _convert(value, self.type)
        except (TypeError, KeyError, ValueError, OverflowError):
            raise FedskewError(
                f"{where}: {self.name}={_show(value)} is not {self.type_name()}"
            ) from None
        if isinstance(result, tuple):
            parts = result
        else:
            parts = (result,)
        for part in parts:
            if isinstance(part, str) and not is_utf8(part):
                raise FedskewError(
                    f"{where}: {self.name}={_show(value)} is not UTF-8 text: rename what it names"
                )
            if not isinstance(part, (int, float)):
                continue
            if self.bounds and not self.bounds.holds(part):
                raise FedskewError(
                    f"{where}: {self.name}={_show(value)} is out of range, it must be {self.bounds}"
                )
            if abs(part) >= LIMIT:
                raise FedskewError(
                    f"{where}: {self.name}={_show(value)} is too large: numbers stay below 2^63"
                )
        return result


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_type_name(part) for part in get_args(kind))
    if get_origin(kind) is tuple:
        return f"a list of {_type_name(get_args(kind)[0])} (a+b+c)"
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "none",
        Mapping: "a table",
    }
    return names.get(get_origin(kind) or kind, getattr(kind, "__name__", str(kind)))


def _show(value: Any) -> str:
    text = str(value)
    if len(text) <= 60:
        return text
    return text[:57] + "..."


def is_utf8(text: str) -> bool:
    """Return whether text can be encoded; names of files may contain bytes that are not text.

    >>> is_utf8("größe"), is_utf8("gr\\udcf6")
    (True, False)
    """
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


_TRUTH = {"true": True, "yes": True, "false": False, "no": False}


def _convert(value: Any, kind: Any) -> Any:
    """Return ``value`` as ``kind``; raise TypeError, KeyError, ValueError or OverflowError if it is not one."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _convert(value, get_args(kind)[0])
    if origin is Literal:
        for allowed in get_args(kind):
            if str(value) == str(allowed):
                return allowed
        raise ValueError(value)
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(kind))
    if origin is tuple:
        if isinstance(value, str):
            parts = value.split("+")
        else:
            parts = value
        return tuple(_convert(part, get_args(kind)[0]) for part in parts)
    if kind is bool:
        return _TRUTH[str(value).lower()]
    if isinstance(value, bool):
        raise TypeError(value)
    if kind is int:
        if isinstance(value, float) and not value.is_integer():
            raise ValueError(value)
        return int(value)
    if kind is float:
        return float(value)
    if kind is str and isinstance(value, (int, float)):
        return str(value)
    if not isinstance(value, origin or kind):
        raise TypeError(value)
    return value


def _convert_union(value: Any, kinds: tuple[Any, ...]) -> Any:
    if type(None) in kinds and (value is None or str(value).lower() == "none"):
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _convert(value, kind)
            except (TypeError, KeyError, ValueError, OverflowError):
                continue
    raise ValueError(value)


def options_of(thing: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a function (its keyword-only parameters) or of a dataclass (its fields)."""
    if is_dataclass(thing):
        target = thing.__init__
    else:
        target = thing
    hints = get_type_hints(target, include_extras=True)
    documented: dict[str, str] = {}
    for source in reversed(inspect.getmro(thing)) if isinstance(thing, type) else [thing]:
        documented |= argument_help(
            inspect.cleandoc(source.__doc__ or "")
        )  # a derived class repeats only what it changes
    keyword_kinds = (inspect.Parameter.KEYWORD_ONLY,)
    if is_dataclass(thing):
        keyword_kinds += (inspect.Parameter.POSITIONAL_OR_KEYWORD,)  # type: ignore[assignment]
    result = {}
    for name, parameter in inspect.signature(thing).parameters.items():
        if parameter.kind not in keyword_kinds:
            continue
        kind = hints[name]
        bounds = None
        if get_origin(kind) is Annotated:
            kind, *extras = get_args(kind)
            bounds = next((extra for extra in extras if isinstance(extra, Bounds)), None)
        result[name] = Option(name, kind, parameter.default, bounds, documented.get(name, ""))
    return result


def argument_help(doc: str) -> dict[str, str]:
    """Return the ``Args:`` section of a docstring as name -> text.

    >>> argument_help("Idea.\\n\\nArgs:\\n    mu: strength of the term,\\n        at least 0\\n    tau: other")
    {'mu': 'strength of the term, at least 0', 'tau': 'other'}
    """
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", doc, re.MULTILINE)
    found: dict[str, str] = {}
    name = ""
    for line in (section.group(1) if section else "").splitlines():
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name = start.group(1)
            found[name] = start.group(2).strip()
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found


def validate(thing: Callable[..., Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return ``values`` converted to the types of the options; unknown, missing and out-of-range ones are errors."""
    known = options_of(thing)
    for name in values:
        if name not in known:
            if not known:
                raise FedskewError(f"{where} takes no options, got {name!r}")
            raise unknown(f"option of {where}", name, known)
    for option in known.values():
        if option.required and option.name not in values:
            raise FedskewError(f"{where} needs {option.name}=: {option.help or option.type_name()}")
    result: dict[str, Any] = {}
    for name, value in values.items():
        result[name] = known[name].convert(value, where)
    return result


@dataclass(frozen=True)
class Choice:
    """A registered name with its given options, as written ``name:key=value``."""

    name: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        given = ",".join(f"{key}={spelled(value)}" for key, value in self.options.items())
        if given:
            return f"{self.name}:{given}"
        return self.name


@dataclass(frozen=True)
class Composition(Choice):
    """A choice with additions, as written ``name:key=value + name:key=value``."""

    added: tuple[Choice, ...] = ()

    def __str__(self) -> str:
        return " + ".join(map(str, (Choice(self.name, self.options), *self.added)))


def compose(parts: Iterable[Choice]) -> Choice:
    """Return the parts as one choice; a single part is returned unchanged."""
    first, *added = parts
    if added:
        return Composition(first.name, first.options, tuple(added))
    return first


def parts_of(spec: Any, kind: str) -> list[Any]:
    """Return the parts of a specification in order; one that is neither text nor a composition is its only part.

    >>> [part.name for part in parts_of("dirichlet:alpha=0.3 + noise:sigma=0.1", "skew")]
    ['dirichlet', 'noise']
    """
    if isinstance(spec, str):
        parts = [parse(part, kind) for part in re.split(r"\s+\+\s+", spec)]
        for part in parts:
            if "+" in part.name:  # in an option's value a plus makes a list
                apart = " + ".join(name.strip() for name in part.name.split("+"))
                raise FedskewError(
                    f"{kind} {spec!r}: a plus between parts has a space on each side: {apart}"
                )
        return parts
    if isinstance(spec, Composition):
        return [Choice(spec.name, spec.options), *spec.added]
    return [spec]


def spelled(value: Any) -> str:
    """Return an option's value as it is written on the command line."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return "+".join(map(str, value))
    return str(value)


def parse(text: str, kind: str) -> Choice:
    """Return the choice in ``name:key=value,key=value``.

    >>> parse("dirichlet:alpha=0.2,min_size=5", "skew")
    Choice(name='dirichlet', options={'alpha': '0.2', 'min_size': '5'})
    """
    name, _, rest = text.strip().partition(":")
    if not name:
        raise FedskewError(f"empty {kind}: write name or name:key=value,key=value")
    options: dict[str, Any] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise FedskewError(f"{kind} {text!r}: {part!r} is not key=value")
        if key in options:
            raise FedskewError(f"{kind} {text!r}: {key} is given twice")
        options[key] = value.strip()
    return Choice(name.strip(), options)


class Registry(Generic[T]):
    """The components of one kind; the modules of one package are imported when a name is first looked up.

    What installed packages offer as entry points is imported when a name is not known, or when all are listed.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        if kind == "data set":
            self._group = "fedskew.data"
        else:
            self._group = f"fedskew.{kind}s"
        self._things: dict[str, T] = {}
        self._loaded = self._searched = False
        self.beside: Registry[Any] | None = None  # another registry, whose names must be others

    def register(self, name: str) -> Callable[[Thing], Thing]:
        """Decorator: make the class or function available as ``name``; it stays what it is, for type checkers too."""

        def keep(thing: Thing) -> Thing:
            own = place(thing).partition(".")[0] != self._package.partition(".")[0]
            if own:
                # So that a name that clashes is the fault of the one that comes from outside
                self.loaded()
            if not re.fullmatch(r"\w[\w.-]*", name):
                raise FedskewError(
                    f"{self.kind} {name!r}: write its name with letters, digits, dashes and dots alone"
                )
            for taken in filter(None, (self, self.beside)):
                if name in taken._things:
                    both = f"{place(taken._things[name])} and {place(thing)}"
                    raise FedskewError(
                        f"{self.kind} {name!r} is registered twice, by {both}: choose another name"
                    )
            if not inspect.getdoc(thing):
                raise FedskewError(
                    f"{self.kind} {name!r} needs a docstring: its help comes from there"
                )
            self._things[name] = cast(T, thing)
            if own:
                OWN.append(thing)
            return thing

        return keep

    def loaded(self) -> dict[str, T]:
        """Return what is registered by name, without what entry points would add."""
        if not self._loaded:
            self._loaded = True
            package = importlib.import_module(self._package)
            for module in pkgutil.walk_packages(package.__path__, f"{self._package}."):
                importlib.import_module(module.name)
        return self._things

    def _searched_for(self) -> dict[str, T]:
        """Return what is registered by name, entry points included."""
        self.loaded()
        if not self._searched:
            self._searched = True
            load_entry_points(self._group)
        return self._things

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._searched_for()))

    def __contains__(self, name: str) -> bool:
        return name in self.loaded() or name in self._searched_for()

    def get(self, name: str) -> T:
        """Return the component of that name, or raise an error that names the nearest."""
        if name not in self:
            raise unknown(self.kind, name, self._things, YOURS)
        return self._things[name]

    def summary(self, name: str) -> str:
        """Return the first line of its docstring."""
        return (inspect.getdoc(self.get(name)) or "").splitlines()[0]

    def options(self, name: str) -> dict[str, Option]:
        """Return its options by name."""
        return options_of(self.get(name))

    def choose(self, spec: "str | Mapping[str, Any] | Choice") -> Choice:
        """Validate a specification (text, or a table with ``name``) and return a choice with typed options."""
        if isinstance(spec, str):
            choice = parse(spec, self.kind)
        elif isinstance(spec, Choice):
            choice = spec
        elif isinstance(spec, Mapping) and isinstance(spec.get("name"), str):
            choice = Choice(
                spec["name"],
                {key.replace("-", "_"): value for key, value in spec.items() if key != "name"},
            )
        else:
            raise FedskewError(
                f"{self.kind} {_show(spec)}: write it as text, name:key=value, or as a table with a name"
            )
        thing = self.get(choice.name)
        return Choice(choice.name, validate(thing, choice.options, f"{self.kind} {choice.name}"))

    def full(self, choice: Choice) -> Choice:
        """Return the choice with every option, including defaults."""
        known = self.options(choice.name)
        return Choice(
            choice.name,
            {name: choice.options.get(name, option.default) for name, option in known.items()},
        )

    def brief(self, choice: Choice) -> Choice:
        """Return the choice without the options that are at their defaults."""
        known = self.options(choice.name)
        return Choice(
            choice.name,
            {key: value for key, value in choice.options.items() if value != known[key].default},
        )

    def name_of(self, thing: Any) -> str | None:
        """Return the name under which a class or function is registered, or None."""
        return next((name for name, known in self.loaded().items() if known is thing), None)


class Composing(Registry[T]):
    """A registry whose choices may have several parts, each registered here or in another registry."""

    def home(self, part: Choice) -> Registry[Any]:
        """Return the registry of a part."""
        return self

    def full(self, choice: Choice) -> Choice:
        """Return the choice with every option of every part."""
        return compose(Registry.full(self.home(part), part) for part in parts_of(choice, self.kind))

    def brief(self, choice: Choice) -> Choice:
        """Return the choice without the options that are at their defaults, for each part."""
        return compose(
            Registry.brief(self.home(part), part) for part in parts_of(choice, self.kind)
        )
