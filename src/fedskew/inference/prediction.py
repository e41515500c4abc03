"""A trained model in use: new rows become features as the training rows did, and outputs become named predictions."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_npz
from fedskew.data.dataset import Features, Rows
from fedskew.data.readers.csv_format import AS_RECOGNISED, CsvFormat, file_and_format
from fedskew.data.readers.parquet_rows import ParquetRows, only_list_column
from fedskew.data.readers.table import read_sentences
from fedskew.data.readers.user_files import column_names, mapped_x, read_table
from fedskew.data.readers.windows import cut_windows
from fedskew.data.schema import Numeric, Pipeline, Scaling, Schema
from fedskew.data.stored_rows import AnyRows, StoredRows, is_source, stored
from fedskew.data.targets import IN_WORDS
from fedskew.engine.device import computing
from fedskew.engine.inference import Inference
from fedskew.engine.input_rows import inputs_of
from fedskew.inference.encoded_rows import refuse_encoded
from fedskew.models.parameters import trainable
from fedskew.tasks.task import BuiltIn, Task
from fedskew.tasks.thresholds import Threshold

if TYPE_CHECKING:
    import pandas as pd

# With these a spreadsheet begins a formula
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

# Of rows that are read batch by batch: so many tell whether they are features already
_SAMPLE = 4_096

PREDICTION = "prediction"  # the column with the predicted class or number


class Trained(Protocol):
    """A finished run: how new data become features, the task, and the models."""

    @property
    def pipeline(self) -> Pipeline:
        """Return how new data become features."""

    @property
    def task(self) -> Task:
        """Return the task."""

    @property
    def threads(self) -> int:
        """Return how many threads the run computed with: other numbers of them give other last bits."""

    @property
    def threshold(self) -> Threshold | None:
        """Return the threshold of the global model, if one was chosen."""

    @property
    def personalised(self) -> bool:
        """Return whether clients have models, or parts of them, of their own."""

    def model_in_use(self, client: int | str | None) -> nn.Module:
        """Return the model of a client, or the global one."""


def predict(
    run: Trained,
    data: Any,
    client: int | str | None = None,
    proba: bool = False,
    name: str = "the data",
) -> "pd.DataFrame":
    """Return one row for each row of the data: the predicted class or number, or a column of 0 and 1 a label.

    Of several numbers a row it has a column for each, and of tokens one for each place.

    With ``proba`` there is also a column ``p(NAME)`` for each class or label; after training with class weights these
    are not calibrated, of which it warns. Errors begin with ``name``.
    """
    import pandas as pd

    pipeline, task = run.pipeline, run.task
    if proba:
        refuse_probabilities(task)
        warn_of_class_weights(task, stacklevel=4)
    x = features(pipeline, name, data)
    outputs = outputs_of(run.model_in_use(client), x, run.threads)
    names = pipeline.label.classes
    decided = decide(task, outputs, threshold_for(run, client))
    columns: dict[str, Any] = {}
    if task.target == "labels":
        for place, label in enumerate(names):
            columns[label] = decided[:, place]
    elif task.target == "class":
        columns[PREDICTION] = np.array(names, dtype=object)[decided]
    elif decided.ndim == 2:
        columns = _columns_of(task, decided, names)
    else:
        columns[PREDICTION] = decided
    if proba:
        chances = probabilities(task, outputs).numpy()
        for place, label in enumerate(names):
            columns[f"p({label})"] = chances[:, place]
    if hasattr(data, "index") and len(x) == len(data):  # windows have no index of their own
        return pd.DataFrame(columns, index=data.index)
    return pd.DataFrame(columns)


def _columns_of(task: Task, decided: NDArray[Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return a column for each of several numbers, by its name, or for each place of a row, with its token."""
    columns: dict[str, Any] = {}
    for place, values in enumerate(decided.T):
        if task.target == "tokens":
            columns[f"{PREDICTION}_{place + 1}"] = np.array(names, dtype=object)[values]
        else:
            columns[names[place]] = values
    return columns


