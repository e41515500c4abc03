"""The training of a model on its client's rows before the client uses it, where the method has an adaptation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedskew.algorithms.adaptation import Adaptation
from fedskew.batchnorm.masked import has_batch_norm
from fedskew.core.config import Settings
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, one_client, rows_of, size_in_bytes
from fedskew.engine.job import LOCAL, Engine, Job, Start
from fedskew.engine.optimizer import Optimizer
from fedskew.engine.plan import Plan
from fedskew.models.parameters import trainable

_BYTES_AT_ONCE = 256 << 20  # of adapted models that are in memory together


class Adapter:
    """Adapts models of clients to their rows, as many at a time as ``room`` says.

    Args:
        engine: what trains them
        job: that of the run, whose method has an adaptation
        adaptation: that of the method
        settings: those of the run
    """

    def __init__(
        self, engine: Engine, job: Job, adaptation: Adaptation, settings: Settings
    ) -> None:
        self.engine = engine
        self.adaptation = adaptation
        self.settings = settings
        optimizer = job.optimizer
        if adaptation.plain:
            optimizer = Optimizer()
        # Every tensor is the client's own, as in the job of a personal method
        self.job = replace(
            job,
            optimizer=optimizer,
            algorithm=adaptation.method,
            local_names=frozenset({*trainable(job.model), *dict(job.model.named_buffers())}),
            frozen_names=frozenset(),
        )

    @property
    def room(self) -> int:
        """Return how many models may be adapted together."""
        size = size_in_bytes({"": self.job.model.state_dict()})
        return max(1, _BYTES_AT_ONCE // max(1, size))

    def plan(self, clients: Ints, round: int) -> Plan:
        """Return which rows these clients train on, after so many rounds."""
        job = self.job
        sizes = job.partition.sizes[clients - job.first]
        least = 1
        if has_batch_norm(job.model):
            least = 2
        batch = np.full(len(clients), max(self.settings.batch_size, least))
        epochs = np.full(len(clients), self.adaptation.epochs)
        plan = Plan.draw(job.seed, round, clients, sizes, batch, epochs, least)
        steps = self.adaptation.steps
        if steps is not None:
            plan = replace(plan, epochs=-(-steps // plan.steps_per_epoch), most_steps=steps)
        return replace(plan, purpose="adapt")

    def adapt(
        self, models: Sequence[Tensors], clients: Ints, shared: Tensors, round: int
    ) -> Mapping[int, Tensors]:
        """Return the adapted models by client, from those before; ``shared`` are the global weights."""
        # Evaluation runs in inference mode, in which nothing can be trained
        with torch.inference_mode(False), torch.enable_grad():
            start = self._start(models, shared)
            found: dict[int, Tensors] = {}
            for updates in self.engine.train(self.job, start, self.plan(clients, round)):
                for i, client in enumerate(updates.report.clients.tolist()):
                    found[client] = one_client(rows_of(updates.kept, slice(i, i + 1)))[LOCAL]
        return found

    def _start(self, models: Sequence[Tensors], shared: Tensors) -> Start:
        """Return from where the clients of these models train them."""
        weights = trainable(self.job.model)
        own: Tensors = {}
        params: Tensors = {}
        buffers: Tensors = {}
        for name in (*weights, *dict(self.job.model.named_buffers())):
            own[name] = torch.stack([model[name] for model in models])
            if name in weights:
                params[name] = models[0][name]
            else:
                buffers[name] = models[0][name]
        lr = self.settings.lr
        if self.adaptation.lr is not None:
            lr = self.adaptation.lr
        return Start(params, buffers, {"weights": shared}, {LOCAL: own}, lr)
