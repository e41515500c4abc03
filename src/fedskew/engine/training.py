"""A run in memory: the state between rounds, and how one round changes it."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedskew.algorithms.base import Algorithm, Roster, Tensors
from fedskew.config import Settings
from fedskew.engine.aggregate import Arrived, WeightedMean
from fedskew.engine.cost import measure_cost
from fedskew.engine.device import computing, usable_cores
from fedskew.engine.evaluate import Evaluator, OwnModel, Score
from fedskew.engine.job import Engine, Start, fresh_client, make_job, trainable
from fedskew.engine.norm import has_batch_norm
from fedskew.engine.plan import Plan
from fedskew.engine.schedule import schedules
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.store import ClientStore
from fedskew.engine.trees import size_in_bytes
from fedskew.errors import FedskewError
from fedskew.fleet.uniform import fleets
from fedskew.skew.federation import Federation
from fedskew.skew.partition import Partition
from fedskew.streams import Stream

Row = dict[str, Any]


@dataclass(frozen=True)
class RoundResult:
    """One line for the table of rounds, and one for each of the round's clients."""

    round: Row
    clients: list[Row]


class Training:
    """Weights, server state and what clients keep; ``advance`` runs one round."""

    def __init__(
        self, fed: Federation, model: nn.Module, algorithm: Algorithm, settings: Settings, engine: Engine | None = None
    ) -> None:
        self.fed, self.settings, self.algorithm = fed, settings, algorithm
        self.engine = engine or _engine(settings)
        self.schedule, self.fleet = schedules.choose(settings.schedule), fleets.choose(settings.fleet)
        self.trained_on = algorithm.arrange(fed.partition)
        self.per_round = _clients_a_round(settings, self.trained_on, fed.clients)
        self.least = _least_batch(model, self.trained_on, settings.batch_size)
        self.job = make_job(model, fed.train, self.trained_on, algorithm, settings)
        self.model, self.device = self.job.model, self.job.x.device
        cost = measure_cost(self.model, self.job.x, settings.batch_size)
        self.threads = settings.threads or cost.threads(self.per_round, usable_cores())
        # Contiguous, whatever the layout of the model that was given: a checkpoint file holds nothing else.
        plain = torch.contiguous_format
        self.params: Tensors = {n: value.detach().clone(memory_format=plain) for n, value in trainable(self.model).items()}
        self.buffers: Tensors = {name: value.detach().clone() for name, value in self.model.named_buffers()}
        self.server = algorithm.init(self._shared())
        self.store = ClientStore(fresh_client(self.job))
        self.round = 0
        # A copy, because functional_call leaves its tensors behind in a layer that is used in two places.
        self.evaluator = Evaluator(fed, copy.deepcopy(self.model), self.job.x, self.job.y, settings.eval_rows, settings.seed)

    def _shared(self) -> Tensors:
        return {name: value for name, value in self.params.items() if name not in self.job.kept}

    # -- one round ------------------------------------------------------------------------------------------------------

    def advance(self) -> RoundResult:
        """Run the next round and say what happened."""
        with computing(self.threads):
            return self._advance()

    def _advance(self) -> RoundResult:
        settings, algorithm = self.settings, self.algorithm
        plan = self._plan()
        lr = settings.lr * schedules.get(self.schedule.name)(self.round, settings.rounds, **self.schedule.options)
        sent_along = algorithm.broadcast(self.server)
        start = Start(self.params, self.buffers, sent_along, self.store.get(plan.clients), lr)
        mean, arrived = WeightedMean(algorithm), []
        bytes_up = 0
        for updates in self.engine.train(self.job, start, plan):
            bytes_up += size_in_bytes(updates.payload) + size_in_bytes({"buffers": updates.buffers})
            arrived.append(mean.add(updates))
            self.store.put(arrived[-1].sound.report.clients, arrived[-1].sound.own)
        if mean.total <= 0:
            raise FedskewError(
                f"round {self.round + 1}: all {len(plan.clients)} clients sent NaN or infinite updates; "
                f"lower lr (now {lr:g}) or check the data"
            )
        moved, self.server = algorithm.step(self._shared(), self.server, mean.payload())
        self.params = {**self.params, **moved}
        self.buffers = mean.buffers(self.buffers)
        shared = {name: value for name, value in {**self.params, **self.buffers}.items() if name not in self.job.kept}
        bytes_down = (size_in_bytes({"weights": shared}) + size_in_bytes(sent_along)) * len(plan.clients)
        self.round += 1
        return self._record(plan, arrived, mean.total, lr, bytes_down, bytes_up)

    def _plan(self) -> Plan:
        settings, sizes = self.settings, self.trained_on.sizes
        roster = Roster(self.round, sizes, settings.sampling)
        chosen = self.algorithm.select(roster, self.per_round, Stream(settings.seed, "select", self.round))
        batch, epochs = np.full(len(chosen), settings.batch_size), np.full(len(chosen), settings.epochs)
        return Plan.draw(settings.seed, self.round, chosen, sizes[chosen], batch, epochs, self.least)

    # -- what happened ---------------------------------------------------------------------------------------------------

    def _record(
        self, plan: Plan, arrived: list[Arrived], total: float, lr: float, bytes_down: int, bytes_up: int
    ) -> RoundResult:
        clients = sorted(
            (line for stack in arrived for line in _client_lines(stack, total)), key=lambda line: int(line["client"])
        )
        sound = sum(len(stack.sound.report.clients) for stack in arrived)
        counted = [client for client in clients if client["weight"] > 0]
        line: Row = {"round": self.round, "clients": len(clients), "excluded": len(clients) - sound, "lr": lr}
        for name in ("local_loss", "local_accuracy"):
            line[name] = float(np.dot([client["weight"] for client in counted], [client[name] for client in counted]))
        line |= self._evaluate(clients)
        a_client = (bytes_down // len(clients), bytes_up // len(clients))
        seconds = fleets.get(self.fleet.name)(plan.sizes * plan.epochs, *a_client, **self.fleet.options)
        line |= {"bytes_down": bytes_down, "bytes_up": bytes_up, "simulated_seconds": float(seconds.max())}
        return RoundResult(line, [{"round": self.round, **client} for client in clients])

    def _evaluate(self, clients: list[Row]) -> Row:
        """Scores of the global model; also adds to every client's line how its own model does on its own rows."""
        due = self.round % self.settings.eval_every == 0 or self.round == self.settings.rounds
        scores: dict[str, Score] = {}
        if due:
            chosen = np.array([client["client"] for client in clients])
            scores = self.evaluator.scores(self.state(), self._own(), chosen)
            pooled = self.trained_on is not self.fed.partition
            split = self.trained_on if pooled else self.fed.held_out or self.fed.partition
            found = self.evaluator.on_own_rows(self.state(), self._own(), chosen, split)
        for i, client in enumerate(clients):
            client["loss"], client["accuracy"] = (float(values[i]) for values in found) if due else (None, None)
        names = [(part, name) for part in self.evaluator.parts(bool(self.job.kept)) for name in ("loss", "accuracy")]
        return {f"{part}_{name}": getattr(scores.get(part), name, None) for part, name in names}

    def _own(self) -> OwnModel | None:
        return self.client_state if self.job.kept else None

    def state(self) -> Tensors:
        """Weights and buffers of the global model."""
        return {**self.params, **self.buffers}

    def client_state(self, client: int) -> Tensors:
        """The model that a client uses: the global one with the parts that the client kept."""
        own = self.store.get(np.array([client])).get("kept", {})
        return {**self.state(), **{name: value[0] for name, value in own.items()}}

    def final_clients(self) -> list[Row]:
        """One line a client about the model it ends with."""
        with computing(self.threads):
            return self.evaluator.final(self.state(), self._own())

    # -- to disk and back ------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Tensors:
        """All that changes over rounds, as flat named tensors."""
        # Copies: a method's state may be the weights themselves, and a file must not hold two names for one memory.
        server = {f"{part}/{name}": value.clone() for part, tensors in self.server.items() for name, value in tensors.items()}
        groups = {"params": self.params, "buffers": self.buffers, "server": server, "store": self.store.state()}
        flat = {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}
        return {**flat, "round": torch.tensor(self.round)}

    def restore(self, flat: Tensors) -> None:
        """The inverse of ``checkpoint``."""

        def group(prefix: str) -> Tensors:
            return {name.removeprefix(prefix): value for name, value in flat.items() if name.startswith(prefix)}

        self.params = {name: value.to(self.device) for name, value in group("params/").items()}
        self.buffers = {name: value.to(self.device) for name, value in group("buffers/").items()}
        self.server = {
            part: {name: flat[f"server/{part}/{name}"].to(self.device) for name in tensors}
            for part, tensors in self.server.items()
        }
        self.store.restore(group("store/"))
        self.round = int(flat["round"])


def _client_lines(stack: Arrived, total: float) -> list[Row]:
    report = stack.report
    columns = {
        "client": report.clients,
        "rows": report.sizes,
        "steps": report.steps,
        "weight": stack.weights / total,
        "local_loss": report.loss,
        "local_accuracy": report.accuracy,
    }
    return [
        dict(zip(columns, values, strict=True))
        for values in zip(*(column.tolist() for column in columns.values()), strict=True)
    ]


def _engine(settings: Settings) -> Engine:
    return Sequential() if settings.engine == "sequential" else Stacked(memory=int(settings.memory * 2**30))


def _clients_a_round(settings: Settings, trained_on: Partition, clients: int) -> int:
    if settings.per_round is None:
        return trained_on.clients
    if settings.per_round > clients:
        raise FedskewError(f"per_round={settings.per_round} is more than the {clients} clients: use at most {clients}")
    return min(settings.per_round, trained_on.clients)


def _least_batch(model: nn.Module, trained_on: Partition, batch_size: int) -> int:
    """Rows that a batch must have: 2 where BatchNorm needs a spread to divide by."""
    if not has_batch_norm(model):
        return 1
    if batch_size == 1:
        raise FedskewError(
            "batch_size=1 with BatchNorm has no spread to normalise by: use batch_size >= 2 or norm=group in the model"
        )
    if trained_on.sizes.min() == 1:
        client = int(np.argmin(trained_on.sizes))
        raise FedskewError(
            f"client {client} has 1 row, BatchNorm needs 2; use min_size=2 in the skew, fewer clients or norm=group"
        )
    return 2
