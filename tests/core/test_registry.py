"""Names with options: parsing, conversion, bounds, and errors that name the fix."""

import importlib
import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import (
    AtLeastOne,
    Bounds,
    Choice,
    NonNegative,
    PartialShare,
    Positive,
    Registry,
    Share,
    options_of,
    parse,
    validate,
)


def thing(
    rows: int,
    /,
    *,
    needed: Annotated[float, Positive],
    count: Annotated[int | None, AtLeastOne] = None,
    share: Annotated[float, Share] = 0.5,
    widths: Annotated[tuple[int, ...], AtLeastOne] = (2, 3),
    kind: Literal["a", "b", 3] = "a",
    flag: bool = False,
    text: str = "",
    table: str | Mapping[str, Any] = "x",
) -> None:
    """A thing.

    Args:
        needed: how much of it,
            over two lines
        count: how many
    """


CONVERSIONS = [
    ("needed", "0.5", 0.5),
    ("needed", 2, 2.0),
    ("needed", "1e-3", 0.001),
    ("count", "7", 7),
    ("count", 7.0, 7),
    ("count", "none", None),
    ("count", "None", None),
    ("count", None, None),
    ("widths", "5", (5,)),
    ("widths", "5+4+3", (5, 4, 3)),
    ("widths", [5, "4"], (5, 4)),
    ("widths", (9,), (9,)),
    ("kind", "b", "b"),
    ("kind", "3", 3),
    ("flag", "true", True),
    ("flag", "No", False),
    ("flag", True, True),
    ("text", "abc", "abc"),
    ("text", 5, "5"),
    ("table", "name:x=1", "name:x=1"),
    ("table", {"name": "y"}, {"name": "y"}),
]


@pytest.mark.parametrize(("name", "given", "wanted"), CONVERSIONS)
def test_conversion(name: str, given: Any, wanted: Any):
    found = validate(thing, {"needed": 1, name: given}, "thing t")[name]
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "thing t needs needed=: how much of it, over two lines"),
        ({"needed": 0}, "thing t: needed=0 is out of range, it must be > 0"),
        ({"needed": "inf"}, "thing t: needed=inf is out of range"),
        ({"needed": "nan"}, "thing t: needed=nan is out of range"),
        ({"needed": "much"}, "thing t: needed=much is not a number"),
        ({"needed": True}, "needed=True is not a number"),
        ({"needed": 10**400}, "is not a number"),
        ({"needed": 1, "count": 0}, "count=0 is out of range, it must be >= 1"),
        ({"needed": 1, "count": "2.5"}, "count=2.5 is not a whole number or none"),
        ({"needed": 1, "count": 2.5}, "count=2.5 is not a whole number or none"),
        ({"needed": 1, "share": 1.01}, "share=1.01 is out of range, it must be >= 0 and <= 1"),
        ({"needed": 1, "widths": "5+0"}, r"widths=5\+0 is out of range, it must be >= 1"),
        (
            {"needed": 1, "widths": "5+x"},
            r"widths=5\+x is not a list of a whole number \(a\+b\+c\)",
        ),
        ({"needed": 1, "widths": 5}, "widths=5 is not a list of a whole number"),
        ({"needed": 1, "kind": "c"}, "kind=c is not one of a, b, 3"),
        ({"needed": 1, "flag": "maybe"}, "flag=maybe is not true or false"),
        ({"needed": 1, "text": [1]}, r"text=\[1\] is not text"),
        ({"needed": 1, "table": 2j}, "table=2j is not text or a table"),
        # A long value is cut
        ({"needed": 1, "text": [0] * 99}, r"text=\[0, .*\.\.\. is not text$"),
        (
            {"needed": 1, "shares": 1},
            "unknown option of thing t 'shares': did you mean 'share'[?] Known: count, flag",
        ),
        # Positional arguments are not options
        ({"needed": 1, "rows": 1}, "unknown option of thing t 'rows'"),
    ],
)
def test_refusals(values: dict, says: str):
    with pytest.raises(FedskewError, match=says) as caught:
        validate(thing, values, "thing t")
    assert "\n" not in str(caught.value)


def test_nothing_to_set():
    def plain(rows: int) -> None: ...

    assert validate(plain, {}, "thing p") == {}
    with pytest.raises(FedskewError, match="thing p takes no options, got 'x'"):
        validate(plain, {"x": 1}, "thing p")


def test_options_are_read_from_signature_and_docstring():
    found = options_of(thing)
    assert list(found) == ["needed", "count", "share", "widths", "kind", "flag", "text", "table"]
    assert found["needed"].required
    assert not found["count"].required
    assert found["needed"].help == "how much of it, over two lines"
    assert found["share"].help == ""
    assert (found["share"].default, found["share"].bounds) == (0.5, Share)
    assert found["count"].type_name() == "a whole number or none"


