"""The protocol of the atlas: cells, methods, tries and blocks, read from one file that is frozen by its hash."""

import hashlib
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.files import reading
from fedskew.runs.goals import Goal
from fedskew.study.grid import seeds_of
from fedskew.study.judging import CONTROL

OWN_PROTOCOL = Path(__file__).parent / "protocol.toml"
# What a method may need of a cell: layers before the head of its model, BatchNorm in it or none, two local
# epochs (FedRep is FedPer with one), no deadline
NEEDS = ("layers", "batchnorm", "no batchnorm", "two epochs", "no deadline")
_OF_A_CELL = {"name", "title", "kind", "family", "natural", "has"}
_OF_A_METHOD = {"algorithm", "title", "goals", "needs"}
_WORD = re.compile(r"[A-Za-z0-9][\w\-]*")
_TABLES = {"about", "settings", "goal", "method", "cell"}
_ABOUT = {"title", "version", "lr", "blocks", "choose_seeds"}


@dataclass(frozen=True)
class Cell:
    """A place on the map: data, clients and a model.

    Args:
        name: a word that files are named by
        title: what tables and figures call it
        kind: of heterogeneity, such as label or natural
        family: the data set; cells of one family are left out together when predictions are tested
        natural: whether the clients came with the data
        has: what methods may need of a cell and this one has
        settings: of the experiment, beside those of all cells
    """

    name: str
    title: str
    kind: str
    family: str
    natural: bool
    has: frozenset[str]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A method of the atlas: as it is written, its title, the goals it is judged for, and what it needs of a cell."""

    algorithm: str
    title: str
    goals: tuple[Goal, ...]
    needs: frozenset[str]


@dataclass(frozen=True)
class Protocol:
    """What is run and how it is judged, settled before the first run.

    Args:
        title: of the atlas
        version: changes whenever anything else does
        lr: learning rates, among which every method's is chosen
        blocks: the seeds that methods are judged by
        choose_seeds: the seeds that learning rates are chosen by
        settings: of all runs
        goals: the settings of each goal
        methods: those that are compared
        cells: the places of the map
        digest: the SHA-256 of the file
    """

    title: str
    version: str
    lr: tuple[float, ...]
    blocks: tuple[int, ...]
    choose_seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    goals: Mapping[Goal, Mapping[str, Any]]
    methods: Sequence[Entry]
    cells: Sequence[Cell]
    digest: str

    @cached_property
    def studies(self) -> list["CellStudy"]:
        """Return the studies of all cells and goals, in the order in which they are run."""
        found = []
        for cell in self.cells:
            for goal in self.goals:
                found.append(CellStudy(self, cell, goal))
        return found

    def cell(self, name: str) -> Cell:
        """Return a cell by its name."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise unknown("cell", name, [cell.name for cell in self.cells])


@dataclass(frozen=True)
class CellStudy:
    """One cell judged for one goal: a study with FedAvg as its control."""

    protocol: Protocol
    cell: Cell
    goal: Goal

    @property
    def name(self) -> str:
        """Return the word that its files are named by."""
        return f"{self.cell.name}-{self.goal}"

    @property
    def methods(self) -> list[Entry]:
        """Return the methods that are judged for this goal and that the cell has all they need for."""
        found = []
        for entry in self.protocol.methods:
            if self.goal in entry.goals and entry.needs <= self.cell.has:
                found.append(entry)
        return found

    def given(self) -> dict[str, Any]:
        """Return the study as ``fedskew.compare`` takes it."""
        protocol = self.protocol
        return {
            **protocol.settings,
            **protocol.goals[self.goal],
            **self.cell.settings,
            "algorithm": [entry.algorithm for entry in self.methods],
            "goal": self.goal,
            "control": CONTROL,
            "seeds": list(protocol.blocks),
            "choose_seeds": list(protocol.choose_seeds),
            "grid": {"lr": list(protocol.lr)},
        }


