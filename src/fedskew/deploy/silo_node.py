"""A node on a silo's own file: it answers the questions of a fit, and then trains on its rows."""

import json
import re
import sys
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedskew import __version__
from fedskew.algorithms.contract import resolve
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.core.writing import write_atomically, writing
from fedskew.data.catalogue import choose
from fedskew.data.cells import MISSING, OTHER
from fedskew.data.dataset import Dataset, Rows, Split, datasets
from fedskew.data.federation import Federation
from fedskew.data.fitting import ASKED, Description, Fitted, Request
from fedskew.data.partition import Partition
from fedskew.data.readers.array_silo import ArraySilo
from fedskew.data.readers.csv_format import file_and_format
from fedskew.data.readers.silo_files import is_arrays
from fedskew.data.readers.table import Parted, SiloTables, converted
from fedskew.data.readers.user_files import column_names
from fedskew.data.schema import Pipeline, Scaling, Schema, pipeline_from
from fedskew.data.silo import SiloNumbers, TableSilo
from fedskew.deploy.arrays_cache import ArraysCache, digest_of, remove_unused, signs_of
from fedskew.deploy.node import Node, job_of, row_counts_of
from fedskew.deploy.question_checks import (
    TOLD,
    check_classes,
    check_request,
    checked_fills,
    checked_intervals,
    refuse_other_words,
)
from fedskew.deploy.requests import (
    CountRows,
    Evaluate,
    Question,
    Refusal,
    from_bytes,
    to_bytes,
)
from fedskew.models.build import build
from fedskew.runs.recorded_config import settings_of
from fedskew.tasks.task import task_for

_RUN = re.compile(r"[0-9a-f]{32}")  # the name of a run becomes a folder: nothing else may
# In the folder of what a silo keeps for a run: a hash of its rows, its rows as features, and the numbers of its table
ROWS, FEATURES, NUMBERS = "rows.sha256", "features", "numbers"
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")  # as Python quotes text
_PARTS = ("train", "test", "validation")


def answer(about: Mapping[str, Any], request: bytes) -> bytes:
    """Return the answer of a silo to a request; whatever goes wrong is an answer too.

    The text of an unexpected error stays here, in the log of the node: it might quote rows.
    """
    try:
        return SiloNode(about).answer(request)
    except FedskewError as problem:
        print(f"refused: {problem}", file=sys.stderr)
        reason = _without_paths(str(problem), about["node"])
        if isinstance(problem, _OwnFileError):
            reason = _without_cells(reason, problem.path)
        return to_bytes(Refusal(reason))
    except Exception as problem:
        traceback.print_exc()
        return to_bytes(
            Refusal(f"a {type(problem).__name__}, which is told in the log of the node")
        )


class _OwnFileError(FedskewError):
    """Raised where the file of the silo does not do; the error may quote its cells."""

    def __init__(self, reason: str, path: Path) -> None:
        super().__init__(reason)
        self.path = path


@contextmanager
def _reading_own(path: Path) -> Iterator[None]:
    """Mark errors as ones that may quote cells of the silo's file."""
    try:
        yield
    except FedskewError as problem:
        raise _OwnFileError(str(problem), path) from problem


def _without_paths(reason: str, own: Mapping[str, Any]) -> str:
    """Return the words of an error without paths of this machine."""
    path = Path(file_and_format(str(own["data"]))[0])
    state = Path(str(own["state"])).resolve()
    return reason.replace(str(path), path.name).replace(str(state), "--state")


def _without_cells(reason: str, path: Path) -> str:
    """Return the words of an error without quoted text, unless it is the title of a column or the name of the file."""
    known = {path.name, OTHER, MISSING, "x", "y", "x_test", "y_test"}
    with suppress(FedskewError, OSError):
        if not is_arrays(path):
            known.update(column_names(path))

    def left(quoted: re.Match[str]) -> str:
        if quoted[0][1:-1] in known:
            return quoted[0]
        return "'…'"

    return _QUOTED.sub(left, reason)


