"""A trained model for use without fedskew: a program of torch.export or an ONNX file, with the preprocessing inside.

Of a table, the program takes the numbers as they are, missing ones as NaN, and for every text column the place of the
category in the list that is stored with the program. Each program is run on made rows, which no training saw, and
compared with the model before it is written.
"""

import hashlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.core.writing import write_atomically
from fedskew.data.cells import MISSING
from fedskew.data.dataset import Features
from fedskew.data.schema import Categories, Numeric, Pipeline, Schema
from fedskew.inference.prediction import (
    Trained,
    outputs_of,
    probabilities,
    threshold_for,
    warn_of_class_weights,
)
from fedskew.models.parameters import trainable
from fedskew.models.tokens import takes_tokens
from fedskew.tasks.task import BuiltIn, Task

Format: TypeAlias = Literal["torch", "onnx"]
ENDINGS: Mapping[Format, str] = {"torch": ".pt2", "onnx": ".onnx"}
TOLERANCE = 1e-4  # relative difference of outputs that the program and the model may have
ROWS = (64, 1, 7)  # numbers of made rows on which the two are compared
_UNKNOWN = "\x00"  # a text that is no category
_DESCRIBED = "pipeline.json"  # what is stored with the program


@dataclass(frozen=True)
class Exported:
    """What was written: the description that is stored with the program, and the largest difference to the model."""

    described: Mapping[str, Any]
    difference: float


def export_model(
    run: Trained, path: Path, format: Format, client: int | str | None = None
) -> Exported:
    """Write the model of a run, or of one of its clients, as a program.

    Args:
        run: what ``train`` or ``open_run`` returned
        path: a new file, which ends in .pt2 or .onnx; ``sha256sum -c`` checks it with the file .sha256 beside it
        format: torch for torch.export, onnx for ONNX (needs fedskew[onnx])
        client: whose model; by default the global one
    """
    if path.suffix != ENDINGS[format]:
        raise FedskewError(
            f"{path}: a file of format {format} ends in {ENDINGS[format]}, or it is not read as one"
        )
    if path.exists():
        raise FedskewError(f"{path} exists already: remove it or choose another")
    pipeline, task = run.pipeline, run.task
    model = run.model_in_use(client).cpu().eval()
    program = _program(pipeline, model, task)
    if not isinstance(pipeline, Schema) and takes_tokens(model, torch.zeros(2, *pipeline.shape)):
        program.dtype = torch.int64
    if program.logits:
        warn_of_class_weights(task, stacklevel=3)
    described = {
        "inputs": _inputs(pipeline),
        "output": program.output,
        "pipeline": pipeline.to_json(),
    }
    if (threshold := threshold_for(run, client)) is not None:
        described["threshold"] = {
            "class": pipeline.label.classes[1],
            "probability": threshold.probability,
        }
    if format == "torch":
        write = _torch_program
    else:
        write = _onnx_program
    content, call = write(program, described)
    tokens = program.dtype == torch.int64
    differences = []
    for rows in ROWS:
        made = _made_rows(pipeline, rows, tokens)
        differences.append(_difference(call, made, model, task, run.threads))
    difference = max(differences)
    if not difference <= TOLERANCE:
        raise FedskewError(
            f"the {format} program differs from the model by {difference:g}: nothing was written"
        )
    write_atomically(path, content)
    digest = hashlib.sha256(content).hexdigest()
    write_atomically(path.with_name(f"{path.name}.sha256"), f"{digest}  {path.name}\n".encode())
    return Exported(described, difference)


# -- the program -------------------------------------------------------------------------------------------------------


class _Program(nn.Module):
    """A model with its preprocessing before it and, where outputs are logits, probabilities after it."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model = model
        self.logits = _gives_logits(task)
        self.several = task.target == "labels"
        self.dtype = next(iter(trainable(model).values())).dtype
        self.output = "outputs"
        if self.logits:
            self.output = "probabilities"

    def finish(self, x: Tensor) -> Tensor:
        """Return the output for features."""
        outputs: Tensor = self.model(x.to(self.dtype))
        if not self.logits:
            return outputs
        if self.several:
            return outputs.sigmoid()
        if outputs.shape[1] > 1:
            return outputs.softmax(1)
        return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], 1)


class _ArrayProgram(_Program):
    """A program that takes arrays, and scales them."""

    offset: Tensor
    factor: Tensor

    def __init__(self, model: nn.Module, task: Task, offset: Tensor, factor: Tensor) -> None:
        super().__init__(model, task)
        self.register_buffer("offset", offset)
        self.register_buffer("factor", factor)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for rows as they are."""
        return self.finish((x - self.offset) * self.factor)


