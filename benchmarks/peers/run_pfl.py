"""pfl: SimulatedBackend and FederatedAveraging in one process, or under torchrun in several, one thread each.

Its own data set cuts minibatches in a fixed order, without shuffling between epochs.
"""

import dataclasses
import os
import types
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers.rounds import Clock, arguments, loss_of, model, tensors

given, clock = arguments(), Clock()
work = given.work
torch.set_num_threads(1)
net = model(work)
net.loss = types.MethodType(lambda self, x, y: torch.nn.functional.cross_entropy(self(x), y), net)
net.metrics = types.MethodType(lambda self, x, y: {}, net)
wrapped = PyTorchModel(
    net,
    lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=work.momentum),
    torch.optim.SGD(net.parameters(), lr=1.0),
)
x, y = tensors(work)
np.random.seed(1)
users = list(range(work.clients))
data = FederatedDataset.from_slices(
    {c: [x[c], y[c]] for c in users}, get_user_sampler("minimize_reuse", users)
)


class Mark(TrainingProcessCallback):
    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> Any:
        clock.mark()
        return False, Metrics()


class NoEvaluation(FederatedAveraging):
    def get_next_central_contexts(self, *rest: Any, **named: Any) -> Any:
        contexts, *others = super().get_next_central_contexts(*rest, **named)
        plain = contexts and tuple(
            dataclasses.replace(context, do_evaluation=False) for context in contexts
        )
        return (plain, *others)


clock.mark()
NoEvaluation().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=given.rounds + 1,
        evaluation_frequency=10**6,
        train_cohort_size=work.per_round,
        val_cohort_size=None,
    ),
    backend=SimulatedBackend(training_data=data, val_data=data),
    model=wrapped,
    callbacks=[Mark()],
    model_train_params=NNTrainHyperParams(
        local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch
    ),
)
if os.environ.get("RANK", "0") == "0":
    clock.report(loss_of(net, work), "pfl", "torch")