def read_protocol(path: Path = OWN_PROTOCOL) -> Protocol:
    """Return the protocol of a file; what is wrong in it is an error."""
    with reading(path):
        content = path.read_bytes()
    try:
        written = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise FedskewError(f"{path} is not TOML: {problem}") from None
    _check_names(path, "table", written, _TABLES, _TABLES)
    about = written["about"]
    _check_names(path, "about", about, _ABOUT, _ABOUT)
    protocol = Protocol(
        title=str(about["title"]),
        version=str(about["version"]),
        lr=_rates(path, about["lr"]),
        blocks=tuple(seeds_of(about["blocks"])),
        choose_seeds=tuple(seeds_of(about["choose_seeds"])),
        settings=written["settings"],
        goals=_goals(path, written["goal"]),
        methods=[_entry(path, table) for table in written["method"]],
        cells=[_cell(path, table) for table in written["cell"]],
        digest=hashlib.sha256(content).hexdigest(),
    )
    _check_cells(path, protocol)
    return protocol


def _check_names(
    path: Path, where: str, table: Mapping[str, Any], known: set[str], needed: set[str]
) -> None:
    """Raise an error for a name that is not known, or that is missing."""
    for name in table:
        if name not in known:
            raise unknown(f"name in {where} of {path}", name, known)
    for name in sorted(needed - table.keys()):
        raise FedskewError(f"{path}: {where} needs {name}")


def _rates(path: Path, written: Any) -> tuple[float, ...]:
    """Return the learning rates."""
    if not isinstance(written, list) or not written:
        raise FedskewError(
            f"{path}: lr={written!r} is not a list of learning rates: write [0.1, 0.3]"
        )
    for rate in written:
        if not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise FedskewError(f"{path}: lr={rate!r} is not a learning rate: write numbers above 0")
    return tuple(map(float, written))


def _goals(path: Path, tables: Mapping[str, Any]) -> dict[Goal, Mapping[str, Any]]:
    """Return the settings of each goal."""
    goals: dict[Goal, Mapping[str, Any]] = {}
    for name in tables:
        if name not in get_args(Goal):
            raise unknown(f"goal in {path}", name, get_args(Goal))
    for goal in get_args(Goal):
        if goal in tables:
            goals[goal] = tables[goal]
    return goals


def _entry(path: Path, table: Mapping[str, Any]) -> Entry:
    """Return a method."""
    _check_names(path, "method", table, _OF_A_METHOD, {"algorithm", "title", "goals"})
    needs = frozenset(table.get("needs", ()))
    _check_needs(path, needs)
    for goal in table["goals"]:
        if goal not in get_args(Goal):
            raise unknown(f"goal of {table['algorithm']} in {path}", goal, get_args(Goal))
    return Entry(table["algorithm"], table["title"], tuple(table["goals"]), needs)


def _cell(path: Path, table: Mapping[str, Any]) -> Cell:
    """Return a cell; names that are not the cell's own are settings of its experiment."""
    for name in ("name", "title", "kind", "family"):
        if name not in table:
            raise FedskewError(f"{path}: a cell needs {name}: {dict(table)}")
        if not isinstance(table[name], str):
            raise FedskewError(f"{path}: {name}={table[name]!r} of a cell is not text: quote it")
    if not _WORD.fullmatch(table["name"]):
        raise FedskewError(
            f"{path}: {table['name']!r} cannot name files: take letters, digits, dashes and underscores"
        )
    has = frozenset(table.get("has", ()))
    _check_needs(path, has)
    settings = {name: value for name, value in table.items() if name not in _OF_A_CELL}
    return Cell(
        name=table["name"],
        title=table["title"],
        kind=table["kind"],
        family=table["family"],
        natural=bool(table.get("natural", False)),
        has=has,
        settings=settings,
    )


def _check_needs(path: Path, names: frozenset[str]) -> None:
    for name in names:
        if name not in NEEDS:
            raise unknown(f"need in {path}", name, NEEDS)


def _check_cells(path: Path, protocol: Protocol) -> None:
    """Raise an error for a name that two cells have, and for a goal without its control."""
    seen = set()
    for cell in protocol.cells:
        if cell.name in seen:
            raise FedskewError(f"{path}: there are two cells {cell.name}")
        seen.add(cell.name)
    for goal in protocol.goals:
        names = [entry.algorithm for entry in protocol.methods if goal in entry.goals]
        if CONTROL not in names:
            raise FedskewError(f"{path}: the methods of goal {goal} need the control, {CONTROL}")
