"""Where a finished run has its facts from: the server that has just trained it, or its folder.

Both answer the same questions; ``Run`` asks them and keeps the answers.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from torch import nn

from fedskew.algorithms.contract import Algorithm
from fedskew.algorithms.contract import resolve as resolve_method
from fedskew.core.config import to_toml
from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, one_client
from fedskew.data.partition import Partition
from fedskew.data.schema import Pipeline, pipeline_from
from fedskew.engine.job import (
    ANSWER,
    LOCAL,
    STATE,
    initial_weights,
    model_in_use,
    prefixed,
    shared_model,
    training_form,
)
from fedskew.engine.sharing import WHOLE
from fedskew.models.build import build
from fedskew.models.layout import layout
from fedskew.models.low_rank import plain_weights
from fedskew.models.parameters import trainable
from fedskew.runs import folder as on_disk
from fedskew.runs.checkpoint import OwnPart, global_tensors, own_part, server_state
from fedskew.runs.folder import FORMAT, Row, RunFolder
from fedskew.runs.recorded_config import from_python, settings_of
from fedskew.runs.summary_reading import ADAPTED, CHOSEN_BY_LOSS, CLIENT_MODEL, SHARED_MODEL
from fedskew.server.clients import models_away
from fedskew.server.server import Server
from fedskew.tasks.task import Task, resolve
from fedskew.tasks.thresholds import Threshold

Confusion = tuple[Sequence[str], Any]  # the names of the classes, and the counts


def _weights_of(model: nn.Module) -> Tensors:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@dataclass(frozen=True)
class InMemory:
    """A run that has just been trained, or resumed: its server, and its tables by the names of their files.

    ``folder`` is None if none was written. Only then do ``tables`` hold that of clients and rounds, in one part for
    each round; otherwise it is read from the folder.
    """

    server: Server
    model: nn.Module
    tables: Mapping[str, list[Any]]
    settings: Mapping[str, Any]
    folder: Path | None

    format = FORMAT

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings, as they are read back from a file."""
        return tomllib.loads(to_toml(self.settings))

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table."""
        if table != on_disk.CLIENTS:
            return self.tables[table]
        if self.folder is None:
            return list(chain.from_iterable(self.tables[table]))
        return RunFolder(self.folder).table(table)

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the clients, or their numbers if they have none."""
        return self.server.fed.client_names

    @property
    def partition(self) -> Partition:
        """The rows of each client."""
        return self.server.fed.partition

    @property
    def pipeline(self) -> Pipeline:
        """How new data become features."""
        return self.server.fed.data.pipeline

    @property
    def task(self) -> Task:
        """The task of the run."""
        return self.server.job.task

    @property
    def threads(self) -> int:
        """How many threads the run computed with."""
        return self.server.threads

    @property
    def weights(self) -> Tensors:
        """Weights and buffers of the global model, by name."""
        return {name: value.detach().cpu() for name, value in _weights_of(self.model).items()}

    @property
    def shared_model(self) -> str:
        """``whole``, or why clients share no whole model."""
        return self.server.job.shared_model

    @property
    def personalised(self) -> bool:
        """Whether clients have models, or parts of them, of their own."""
        return self.server.personalised

    def own_weights(self, client: int) -> Tensors | None:
        """Return the weights of a client's own model; None where it uses the global one."""
        if not self.personalised:
            return None
        return plain_weights(self.server.model, self.server.client_model(client))

    @property
    def threshold(self) -> Threshold | None:
        """The chosen threshold of the global model, if there is one."""
        chosen = self.server.threshold()
        if chosen is None:
            return None
        threshold, _ = chosen
        return threshold

    @property
    def confusion(self) -> Confusion | None:
        """The confusion matrix of the global model, if there is one."""
        return self._named(self.server.confusion())

    @property
    def own_confusion(self) -> Confusion | None:
        """The sum of those of the clients' own models, if there is one."""
        return self._named(self.server.final_clients().confusion)

    def _named(self, matrix: Ints | None) -> Confusion | None:
        if matrix is None:
            return None
        return self.server.fed.data.classes, matrix


