"""Rows that are features already: to prepare them once more would give predictions of other rows."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats
from fedskew.data.federation import Federation
from fedskew.data.schema import Numeric, Pipeline, Scaling, Schema
from fedskew.data.stored_rows import StoredRows

if TYPE_CHECKING:
    import pandas as pd

NATS = 2.0  # by which rows must fit features better than the training rows, on average over columns
MILLION_TO_ONE = math.log(1e6)  # nats that all columns must give together
_NUMBERS = 1 << 22  # that are looked at
_OF_BYTES = 1 / 255  # the factor of images of bytes
_LARGEST = 1e6  # of a feature; rows with larger numbers are none


class _Given(NamedTuple):
    """A column of new rows, and what is subtracted from it and what it is divided by."""

    values: Floats
    mean: float
    deviation: float


def refuse_encoded(name: str, pipeline: Pipeline, data: Any) -> None:
    """Raise an error for rows that look standardised already, where the training rows were on another scale.

    Features have mean 0 and deviation 1 over the training rows. Every column is compared with that, and with mean and
    deviation of the training rows, by the likelihood of a normal distribution. All columns must fit features better,
    by ``NATS`` on average and a million to one together, and all numbers must fit a standard normal distribution to
    one nat. A column of whole numbers is not a feature. Nothing is said where the two scales are near each other.
    Images of bytes are told by their range.
    """
    if isinstance(pipeline, Schema):
        columns = _of_table(pipeline, data)
    elif _are_of_bytes(pipeline):
        _refuse_shares_of_bytes(name, data)
        return
    else:
        columns = _of_arrays(pipeline, data)
    if _are_features(columns):
        raise _refusal(name)


def refuse_rows_of(fed: Federation, data: Any) -> None:
    """Raise an error for arrays of a federation itself, which hold features."""
    pipeline = fed.data.pipeline
    if not isinstance(pipeline, Scaling) or not isinstance(data, (np.ndarray, StoredRows)):
        return
    if not any(pipeline.offset) and set(pipeline.factor) == {1.0}:
        return
    if isinstance(data, StoredRows):
        raise FedskewError(
            "the data: these rows are scaled when they are read, and the model scales rows itself: give the raw rows, "
            "as they were given to split (not fed.test.x)"
        )
    for rows in (fed.train, fed.test, fed.validation):
        if rows is None or isinstance(rows.x, StoredRows):
            continue  # which hold no features
        if np.may_share_memory(rows.x, data):
            raise _refusal("the data")


def _are_of_bytes(scaling: Scaling) -> bool:
    """Return whether rows are images of bytes, whose 255 becomes 1."""
    return not any(scaling.offset) and set(scaling.factor) == {_OF_BYTES}


def _refuse_shares_of_bytes(name: str, x: NDArray[Any]) -> None:
    """Raise an error for images that were divided by 255 already: fractions, and none above 1."""
    x = x[:: 1 + x.size // _NUMBERS]
    if not np.issubdtype(x.dtype, np.floating) or np.abs(x).max(initial=0) > 1:
        return
    if np.any(x % 1):
        raise FedskewError(
            f"{name}: these images are divided by 255 already, and the model does that itself: give pixels from 0 to "
            "255, as in training"
        )


def _refusal(name: str) -> FedskewError:
    return FedskewError(
        f"{name}: these rows are standardised already, and the model standardises rows itself: give the raw rows, as "
        "in the training file (not fed.test.x or other arrays of a data set)"
    )


def _of_table(schema: Schema, frame: "pd.DataFrame") -> list[_Given]:
    """Return the columns of numbers that the schema standardises."""
    found = []
    for column in schema.columns:
        if isinstance(column, Numeric) and column.name in frame.columns:
            values = column.numbers(frame[column.name])
            found.append(_Given(values[~np.isnan(values)], column.mean, column.deviation))
    return found


def _of_arrays(scaling: Scaling, x: NDArray[Any]) -> list[_Given]:
    """Return the columns or channels; of very many rows, some at even steps."""
    found = []
    x = x[:: 1 + x.size // _NUMBERS]
    for entry, (offset, factor) in enumerate(zip(scaling.offset, scaling.factor, strict=True)):
        values = x[:, entry].reshape(-1)
        if np.issubdtype(values.dtype, np.floating):
            values = values.astype(np.float64, copy=False)
        found.append(_Given(values, offset, 1 / factor))
    return found


def _are_features(columns: list[_Given]) -> bool:
    """Return whether all columns that can tell are like features, and unlike the training rows."""
    gains = []
    told = []
    for column in columns:
        values = column.values
        if (column.mean, column.deviation) == (0.0, 1.0) or not np.any(values):
            continue
        if not np.issubdtype(values.dtype, np.floating) or np.abs(values).max() > _LARGEST:
            return False
        gain = _gain(column)
        if gain <= 0 or not np.any(values % 1):
            return False
        gains.append(gain)
        told.append(values)
    if not told or np.mean(gains) < NATS or sum(gains) < MILLION_TO_ONE:
        return False
    return _misfit(np.concatenate(told)) <= 1


def _gain(column: _Given) -> float:
    """Return by how much a column is likelier with mean 0 and deviation 1 than with those of the training rows.

    In nats for each value.

    >>> round(_gain(_Given(np.array([-1.0, 1.0]), 60.0, 12.0)), 2)  # log 12 + ((60 / 12)² + (1 / 12)² - 1) / 2
    14.49
    """
    scaled = (column.values - column.mean) / column.deviation
    squares = np.mean(scaled**2) - np.mean(column.values**2)
    return math.log(abs(column.deviation)) + float(squares) / 2


def _misfit(values: Floats) -> float:
    """Return the divergence of a normal distribution with the mean and spread of numbers from the standard one."""
    spread = float(np.std(values))
    if not spread:
        return math.inf
    return (float(np.mean(values)) ** 2 + spread**2 - 1) / 2 - math.log(spread)