class _TableProgram(_Program):
    """A program that takes numbers and categories of a table's rows."""

    fill: Tensor
    mean: Tensor
    deviation: Tensor
    order: Tensor

    def __init__(self, model: nn.Module, task: Task, schema: Schema) -> None:
        super().__init__(model, task)
        numeric, texts = _columns(schema)
        for name in ("fill", "mean", "deviation"):
            values = [getattr(column, name) for column in numeric]
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64))
        self.sizes = [len(column.features) for column in texts]
        titles = [column.name for column in numeric]
        for column in texts:
            titles += column.features
        place = {title: number for number, title in enumerate(titles)}
        self.register_buffer("order", torch.tensor([place[title] for title in schema.features]))

    def scaled(self, numbers: Tensor) -> Tensor:
        """Return numbers with gaps filled, standardised, in single precision."""
        filled = torch.where(torch.isfinite(numbers), numbers, self.fill)
        return ((filled - self.mean) / self.deviation).float()

    def indicators(self, categories: Tensor) -> Tensor:
        """Return a column of 0 and 1 for every category of every text column."""
        columns = []
        for at, size in enumerate(self.sizes):
            columns.append(categories[:, at : at + 1] == torch.arange(size))
        return torch.cat(columns, 1).float()

    def output_of(self, parts: list[Tensor]) -> Tensor:
        """Return the output for the features, brought into the order of the training."""
        return self.finish(torch.cat(parts, 1).index_select(1, self.order))


class _Numbers(_TableProgram):
    """A program for a table of numbers."""

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the output for rows as they are."""
        return self.output_of([self.scaled(numbers)])


class _Texts(_TableProgram):
    """A program for a table of categories."""

    def forward(self, categories: Tensor) -> Tensor:
        """Return the output for rows of category numbers."""
        return self.output_of([self.indicators(categories)])


class _Mixed(_TableProgram):
    """A program for a table of numbers and categories."""

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Return the output for rows of numbers and category numbers."""
        return self.output_of([self.scaled(numbers), self.indicators(categories)])


def _gives_logits(task: Task) -> bool:
    """Return whether the outputs of a model are logits, from which probabilities follow."""
    return isinstance(task, BuiltIn) and task.target in ("class", "labels")


def _program(pipeline: Pipeline, model: nn.Module, task: Task) -> _Program:
    if isinstance(pipeline, Schema) and not pipeline.window:
        return _table_program(pipeline)(model, task, pipeline).eval()
    if isinstance(pipeline, Schema):  # of windows, which are cut from rows that are encoded already
        return _ArrayProgram(model, task, torch.zeros(1), torch.ones(1)).eval()
    along = (1, -1) + (1,) * (len(pipeline.shape) - 1)
    offset = torch.tensor(pipeline.offset).view(along)
    factor = torch.tensor(pipeline.factor).view(along)
    return _ArrayProgram(model, task, offset, factor).eval()


def _table_program(schema: Schema) -> type[_TableProgram]:
    """Return the kind of program that takes the columns of a table."""
    numeric, texts = _columns(schema)
    if not numeric:
        return _Texts
    if not texts:
        return _Numbers
    return _Mixed


def _columns(schema: Schema) -> tuple[list[Numeric], list[Categories]]:
    """Return the columns of numbers and those of texts."""
    numeric: list[Numeric] = []
    texts: list[Categories] = []
    for column in schema.columns:
        if isinstance(column, Numeric):
            numeric.append(column)
        else:
            texts.append(column)
    return numeric, texts


