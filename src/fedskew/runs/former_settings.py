"""Settings of the version before that are options of methods now: understood until the next version, with a warning."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedskew.algorithms.contract import Algorithm
from fedskew.core.config import FORMER, Settings
from fedskew.core.errors import FedskewError
from fedskew.core.registry import spelled
from fedskew.runs.choices import brief, method_as_table
from fedskew.server.refusals import no_labels_to_hide


def as_options(algorithm: Algorithm, settings: Settings) -> tuple[Algorithm, Settings]:
    """Return the method with those of its options that were given as settings, and the settings without them.

    A value that the method has already stays; another one is an error, and so is a method without such an option.
    """
    given = _given(settings)
    if not given:
        return algorithm, settings
    settings = replace(settings, secure=None, round_totals=None)
    options = algorithm.options()
    if "secure" not in options:
        _refuse(algorithm, given)
        return algorithm, settings
    for name, value in given.items():
        if options[name] not in (FORMER[name], value):
            raise FedskewError(
                f"{name}={spelled(value)} clashes with algorithm={_short(algorithm)}: leave {name} out"
            )
    return replace(algorithm, **given), settings


def warn_of_former(settings: Settings, algorithm: Algorithm) -> None:
    """Warn of options that were given as settings; ``algorithm`` is the method that ``as_options`` made of them."""
    given = _given(settings)
    if not given:
        return
    words = [f"{name}={spelled(value)}" for name, value in given.items()]
    instead = "leave it out"
    if _needed(given):
        instead = f'write algorithm="{_short(algorithm)}"'
    warnings.warn(
        f"{', '.join(words)}: from the next version on only an option of Stratify methods: {instead}",
        FutureWarning,
        stacklevel=2,
    )


def recorded_options(began: Mapping[str, Any], algorithm: Algorithm) -> dict[str, Any]:
    """Return the environment that a run recorded, with the options of its method that were settings then."""
    recorded = began.get("algorithm")
    if not isinstance(recorded, Mapping) or not isinstance(recorded.get("options"), Mapping):
        return dict(began)
    options = dict(recorded["options"])
    for name, value in algorithm.options().items():
        if name in FORMER:
            options.setdefault(name, str(value))
    return {**began, "algorithm": {**recorded, "options": options}}


def _given(settings: Settings) -> dict[str, Any]:
    """Return the former settings that were given."""
    given = {}
    for name in FORMER:
        value = getattr(settings, name)
        if value is not None:
            given[name] = value
    return given


def _needed(given: Mapping[str, Any]) -> bool:
    """Return whether any of the values is another than the default."""
    return any(value != FORMER[name] for name, value in given.items())


def _refuse(algorithm: Algorithm, given: Mapping[str, Any]) -> None:
    """Raise an error if a method without such options was to have other values than the defaults."""
    if given.get("secure"):
        raise no_labels_to_hide(algorithm)
    if _needed(given):
        raise FedskewError(
            f"round_totals={given['round_totals']} rounds what secure=true tells of labels: "
            "add it, or leave it at 1"
        )


def _short(algorithm: Algorithm) -> str:
    return brief("algorithm", method_as_table(algorithm))
