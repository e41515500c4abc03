"""The steps of a synchronous schedule, client by client: those that share a step exchange sums as bytes."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedskew.batchnorm.exact import Parties, SynchronousStep
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import copied
from fedskew.engine.augment import augment, schedule_moves
from fedskew.engine.job import Job, ModelState, ScheduleResult
from fedskew.label_privacy.secure_sum import Dealer, Masks
from fedskew.sample_schedules.sample_schedule import SampleSchedule


def synchronous_steps(job: Job, model: ModelState, schedule: SampleSchedule) -> ScheduleResult:
    """Take every step of a synchronous schedule, client by client."""
    params = {name: value.clone() for name, value in model.params.items()}
    buffers = {name: value.clone() for name, value in model.buffers.items()}
    state = copied(model.optimizer)
    lr = torch.tensor(model.lr, dtype=job.scalar.dtype, device=job.x.device)
    losses = np.zeros(len(schedule.rows))
    scores = np.zeros(len(schedule.rows))
    masks: dict[int, Masks] = {}
    if job.secure:
        masks = _masks(job, schedule)
    simulated = Parties(job.model, job.task)
    moves = schedule_moves(job.augment, job.seed, model.round, len(schedule.rows), job.x.device)
    for number, (first, last) in enumerate(pairwise([0, *schedule.ends.tolist()])):
        clients = schedule.clients[first:last]
        rows = torch.from_numpy(schedule.rows[first:last]).to(job.y.device)
        x = job.x[rows]
        if moves is not None:
            x = augment(x, *moves[:, first:last])
        ends = None
        if masks:
            ends = [masks[client] for client in np.unique(clients).tolist()]
        batches = _batches(x, job.y[rows], clients)
        step = simulated.step({**params, **buffers}, batches, ends, number)
        buffers = step.buffers
        job.optimizer.step_(params, step.grads, state, lr)
        _note(step, clients, losses[first:last], scores[first:last])
    return ScheduleResult(params, buffers, state, losses, scores)


def _masks(job: Job, schedule: SampleSchedule) -> dict[int, Masks]:
    """Return the masks of secure sums for every client of the schedule, with seeds for this round only."""
    dealer = Dealer()
    masks: dict[int, Masks] = {}
    for client in np.unique(schedule.clients).tolist():
        masks[client] = Masks(client, dealer.seeds(client, job.partition.clients))
    return masks


def _batches(x: Tensor, y: Tensor, clients: Ints) -> list[tuple[Tensor, Tensor]]:
    """Return the rows of a step that each of its clients holds, in the order of their numbers."""
    batches = []
    for client in np.unique(clients):
        mine = torch.from_numpy(np.flatnonzero(clients == client)).to(x.device)
        batches.append((x[mine], y[mine]))
    return batches


def _note(step: SynchronousStep, clients: Ints, losses: Floats, scores: Floats) -> None:
    """Write the losses and scores of the rows of a step."""
    if not step.scores:
        # With secure sums only the mean over all clients is known.
        losses[:] = float(step.loss_sum) / len(clients)
        scores[:] = float(step.score_sum) / len(clients)
        return
    # A client reports sums, and each of its rows gets the mean.
    for client, (loss, score) in zip(np.unique(clients), step.scores, strict=True):
        mine = np.flatnonzero(clients == client)
        losses[mine] = loss / len(mine)
        scores[mine] = score / len(mine)
