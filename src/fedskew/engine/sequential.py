"""The reference engine: one client at a time, in plain PyTorch, as a textbook would write it."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedskew.algorithms.base import Report, Tree, View
from fedskew.engine.device import random_layers
from fedskew.engine.job import MEMO, OPTIMIZER, Job, Start, Updates, parts, prefixed, trainable
from fedskew.engine.plan import Plan
from fedskew.engine.trees import unsqueezed, without


@dataclass(frozen=True)
class Sequential:
    """One client at a time; ``channels_last`` lays images out as CPU convolutions like them."""

    channels_last: bool = False

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield the plan's clients one by one, in its order."""
        worker = copy.deepcopy(job.model).train()
        if self.channels_last and job.x.dim() == 4:
            worker = worker.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for i in range(len(plan.clients)):
            own = {part: {name: v[i] for name, v in tensors.items()} for part, tensors in start.own.items()}
            yield train_client(worker, job, start, own, plan.only(np.array([i])))


def train_client(worker: nn.Module, job: Job, start: Start, own: Tree, plan: Plan) -> Updates:
    """The work of the plan's only client for one round; ``worker`` is a model to work in, its content does not matter."""
    with random_layers(job.x.device, job.seed, plan.round, int(plan.clients[0])):
        return _train_client(worker, job, start, own, plan)


def _train_client(worker: nn.Module, job: Job, start: Start, own: Tree, plan: Plan) -> Updates:
    algorithm, params, buffers = job.algorithm, trainable(worker), dict(worker.named_buffers())
    begin = {**start.params, **start.buffers, **own.get("kept", {})}
    with torch.no_grad():
        for name, value in {**params, **buffers}.items():
            value.copy_(begin[name])
    lr = torch.tensor(start.lr, dtype=job.x.dtype, device=job.x.device)
    numbers = {"size": torch.as_tensor(plan.sizes[0]), "steps": torch.as_tensor(plan.steps[0]), "lr": lr}
    numbers = {name: value.to(lr) for name, value in numbers.items()}
    view = View(params, {name: begin[name] for name in params}, start.server, parts(own, MEMO), numbers, job.optimizer.momentum)
    state = parts(own, OPTIMIZER)
    if not state:
        state = job.optimizer.init(params, stacked=False)
    else:
        state = {part: {name: value.clone() for name, value in tensors.items()} for part, tensors in state.items()}
    loss_sum, correct_sum = torch.zeros((2,), device=lr.device, dtype=torch.float64)
    seen = 0
    positions, counts = plan.table()
    rows = job.rows(plan.clients, positions)
    for step, count in enumerate(counts[:, 0].tolist()):
        batch = rows[step, 0, :count]
        labels = job.y[batch]
        logits = worker(job.x[batch])
        loss = F.cross_entropy(logits, labels)
        grads = torch.autograd.grad(algorithm.objective(loss, view), list(params.values()), materialize_grads=True)
        with torch.no_grad():
            corrected = algorithm.correct(dict(zip(params, grads, strict=True)), view)
            job.optimizer.step_(params, corrected, state, lr)
            loss_sum += loss.double() * count
            correct_sum += (logits.argmax(1) == labels).sum()
        seen += count
    with torch.no_grad():
        # The worker's weights go on to the next client; what the hooks make of these must not.
        view = replace(view, params={name: value.detach().clone() for name, value in params.items()})
        return _finish(job, view, buffers, state, plan, loss_sum / seen, correct_sum / seen)


def _finish(
    job: Job, view: View, buffers: dict[str, Tensor], state: Tree, plan: Plan, loss: Tensor, correct: Tensor
) -> Updates:
    report = Report(
        plan.clients, plan.sizes, plan.steps, loss.reshape(1).double().cpu().numpy(), correct.reshape(1).double().cpu().numpy()
    )
    everything = {**view.params, **buffers}
    own: Tree = prefixed(job.algorithm.memo(view), MEMO)
    if job.kept:
        own["kept"] = {name: everything[name].clone() for name in sorted(job.kept)}
    if job.algorithm.keeps_optimizer:
        own |= prefixed(state, OPTIMIZER)
    payload = without(unsqueezed(job.algorithm.payload(view)), job.kept)
    sent = {name: value.unsqueeze(0).clone() for name, value in buffers.items() if name not in job.kept}
    return Updates(report, payload, sent, unsqueezed(own))
