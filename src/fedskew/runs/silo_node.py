"""A node on a silo's own file: it answers the questions of a fit, and then trains on its rows."""

import json
import tomllib
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedskew import __version__
from fedskew.algorithms.contract import resolve
from fedskew.core.errors import FedskewError
from fedskew.core.writing import write_atomically, writing
from fedskew.data.catalogue import choose
from fedskew.data.dataset import Split, datasets
from fedskew.data.federation import Federation
from fedskew.data.fitting import Description, Fitted, Request
from fedskew.data.partition import Partition
from fedskew.data.readers.array_silo import ArraySilo
from fedskew.data.readers.silo_files import is_arrays
from fedskew.data.readers.table import Parted, SiloTables, converted
from fedskew.data.schema import Scaling, Schema, pipeline_from
from fedskew.data.silo import TableSilo
from fedskew.deploy.node import Node, facts_of
from fedskew.deploy.requests import Question, Refusal, Tell, from_bytes, to_bytes
from fedskew.models.build import build
from fedskew.runs.execute import settings_of
from fedskew.tasks.task import BY_TARGET
from fedskew.tasks.task import resolve as resolve_task

ROWS = "rows.sha256"  # in the folder of what a silo keeps for a run


def answer(about: Mapping[str, Any], request: bytes) -> bytes:
    """Return the answer of a silo to a request; whatever goes wrong is an answer too.

    The text of an unexpected error stays here, in the log of the node: it might quote rows.
    """
    try:
        return SiloNode(about).answer(request)
    except FedskewError as problem:
        path = Path(str(about["node"]["data"]))
        return to_bytes(Refusal(str(problem).replace(str(path), path.name)))  # folders are nobody else's business
    except Exception as problem:
        traceback.print_exc()
        return to_bytes(Refusal(f"a {type(problem).__name__}, which is told in the log of the node"))


class SiloNode:
    """A silo in one message.

    ``about`` is what the message says of the run (how tables are read, the schema, the configuration), and under
    ``node`` what the silo's owner says: ``data``, its file; ``state``, a folder for what it keeps; ``name``.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about, self.own = about, about["node"]
        self.path = Path(str(self.own["data"]))
        self.name = str(self.own.get("name") or self.path.name.split(".")[0])
        if about["version"] != __version__:
            raise FedskewError(
                f"node {self.name} runs fedskew {__version__}, and the server {about['version']}: install the same"
            )

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a request."""
        request = from_bytes(content)
        match request:
            case Question(what="describe"):
                return to_bytes(_without_examples(self._described(request.content)))
            case Question():
                return to_bytes(getattr(self.silo, request.what)(request.content))
            case Tell():
                self._check_rows()
                return to_bytes(facts_of(self.fed, {}))
            case _:
                self._check_rows()
                return self.node.answer(content)

    def _described(self, request: Request) -> Description:
        """Return what the silo tells of itself; the server learns its name from it, so an error has to tell it too."""
        try:
            return self.silo.describe(request)
        except FedskewError as problem:
            if str(problem).startswith(self.name):
                raise
            raise FedskewError(f"{self.name}: {problem}") from problem

    def _check_rows(self) -> None:
        """Refuse rows that are not those with which the run began, of which a hash is kept here."""
        path = self.folder / ROWS
        if not path.exists():
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, self.fed.fingerprint.encode())
        elif path.read_text(encoding="utf-8") != self.fed.fingerprint:
            raise FedskewError(
                f"{self.path.name} holds other rows than when the run began: give the node the file as it was then, "
                "or start a new run"
            )

    @property
    def folder(self) -> Path:
        """The place of what the silo keeps for this run."""
        return Path(str(self.own["state"])) / str(self.about["run"])

    @cached_property
    def part(self) -> Parted | ArraySilo:
        """The table or the arrays of the silo, its rows divided as the run wants it."""
        options = json.loads(str(self.about["options"]))
        choice = choose({"name": "silos", **options, "paths": (str(self.path),)})
        share, seed = float(self.about["validation"]), int(self.about["seed"])
        validation = Split("validation", share, seed) if share else None
        if is_arrays(self.path):
            return ArraySilo(self.name, self.path, choice.options, validation)
        read = datasets.get(choice.name)(**choice.options)
        if not isinstance(read, SiloTables) or len(read.tables) != 1:
            raise FedskewError(f"{self.path} is not one table: a node has one CSV, Parquet or NPZ file")
        (table,) = read.tables.values()
        return table.parted(self.name, self.name, validation)

    @property
    def silo(self) -> TableSilo | ArraySilo:
        """What answers the questions of a fit."""
        return self.part if isinstance(self.part, ArraySilo) else self.part.silo

    @cached_property
    def fed(self) -> Federation:
        """The rows of the silo as a federation of one client, by the schema of all."""
        pipeline, part = pipeline_from(json.loads(str(self.about["schema"]))), self.part
        if isinstance(part, ArraySilo):
            assert isinstance(pipeline, Scaling), "a run has files of one kind"
            data = part.converted(pipeline)
        else:
            assert isinstance(pipeline, Schema), "a run has files of one kind"
            described = part.silo.describe(part.table.request(compared=True))
            data = converted(part, Fitted(pipeline, (described,)))
        return Federation(data, Partition.from_lists([np.arange(len(data.train))]))

    @property
    def node(self) -> Node:
        """The client of the run."""
        config = tomllib.loads(str(self.about["config"]))
        settings, data = settings_of(config), self.fed.data
        task = resolve_task(BY_TARGET[data.target] if settings.task == "auto" else settings.task)
        if task.target == "class":
            task = task.fitted(np.array(json.loads(str(self.about["counts"]))))
        model = build(config["model"], data.shape, task.width(len(data.classes)), settings.seed)
        client = int(self.about["client"])
        return Node(self.fed, client, model, resolve(config["algorithm"]), settings, task, self.folder)


def _without_examples(described: Description) -> Description:
    """Return what a silo tells of itself without the values of single rows, which only errors would show."""
    columns = {title: replace(facts, example="not told") for title, facts in described.columns.items()}
    return replace(described, columns=columns)