class SiloNode:
    """A silo that answers one message; every message makes a new one.

    ``about`` is what the message says of the run (how tables are read, the schema, the configuration), and under
    ``node`` what the silo's owner says: ``data``, its file; ``state``, a folder for what it keeps; ``name``.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = about
        self.own = about["node"]
        # The file, and behind it perhaps how it is written
        self.path = Path(file_and_format(str(self.own["data"]))[0])
        self.name = str(self.own.get("name") or self.path.name.split(".")[0])
        if about["version"] != __version__:
            raise FedskewError(
                f"node {self.name} runs fedskew {__version__}, and the server {about['version']}: install the same"
            )

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a request."""
        request = from_bytes(content)
        match request:
            case Question():
                return to_bytes(self._answer_question(request))
            case CountRows():
                return to_bytes(row_counts_of(self.fed, {}))
            case Evaluate(final=True):
                answered = self.node.answer(content)
                self._features.remove()
                return answered
            case _:
                return self.node.answer(content)

    def _answer_question(self, question: Question) -> Any:
        """Return the answer to a question of a fit; whatever else a server asks is refused."""
        refuse_other_words(question.what)
        match question.what:
            case "describe":
                return _without_values_of_rows(self._describe(question.content))
            case "count":
                return self._count(question.content)
            case "add_up":
                fills = checked_fills(question.content)
                if is_arrays(self.path):
                    return self.silo.add_up(fills)
                with _reading_own(self.path):
                    return self._table_numbers().add_up(fills)

    def _count(self, asked: Any) -> dict[str, list[Ints]]:
        intervals = checked_intervals(asked)
        if is_arrays(self.path):
            raise FedskewError(f"{self.path.name} holds arrays, whose numbers are not counted")
        with _reading_own(self.path):
            return self._table_numbers().count(intervals)

    def _table_numbers(self) -> SiloNumbers:
        """Return the numbers of the table: those that were kept when it described itself, or read again."""
        kept = self._numbers.load()
        if kept is None:
            assert isinstance(self.silo, TableSilo)
            return self.silo.numbers
        titles = kept["titles"].tolist()
        return SiloNumbers(
            int(kept["rows"][0]), titles, lambda title: kept[f"column-{titles.index(title)}"]
        )

    def _keep_numbers(self, described: Description, signs: tuple[int, ...]) -> None:
        """Keep the numbers of the table, about which further questions follow; they go when rows are converted."""
        assert isinstance(self.silo, TableSilo)
        titles: list[str] = []
        arrays: dict[str, Any] = {"rows": np.array([described.rows])}
        for title, facts in described.columns.items():
            if facts.kind in ("number", "empty"):
                arrays[f"column-{len(titles)}"] = self.silo.values(title)
                titles.append(title)
        arrays["titles"] = np.array(titles, dtype=np.str_)
        self._numbers.save(arrays, signs)

    def _describe(self, asked: Any) -> Description:
        """Return what the silo tells of itself; an error begins with its name, which the server does not know yet."""
        try:
            request = self._request
            check_request(asked, request)
            most_told = min(request.max_categories, TOLD)
            signs = signs_of(self.path)
            with _reading_own(self.path):
                described = self.silo.describe(replace(request, max_categories=most_told))
            check_classes(described, request.label)
            if not is_arrays(self.path):
                self._keep_numbers(described, signs)
            return described
        except FedskewError as problem:
            if str(problem).startswith(self.name):
                raise
            named = f"{self.name}: {problem}"
            if isinstance(problem, _OwnFileError):
                raise _OwnFileError(named, self.path) from problem
            raise FedskewError(named) from problem

    def _check_rows(self, arrays: Mapping[str, Any]) -> None:
        """Refuse rows that are not those with which the run began, of which a hash is kept here."""
        path = self.folder / ROWS
        digest = digest_of(arrays)
        if not path.exists():
            with writing(path):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, digest.encode())
        elif path.read_text(encoding="utf-8") != digest:
            raise FedskewError(
                f"{self.path.name} holds other rows than when the run began: give the node the file as it was then, "
                "or start a new run"
            )

    @property
    def folder(self) -> Path:
        """The place of what the silo keeps for this run, inside the folder that its owner has named."""
        run = self.about["run"]
        state = Path(str(self.own["state"])).resolve()
        if not isinstance(run, str) or not _RUN.fullmatch(run):
            raise FedskewError(
                f"{run!r:.80} is not a name of a run, expected 32 hexadecimal digits: start a new run"
            )
        folder = state / run
        if folder.resolve() != folder:
            raise FedskewError(f"{run} leads out of the node's --state: remove that link there")
        return folder

    @cached_property
    def _options(self) -> Mapping[str, Any]:
        """How the silo's file is read: by the options of the run, except for which file it is."""
        options = json.loads(str(self.about["options"]))
        return choose({**options, "name": "silos", "paths": (str(self.own["data"]),)}).options

    @property
    def _request(self) -> Request:
        """What is to be fitted, by the options of the run."""
        return Request(**{name: self._options[name] for name in ASKED}, compared=True)

    @cached_property
    def part(self) -> Parted | ArraySilo:
        """The table or the arrays of the silo, its rows divided as the run wants it."""
        share = float(self.about["validation"])
        seed = int(self.about["seed"])
        validation = None
        if share:
            validation = Split("validation", share, seed)
        with _reading_own(self.path):
            return self._read(validation)

    def _read(self, validation: Split | None) -> Parted | ArraySilo:
        """Return the table or the arrays of the silo, as read from its file."""
        if is_arrays(self.path):
            return ArraySilo(self.name, self.path, self._options, validation)
        read = datasets.get("silos")(**self._options)
        if not isinstance(read, SiloTables) or len(read.tables) != 1:
            raise FedskewError(
                f"{self.path} is not one table: a node has one CSV, Parquet or NPZ file"
            )
        (table,) = read.tables.values()
        return table.parted(self.name, self.name, validation)

    @property
    def silo(self) -> TableSilo | ArraySilo:
        """What answers the questions of a fit."""
        if isinstance(self.part, ArraySilo):
            return self.part
        return self.part.silo

    @cached_property
    def fed(self) -> Federation:
        """The rows of the silo as a federation of one client, by the schema of all."""
        pipeline = pipeline_from(json.loads(str(self.about["schema"])))
        of_schema = pipeline.label.columns
        of_run = self._request.targets
        if of_schema != of_run:
            raise FedskewError(
                f"the schema has the label {'+'.join(of_schema)}, and the run the label {'+'.join(of_run)}: "
                "use the same version of fedskew"
            )
        arrays = None
        if (self.folder / ROWS).exists():
            arrays = self._features.load()
        if arrays is None:
            signs = signs_of(self.path)
            with _reading_own(self.path):
                arrays = _arrays_of(self._converted(pipeline))
            self._check_rows(arrays)
            remove_unused(self.folder.parent)
            self._features.save(arrays, signs)
            self._numbers.remove()
        data = _dataset_of(arrays, self.name, pipeline)
        return Federation(data, Partition.from_lists([np.arange(len(data.train))]))

    @property
    def _features(self) -> ArraysCache:
        """What the silo keeps of its rows for this run, by the schema of all."""
        told = [self.about[name] for name in ("options", "validation", "seed", "schema")]
        meaning = json.dumps([__version__, self.name, str(self.own["data"]), *told])
        return ArraysCache(self.folder / FEATURES, self.path, meaning)

    @property
    def _numbers(self) -> ArraysCache:
        """What the silo keeps of its table for this run, until there is a schema."""
        told = [self.about[name] for name in ("options", "validation", "seed")]
        meaning = json.dumps([__version__, str(self.own["data"]), *told])
        return ArraysCache(self.folder / NUMBERS, self.path, meaning)

    def _converted(self, pipeline: Pipeline) -> Dataset:
        """Return the rows of the file, by the schema of all."""
        part = self.part
        if isinstance(part, ArraySilo):
            assert isinstance(pipeline, Scaling), "a run has files of one kind"
            return part.converted(pipeline)
        assert isinstance(pipeline, Schema), "a run has files of one kind"
        described = part.silo.describe(self._request)
        # First, as an error of the conversion names a class: one after the other would be told.
        check_classes(described, self._request.label)
        return converted(part, Fitted(pipeline, (described,)))

    @property
    def node(self) -> Node:
        """The client of the run."""
        config = tomllib.loads(str(self.about["config"]))
        settings = settings_of(config)
        data = self.fed.data
        task = task_for(settings.task, data.target)
        if task.target == "class":
            task = task.fitted(np.array(json.loads(str(self.about["counts"]))))
        model = build(config["model"], data.shape, task.width(len(data.classes)), settings.seed)
        client = self.about["client"]
        if type(client) is not int or client < 0:
            raise FedskewError(
                f"{client!r:.80} is not a number of a client: use the same version of fedskew"
            )
        job = job_of(self.fed, client, model, resolve(config["algorithm"]), settings, task)
        return Node(self.fed, job, settings, self.folder)