def test_a_derived_class_repeats_only_the_help_that_it_changes():
    @dataclass(frozen=True)
    class Base:
        """Base.

        Args:
            a: first
            b: second
        """

        a: int = 1
        b: int = 2

    @dataclass(frozen=True)
    class Derived(Base):
        """Derived.

        Args:
            b: other
        """

        c: Annotated[float, NonNegative] = 0.0

    assert {name: option.help for name, option in options_of(Derived).items()} == {
        "a": "first",
        "b": "other",
        "c": "",
    }


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "text"),
    [
        (Positive, [1e-300, 10**400], [0, -1, math.inf, math.nan], "> 0"),
        (NonNegative, [0, 5], [-1e-9], ">= 0"),
        (AtLeastOne, [1], [0.999], ">= 1"),
        (Share, [0, 1], [-0.1, 1.1], ">= 0 and <= 1"),
        (PartialShare, [0, 0.999], [1], ">= 0 and < 1"),
        (Bounds(), [-1e300], [-math.inf, math.nan], "finite"),
        (Bounds(high=2), [-9, 2], [2.1], "<= 2"),
    ],
)
def test_bounds(bounds: Bounds, inside: list, outside: list, text: str):
    assert all(bounds.holds(value) for value in inside)
    assert not any(bounds.holds(value) for value in outside)
    assert str(bounds) == text


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("iid", "iid", {}),
        ("  iid ", "iid", {}),
        ("iid:", "iid", {}),
        ("mlp:hidden=5+3, min-size = 4", "mlp", {"hidden": "5+3", "min_size": "4"}),
        ("csv:path=a=b", "csv", {"path": "a=b"}),
    ],
)
def test_parse(text: str, name: str, options: dict):
    assert parse(text, "skew") == Choice(name, options)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty skew: write name or name:key=value"),
        (":a=1", "empty skew"),
        ("x:a", "skew 'x:a': 'a' is not key=value"),
        ("x:=1", "'=1' is not key=value"),
        ("x:a=1,", "'' is not key=value"),
        ("x:a=1,a=2", "skew 'x:a=1,a=2': a is given twice"),
        ("x:min-size=1,min_size=2", "min_size is given twice"),
    ],
)
def test_parse_refusals(text: str, says: str):
    with pytest.raises(FedskewError, match=says):
        parse(text, "skew")


def test_a_choice_is_spelled_as_it_is_read():
    choice = Choice("x", {"a": (5, 3), "b": True, "c": None, "d": 0.25})
    assert str(choice) == "x:a=5+3,b=true,c=none,d=0.25"
    assert parse(str(choice), "thing").options == {
        "a": "5+3",
        "b": "true",
        "c": "none",
        "d": "0.25",
    }
    assert str(Choice("x", {})) == "x"


INIT = """from fedskew.core.registry import Registry

shelf = Registry("thing", __name__)
"""
MODULE = """from made_up_shelf import shelf

@shelf.register("{name}")
def thing(rows, /{options}):
    '''The {name} thing.

    More.
    '''
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch) -> Iterator[Registry]:
    """Return a registry whose entries are in the modules of a package on disk."""
    package = tmp_path / "made_up_shelf"
    package.mkdir()
    (package / "__init__.py").write_text(INIT)
    (package / "one.py").write_text(MODULE.format(name="first", options=", *, size: int = 3"))
    (package / "two.py").write_text(MODULE.format(name="also", options=""))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("made_up_shelf").shelf
    for module in ("made_up_shelf", "made_up_shelf.one", "made_up_shelf.two"):
        sys.modules.pop(module, None)


def test_things_are_found_in_their_package(shelf: Registry):
    assert list(shelf) == ["also", "first"]
    assert "first" in shelf
    assert "other" not in shelf
    assert shelf.summary("also") == "The also thing."
    assert shelf.options("first")["size"].default == 3
    assert shelf.name_of(shelf.get("first")) == "first"
    assert shelf.name_of(inspect.getdoc) is None
    with pytest.raises(
        FedskewError,
        match=r"^unknown thing 'frist': did you mean 'first'\? Known: also, first [(]one of",
    ):
        shelf.get("frist")


@pytest.mark.parametrize(
    "spec", ["first:size=7", {"name": "first", "size": 7}, Choice("first", {"size": "7"})]
)
def test_choosing(shelf: Registry, spec):
    assert shelf.choose(spec) == Choice("first", {"size": 7})


def test_with_and_without_defaults(shelf: Registry):
    assert shelf.full(Choice("first", {})) == Choice("first", {"size": 3})
    assert shelf.full(Choice("first", {"size": 7})) == Choice("first", {"size": 7})
    assert shelf.brief(Choice("first", {"size": 3})) == Choice("first", {})
    assert shelf.brief(Choice("first", {"size": 7})) == Choice("first", {"size": 7})


def test_a_table_may_have_dashes(shelf: Registry):
    with pytest.raises(FedskewError, match="unknown option of thing first 'si_ze'"):
        shelf.choose({"name": "first", "si-ze": 1})


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (5, "thing 5: write it as text, name:key=value, or as a table with a name"),
        ({"size": 1}, "thing {'size': 1}: write it as text, .* or as a table with a name"),
        ({"name": 3}, "as a table with a name"),
        ("first:size=x", "thing first: size=x is not a whole number"),
        ("also:size=1", "thing also takes no options, got 'size'"),
    ],
)
def test_choosing_refusals(shelf: Registry, spec, says: str):
    with pytest.raises(FedskewError, match=says):
        shelf.choose(spec)


def test_registering_needs_a_new_name_and_a_docstring(shelf: Registry):
    def documented() -> None:
        """It is."""

    list(shelf)
    with pytest.raises(
        FedskewError,
        match=r"thing 'first' is registered twice, by made_up_shelf\.one\.thing and .*documented: ",
    ):
        shelf.register("first")(documented)
    with pytest.raises(FedskewError, match=r"thing 'a\+b': write its name with letters"):
        shelf.register("a+b")(documented)
    with pytest.raises(FedskewError, match="thing 'new' needs a docstring"):
        shelf.register("new")(lambda rows: rows)
    assert shelf.register("new")(documented) is documented
    assert shelf.get("new") is documented


def test_an_unknown_name_far_from_all_has_no_suggestion():
    assert (
        str(unknown("skew", "zzz", ["iid", "dirichlet"]))
        == "unknown skew 'zzz': Known: dirichlet, iid"
    )