def predict_file(
    run: Trained,
    file: Path,
    client: int | str | None = None,
    proba: bool = False,
    safe: bool = False,
) -> str:
    """Return the predictions for the rows of a file as CSV, with the number of the row (of a window: its first).

    How the file is written is recognised, or said behind its name: ``new.csv:separator=semicolon:decimal=comma``. Warns
    of what was recognised, and of columns that are unlike those of the training rows. With ``safe`` no text begins as a
    formula.
    """
    pipeline = run.pipeline
    name, written = file_and_format(str(file))
    path = Path(name)
    data = read_rows(path, pipeline, written)
    if hasattr(data, "attrs"):
        for sentence in read_sentences([data]):
            warnings.warn(sentence, stacklevel=2)
    predictions = predict(run, data, client, proba, str(path))
    step = 1
    if isinstance(pipeline, Schema):
        for doubt in pipeline.doubts(data):
            warnings.warn(f"{path}: {doubt}", stacklevel=2)
        step = pipeline.stride or pipeline.window or 1
    numbers = np.arange(len(predictions)) * step
    # A label may be named "row", too.
    predictions.insert(0, "row", numbers, allow_duplicates=True)
    if safe:
        predictions = _without_formulas(predictions)
    return predictions.to_csv(index=False, lineterminator="\n")


def _without_formulas(predictions: "pd.DataFrame") -> "pd.DataFrame":
    """Return a table in which spreadsheets find no formula: a quote precedes texts that would be one."""
    safe = predictions.copy()
    safe.columns = predictions.columns.map(_quoted)
    for place in range(safe.shape[1]):
        safe.isetitem(place, predictions.iloc[:, place].map(_quoted).to_numpy())
    return safe


