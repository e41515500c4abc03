"""The tables and figures of the papers, as TOML files: the set-up, the printed numbers and the claims."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from fedskew.core.errors import FedskewError, unknown
from fedskew.papers.paper_claims import Claim, Value, what_is_wrong

ABOUT = "paper.toml"
Part = TypeVar("Part")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Paper:
    """A paper: the method by which it is known, its title, authors and identifier, and what it adds.

    ``says`` is what it claims in a few sentences, ``differs`` why our results are others and what was checked, and
    ``use`` says in Markdown how to run the method. ``came_out`` answers in words what was only asked, not claimed.
    """

    name: str
    method: str
    title: str
    authors: str
    identifier: str
    adds: str
    says: str = ""
    differs: Sequence[str] = ()
    use: str = ""
    came_out: Sequence[str] = ()


@dataclass(frozen=True)
class Entry:
    """A line or a column of a table, with the settings that it alone has; ``only`` lists the cases of a method.

    ``budgets`` of a case are megabytes or simulated seconds within which every run is scored as well.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    budgets: Mapping[str, float] = field(default_factory=dict)

    def is_in(self, case: str) -> bool:
        """Return whether a method is compared in a case."""
        return not self.only or case in self.only


@dataclass(frozen=True)
class Quick:
    """A smaller version of a table: fewer seeds, cases and methods, and settings that take less time.

    ``seconds`` is what it takes on two cores, as it was measured.
    """

    seeds: str = "0"
    cases: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class PaperTable:
    """One table or figure of a paper: cases x methods x seeds, what is shown of them, and what the paper claims.

    Args:
        paper: the name of the paper
        name: the name of the file, such as ``table4``
        printed: what the paper calls it
        title: what it is about
        kind: how a cell is measured: by training, or as a property of a partition, a schedule or the label protocol
        settings: what all cells share
        cases: the set-ups that are compared, such as partitions
        methods: what is compared in each of them
        values: what is shown of a cell
        claims: what the paper says of it
        notes: what the paper leaves open and how it was chosen, what stands in for what, what is smaller here; a
            setting of the table is written ``{batch_size}``
        seeds: with which every cell is measured at first; ``stopping`` says when there are more
        may_grow: whether more seeds follow where intervals are wide
        substitute: what stands in for the paper's set-up in a quick version; every heading names it
        not_run: what of it has no runs, and why
        curves: columns of the table of rounds that are kept, to be drawn
        quick: the smaller version
    """

    paper: str
    name: str
    printed: str
    title: str
    cases: tuple[Entry, ...]
    methods: tuple[Entry, ...]
    values: tuple[Value, ...]
    quick: Quick
    kind: str = "training"
    settings: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    seeds: str = "0-4"
    may_grow: bool = True
    substitute: str = ""
    not_run: str = ""
    curves: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return the name under which results are kept."""
        return f"{self.paper}-{self.name}"

    @property
    def filled_notes(self) -> list[str]:
        """Return the notes with the table's settings in place of their names in braces."""
        return [note.format_map(self.settings) for note in self.notes]

    @property
    def case_names(self) -> list[str]:
        """Return the names of the cases, in their order."""
        return [case.name for case in self.cases]

    @property
    def method_names(self) -> list[str]:
        """Return the names of the methods, in their order."""
        return [method.name for method in self.methods]

    def methods_of(self, case: Entry) -> list[Entry]:
        """Return the methods that are compared in a case."""
        return [method for method in self.methods if method.is_in(case.name)]

    @property
    def cell_count(self) -> int:
        """Return how many cells are measured."""
        return sum(len(self.methods_of(case)) for case in self.cases)

    def compares(self, case: str, method: str) -> bool:
        """Return whether a method is compared in a case, given their names."""
        entry = self.methods[self.method_names.index(method)]
        return entry.is_in(case)

    def value(self, name: str) -> Value:
        """Return the value of this name."""
        return next(value for value in self.values if value.name == name)

    def reduced(self) -> "PaperTable":
        """Return the quick version: its cases, methods and seeds, with its settings in place of others.

        Where settings are replaced, it is another experiment than the paper's: every heading says which, and neither
        the paper's numbers nor its claims are there.
        """
        quick = self.quick
        smaller = replace(
            self,
            cases=_with_settings(self.cases, quick.cases, quick.settings),
            methods=_with_settings(self.methods, quick.methods, quick.settings),
            seeds=quick.seeds,
            may_grow=False,
            not_run="",
            settings={**self.settings, **quick.settings},
        )
        if not quick.settings:
            return smaller
        substitute = _substitute(quick.settings)
        values = []
        for value in self.values:
            values.append(replace(value, name=f"{value.name} [{substitute}]", paper={}))
        return replace(
            smaller,
            title=f"{substitute}, in place of: {self.title}",
            values=tuple(values),
            claims=(),
            substitute=substitute,
        )


def _substitute(settings: Mapping[str, Any]) -> str:
    """Return what stands in for the paper's set-up: data and model first.

    >>> _substitute({"rounds": 1, "data": "digits", "model": "logreg"})
    'digits, logreg, rounds 1'
    """
    words = []
    for name in ("data", "model"):
        if name in settings:
            words.append(str(settings[name]))
    for name, setting in sorted(settings.items()):
        if name not in ("data", "model"):
            words.append(f"{name} {setting}")
    return ", ".join(words)


