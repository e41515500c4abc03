"""Rounds of adapters whose factors the server finds: in the first one clients send gradients, and train afterwards."""

from dataclasses import replace

import numpy as np
import torch

from fedskew.algorithms.first_gradient import asks_for_first_gradient
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors, Tree, size_in_bytes
from fedskew.engine.job import Job, Start, Updates, fresh_client
from fedskew.engine.plan import Plan
from fedskew.fleet.clock import transfer_seconds
from fedskew.models.low_rank import (
    OFFSET,
    A,
    B,
    R,
    factors_of,
    found_factors,
    names_set_by_servers,
    with_whole_matrices,
)
from fedskew.topology.client_table import ClientTable, Column
from fedskew.topology.collector import Arrived, Combined
from fedskew.topology.context import RoundClients, RoundContext
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.parallel import Observe, ParallelRounds
from fedskew.topology.participation import Traffic
from fedskew.topology.payload import bytes_up, reported
from fedskew.topology.run_state import RunState


def first_gradient_job(job: Job) -> Job:
    """Return what clients do in the first round: the gradient of whole matrices beside the weights that are adapted."""
    model = with_whole_matrices(job.model)
    return replace(
        job,
        model=model,
        algorithm=asks_for_first_gradient(job.algorithm),
        local_names=frozenset(),
        frozen_names=job.frozen_names | names_set_by_servers(model),
    )


class FactorRounds(ParallelRounds):
    """Rounds of training, once a round has found the factors; one in which no gradient arrives is followed by another.

    Whether they are found is seen in the factors, which are in every checkpoint.
    """

    in_halves = False

    def __init__(
        self, context: RoundContext, state: RunState, clients: RoundClients, observe: Observe
    ) -> None:
        super().__init__(context, state, clients, observe)
        self.factors = sorted(found_factors(context.job.model))
        for name in sorted(context.job.local_names):
            if name.rpartition(".")[2] == R:
                raise FedskewError(
                    f"algorithm {context.algorithm.label()}: {name} stays with its client, and the server says where "
                    "it begins: use lora"
                )

    def run(self, lr: float) -> RoundOutcome:
        """Run one round and return its outcome."""
        if any(self.state.buffers[name].any() for name in self.factors):
            return super().run(lr)
        first = _GradientRound(self.context, self.state)
        outcome = self._with_columns(first.run(lr))
        if not first.answered:
            return outcome
        self._begin_from(first.state, lr)
        return self._with_factors_sent(outcome)

    def _begin_from(self, found: RunState, lr: float) -> None:
        """Set the factors, and where R begins, from the mean of the negative gradients."""
        if not any(value.any() for value in found.params.values()):
            raise FedskewError(
                f"algorithm {self.context.algorithm.label()}: at the weights with which the run begins, the gradient "
                "of every layer to adapt is 0, as below a head of zeros: begin with another head, or use lora"
            )
        change = self._first_step(found.params, lr)
        params = dict(self.state.params)
        buffers = dict(self.state.buffers)
        adapters = self.context.algorithm.adapters
        assert adapters is not None
        for name, value in change.items():
            prefix = name.removesuffix(OFFSET)
            rank = len(params[prefix + R])
            buffers[prefix + B], begin, buffers[prefix + A] = factors_of(value, rank)
            params[prefix + R] = begin * (adapters.rank / adapters.alpha)
        self.state.params = params
        self.state.buffers = buffers
        for part, tensors in found.server_state.items():
            if _alike(tensors, self.state.server_state.get(part, {})):  # such as what dp has spent
                self.state.server_state = {**self.state.server_state, part: tensors}

    def _first_step(self, downhill: Tensors, lr: float) -> Tensors:
        """Return the change of the weights in the first step of the local optimiser."""
        job = self.context.job
        change = {name: torch.zeros_like(value) for name, value in downhill.items()}
        gradient = {name: -value for name, value in downhill.items()}
        memory = job.optimizer.init(change, stacked=False)
        job.optimizer.step_(change, gradient, memory, job.scalar + lr)
        return change

    def _with_columns(self, outcome: RoundOutcome) -> RoundOutcome:
        """Return the outcome with gaps for what clients report when they train, as all rounds have the same columns."""
        rows = outcome.client_rows
        nothing = Column.at(np.zeros(0, dtype=np.int64), np.zeros(0), len(rows))
        columns: dict[str, Column] = {}
        for name, values in rows.columns.items():
            columns[name] = values
            if name == "local_accuracy":
                columns |= dict.fromkeys(reported(self.context.algorithm), nothing)
        return replace(outcome, client_rows=ClientTable(columns))

    def _with_factors_sent(self, outcome: RoundOutcome) -> RoundOutcome:
        """Return the outcome with the factors sent to every client; the slowest decides how long that takes."""
        size = size_in_bytes({"": {name: self.state.buffers[name] for name in self.factors}})
        participation = self.context.participation
        seconds = participation.fleet.most(lambda machines: transfer_seconds(machines, size, 0))
        participation.clock = outcome.ended + seconds
        return replace(
            outcome,
            ended=participation.clock,
            bytes_down=outcome.bytes_down + size * self.context.trained_on.clients,
        )


class _GradientRound(ParallelRounds):
    """A round in which clients send gradients at the weights with which the run begins.

    ``context`` and ``state`` are those of the run, which stay as they are.
    """

    def __init__(self, context: RoundContext, state: RunState) -> None:
        job = first_gradient_job(context.job)
        fresh = fresh_client(job)
        own = replace(context, job=job, fresh_client=fresh, mirrored=frozenset())
        begin = RunState.initial(job)
        begin.round = state.round
        super().__init__(own, begin, _Newcomers(fresh), _ignore)
        received = state.leaving(context.job.local_names | found_factors(context.job.model))
        down = size_in_bytes({"": received})
        self.traffic = Traffic(down, bytes_up(own, begin), None, one_pass=True)
        self.answered = False

    def _traffic_now(self) -> Traffic:
        return self.traffic

    def _update(self, combined: Combined) -> None:
        super()._update(combined)
        self.answered = True


class _Newcomers:
    """Clients that have kept nothing so far, and keep nothing of this round."""

    def __init__(self, fresh: Tree) -> None:
        self.fresh = fresh

    def kept(self, clients: Ints) -> Tree:
        """Return the initial state of these clients, stacked."""
        stacked: Tree = {}
        for part, tensors in self.fresh.items():
            stacked[part] = {}
            for name, value in tensors.items():
                stacked[part][name] = value.expand(len(clients), *value.shape).clone()
        return stacked

    def keep(self, arrived: Arrived, counted: Ints) -> None:
        """Keep nothing of this round."""

    def train_personal(self, start: Start, plan: Plan) -> None:
        """Train nothing: such methods are refused."""


def _ignore(updates: Updates) -> None:
    """See updates of clients whose models are those that they have received."""


def _alike(some: Tensors, others: Tensors) -> bool:
    """Return whether two parts of a server state have the same names and shapes."""
    if some.keys() != others.keys():
        return False
    return all(value.shape == others[name].shape for name, value in some.items())