def _quoted(value: Any) -> Any:
    """Return a text with a quote before it if a spreadsheet would take it for a formula; anything else as it is."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def features(pipeline: Pipeline, name: str, data: Any) -> AnyRows:
    """Return the features of new rows: a data frame, or an array where the model was trained on arrays.

    Rows of a memory-mapped array, or of any object that gives rows by their numbers, are read batch by batch.

    Raises an error, with the name of the column, for data that do not fit.
    """
    named = hasattr(data, "columns")
    if named:
        data = data.set_axis([str(column) for column in data.columns], axis=1)
    if isinstance(pipeline, Scaling):
        if is_source(data):
            return _features_of_source(pipeline, stored(name, data))
        if named:
            data = pipeline.array(name, data)
        return _features_of_arrays(pipeline, name, np.asarray(data))
    if not named:
        raise FedskewError(
            f"{name}: the model was trained on a table: give a data frame, got {type(data).__name__}"
        )
    return _features_of_table(pipeline, name, data)


def _features_of_arrays(pipeline: Scaling, name: str, x: NDArray[Any]) -> Features:
    pipeline.check(name, x)
    refuse_encoded(name, pipeline, x)
    with np.errstate(over="ignore"):
        scaled = pipeline.encode(x)
    if not np.isfinite(scaled).all():
        raise FedskewError(f"{name}: x holds numbers too large for single precision")
    return scaled


def _features_of_source(pipeline: Scaling, rows: StoredRows) -> StoredRows:
    pipeline.check_shape(rows.name, rows.shape, rows.stored)
    refuse_encoded(rows.name, pipeline, rows.sample(_SAMPLE))
    return replace(rows, scaling=pipeline)


def _features_of_table(pipeline: Schema, name: str, frame: "pd.DataFrame") -> Features:
    pipeline.check(name, frame)
    refuse_encoded(name, pipeline, frame)
    encoded = pipeline.encode(frame)
    if not np.isfinite(encoded).all():
        place = int(np.argmin(np.isfinite(encoded).all(axis=0)))
        raise FedskewError(
            f"{name}: column {pipeline.features[place]!r} holds numbers too large for single precision"
        )
    if not pipeline.window:
        return encoded
    rows = Rows(encoded, np.zeros(len(encoded), dtype=np.int64))
    windows = cut_windows(rows, pipeline.window, pipeline.stride or pipeline.window, 1)
    return np.asarray(windows.x)


def read_rows(path: Path, pipeline: Pipeline, written: CsvFormat = AS_RECOGNISED) -> Any:
    """Read new rows: a CSV or Parquet file or, where the model was trained on arrays, the array x of an NPZ file.

    Arrays may also be in a file or folder of NPY files, or in a Parquet file: these are read when rows are used.
    """
    if isinstance(pipeline, Schema):
        return _read_table_rows(path, pipeline, written)
    if path.is_dir() or path.suffix == ".npy":
        return mapped_x(path)
    if path.suffix == ".parquet":
        return ParquetRows(path, pipeline.features or (only_list_column(path),))
    if path.suffix != ".npz":
        if pipeline.features:
            return read_table(path, (), written)
        raise FedskewError(
            f"{path}: the model was trained on arrays: give an NPZ file with x, an NPY file, or a folder with x.npy"
        )
    arrays = read_npz(path)
    if "x" not in arrays:
        raise FedskewError(
            f"{path} has no array 'x', it holds {', '.join(sorted(arrays)) or 'nothing'}"
        )
    return arrays["x"]


def _read_table_rows(path: Path, schema: Schema, written: CsvFormat) -> "pd.DataFrame":
    if path.suffix in (".npz", ".npy") or path.is_dir():
        raise FedskewError(
            f"{path} holds arrays, and the model was trained on a table: give a CSV or Parquet file"
        )
    numeric = set()
    for column in schema.columns:
        if isinstance(column, Numeric) and not column.dates:
            numeric.add(column.name)
    texts = set(column_names(path, written)) - numeric
    return read_table(path, (), written, texts=texts)


def outputs_of(model: nn.Module, x: AnyRows, threads: int) -> Tensor:
    """Return the outputs of a model for all rows, computed on the CPU exactly as the evaluation of a run does."""
    model = model.cpu()
    if not len(x):
        raise FedskewError("there are no rows to predict")
    dtype = next(iter(trainable(model).values())).dtype
    rows = inputs_of(model, x, dtype, torch.device("cpu"))
    state = {**trainable(model), **dict(model.named_buffers())}
    with computing(threads):
        batches = []
        try:
            for outputs, _ in Inference(model, rows).outputs(state, rows, torch.arange(len(rows))):
                batches.append(outputs)
        except IndexError as problem:
            if rows.is_floating_point():
                raise
            raise FedskewError(
                f"a row holds a token that the model does not have ({problem}): number tokens as in training"
            ) from problem
    return torch.cat(batches).clone()


def decide(task: Task, outputs: Tensor, threshold: Threshold | None = None) -> NDArray[Any]:
    """Return predictions from outputs: numbers of classes, numbers, or a matrix of 0 and 1."""
    if threshold is not None:
        return threshold.predict(outputs.numpy())
    decided: NDArray[Any] = task.predict(outputs).numpy()
    return decided


def threshold_for(run: Trained, client: int | str | None) -> Threshold | None:
    """Return the threshold, if one was chosen; None for a client's own model, as it was chosen for the global one."""
    if client is not None and run.personalised:
        return None
    return run.threshold


def refuse_probabilities(task: Task) -> None:
    """Raise an error for a task whose outputs are not logits."""
    if task.target in ("number", "numbers", "tokens"):
        what = f"predicts {IN_WORDS[task.target]}"
    elif not isinstance(task, BuiltIn):
        what = "is your own"
    else:
        return
    raise FedskewError(f"probabilities: task {task.label()} {what}, and has none: leave them out")


def warn_of_class_weights(task: Task, stacklevel: int) -> None:
    """Warn that probabilities are not those of the rows, where the loss weighed their classes unequally.

    Weights of labels, of which a row may have several, do not shift them: yes and no of a label weigh the same.
    """
    weights = getattr(task, "class_weights", None)
    if weights is None or task.target != "class":
        return
    if not isinstance(weights, str) and min(weights) == max(weights):
        return
    warnings.warn(
        "probabilities: the loss weighed classes unequally (class_weights), so they are too high for classes with a "
        "large weight and not calibrated: order rows by them, and train without class_weights, with thresholds for "
        "a rare class, for probabilities",
        stacklevel=stacklevel,
    )


def probabilities(task: Task, outputs: Tensor) -> Tensor:
    """Return the probability of each class or label, from the logits."""
    outputs = outputs.double()
    if task.target == "labels":
        return outputs.sigmoid()
    if outputs.shape[1] > 1:
        return outputs.softmax(1)
    return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], 1)
