"""The server of a run in memory: the state between rounds, and the rounds in the method's topology."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedskew.algorithms.contract import Algorithm, base_weights
from fedskew.algorithms.topologies import Buffered, Scheduled
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree, flat_names, from_flat, rows_of, size_in_bytes
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.cost import measure_cost
from fedskew.engine.device import computing, usable_cores
from fedskew.engine.job import (
    LOCAL,
    STATE,
    WHOLE,
    Engine,
    Job,
    Start,
    Updates,
    fresh_client,
    make_job,
)
from fedskew.engine.loop import Loop
from fedskew.engine.lr_schedule import schedules
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked
from fedskew.fleet.clock import FORWARD_COST, computing_seconds, transfer_seconds
from fedskew.fleet.machines import fleets
from fedskew.label_privacy.agreement import Agreement
from fedskew.models.layout import layout
from fedskew.models.parameters import trainable
from fedskew.sample_schedules.holdings import Holdings
from fedskew.server.calibration import new_head, statistics_of
from fedskew.server.client_store import ClientStore, home_of
from fedskew.server.evaluation import (
    OWN_TESTED,
    Evaluator,
    FinalClients,
    OwnModel,
    Score,
    own_columns,
)
from fedskew.server.label_holders import (
    label_holdings,
    packed,
    protocol_bytes,
    protocol_seconds,
    unpacked,
)
from fedskew.server.refusals import (
    check_all,
    check_private,
    check_thresholds,
    clients_per_round,
    least_batch,
    trains_single_samples,
    weights_of,
)
from fedskew.tasks.task import BY_TARGET, Task, resolve
from fedskew.tasks.thresholds import Threshold
from fedskew.topology.buffered import BufferedRounds
from fedskew.topology.client_table import ClientTable, Column, Row
from fedskew.topology.collector import Arrived, valid_clients
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.parallel import Invited, ParallelRounds
from fedskew.topology.participation import Participation
from fedskew.topology.scheduled_rounds import ScheduledRounds
from fedskew.topology.shards import Sharded, ShardTrainer

_SHARD_MEMORY = 2.0  # gigabytes
# Names of what clients keep, and of the models they train for themselves
OWN, PERSONAL = "own", "personal"
AWAY = "away"  # under which a checkpoint names what clients on machines of their own keep there
PROTOCOL = "protocol"  # name of the label protocol's result in a checkpoint


@dataclass(frozen=True)
class RoundResult:
    """One row for the table of rounds, and one for each of the round's clients."""

    round: Row
    clients: ClientTable