@dataclass(frozen=True)
class OnDisk:
    """A run that was opened from its folder; ``format`` is that of the folder."""

    disk: RunFolder
    format: int
    config: dict[str, Any]
    summary: Row

    @property
    def server(self) -> Server:
        """Raise an error: nothing is trained by opening a folder."""
        raise FedskewError(
            f"{self.disk.path} was opened, and has no server: fedskew.resume(folder) returns the run with its server"
        )

    def rows(self, table: str) -> list[Row]:
        """Return the rows of a table."""
        return self.disk.table(table)

    @property
    def client_names(self) -> tuple[str, ...]:
        """The names of the clients, or their numbers if they have none."""
        names = self._stored.get("clients")
        if names:
            return tuple(names)
        return tuple(str(number) for number in range(self.partition.clients))

    @cached_property
    def partition(self) -> Partition:
        """The rows of each client."""
        return Partition.load(self.disk.path / on_disk.PARTITION)

    @property
    def pipeline(self) -> Pipeline:
        """How new data become features."""
        return pipeline_from(self._stored)

    @cached_property
    def _stored(self) -> Row:
        """The content of pipeline.json."""
        if not (self.disk.path / on_disk.PIPELINE).is_file():
            raise FedskewError(
                f"{self.disk.path} has no {on_disk.PIPELINE}: an older version of fedskew wrote it; train again to "
                "predict"
            )
        return self.disk.read_json(on_disk.PIPELINE)

    @property
    def task(self) -> Task:
        """The task of the run."""
        spec = self.config.get("task", "classification")
        if from_python(spec):
            raise FedskewError(
                f"{self.disk.path}: its task was a Python object: predict with what train returned"
            )
        return resolve(spec)

    @property
    def threads(self) -> int:
        """How many threads the run computed with."""
        return int(self._environment.get("threads", 1))

    @cached_property
    def _environment(self) -> Row:
        return self.disk.read_json(on_disk.ENVIRONMENT)

    @cached_property
    def weights(self) -> Tensors:
        """Weights and buffers of the global model, by name."""
        path = self.disk.path / on_disk.MODEL
        try:
            return dict(tensors_from_bytes(path.read_bytes()))
        except (OSError, SafetensorError) as problem:
            raise FedskewError(f"{path} cannot be read: {problem}") from None

    @property
    def model(self) -> nn.Module:
        """The trained global model in evaluation mode."""
        if from_python(self.config["model"]) or "shape" not in self._environment:
            raise FedskewError(
                f"{self.disk.path}: its model cannot be built from the folder alone: build it, and load the tensors "
                "in run.weights"
            )
        model = self._initial_model(0)
        self._load_all(model)
        return model.eval()

    @torch.no_grad()
    def _load_all(self, model: nn.Module) -> None:
        """Load what the run has stored, frozen tensors too: a file that they came from may have changed since."""
        for name, value in _weights_of(model).items():
            stored = self.weights.get(name)
            if stored is None or stored.shape != value.shape:
                raise FedskewError(
                    f"{self.disk.path}: {name} of the model has shape {tuple(value.shape)}, and {on_disk.MODEL} holds "
                    "another one: put the files back that the model is built from"
                )
            value.copy_(stored)

    def _initial_model(self, seed: int, adapted: bool = False) -> nn.Module:
        """Return a model with the initial weights of a seed, in the precision of the trained ones.

        With ``adapted`` it is as it was trained, with the method's adapters.
        """
        facts = self._environment
        model = build(self.config["model"], tuple(facts["shape"]), facts["outputs"], seed=seed)
        if adapted and self._is_adapted:
            method = resolve_method(self.config["algorithm"])
            model = training_form(model, method, settings_of(self.config))
        precisions = (value.dtype for value in self.weights.values() if value.is_floating_point())
        return model.to(next(precisions))

    @property
    def shared_model(self) -> str:
        """``whole``, or why clients share no whole model."""
        if SHARED_MODEL in self.summary:
            return str(self.summary[SHARED_MODEL])
        # An older version wrote the run, and did not record this
        if not any(map(_scores_own_models, self.summary)):
            return WHOLE
        with suppress(FedskewError):
            part = own_part(self.disk, 0)
            if part.names:
                return shared_model(part.unshared)
        return (
            "an older version of fedskew wrote the run, and its checkpoints do not say whether clients share a whole "
            "model"
        )

    @property
    def personalised(self) -> bool:
        """Whether clients have models, or parts of them, of their own."""
        return CLIENT_MODEL in self.summary or bool(own_part(self.disk, 0).names)

    def own_weights(self, client: int) -> Tensors | None:
        """Return the weights of a client's own model; None where it uses the global one."""
        made = self.summary.get(CLIENT_MODEL)
        if made in (ADAPTED, CHOSEN_BY_LOSS):
            raise FedskewError(
                f"{self.disk.path}: the model that a client uses is {made}, and the folder has no rows: predict with "
                "what fedskew.resume(folder) returns"
            )
        part = own_part(self.disk, client)
        if not part.names and CLIENT_MODEL not in self.summary:
            return None
        if part.away:
            raise models_away(self.client_names[client])
        kept = part.kept
        if kept is None:  # it never took part
            kept = self._kept_at_first(part)
        if "answer_in_use" in self._method.requires:
            answer = self._method.answer(server_state(self.disk), np.array([client]))
            kept |= prefixed(one_client(answer), ANSWER)
        if not self._is_adapted:
            return model_in_use(self._method, self.weights, kept)
        own = model_in_use(self._method, global_tensors(self.disk), kept)
        return plain_weights(self._initial_model(self.config["seed"], adapted=True), own)

    @cached_property
    def _is_adapted(self) -> bool:
        """Return whether the model had adapters while it was trained; the folder has it without them."""
        spec = self.config["algorithm"]
        return not from_python(spec) and resolve_method(spec).adapters is not None

    @cached_property
    def _method(self) -> Algorithm:
        """The method, where it makes clients' models by a rule of its own; for all others, one with the usual rule."""
        if CLIENT_MODEL not in self.summary:
            return Algorithm()
        spec = self.config["algorithm"]
        if from_python(spec):
            raise FedskewError(
                f"{self.disk.path}: its algorithm ({spec['class']}) was a Python object, and says itself what model a "
                "client uses: predict with what fedskew.resume(folder, algorithm=...) returns"
            )
        return resolve_method(spec)

    def _kept_at_first(self, part: OwnPart) -> Tree:
        """Return what a client keeps before its first round; ``part`` is what one of the run keeps."""
        model = self._initial_model(self.config["seed"], adapted=True)
        method = self._method
        names = layout(model)
        unsent = part.names | method.batchnorm.frozen_names(names)
        weights: Tensors = {}
        for name, value in trainable(model).items():
            weights[name] = value.detach()
        if part.personal and method.personal_method is not None:
            method = method.personal_method
        initial = initial_weights(weights, unsent, names)
        kept = prefixed(method.init_client_state(initial), STATE)
        if part.names:
            kept[LOCAL] = {}
        for name, value in _weights_of(model).items():
            if name in part.names:
                kept[LOCAL][name] = value.detach()
        return kept

    @property
    def threshold(self) -> Threshold | None:
        """The chosen threshold of the global model, if there is one."""
        path = self.disk.path / on_disk.THRESHOLDS
        if not path.is_file():
            return None
        with reading(path):
            stored = json.loads(path.read_text(encoding="utf-8"))
            return Threshold(stored["metric"], float(stored["logit"]))

    @property
    def confusion(self) -> Confusion | None:
        """The confusion matrix of the global model, if there is one."""
        return self._matrix(on_disk.CONFUSION)

    @property
    def own_confusion(self) -> Confusion | None:
        """The sum of those of the clients' own models, if there is one."""
        return self._matrix(on_disk.OWN_CONFUSION)

    def _matrix(self, name: str) -> Confusion | None:
        path = self.disk.path / name
        if not path.exists():
            return None
        return on_disk.matrix_from_csv(path)


def _scores_own_models(name: str) -> bool:
    """Return whether an entry of a summary is there only where clients have models of their own."""
    return name.startswith("own_test_") or name.endswith("_of_global_model_mean")
