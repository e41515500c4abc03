"""Names and numbers as a page shows them: metrics in plain words, shares in per cent, amounts in units that suit."""

from collections.abc import Callable, Mapping
from typing import Any

from fedskew.core.units import unit_for
from fedskew.report.charts import IN_PERCENT
from fedskew.report.markup import shown
from fedskew.server.score_names import CLIENT_NAMES, NAMES

_PER_CENT = "\u00a0%"  # no line ends before the sign
_WORDS = {
    "auc": "AUC",
    "ece": "calibration error",
    "f1": "F1",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "mae": "MAE",
    "mse": "MSE",
    "rmse": "RMSE",
    "r2": "R²",
    "lr": "learning rate",
}


def in_words(name: str) -> str:
    """Return the name of a metric or of a setting as people write it.

    >>> in_words("balanced_accuracy"), in_words("auc"), in_words("batch_size")
    ('balanced accuracy', 'AUC', 'batch size')
    """
    return _WORDS.get(name, name.replace("_", " "))


def rows_in_words(part: str) -> str:
    """Return whose scores a column has, and on which rows.

    >>> rows_in_words("test"), rows_in_words("own_test")
    ('test rows', "clients' own models, test rows")
    """
    return {**NAMES, **CLIENT_NAMES}[part].removeprefix("global model, ")


def percent(share: Any) -> str:
    r"""Return a share in per cent.

    >>> percent(0.76880), percent(1.0), percent(None)
    ('76.9\xa0%', '100.0\xa0%', '–')
    """
    if share is None or share != share:  # NaN
        return "–"
    return f"{100 * share:.1f}{_PER_CENT}"


def shows(metric: str) -> Callable[[Any], Any]:
    """Return how the values of a metric are written: shares in per cent, others as numbers."""
    if metric in IN_PERCENT:
        return percent
    return shown


def amount(value: float, units: Mapping[str, float]) -> str:
    """Return an amount in the unit that suits it.

    >>> amount(6.614784e6, {"kB": 1e3, "MB": 1e6}), amount(90.0, {"s": 1.0, "min": 60.0})
    ('6.61 MB', '90 s')
    """
    unit = unit_for(value, units)
    return f"{value / units[unit]:.3g} {unit}"