def _inputs(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return what the program takes: one entry for each input."""
    if not isinstance(pipeline, Schema):
        return [{"name": "x", "type": "float32", "shape": ["rows", *pipeline.shape]}]
    if pipeline.window:
        shape = ["rows", len(pipeline.features), pipeline.window]
        return [
            {"name": "x", "type": "float32", "shape": shape, "columns": list(pipeline.features)}
        ]
    numeric, texts = _columns(pipeline)
    inputs: list[dict[str, Any]] = []
    if numeric:
        names = [column.name for column in numeric]
        inputs.append(_table_input("numbers", "float64", names))
    if texts:
        columns = [_described_categories(column) for column in texts]
        inputs.append(_table_input("categories", "int64", columns))
    return inputs


def _table_input(name: str, type: str, columns: list[Any]) -> dict[str, Any]:
    return {"name": name, "type": type, "shape": ["rows", len(columns)], "columns": columns}


def _described_categories(column: Categories) -> dict[str, Any]:
    return {
        "name": column.name,
        "categories": list(column.values),
        "other": _other(column),
        "missing": _place(column, MISSING),
    }


def _other(column: Categories) -> int:
    """Return the number of a category that was not seen in training."""
    if column.pooled:
        return len(column.values)
    return -1


def _place(column: Categories, value: str) -> int:
    if value in column.values:
        return column.values.index(value)
    return _other(column)


# -- formats -----------------------------------------------------------------------------------------------------------

Call: TypeAlias = Callable[[list[Tensor]], NDArray[Any]]


def _examples(
    described: Mapping[str, Any],
) -> tuple[tuple[Tensor, ...], tuple[dict[int, Any], ...]]:
    """Return inputs of the right types and shapes, and shapes that say that the number of rows may be any."""
    rows = torch.export.Dim("rows")
    examples = []
    shapes = []
    for entry in described["inputs"]:
        shape = (3, *entry["shape"][1:])
        examples.append(torch.zeros(shape, dtype=getattr(torch, entry["type"])))
        shapes.append({0: rows})
    return tuple(examples), tuple(shapes)


def _torch_program(program: _Program, described: Mapping[str, Any]) -> tuple[bytes, Call]:
    examples, shapes = _examples(described)
    try:
        exported = torch.export.export(program, examples, dynamic_shapes=shapes)
    except Exception as problem:  # whatever a user's module cannot do
        raise _cannot("torch", program, problem) from problem
    call = exported.module()
    exported.example_inputs = None  # they would be stored as a pickle
    file = io.BytesIO()
    torch.export.save(exported, file, extra_files={_DESCRIBED: json.dumps(described)})

    def run(given: list[Tensor]) -> NDArray[Any]:
        with torch.no_grad():
            outputs: NDArray[Any] = call(*given).numpy()
        return outputs

    return file.getvalue(), run


def _onnx_program(program: _Program, described: Mapping[str, Any]) -> tuple[bytes, Call]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError:
        raise FedskewError("ONNX needs further packages: pip install 'fedskew[onnx]'") from None
    examples, shapes = _examples(described)
    names = [entry["name"] for entry in described["inputs"]]
    try:
        with _silence():
            exported = torch.onnx.export(
                program,
                examples,
                dynamo=True,
                input_names=names,
                output_names=[program.output],
                dynamic_shapes=shapes,
                verbose=False,
            )
    except Exception as problem:  # whatever a user's module cannot do
        raise _cannot("onnx", program, problem) from problem
    model = cast(Any, exported).model_proto
    onnx.helper.set_model_props(model, {_DESCRIBED: json.dumps(described)})
    content: bytes = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(given: list[Tensor]) -> NDArray[Any]:
        inputs = {}
        for name, value in zip(names, given, strict=True):
            inputs[name] = value.numpy()
        outputs: NDArray[Any] = session.run(None, inputs)[0]
        return outputs

    return content, run


@contextmanager
def _silence() -> Iterator[None]:
    """Keep back what the exporter says about itself."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _cannot(format: Format, program: _Program, problem: Exception) -> FedskewError:
    reason = (str(problem).splitlines() or [type(problem).__name__])[0]
    return FedskewError(f"{type(program.model).__name__} cannot be exported to {format}: {reason}")


# -- the check ---------------------------------------------------------------------------------------------------------


def _difference(
    call: Call, made: tuple[list[Tensor], Features], model: nn.Module, task: Task, threads: int
) -> float:
    """Return the largest difference between the program and the model, preprocessing included, on made rows."""
    inputs, x = made
    outputs = outputs_of(model, x, threads)
    if _gives_logits(task):
        outputs = probabilities(task, outputs)
    of_model = outputs.double().numpy()
    of_program = call(inputs).astype(np.float64)
    if of_program.shape != of_model.shape:
        return np.inf
    return float(np.abs(of_program - of_model).max() / max(1.0, np.abs(of_model).max()))


def _made_rows(pipeline: Pipeline, rows: int, tokens: bool) -> tuple[list[Tensor], Features]:
    """Return made rows as the inputs of the program, and as features of the model; tokens are 0 and 1."""
    draw = Stream(0, "export check", rows).generator()
    if not isinstance(pipeline, Schema):
        offset = np.array(pipeline.offset)
        factor = np.array(pipeline.factor)
        along = (1, -1) + (1,) * (len(pipeline.shape) - 1)
        scaled = draw.normal(size=(rows, *pipeline.shape))
        x = scaled / factor.reshape(along) + offset.reshape(along)
        single = x.astype(np.float32)
        if tokens:
            single = (scaled > 0).astype(np.float32)
        return [torch.from_numpy(single)], pipeline.encode(single)
    if pipeline.window:
        x = draw.normal(size=(rows, len(pipeline.features), pipeline.window)).astype(np.float32)
        return [torch.from_numpy(x)], x
    return _made_table(pipeline, rows, draw)


def _made_table(
    schema: Schema, rows: int, draw: np.random.Generator
) -> tuple[list[Tensor], Features]:
    import pandas as pd

    numeric, texts = _columns(schema)
    columns: dict[str, Any] = {}
    inputs = []
    for column in numeric:
        values = column.mean + 2 * column.deviation * draw.normal(size=rows)
        columns[column.name] = np.where(draw.random(rows) < 0.2, np.nan, values)
    if numeric:
        inputs.append(torch.from_numpy(np.stack([columns[column.name] for column in numeric], 1)))
    codes = []
    for text in texts:
        choices = [*text.values, _UNKNOWN]
        drawn = [choices[at] for at in draw.integers(len(choices), size=rows)]
        codes.append([_place(text, value) for value in drawn])
        cells: list[str | None] = []
        for value in drawn:
            if value == MISSING:
                cells.append(None)
            else:
                cells.append(value)
        columns[text.name] = cells
    if texts:
        inputs.append(torch.tensor(codes).T.contiguous())
    return inputs, schema.encode(pd.DataFrame(columns))