def _with_settings(
    entries: Sequence[Entry], names: Sequence[str], settings: Mapping[str, Any]
) -> tuple[Entry, ...]:
    """Return the entries with these names, or all if there are none, with settings in place of their own."""
    chosen = []
    for entry in entries:
        if not names or entry.name in names:
            chosen.append(replace(entry, settings={**entry.settings, **settings}))
    return tuple(chosen)


def papers() -> dict[str, Paper]:
    """Return all papers, by name."""
    by_name = {}
    for place in _folders():
        by_name[place.name] = Paper(name=place.name, **_content(place / ABOUT))
    return dict(sorted(by_name.items()))


def tables_of(paper: str) -> list[PaperTable]:
    """Return the tables and figures of a paper, in the order of their names."""
    known = {place.name: place for place in _folders()}
    if paper not in known:
        raise unknown("paper", paper, known)
    tables = []
    for file in sorted(known[paper].iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml") and file.name != ABOUT:
            tables.append(_table(paper, file.name.removesuffix(".toml"), _content(file)))
    return tables


def choose(paper: str, wanted: str | None = None) -> list[PaperTable]:
    """Return the tables of a paper: all, or those that a number (``2``) or a name (``figure4``) chooses.

    A number means all files of that table: ``2`` is ``table2``, ``table2-cifar10``, ...
    """
    tables = tables_of(paper)
    if wanted is None:
        return tables
    name = wanted
    if wanted.isdecimal():
        name = f"table{wanted}"
    chosen = []
    for table in tables:
        if table.name == name or table.name.startswith(f"{name}-"):
            chosen.append(table)
    if not chosen:
        raise unknown(f"table of {paper}", wanted, {table.name for table in tables})
    return chosen


def _folders() -> list[Traversable]:
    folders = []
    for place in files("fedskew.papers").iterdir():
        if place.is_dir() and (place / ABOUT).is_file():
            folders.append(place)
    return folders


def _content(file: Traversable) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _table(paper: str, name: str, content: dict[str, Any]) -> PaperTable:
    where = f"{paper}/{name}.toml"
    parts = {
        "paper": paper,
        "name": name,
        "quick": _build(Quick, content.get("quick", {}), where),
        "cases": _entries(content.pop("case", []), where),
        "methods": _entries(content.pop("method", []), where),
        "values": _build_all(Value, content.pop("value", []), where),
        "claims": _build_all(Claim, content.pop("claim", []), where),
    }
    table = _build(PaperTable, {**content, **parts}, where)
    _check(table, where)
    return table


def _entries(rows: Sequence[Row], where: str) -> tuple[Entry, ...]:
    """Return cases or methods: everything but their names, ``only`` and ``budgets`` is a setting."""
    entries = []
    for row in rows:
        settings = dict(row)
        own = {}
        for key in ("name", "only", "budgets"):
            if key in row:
                own[key] = settings.pop(key)
        entries.append(_build(Entry, {**own, "settings": settings}, where))
    return tuple(entries)


def _build_all(kind: type[Part], rows: Sequence[Row], where: str) -> tuple[Part, ...]:
    return tuple(_build(kind, row, where) for row in rows)


def _build(kind: type[Part], values: Row, where: str) -> Part:
    """Return a part of a table with these values, where lists of the file become tuples."""
    known = {declared.name for declared in fields(kind)}  # type: ignore[arg-type]
    if strange := set(values) - known:
        raise FedskewError(f"{where}: {kind.__name__} has no {', '.join(sorted(strange))}")
    given = dict(values)
    for name, value in values.items():
        if isinstance(value, list):
            given[name] = tuple(value)
    return kind(**given)


def _check(table: PaperTable, where: str) -> None:
    """Raise an error for names that occur nowhere."""
    known = {
        "case": set(table.case_names),
        "method": set(table.method_names),
        "value": {value.name for value in table.values},
    }
    for kind, name in _references(table):
        if name not in known[kind]:
            raise FedskewError(f"{where}: {name!r} is none of {', '.join(sorted(known[kind]))}")

    try:
        table.filled_notes  # noqa: B018
    except KeyError as missing:
        raise FedskewError(
            f"{where}: a note names the setting {missing}, which the table has not"
        ) from None
    for claim in table.claims:
        value = None
        if claim.value:
            value = table.value(claim.value)
        problem = what_is_wrong(claim, value)
        if problem:
            raise FedskewError(f"{where}: {claim.text!r}: {problem}")


def _references(table: PaperTable) -> list[tuple[str, str]]:
    """Return the kind and the name of everything that parts of the table refer to."""
    references = []
    for method in table.methods:
        references += _each("case", method.only)
    references += _each("case", table.quick.cases)
    references += _each("method", table.quick.methods)
    for value in table.values:
        references += _each("method", [*value.paper, *value.instead])
        for row in value.paper.values():
            references += _each("case", row)
    for claim in table.claims:
        references += _each("case", [*claim.cases, *claim.elsewhere])
        references += _each("method", claim.others)
        if claim.kind != "untestable":
            references += [("value", claim.value), ("method", claim.method)]
    return references


def _each(kind: str, names: Iterable[str]) -> list[tuple[str, str]]:
    return [(kind, name) for name in names]
