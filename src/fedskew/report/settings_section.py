"""The settings of a run or of all runs of a comparison: in groups, those at their defaults folded."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedskew.core.config import Experiment
from fedskew.report.html_page import pairs
from fedskew.report.markup import Markup, tag
from fedskew.report.readable import in_words
from fedskew.study.run_data import spelled

_GROUPS = {
    "Data and clients": (
        "data", "task", "skew", "clients", "fleet", "unseen", "validation", "client_test", "client_validation", "bins",
        "split_seed",
    ),
    "Method": ("algorithm", "model", "parameters", "weights", "norm"),
    "Training": (
        "rounds", "per_round", "clients_per_round", "sampling", "epochs", "batch_size", "lr", "schedule", "optimizer",
        "momentum", "weight_decay", "nesterov", "clip_norm", "augment", "stop_after", "seed",
    ),
    "Evaluation": ("metric", "metrics", "thresholds", "eval_every", "eval_rows", "test_trained"),
}  # fmt: skip
_REST = "Machine and record"
# What a reader looks for first, also at its default
_ALWAYS = {
    "data", "skew", "clients", "clients_per_round", "algorithm", "model", "parameters", "rounds", "epochs",
    "batch_size", "lr", "seed", "metric",
}  # fmt: skip


def settings_parts(config: Mapping[str, Any], short: Mapping[str, Any]) -> list[Markup]:
    """Return the settings as elements of a page.

    Args:
        config: what the configuration says
        short: choices without what is at its default, and facts beside the configuration
    """
    shown: dict[str, dict[str, Any]] = {}
    folded: dict[str, dict[str, Any]] = {}
    values = {**config, **short}
    for name in _in_order(values):
        value = values[name]
        place = folded
        follows_seed = name == "split_seed" and value == values.get("seed")
        is_default = follows_seed or _is_default(name, config.get(name), value)
        if name in _ALWAYS or not is_default:
            place = shown
        place.setdefault(_group_of(name), {})[in_words(name)] = value
    for name, value in config.items():
        if isinstance(value, Mapping):
            all_options = f"{in_words(name)}, all options"
            folded.setdefault(_group_of(name), {})[all_options] = spelled(value)
    more = tag("details", tag("summary", "Settings at their defaults"), *_groups(folded))
    return [*_groups(shown), more]


def _in_order(values: Mapping[str, Any]) -> list[str]:
    """Return the names of settings as the groups have them, and then the others."""
    order: dict[str, None] = {}
    for names in _GROUPS.values():
        order.update(dict.fromkeys(names))
    order.update(dict.fromkeys(values))
    return [name for name in order if name in values]


def _groups(values: Mapping[str, Mapping[str, Any]]) -> list[Markup]:
    """Return the settings of each group under its title, in the order of the groups."""
    parts = []
    for group in (*_GROUPS, _REST):
        if group in values:
            parts += [tag("h4", group), pairs(values[group], "facts")]
    return parts


def _group_of(name: str) -> str:
    for group, names in _GROUPS.items():
        if name in names:
            return group
    return _REST


def _is_default(name: str, written: Any, short: Any) -> bool:
    """Return whether a setting is what it is without being given."""
    defaults = {}
    for field in fields(Experiment):
        if field.default is not MISSING:
            defaults[field.name] = field.default
    if name not in defaults:
        return False
    if name == "task":  # that the data ask for
        return ":" not in str(short)
    default = defaults[name]
    if isinstance(written, Mapping):
        return bool(short == default)
    return bool(written in (default, str(default).lower()) or (written == [] and default == ()))