class Server:
    """Holds weights, server state and what clients keep; ``advance`` runs one round."""

    def __init__(
        self,
        fed: Federation,
        model: nn.Module,
        algorithm: Algorithm,
        settings: Settings,
        engine: Engine | None = None,
        task: Task | None = None,
    ) -> None:
        self.fed, self.settings, self.algorithm = fed, settings, algorithm
        self.schedule, fleet = schedules.choose(settings.schedule), fleets.choose(settings.fleet)
        self.trained_on = (
            fed.partition.pooled() if "pooled_rows" in algorithm.requires else fed.partition
        )
        self.per_round = clients_per_round(settings, self.trained_on, fed.clients)
        self.weights = weights_of(algorithm, settings)
        self.total_weight = float(base_weights(self.trained_on.sizes, self.weights).sum())
        self.least = least_batch(
            model, self.trained_on, settings.batch_size, fed.client_names if fed.named else ()
        )
        task = task or resolve(BY_TARGET[fed.data.target])
        self.rows, held = fed.train, self.trained_on
        if algorithm.poison:
            self.rows, held = algorithm.poison.poisoned(
                self.rows, held, fed.data.classes, settings.seed
            )
        self.job = make_job(
            model, self.rows, held, algorithm, settings, 0, task, len(fed.data.classes)
        )
        self.model, self.device = self.job.model, self.job.x.device
        check_all(self.job, settings, self.per_round)
        self.headline = task.headline(settings.metric)
        self.engine = self._engine(engine or make_engine(settings))
        self.threads = settings.threads or self._useful_threads()
        # Contiguous, whatever the layout of the given model: a checkpoint file requires it.
        plain = torch.contiguous_format
        self.params: Tensors = {
            n: value.detach().clone(memory_format=plain)
            for n, value in trainable(self.model).items()
        }
        self.buffers: Tensors = {
            name: value.detach().clone() for name, value in self.model.named_buffers()
        }
        if settings.thresholds is not None:
            check_thresholds(task, fed, self.job)
        self.server_state = algorithm.init_server_state(self.shared())
        self.fresh_client = fresh_client(self.job)
        self.store = self._store(self.fresh_client)
        self.mirrored = frozenset(self.server_state) & {
            part.removeprefix(STATE) for part in self.fresh_client
        }
        own_job = jobs_of(self.job)[1:]
        self.personal = self._store(fresh_client(*own_job)) if own_job else None
        machines = fleets.get(fleet.name)(fed.clients, settings.seed, **fleet.options)
        self.participation = Participation(
            algorithm, settings, fed, self.trained_on, machines, self.least
        )
        self.protocol: Agreement | None = None
        self._holdings: Holdings | None = None
        self.round = 0
        self.rounds = self._rounds()
        if isinstance(self.rounds, ParallelRounds):
            check_private(self.job, settings, machines, self.rounds.sample_payload())
        # The protocol is slow, and a resumed run has its result in the checkpoint
        if not settings.secure:
            self.agree()
        self._trained: dict[int, Tensors] = {}
        self.evaluator = self._evaluator()

    def _evaluator(self) -> Evaluator:
        """Return what evaluates models."""
        settings = self.settings
        # A copy, because functional_call leaves its tensors behind in a layer that is used in two places.
        return Evaluator(
            self.fed,
            copy.deepcopy(self.model),
            self.job,
            settings.eval_rows,
            settings.seed,
            settings.metrics,
            settings.metric,
        )

    def _engine(self, engine: Engine) -> Engine:
        """Return the engine of the run: with workers, one that divides the clients of a round."""
        if self.settings.workers is None:
            return engine
        return Sharded(
            ShardTrainer(engine, jobs_of(self.job), self.weights), self.settings.test_trained
        )

    def _store(self, fresh: Tree) -> ClientStore:
        return ClientStore(fresh, home_of(fresh, self.trained_on.clients))

    def _useful_threads(self) -> int:
        """Return how many CPU threads the measured rule suggests for a round."""
        if trains_single_samples(self.algorithm):
            batch = 1
        else:
            batch = self.settings.batch_size
        if isinstance(self.algorithm.topology(0), Scheduled):
            at_once = 1
        else:
            at_once = self.per_round
        return measure_cost(self.model, self.job.x, batch).threads(at_once, usable_cores())

    def _rounds(self) -> ParallelRounds | ScheduledRounds:
        """Return what runs the rounds of the method's topology."""
        topology = self.algorithm.topology(0)
        if isinstance(topology, Scheduled):
            return ScheduledRounds(self)
        if isinstance(topology, Buffered):
            return BufferedRounds(self, topology)
        return ParallelRounds(self)

    # -- what topologies use -------------------------------------------------------------------------------------------

    def shared(self) -> Tensors:
        """Return the weights that clients send."""
        result: Tensors = {}
        for name, value in self.params.items():
            if name not in self.job.unsent:
                result[name] = value
        return result

    def state(self) -> Tensors:
        """Return weights and buffers of the global model."""
        return {**self.params, **self.buffers}

    def start(self, plan: Plan, lr: float) -> Start:
        """Return the state from which the clients of a plan start."""
        sent_along = self.algorithm.broadcast(self.server_state)
        return Start(self.params, self.buffers, sent_along, self.store.get(plan.clients), lr)

    def keep(self, arrived: Arrived, counted: Ints) -> None:
        """Store what clients keep; excluded clients keep their old values of what the server holds the mean of."""
        kept = arrived.kept
        mirrored = {STATE + part for part in self.mirrored}
        if mirrored and (out := ~np.isin(arrived.valid, counted)).any():
            old = self.store.get(arrived.valid[out])
            index = torch.from_numpy(np.flatnonzero(out))
            kept = {
                part: {
                    n: v.index_copy(0, index.to(v.device), old[part][n]) for n, v in tensors.items()
                }
                if part in mirrored
                else tensors
                for part, tensors in kept.items()
            }
        self.store.put(arrived.valid, kept)

    def observe(self, updates: Updates) -> None:
        """Store some clients' models after local training until the round is evaluated."""
        if not (self.settings.test_trained and self._due(self.round + 1)):
            return
        everything = {**updates.trained, **updates.buffers, **updates.kept.get(LOCAL, {})}
        for i, client in enumerate(updates.report.clients.tolist()):
            if len(self._trained) < OWN_TESTED:
                self._trained[client] = {
                    name: value[i].clone() for name, value in everything.items()
                }

    def train_personal(self, start: Start, plan: Plan) -> None:
        """Train the clients' own models, if the method has any."""
        if not self.personal:
            return
        _, job = jobs_of(self.job)
        own = replace(
            start, server={"weights": self.shared()}, kept=self.personal.get(plan.clients)
        )
        for updates in self.engine.train(job, own, plan):
            valid = np.flatnonzero(valid_clients(updates))
            self.personal.put(
                updates.report.clients[valid], rows_of(updates.kept, torch.from_numpy(valid))
            )

    @property
    def holdings(self) -> Holdings:
        """Return the label holdings of all clients, for topologies with a sample schedule."""
        self.agree()
        assert self._holdings
        return self._holdings

    def agree(self, agreed: Agreement | None = None) -> None:
        """Find the label holdings, if the topology has a sample schedule and they are not known yet.

        With ``secure`` that takes a protocol between all clients and the server; ``agreed`` is its result from a
        checkpoint, and then it is not run again.
        """
        topology = self.algorithm.topology(0)
        if not isinstance(topology, Scheduled) or self._holdings:
            return
        self._holdings, self.protocol = label_holdings(
            self.fed, self.trained_on, topology, self.settings, agreed
        )
        topology.check_labels(self._holdings)
        if self.protocol and self.round == 0:
            self.participation.clock = protocol_seconds(self.protocol, self.participation.fleet)

    # -- one round -----------------------------------------------------------------------------------------------------

    def advance(self) -> RoundResult:
        """Run the next round and return its rows for the tables."""
        with computing(self.threads):
            lr = self._lr()
            return self._advanced(self.rounds.run(lr), lr)

    def invite(self) -> Invited | None:
        """Begin the next round and return what its clients are to do; None where a round has no such halves.

        They may then be trained together with those of other runs, and ``complete`` ends the round.
        """
        if type(self.rounds) is not ParallelRounds:
            return None
        with computing(self.threads):
            return self.rounds.invite(self._lr())

    def complete(self, invited: Invited, learnt: Updates | None = None) -> RoundResult:
        """End the round that ``invite`` began; its clients are trained here, unless they have learnt elsewhere."""
        assert isinstance(self.rounds, ParallelRounds)
        with computing(self.threads):
            return self._advanced(self.rounds.complete(invited, learnt), invited.lr)

    def _lr(self) -> float:
        factor = schedules.get(self.schedule.name)(
            self.round, self.settings.rounds, **self.schedule.options
        )
        return self.settings.lr * factor

    def _advanced(self, outcome: RoundOutcome, lr: float) -> RoundResult:
        self.round += 1
        if self.protocol and self.round == 1:
            down, up = protocol_bytes(self.protocol)
            outcome = replace(
                outcome, bytes_down=outcome.bytes_down + down, bytes_up=outcome.bytes_up + up
            )
        return self._result(outcome, lr)

    def _result(self, outcome: RoundOutcome, lr: float) -> RoundResult:
        """Return the rows of the tables, with the evaluation of the global model and the clients' models."""
        clients = self._named(outcome.client_rows)
        metric = self.job.task.row_metric
        row: Row = {"round": self.round, "clients": outcome.clients, "excluded": outcome.excluded}
        row |= {"dropped": outcome.dropped, "late": outcome.late, "lr": lr}
        weights = clients["weight"].values
        counted = weights > 0
        for name in (f"local_{name}" for name in own_columns(False, True, metric)):
            weighted = np.dot(weights[counted], clients[name].values[counted])
            if counted.any():
                row[name] = float(weighted)
            else:
                row[name] = None
        row |= self._evaluate(clients, outcome.invited)
        others = {"bytes_down": outcome.bytes_down, "bytes_up": outcome.bytes_up}
        for name, more in others.items():
            row[name] = int(clients[name].values.sum()) + more
        row |= {"simulated_seconds": outcome.ended - outcome.began, "clock": outcome.ended}
        row |= {**outcome.metrics, **self.algorithm.metrics(self.server_state), **self._backdoor()}
        self._evaluate_calibrated(row)
        return RoundResult(
            row, ClientTable({"round": Column(np.full(len(counted), self.round)), **clients})
        )

    def _named(self, clients: ClientTable) -> dict[str, Column]:
        """Return the columns of the table of clients, with their names, and the score under the task's name for it."""
        metric, columns = self.job.task.row_metric, clients.columns
        if self._called is not None:
            called = {
                "client": columns["client"],
                "name": Column(self._called[columns["client"].values]),
            }
            columns = {**called, **columns}
        names = {"local_accuracy": f"local_{metric}" if metric else None}
        result: dict[str, Column] = {}
        for name, c in columns.items():
            if (new := names.get(name, name)) is not None:
                result[new] = c
        return result

    @cached_property
    def _called(self) -> NDArray[Any] | None:
        """The names of the clients that train, if they have any."""
        if not self.fed.named or self.trained_on is not self.fed.partition:
            return None
        return np.array(self.fed.client_names, dtype=object)

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def _evaluate(self, clients: dict[str, Column], invited: Ints) -> Row:
        """Return the scores of the global model; adds columns with those of clients' models, where invited."""
        scores: dict[str, Score | None] = {}
        names = self._own_columns()
        numbers = clients["client"].values
        places = np.zeros(0, dtype=np.int64)
        found: dict[str, Floats] = dict.fromkeys(names, np.zeros(0))
        if self._due(self.round):
            chosen = np.sort(invited)
            trained = np.array(sorted(self._trained), dtype=np.int64)
            common = self._common()
            own = self._own()
            global_scores, found = self.evaluator.evaluate(common, own, chosen, self._own_rows())
            scores |= global_scores
            if own:
                scores["own_test"] = self.evaluator.mean_on_test(own, chosen)
            else:
                scores["own_test"] = None
            scores["trained_test"] = self.evaluator.mean_on_test(self._trained.__getitem__, trained)
            places = np.searchsorted(numbers, chosen)
        clients |= {name: Column.at(places, found[name], len(numbers)) for name in names}
        self._evaluate_trained(clients)
        parts = self.evaluator.parts(
            self.has_common_model, self.personalised, self.settings.test_trained
        )
        metrics = self.evaluator.names
        result: Row = {}
        for part in parts:
            for name in metrics:
                result[f"{part}_{name}"] = (scores.get(part) or {}).get(name)
        return result

    def _backdoor(self) -> Row:
        """Return how many triggered test rows the global model sends to the target; empty without a backdoor."""
        poison = self.algorithm.poison
        state = self._common()
        if poison is None or state is None:
            return {}
        due = self._due(self.round)
        return {"backdoor_success": self.evaluator.backdoor_success(state, poison) if due else None}

    def _on_own_rows(
        self, state: Tensors | None, own: OwnModel | None, clients: Ints
    ) -> dict[str, Floats]:
        return self.evaluator.on_own_rows(state, own, clients, self._own_rows())

    def _own_columns(self) -> tuple[str, ...]:
        return own_columns(self.personalised, self.has_common_model, self.job.task.row_metric)

    def _evaluate_trained(self, clients: dict[str, Column]) -> None:
        """Add columns with the scores of clients' models on their own rows right after local training."""
        if not self.settings.test_trained:
            return
        numbers = clients["client"].values
        places = np.flatnonzero([number in self._trained for number in numbers.tolist()])
        found = []
        for i in places:
            found.append(
                self._on_own_rows(self._trained[int(numbers[i])], None, numbers[i : i + 1])
            )
        for name in own_columns(False, True, self.job.task.row_metric):
            values = np.array([float(one[name][0]) for one in found])
            clients[f"trained_{name}"] = Column.at(places, values, len(numbers))
        self._trained = {}

    def _own_rows(self) -> Partition:
        """Return the rows on which a client's model is evaluated: its validation rows, or else its training rows."""
        pooled = self.trained_on is not self.fed.partition
        if pooled:
            return self.trained_on
        return self.fed.held_out or self.fed.partition

    def _due(self, round: int) -> bool:
        return round % self.settings.eval_every == 0 or round == self.settings.rounds

    @property
    def has_common_model(self) -> bool:
        """Return whether clients share a whole model: without one there is no global model to score or to use."""
        return self.job.shared_model == WHOLE

    @property
    def personalised(self) -> bool:
        """Return whether clients use models of their own."""
        return bool(self.job.local_names) or self.personal is not None

    def _common(self) -> Tensors | None:
        if self.has_common_model:
            return self.state()
        return None

    def _own(self) -> OwnModel | None:
        if self.personalised:
            return self.client_model
        return None

    def client_model(self, client: int) -> Tensors:
        """Return the model that a client uses: the global one with the client's local parts, or one of its own."""
        own = (self.personal or self.store).get(np.array([client])).get(LOCAL, {})
        return {**self.state(), **{name: value[0] for name, value in own.items()}}

    def last_scores(self) -> Row:
        """Return all metrics of the global model on validation and test rows, after the last round."""
        common = self._common()
        with computing(self.threads):
            if common:
                scores = self.evaluator.all_scores(common)
            else:
                scores = {}
        result: Row = {}
        for part, found in scores.items():
            for name, value in found.items():
                result[f"{part}_{name}_last"] = value
        return result

    def confusion(self) -> Ints | None:
        """Return the confusion matrix of the global model on the test rows, or None without test rows or classes."""
        common = self._common()
        with computing(self.threads):
            if common:
                return self.evaluator.confusion(common)
            return None

    def threshold(self) -> tuple[Threshold, dict[str, Score]] | None:
        """Return the threshold that ``thresholds`` asks for, with its scores; see ``Evaluator.threshold``."""
        if self.settings.thresholds is None:
            return None
        with computing(self.threads):
            return self.evaluator.threshold(self.state(), self.settings.thresholds)

    def final_clients(self) -> FinalClients:
        """Return one row for each client with the scores of its final model, and their confusion matrix."""
        with computing(self.threads):
            found = self.evaluator.final(self._common(), self._own())
        if not self.fed.named:
            return found
        names = self.fed.client_names
        return found._replace(
            table=[
                {"client": row["client"], "name": names[row["client"]], **row}
                for row in found.table
            ]
        )

    # -- calibration ---------------------------------------------------------------------------------------------------

    def calibrate(self) -> Row:
        """Replace the head after the last round, if the method calibrates; returns the scores and the cost."""
        if not self.algorithm.calibrator:
            return {}
        with computing(self.threads):
            head, scores, cost = self._calibrate()
        self.params = {**self.params, **head}
        common = self._common()
        with computing(self.threads):
            if common:
                found = self.evaluator.all_scores(common)
            else:
                found = {}
        for part, score in found.items():
            for name, value in score.items():
                if name not in self.evaluator.names:
                    scores[f"calibrated_{part}_{name}"] = value
        if self.algorithm.calibrator.every:  # then the last round includes its cost
            cost = dict.fromkeys(cost, 0)
        return {**scores, **{f"calibration_{name}": value for name, value in cost.items()}}

    def _calibrate(self) -> tuple[Tensors, Row, Row]:
        """Return a new head, the scores of the model with it, and the cost of collecting all clients' statistics."""
        statistics = self._statistics()
        head = new_head(self.job, self.state(), statistics, self.round)
        common = self._common()
        scores = self.evaluator.scores({**common, **head}) if common else {}
        row = {
            f"calibrated_{part}_{name}": value
            for part, score in scores.items()
            for name, value in score.items()
        }
        leaving = {
            name: value for name, value in self.state().items() if name not in self.job.local_names
        }
        down, up = size_in_bytes({"weights": leaving}), size_in_bytes(statistics)
        sizes = self.trained_on.sizes
        machines = self.participation.fleet.machines(np.arange(len(sizes)))
        steps = -(-sizes // self.settings.batch_size)
        work = computing_seconds(machines, sizes.astype(np.float64) * FORWARD_COST, steps)
        seconds = transfer_seconds(machines, down, up) + work
        cost = {
            "bytes_down": len(sizes) * down,
            "bytes_up": len(sizes) * up,
            "simulated_seconds": float(seconds.max()),
        }
        return head, row, cost

    def _evaluate_calibrated(self, row: Row) -> None:
        """Add the scores of a copy of the model with a new head to the row of a round, if the method calibrates."""
        if self.algorithm.calibrator:
            every = self.algorithm.calibrator.every
        else:
            every = None
        if every is None:
            return
        parts = self.evaluator.parts(self.has_common_model, False, False)
        for part in parts:
            for name in self.evaluator.names:
                row[f"calibrated_{part}_{name}"] = None
        if self.round % every == 0 or self.round == self.settings.rounds:
            _, scores, cost = self._calibrate()
            row |= scores
            for name, value in cost.items():
                row[name] += value
            row["clock"] += cost["simulated_seconds"]
            self.participation.clock = row["clock"]

    def _statistics(self) -> Tree:
        """Return the class statistics of all clients."""
        return statistics_of(self.job, self._models_of_rows())

    def _models_of_rows(self) -> Iterator[tuple[Tensors, Ints]]:
        """Yield the rows of clients with the model they use: all at once, unless parts of it stay with clients."""
        if not self.job.local_names:
            yield self.state(), self.trained_on.rows
            return
        for client in range(self.trained_on.clients):
            yield self.client_model(client), self.trained_on.of(client)

    # -- to disk and back ----------------------------------------------------------------------------------------------

    def checkpoint(self) -> Tensors:
        """Return all that changes over rounds, as flat named tensors."""
        stores = self.stores().items()
        kept = {}
        for part, store in stores:
            for name, value in store.state().items():
                kept[f"store/{part}/{name}"] = value
        return {**self.checkpoint_without_stores(), **kept}

    def checkpoint_without_stores(self) -> Tensors:
        """Return the checkpoint without what clients keep, which is large where clients are many."""
        groups = {
            "params": self.params,
            "buffers": self.buffers,
            "server": flat_names(self.server_state),
        }
        groups |= {"participation": self.participation.state(), "topology": self.rounds.state()}
        flat = {}
        for group, tensors in groups.items():
            for name, value in tensors.items():
                flat[f"{group}/{name}"] = value
        if self.protocol:
            agreed = {PROTOCOL: packed(self.protocol)}
        else:
            agreed = {}
        return {**flat, **agreed, "round": torch.tensor(self.round)}

    def stores(self) -> dict[str, ClientStore]:
        """Return what clients keep, by name; empty where they keep nothing."""
        named = {OWN: self.store, PERSONAL: self.personal}
        return {name: store for name, store in named.items() if store}

    def restore(self, flat: Tensors) -> None:
        """Restore what ``checkpoint`` returned; without stores, all clients have their initial state."""

        def group(prefix: str) -> Tensors:
            result: Tensors = {}
            for name, value in flat.items():
                if name.startswith(prefix):
                    result[name.removeprefix(prefix)] = value
            return result

        # In the order of an uninterrupted run, not of the file: a method may sum over all of them.
        self.params = {name: flat[f"params/{name}"].to(self.device) for name in self.params}
        self.buffers = {name: flat[f"buffers/{name}"].to(self.device) for name in self.buffers}
        self.server_state = from_flat(group("server/"), self.server_state)
        self.participation.restore(group("participation/"))
        self.rounds.restore(group("topology/"))
        for part, store in self.stores().items():
            store.restore(group(f"store/{part}/"))
        self.round = int(flat["round"])
        if PROTOCOL in flat:
            self.agree(unpacked(flat[PROTOCOL]))


def models_away(client: str) -> FedskewError:
    """Return the error for a model that is on the machine of its client."""
    return FedskewError(
        f"the model of {client} stays with the client, on its own machine: only the global one is here"
    )


def jobs_of(job: Job) -> list[Job]:
    """Return the job of a run and, if the method has one, that of models that clients train for themselves."""
    method = job.algorithm.personal_method
    if method is None:
        return [job]
    everything = frozenset({*trainable(job.model), *layout(job.model).buffers})
    return [job, replace(job, algorithm=method, local_names=everything, frozen_names=frozenset())]


def make_engine(settings: Settings) -> Engine:
    """Return the engine of the settings; with workers its stacks must not depend on what else is on a GPU."""
    if settings.engine == "loop":
        return Loop()
    return Stacked(
        _bytes(_SHARD_MEMORY if settings.workers and settings.memory is None else settings.memory)
    )


def _bytes(gigabytes: float | None) -> int | None:
    if gigabytes is None:
        return None
    return int(gigabytes * 2**30)
