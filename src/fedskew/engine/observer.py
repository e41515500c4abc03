"""What the hooks of a method see of a batch of one client, in the reference engine."""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedskew.algorithms.contract import Batch
from fedskew.core.trees import Tensors
from fedskew.engine.features import Tap
from fedskew.tasks.task import Task


class BatchObserver:
    """Makes the batch that hooks see: outputs under the worker's weights, and under other weights in a second model."""

    def __init__(self, worker: nn.Module, task: Task, features: bool) -> None:
        self.worker = worker
        self.other = copy.deepcopy(worker)
        self.task = task
        self.tap: Tap | None = None
        self.other_tap: Tap | None = None
        if features:
            self.tap = Tap(worker)
            self.other_tap = Tap(self.other)

    def forward(self, weights: Tensors, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits and features under other weights; running statistics do not change."""
        moving = {name: value.clone() for name, value in self.worker.named_buffers()}
        own = {name: value.detach() for name, value in self.worker.named_parameters()}
        # A model may write to its input.
        logits: Tensor = functional_call(self.other, {**own, **weights, **moving}, (x.clone(),))
        if self.other_tap is None:
            return logits, None
        return logits, self.other_tap.features

    def batch(
        self, logits: Tensor, x: Tensor, labels: Tensor, features: Tensor | None = None
    ) -> Batch:
        """Return the batch; without ``features``, right after a forward pass of the worker on ``x``."""

        def loss(other: Tensor) -> Tensor:
            return self.task.losses(other, labels)

        def logits_at(weights: Tensors) -> Tensor:
            return self.forward(weights, x)[0]

        def features_at(weights: Tensors) -> Tensor:
            features = self.forward(weights, x)[1]
            assert features is not None, "features_at is for methods that require features"
            return features

        if self.tap and features is None:
            features = self.tap.features
        return Batch(logits, labels, loss, torch.mean, logits_at, features_at, features)

    def close(self) -> None:
        """Remove the hook from the worker."""
        if self.tap:
            self.tap.remove()
