"""Modules of your own, which register components: imported by path or name, or found in installed packages.

Importing a module runs its code. A file or a module is imported only if the user names it on the command line, or
imports it in Python, and never because a run folder names it.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import traceback
import types
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.core.errors import FedskewError

OWN: list[Any] = []  # every component that was registered from outside of fedskew


@dataclass(frozen=True)
class Imported:
    """A module that was imported: ``source`` is its absolute path or its name, ``sha256`` that of its code."""

    module: str
    source: str
    sha256: str


_imported: dict[str, Imported] = {}


def imported() -> list[Imported]:
    """Return what was imported so far, in that order."""
    return list(_imported.values())


def import_modules(sources: Iterable[str]) -> None:
    """Import Python files (by their paths) or modules (by their names), which register components."""
    for source in sources:
        known = len(OWN)
        try:
            if _is_module_name(source):
                new = _import_module(source)
            else:
                new = _import_file(Path(source))
        except FedskewError as problem:
            raise FedskewError(f"--import {source}: {problem}") from problem
        registered = len(OWN) > known or _has_registered(new.module)
        if new.module not in _imported and not registered:
            raise FedskewError(
                f'--import {source} registers nothing: write @algorithms.register("name") before a class of your own '
                "(CONTRIBUTING.md), or leave it out"
            )
        _imported[new.module] = new


def _is_module_name(source: str) -> bool:
    if source.endswith(".py"):
        return False
    return all(part.isidentifier() for part in source.split("."))


def _has_registered(module: str) -> bool:
    """Return whether a component comes from this module."""
    return any(place(thing).startswith(f"{module}.") for thing in OWN)


def import_again(wanted: Iterable[Imported]) -> None:
    """Import in another process what the user imported in the first one; an error if its code has changed since."""
    for one in wanted:
        import_modules([one.source])
        if one not in imported():
            raise FedskewError(
                f"--import {one.source}: the code has changed while the run began: start it again"
            )


def _import_file(path: Path) -> Imported:
    """Run a file as a module that has its name; other files of its folder can be imported from it."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise FedskewError("there is no such file")
    name = re.sub(r"\W", "_", path.stem)
    content = path.read_bytes()
    new = Imported(name, str(path), hashlib.sha256(content).hexdigest())
    if _file_of(name) not in (None, path):
        raise FedskewError(f"another module has the name {name}: rename the file")
    if name in sys.modules:
        return _imported.get(name, new)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        # These bytes, and not what Python has compiled earlier
        exec(compile(content, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as problem:
        del sys.modules[name]
        raise _failure(problem, str(path)) from problem
    return new


def _file_of(name: str) -> Path | None:
    """Return the file of a module of that name, which need not have been imported; None if there is no such module."""
    if name in sys.modules:
        return Path(getattr(sys.modules[name], "__file__", None) or name).resolve()
    found = importlib.util.find_spec(name)
    if found:
        return Path(found.origin or name).resolve()
    return None


def _import_module(name: str) -> Imported:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name and f"{name}.".startswith(f"{problem.name}."):
            raise FedskewError(
                "there is no such module: install its package, or give the path of a .py file"
            ) from None
        raise _failure(problem, "") from problem
    except (Exception, SystemExit) as problem:
        raise _failure(problem, "") from problem
    return Imported(name, name, _digest(module))


def _failure(problem: BaseException, file: str) -> FedskewError:
    """Return the error of a module that cannot be imported: one line with the place, in ``file`` if it is there."""
    if isinstance(problem, FedskewError):
        return problem
    if isinstance(problem, SyntaxError):
        return FedskewError(f"{problem.filename}, line {problem.lineno}: {problem.msg}")
    frames = traceback.extract_tb(problem.__traceback__)
    at = frames[-1]
    inside = [frame for frame in frames if frame.filename == file]
    if inside:
        at = inside[-1]
    return FedskewError(f"{at.filename}, line {at.lineno}: {type(problem).__name__}: {problem}")


def _digest(module: types.ModuleType) -> str:
    """Return the SHA-256 of a module's file, or of all Python files of a package, by name."""
    files: list[Path] = []
    for folder in getattr(module, "__path__", ()):
        files.extend(Path(folder).rglob("*.py"))
    file = getattr(module, "__file__", None)
    if not files and file:
        files = [Path(file)]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def digest_of(module: str) -> str | None:
    """Return the SHA-256 of a module when it was imported; None if it has not been imported, which is not done here."""
    if module in _imported:
        return _imported[module].sha256
    if module in sys.modules:
        return _digest(sys.modules[module])
    return None


def load_entry_points(group: str) -> None:
    """Import what installed packages offer in a group; one that cannot be imported gives a warning that names it."""
    for entry in importlib.metadata.entry_points(group=group):
        try:
            entry.load()
        except (Exception, SystemExit) as problem:
            owner = "a package"
            if entry.dist:
                owner = f"{entry.dist.name} {entry.dist.version}"
            why = " ".join(str(problem).split())
            warnings.warn(
                f"{owner}: its entry point {entry.name} = {entry.value} ({group}) cannot be loaded "
                f"({type(problem).__name__}: {why}): update or uninstall {owner.partition(' ')[0]}",
                stacklevel=4,
            )


def place(thing: Any) -> str:
    """Return module and name of a class or a function.

    >>> place(Imported)
    'fedskew.core.plugins.Imported'
    """
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"