def _without_values_of_rows(described: Description) -> Description:
    """Return a description without values of single rows, and without the names of rare categories."""
    columns = {}
    for title, facts in described.columns.items():
        columns[title] = replace(facts.without_rare(), example="not told")
    return replace(described, columns=columns)


def _arrays_of(data: Dataset) -> dict[str, Any]:
    """Return the features and targets of all parts of a data set."""
    arrays = {}
    for part in _PARTS:
        rows: Rows | None = getattr(data, part)
        if rows is not None:
            arrays[f"{part}-x"] = np.asarray(rows.x)
            arrays[f"{part}-y"] = rows.y
    return arrays


def _dataset_of(arrays: Mapping[str, Any], name: str, pipeline: Pipeline) -> Dataset:
    """Return the data set of one client with these features and targets."""
    parts = {}
    for part in _PARTS:
        if f"{part}-x" in arrays:
            y = arrays[f"{part}-y"]
            parts[part] = Rows(arrays[f"{part}-x"], y, np.zeros(len(y), dtype=np.int64))
    features: tuple[str, ...] = ()
    if isinstance(pipeline, Schema):
        features = pipeline.features
    return Dataset(
        name=name,
        train=parts["train"],
        test=parts["test"],
        validation=parts.get("validation"),
        classes=pipeline.label.classes,
        groups=(name,),
        features=features,
        schema=pipeline,
    )
