"""The clients of a run: what a server asks of them, and the clients of a simulation, whose rows are here."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from fedskew.algorithms.first_gradient import begins_with_gradients
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, one_client, rows_of
from fedskew.data.federation import Federation
from fedskew.engine.before_use import Adapter
from fedskew.engine.job import (
    ANSWER,
    CANDIDATE,
    CANDIDATES,
    LOCAL,
    STATE,
    Job,
    Start,
    fresh_client,
    model_in_use,
    prefixed,
)
from fedskew.engine.plan import Plan
from fedskew.models.layout import layout
from fedskew.models.parameters import trainable
from fedskew.server.calibration import statistics_of
from fedskew.server.client_store import ClientStore, home_of
from fedskew.server.evaluated_rows import OwnModel
from fedskew.server.evaluation import Evaluation, Evaluator
from fedskew.server.models_in_use import AdaptedModels, chooses, chosen_candidates
from fedskew.topology.collector import Arrived, valid_clients
from fedskew.topology.context import RoundClients, RoundContext
from fedskew.topology.factor_rounds import first_gradient_job
from fedskew.topology.run_state import RunState, group_of
from fedskew.topology.shards import in_this_process

# Names of what clients keep, and of the models they train for themselves
OWN, PERSONAL = "own", "personal"
# Groups of names in a checkpoint
AWAY = "away"  # what clients on machines of their own keep there
VERSIONS = "versions"  # of that: after which rounds they kept it
STORE = "store"  # what clients keep here


class Clients(RoundClients, Protocol):
    """The clients of a run, in this process or on machines of their own."""

    def model(self, client: int) -> Tensors:
        """Return the model that a client uses, as the method's ``client_model`` makes it and its clients adapt it."""
        ...

    def models(self, needed: Ints) -> OwnModel:
        """Return what finds the models that clients use, as they now are; ``needed`` are those that it is asked for."""
        ...

    def statistics(self) -> Tree:
        """Return the class statistics of all clients, for a method that calibrates."""
        ...

    def evaluator(self) -> Evaluation:
        """Return what evaluates models on the rows of clients."""
        ...

    def stores(self) -> dict[str, ClientStore]:
        """Return what clients keep, by name; empty where they keep nothing, or keep it themselves."""
        ...

    def checkpoint(self) -> Tensors:
        """Return what a checkpoint needs to know of clients, beside the stores."""
        ...

    def restore(self, flat: Tensors) -> None:
        """Restore stores and what ``checkpoint`` returned; without stores, all clients have their initial state."""
        ...

    away: bool  # whether clients are on machines of their own, and may not answer

    def serving(self, config: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Let clients take part in a run of this configuration, until the context ends."""
        ...

    def recorded_in(self, folder: Path) -> None:
        """Note in which folder the run is recorded."""
        ...

    def introduced(self) -> Mapping[str, Any] | None:
        """Return how a resumed run recognises its nodes, for the run folder; None where clients are not nodes."""
        ...


# Makes the clients of a run, once its model and its method are known
MakeClients: TypeAlias = Callable[[Federation, RoundContext, RunState], Clients]


class LocalClients:
    """The clients of a simulation: their rows, and what they keep, are in this process."""

    away = False

    def __init__(self, fed: Federation, context: RoundContext, state: RunState) -> None:
        self.fed = fed
        self.context = context
        self.state = state
        self.store = self._store(context.fresh_client)
        self.personal: ClientStore | None = None
        if context.algorithm.personal_method is not None:
            _, personal_job = jobs_of(context.job)
            self.personal = self._store(fresh_client(personal_job))
        self.adapter: Adapter | None = None
        adaptation = context.algorithm.adaptation
        if adaptation is not None:
            engine = in_this_process(context.engine)
            self.adapter = Adapter(engine, context.job, adaptation, context.settings)

    def _store(self, fresh: Tree) -> ClientStore:
        return ClientStore(fresh, home_of(fresh, self.context.trained_on.clients))

    def serving(self, config: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Need nothing: they are here."""
        return nullcontext()

    def recorded_in(self, folder: Path) -> None:
        """Need no folder: what they keep is in checkpoints."""

    def introduced(self) -> None:
        """Return nothing: they are not nodes."""

    def kept(self, clients: Ints) -> Tree:
        """Return what these clients kept, stacked."""
        return self.store.get(clients)

    def keep(self, arrived: Arrived, counted: Ints) -> None:
        """Store what clients keep; excluded clients keep their old values of what the server holds the mean of."""
        excluded = ~np.isin(arrived.valid, counted)
        if not self.context.mirrored or not excluded.any():
            self.store.put(arrived.valid, arrived.kept)
            return
        old = self.store.get(arrived.valid[excluded])
        index = torch.from_numpy(np.flatnonzero(excluded))
        kept = dict(arrived.kept)
        for name in self.context.mirrored:
            part = STATE + name
            if part in kept:
                kept[part] = _with_rows(kept[part], index, old[part])
        self.store.put(arrived.valid, kept)

    def train_personal(self, start: Start, plan: Plan) -> None:
        """Train the clients' own models, if the method has any."""
        if not self.personal:
            return
        context = self.context
        _, job = jobs_of(context.job)
        shared: Tensors = {}
        for name, value in start.params.items():
            if name not in context.job.unsent:
                shared[name] = value
        own = replace(start, server={"weights": shared}, kept=self.personal.get(plan.clients))
        for updates in context.engine.train(job, own, plan):
            valid = np.flatnonzero(valid_clients(updates))
            kept = rows_of(updates.kept, torch.from_numpy(valid))
            self.personal.put(updates.report.clients[valid], kept)

    def model(self, client: int) -> Tensors:
        """Return the model that a client uses, as the method's ``client_model`` makes it and its clients adapt it."""
        return self.models(np.array([client]))(client)

    def models(self, needed: Ints) -> OwnModel:
        """Return what finds the models that clients use; where clients adapt them, neighbours do so together."""
        before = self._before_adaptation(needed)
        if self.adapter is None:
            return before
        shared = self.state.shared(self.context.job.unsent)
        return AdaptedModels(self.adapter, before, needed, shared, self.state.round)

    def _before_adaptation(self, needed: Ints) -> OwnModel:
        """Return what finds the models that the method's ``client_model`` makes for these clients."""
        job = self.context.job
        algorithm = job.algorithm
        sent_along = algorithm.broadcast(self.state.server_state)
        chosen: dict[int, Tensors] = {}
        if chooses(job, sent_along):
            chosen = chosen_candidates(job, self._with_kept, sent_along[CANDIDATES], needed)

        def find(client: int) -> Tensors:
            kept = self._kept_by(client)
            if client in chosen:
                kept[CANDIDATE] = chosen[client]
            if "answer_in_use" in algorithm.requires:
                answer = algorithm.answer(self.state.server_state, np.array([client]))
                kept |= prefixed(one_client(answer), ANSWER)
            return model_in_use(algorithm, self.state.model(), kept)

        return find

    def _kept_by(self, client: int) -> Tree:
        """Return what a client keeps for the model that it uses."""
        store = self.personal or self.store
        return one_client(store.get(np.array([client])))

    def _with_kept(self, client: int) -> Tensors:
        """Return the global model with the tensors that never leave this client."""
        return {**self.state.model(), **self._kept_by(client).get(LOCAL, {})}

    def statistics(self) -> Tree:
        """Return the class statistics of all clients."""
        return statistics_of(self.context.job, self._models_of_rows())

    def _models_of_rows(self) -> Iterator[tuple[Tensors, Ints]]:
        """Yield the rows of clients with the model they use: all at once, unless clients have models of their own."""
        trained_on = self.context.trained_on
        if not self.context.job.personalised:
            yield self.state.model(), trained_on.rows
            return
        own = self._before_adaptation(np.arange(trained_on.clients))
        for client in range(trained_on.clients):
            yield own(client), trained_on.of(client)

    def evaluator(self) -> Evaluator:
        """Return what evaluates models."""
        settings = self.context.settings
        job = self.context.job
        # A copy, because functional_call leaves its tensors behind in a layer that is used in two places.
        model = copy.deepcopy(job.model)
        return Evaluator(
            self.fed,
            model,
            job,
            settings.eval_rows,
            settings.seed,
            settings.metrics,
            settings.metric,
        )

    def stores(self) -> dict[str, ClientStore]:
        """Return what clients keep, by name; empty where they keep nothing."""
        stores = {}
        if self.store:
            stores[OWN] = self.store
        if self.personal:
            stores[PERSONAL] = self.personal
        return stores

    def checkpoint(self) -> Tensors:
        """Return nothing: all is in the stores."""
        return {}

    def restore(self, flat: Tensors) -> None:
        """Restore the stores; without them, all clients have their initial state."""
        for part, store in self.stores().items():
            store.restore(group_of(flat, f"{STORE}/{part}"))


def _with_rows(tensors: Tensors, index: torch.Tensor, rows: Tensors) -> Tensors:
    """Return a copy of the tensors in which ``rows`` replace those at ``index``."""
    replaced: Tensors = {}
    for name, value in tensors.items():
        replaced[name] = value.index_copy(0, index.to(value.device), rows[name])
    return replaced


def jobs_of(job: Job) -> list[Job]:
    """Return the job of a run and, if the method has one, that of models that clients train for themselves.

    Where a run begins with gradients, and no method has such models, the second job is that of its first round.
    """
    if begins_with_gradients(job.algorithm):
        return [job, first_gradient_job(job)]
    method = job.algorithm.personal_method
    if method is None:
        return [job]
    everything = frozenset({*trainable(job.model), *layout(job.model).buffers})
    return [job, replace(job, algorithm=method, local_names=everything, frozen_names=frozenset())]


def models_away(client: str) -> FedskewError:
    """Return the error for a model that is on the machine of its client."""
    return FedskewError(
        f"the model of {client} stays with the client, on its own machine: only the global one is here"
    )
