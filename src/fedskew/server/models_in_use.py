"""The models that clients use: chosen among candidates, adapted on the clients' rows."""

import copy
from collections.abc import Callable, Mapping

import numpy as np
import torch

from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree
from fedskew.engine.before_use import Adapter
from fedskew.engine.job import CANDIDATES, Job, number_of_candidates
from fedskew.fleet.clock import computing_seconds
from fedskew.fleet.machines import Fleet
from fedskew.server.evaluated_rows import EvaluatedRows, ModelRunner, OwnModel


def chooses(job: Job, sent_along: Tree) -> bool:
    """Return whether clients choose among models that the server sends to all of them."""
    return "candidate_losses" in job.algorithm.requires and CANDIDATES in sent_along


def chosen_candidates(
    job: Job, before: OwnModel, candidates: Tensors, clients: Ints
) -> dict[int, Tensors]:
    """Return the weights, among the candidates, with which each client's model has the least loss on its rows.

    Args:
        job: that of the run
        before: returns the model of a client under the weights that the server sends to all, the first candidate
        candidates: the others, stacked
        clients: who chooses
    """
    rows = EvaluatedRows(ModelRunner(copy.deepcopy(job.model), job.x), job.task, job.x, job.y)
    pieces = [job.partition.of(int(client) - job.first) for client in clients]
    models: list[Tensors] = [{}]
    for i in range(number_of_candidates(candidates) - 1):
        models.append({name: value[i] for name, value in candidates.items()})
    losses = []
    for model in models:
        losses.append(_losses(job, rows, before, model, clients, pieces))
    found = np.stack(losses, 1)
    best = np.where(np.isnan(found), np.inf, found).argmin(1)
    chosen: dict[int, Tensors] = {}
    for client, number in zip(clients.tolist(), best.tolist(), strict=True):
        chosen[client] = models[number]
    return chosen


def _losses(
    job: Job,
    rows: EvaluatedRows,
    before: OwnModel,
    candidate: Tensors,
    clients: Ints,
    pieces: list[Ints],
) -> Floats:
    """Return the mean loss of each client's model with the weights of a candidate, on its rows."""

    def with_candidate(client: int) -> Tensors:
        return {**before(client), **candidate}

    if job.local_names:
        loss, _ = rows.of_own_models(with_candidate, clients, pieces)
    else:
        loss, _ = rows.of_clients(with_candidate(int(clients[0])), pieces)
    return loss


def adaptation_seconds(adapter: Adapter, fleet: Fleet, round: int) -> Floats:
    """Return how long each client's machine takes to adapt its model once, on the virtual clock."""
    clients = np.arange(adapter.job.partition.clients)
    plan = adapter.plan(clients, round)
    epochs, left = np.divmod(plan.steps, plan.steps_per_epoch)
    rows = (epochs * plan.sizes + np.minimum(left * plan.batch, plan.sizes)).astype(np.float64)
    rows *= adapter.adaptation.method.cost_per_row
    return computing_seconds(fleet.machines(clients), rows, plan.steps)


class AdaptedModels:
    """Finds the models that clients use, for one evaluation.

    Args:
        adapter: what adapts them
        before: returns the model of a client before that
        needed: the clients whose models are asked for, mostly in this order; neighbours are adapted together
        shared: the global weights
        round: how many rounds are done
    """

    def __init__(
        self,
        adapter: Adapter,
        before: Callable[[int], Tensors],
        needed: Ints,
        shared: Tensors,
        round: int,
    ) -> None:
        self._adapter = adapter
        self._before = before
        self._needed = needed
        self._shared = shared
        self._round = round
        self._known: Mapping[int, Tensors] = {}

    def __call__(self, client: int) -> Tensors:
        """Return the model of a client; those that memory has room for are kept until others are asked for."""
        if client not in self._known:
            places = np.flatnonzero(self._needed == client)
            clients = np.array([client])
            if len(places):
                first = int(places[0])
                clients = self._needed[first : first + self._adapter.room]
            with torch.inference_mode(False):
                models = [self._before(int(one)) for one in clients]
            self._known = self._adapter.adapt(models, clients, self._shared, self._round)
        return self._known[client]
