"""Stands in for torchvision, which some peers import and no workload uses: every name is there and does nothing."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class _Nothing:
    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def __call__(self, *args: Any, **named: Any) -> "_Nothing":
        return _Nothing()


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012, a package by the rules of the import system

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Nothing,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        inside = name.startswith("torchvision.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if inside else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, _Finder())


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return importlib.import_module(f"torchvision.{name}")
