"""What tables and pages say of runs from their summaries alone; nothing that trains is imported for it."""

from collections.abc import Iterable, Sequence

from fedskew.engine.sharing import WHOLE
from fedskew.runs.folder import Row

SHARED_MODEL = "shared_model"  # whether clients share a whole model: ``whole``, or why they do not
# Set where a method makes the models that clients use by a rule of its own
CLIENT_MODEL = "client_model"
ADAPTED = "adapted on the client's rows"
CHOSEN_BY_LOSS = "chosen by its loss on the client's rows"
_NOISE = 1e-14  # share of a mean below which a deviation is that of the last bits


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the standard deviation (n - 1) of some numbers; the deviation of a single one is None.

    A deviation that the rounding of the mean explains is 0.

    >>> mean_and_std([1.0, 3.0, 5.0]), mean_and_std([7.0]), mean_and_std([0.1, 0.1, 0.1])[1]
    ((3.0, 2.0), (7.0, None), 0.0)
    """
    import numpy as np

    with np.errstate(invalid="ignore"):  # the deviation of numbers that are not finite is NaN
        mean = float(np.mean(values))
        if len(values) < 2:
            return mean, None
        std = float(np.std(values, ddof=1))
    if std <= _NOISE * abs(mean):
        return mean, 0.0
    return mean, std


def without_shared_score(methods: Iterable[str], summaries: Iterable[Row]) -> list[str]:
    """Return why cells of a shared model are empty: a line for methods whose clients share no whole model.

    >>> without_shared_score(["fedavg", "fedper"], [{"shared_model": "whole"}, {"shared_model": "all keep a part"}])
    ['There is no shared score of fedper: all keep a part.']
    """
    by_reason: dict[str, list[str]] = {}
    for method, row in zip(methods, summaries, strict=True):
        reason = row.get(SHARED_MODEL, WHOLE)
        if reason != WHOLE and method not in by_reason.setdefault(reason, []):
            by_reason[reason].append(method)
    lines = []
    for reason, names in by_reason.items():
        lines.append(f"There is no shared score of {', '.join(names)}: {reason}.")
    return lines
