"""What a run was: its method with the options as values, and its settings with the choices in short."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from fedskew.core.config import FORMER, Experiment
from fedskew.core.registry import parts_of
from fedskew.runs.choices import brief
from fedskew.study.run_data import RunData, spelled

_SHORT = ("data", "skew", "model", "task", "fleet")
_SETTINGS = {field.name for field in fields(Experiment)} - FORMER.keys()


@dataclass(frozen=True)
class Setting:
    """The method of a run without what is at its default, its whole configuration, and its choices in short."""

    algorithm: str
    config: Mapping[str, Any]
    short: Mapping[str, str]

    @staticmethod
    def of_run(run: RunData) -> "Setting":
        """Return what a finished run was."""
        summary = run.summary
        short = {}
        for kind in _SHORT:
            if kind in summary:
                short[kind] = str(summary[kind])
        return Setting(str(summary["algorithm"]), run.record.config, short)

    @staticmethod
    def of_config(config: Mapping[str, Any]) -> "Setting":
        """Return what a run was of which there is only the configuration."""
        short = {}
        for kind in _SHORT:
            if kind in config:
                short[kind] = brief(kind, config[kind])
        return Setting(brief("algorithm", config["algorithm"]), config, short)

    @cached_property
    def values(self) -> dict[str, Any]:
        """Return all settings but the method: numbers as they are, choices in short."""
        plain: dict[str, Any] = {}
        for name, value in self.config.items():
            if name == "algorithm" or (name, value) in FORMER.items():
                continue
            if isinstance(value, Mapping):
                plain[name] = spelled(value)
            elif value == "none":
                plain[name] = None
            else:
                plain[name] = value
        return {**plain, **self.short}

    @property
    def method(self) -> str:
        """Return the method without its options."""
        return " + ".join(part.name for part in parts_of(self.algorithm, "algorithm"))

    @property
    def given_options(self) -> list[str]:
        """Return the names of the method's options that are not at their defaults."""
        return list(
            _merged([(part.name, part.options) for part in parts_of(self.algorithm, "algorithm")])
        )

    @property
    def options(self) -> dict[str, Any]:
        """Return all options of the method as numbers and texts."""
        table = self.config["algorithm"]
        if isinstance(table, Mapping):
            options = {}
            for key in table:
                if key not in ("name", "class"):
                    options[key] = table[key]
            return _merged([(self.method, options)])
        return _merged([(part.name, part.options) for part in parts_of(table, "algorithm")])


def _merged(parts: list[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the options of all parts of a method.

    A name that another part or a setting has as well is written with its part, such as ``topk.share``.
    """
    merged: dict[str, Any] = {}
    for method, options in parts:
        taken = set(_SETTINGS)
        for other, other_options in parts:
            if other != method:
                taken.update(other_options)
        for name, value in options.items():
            full_name = name
            if name in taken:
                full_name = f"{method}.{name}"
            merged[full_name] = _number(value)
    return merged


def _number(value: Any) -> Any:
    """Return a number that was written as text as a number, and anything else as it is.

    >>> _number("3"), _number("0.5"), _number("median")
    (3, 0.5, 'median')
    """
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
