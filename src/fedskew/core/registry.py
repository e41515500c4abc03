"""Registries of components by name; options, defaults, bounds and help are read from signatures and docstrings."""

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from types import MappingProxyType
from typing import (
    Annotated,
    Any,
    Generic,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from weakref import WeakKeyDictionary

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.option_values import NOT_OF_TYPE, converted, type_name
from fedskew.core.plugins import OWN, load_entry_points, place

T = TypeVar("T", bound=Callable[..., Any])
Thing = TypeVar("Thing", bound=Callable[..., Any])
YOURS = " (one of your own: fedskew --import FILE)"  # where names are not known


@dataclass(frozen=True)
class Bounds:
    """Allowed range of a number, declared in its annotation: ``Annotated[float, Bounds(0, 1)]``."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # the low end itself is not allowed
    below: bool = False  # the high end itself is not allowed

    def holds(self, value: float) -> bool:
        """Return whether the value is finite and within the bounds."""
        if self.above and value == self.low:
            return False
        if self.below and value == self.high:
            return False
        # A whole number may be too large for math.isfinite
        return self.low <= value <= self.high and abs(value) < math.inf

    def __str__(self) -> str:
        ends = []
        if self.low != -math.inf and self.above:
            ends.append(f"> {self.low:g}")
        elif self.low != -math.inf:
            ends.append(f">= {self.low:g}")
        if self.high != math.inf and self.below:
            ends.append(f"< {self.high:g}")
        elif self.high != math.inf:
            ends.append(f"<= {self.high:g}")
        return " and ".join(ends) or "finite"


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
        return type_name(self.type)

    def convert(self, value: Any, where: str) -> Any:
        """Return ``value`` (text from the command line, or a typed value) as this option's type, within its bounds."""
        try:
            typed = converted(value, self.type)
        except NOT_OF_TYPE:
            raise FedskewError(
                f"{where}: {self.name}={_show(value)} is not {self.type_name()}"
            ) from None
        parts = (typed,)
        if isinstance(typed, tuple):
            parts = typed
        for part in parts:
            if isinstance(part, str) and not is_utf8(part):
                raise FedskewError(
                    f"{where}: {self.name}={_show(value)} is not UTF-8 text: rename what it names"
                )
            if isinstance(part, (int, float)):
                self._check_number(part, value, where)
        return typed

    def _check_number(self, number: float, value: Any, where: str) -> None:
        """Raise an error for a number out of range; ``value`` is what the user gave."""
        if self.bounds and not self.bounds.holds(number):
            raise FedskewError(
                f"{where}: {self.name}={_show(value)} is out of range, it must be {self.bounds}"
            )
        if abs(number) >= LIMIT:
            raise FedskewError(
                f"{where}: {self.name}={_show(value)} is too large: numbers stay below 2^63"
            )


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


_options: "WeakKeyDictionary[Callable[..., Any], Mapping[str, Option]]" = WeakKeyDictionary()


def options_of(thing: Callable[..., Any]) -> Mapping[str, Option]:
    """Return the options of a function (its keyword-only parameters) or of a dataclass (its fields)."""
    if thing not in _options:
        _options[thing] = MappingProxyType(_read_options(thing))
    return _options[thing]


def _read_options(thing: Callable[..., Any]) -> dict[str, Option]:
    """Return the options by signature, annotations and docstring."""
    target = thing
    keyword_kinds: list[Any] = [inspect.Parameter.KEYWORD_ONLY]
    if is_dataclass(thing):
        target = thing.__init__
        keyword_kinds.append(inspect.Parameter.POSITIONAL_OR_KEYWORD)
    hints = get_type_hints(target, include_extras=True)
    documented = _documented(thing)
    options = {}
    for name, parameter in inspect.signature(thing).parameters.items():
        if parameter.kind not in keyword_kinds:
            continue
        kind, bounds = _with_bounds(hints[name])
        options[name] = Option(name, kind, parameter.default, bounds, documented.get(name, ""))
    return options


def _documented(thing: Callable[..., Any]) -> dict[str, str]:
    """Return the help of each argument; a derived class repeats only what it changes."""
    sources: list[Any] = [thing]
    if isinstance(thing, type):
        sources = list(reversed(inspect.getmro(thing)))
    documented: dict[str, str] = {}
    for source in sources:
        documented |= argument_help(inspect.cleandoc(source.__doc__ or ""))
    return documented


def _with_bounds(annotation: Any) -> tuple[Any, Bounds | None]:
    """Return the type in an annotation, and its bounds."""
    if get_origin(annotation) is not Annotated:
        return annotation, None
    kind, *extras = get_args(annotation)
    for extra in extras:
        if isinstance(extra, Bounds):
            return kind, extra
    return kind, None


def argument_help(doc: str) -> dict[str, str]:
    """Return the ``Args:`` section of a docstring as name -> text.

    >>> argument_help("Idea.\\n\\nArgs:\\n    mu: strength of the term,\\n        at least 0\\n    tau: other")
    {'mu': 'strength of the term, at least 0', 'tau': 'other'}
    """
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", doc, re.MULTILINE)
    if section is None:
        return {}
    texts: dict[str, str] = {}
    name = ""
    for line in section.group(1).splitlines():
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name = start.group(1)
            texts[name] = start.group(2).strip()
        elif name and line.strip():
            texts[name] += " " + line.strip()
    return texts


def validate(thing: Callable[..., Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return ``values`` converted to the types of the options; unknown, missing and out-of-range ones are errors."""
    known = options_of(thing)
    for name in values:
        if not known:
            raise FedskewError(f"{where} takes no options, got {name!r}")
        if name not in known:
            raise unknown(f"option of {where}", name, known)
    for option in known.values():
        if option.required and option.name not in values:
            raise FedskewError(f"{where} needs {option.name}=: {option.help or option.type_name()}")
    typed: dict[str, Any] = {}
    for name, value in values.items():
        typed[name] = known[name].convert(value, where)
    return typed


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
    if isinstance(spec, Composition):
        return [Choice(spec.name, spec.options), *spec.added]
    if not isinstance(spec, str):
        return [spec]
    parts = [parse(part, kind) for part in re.split(r"\s+\+\s+", spec)]
    for part in parts:
        if "+" in part.name:  # in an option's value a plus makes a list
            apart = " + ".join(map(str.strip, part.name.split("+")))
            raise FedskewError(
                f"{kind} {spec!r}: a plus between parts has a space on each side: {apart}"
            )
    return parts


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
    if not rest:
        return Choice(name.strip(), options)
    for part in rest.split(","):
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
        self._group = f"fedskew.{kind}s"
        if kind == "data set":
            self._group = "fedskew.data"
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

    def as_table(self, choice: Choice) -> dict[str, Any] | str:
        """Return a choice as a table with every option, or as text if it has several parts."""
        full = self.full(choice)
        if isinstance(full, Composition):
            return str(full)
        return {"name": full.name, **full.options}

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

    def options(self, name: str) -> Mapping[str, Option]:
        """Return its options by name."""
        return options_of(self.get(name))

    def choose(self, spec: "str | Mapping[str, Any] | Choice") -> Choice:
        """Validate a specification (text, or a table with ``name``) and return a choice with typed options."""
        if isinstance(spec, str):
            choice = parse(spec, self.kind)
        elif isinstance(spec, Choice):
            choice = spec
        elif isinstance(spec, Mapping) and isinstance(spec.get("name"), str):
            options = {}
            for key, value in spec.items():
                if key != "name":
                    options[key.replace("-", "_")] = value
            choice = Choice(spec["name"], options)
        else:
            raise FedskewError(
                f"{self.kind} {_show(spec)}: write it as text, name:key=value, or as a table with a name"
            )
        thing = self.get(choice.name)
        return Choice(choice.name, validate(thing, choice.options, f"{self.kind} {choice.name}"))

    def full(self, choice: Choice) -> Choice:
        """Return the choice with every option, including defaults."""
        options = {}
        for name, option in self.options(choice.name).items():
            options[name] = choice.options.get(name, option.default)
        return Choice(choice.name, options)

    def brief(self, choice: Choice) -> Choice:
        """Return the choice without the options that are at their defaults."""
        known = self.options(choice.name)
        options = {}
        for name, value in choice.options.items():
            if value != known[name].default:
                options[name] = value
        return Choice(choice.name, options)

    def name_of(self, thing: Any) -> str | None:
        """Return the name under which a class or function is registered, or None."""
        for name, known in self.loaded().items():
            if known is thing:
                return name
        return None


class Composing(Registry[T]):
    """A registry whose choices may have several parts, each registered here or in another registry."""

    def home(self, part: Choice) -> Registry[Any]:
        """Return the registry of a part."""
        return self

    def full(self, choice: Choice) -> Choice:
        """Return the choice with every option of every part."""
        parts = []
        for part in parts_of(choice, self.kind):
            parts.append(Registry.full(self.home(part), part))
        return compose(parts)

    def brief(self, choice: Choice) -> Choice:
        """Return the choice without the options that are at their defaults, for each part."""
        parts = []
        for part in parts_of(choice, self.kind):
            parts.append(Registry.brief(self.home(part), part))
        return compose(parts)
