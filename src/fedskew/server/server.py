"""The server of a run in memory: puts together its state, its clients, the rounds of its topology and the scorer."""

import torch
from torch import nn

from fedskew.algorithms.contract import Algorithm
from fedskew.core.config import Settings
from fedskew.core.streams import Ints
from fedskew.core.trees import Tensors
from fedskew.data.federation import Federation
from fedskew.engine.before_use import Adapter
from fedskew.engine.device import computing
from fedskew.engine.job import STATE, Engine, Updates, fresh_client, make_job, parts
from fedskew.engine.lr_schedule import schedules
from fedskew.fleet.machines import fleets
from fedskew.label_privacy.agreement import Agreement
from fedskew.server.client_store import ClientStore
from fedskew.server.clients import STORE, LocalClients, MakeClients
from fedskew.server.evaluated_rows import Score
from fedskew.server.final_evaluation import FinalClients
from fedskew.server.head_calibration import HeadCalibration
from fedskew.server.label_holders import LabelHolders
from fedskew.server.models_in_use import adaptation_seconds
from fedskew.server.refusals import (
    check_all,
    check_buffers_of_models,
    check_candidates,
    check_drawn,
    check_fleet,
    check_private,
    check_thresholds,
    clients_per_round,
    least_batch,
    weights_of,
)
from fedskew.server.scorer import RoundResult, Scorer
from fedskew.server.server_parts import (
    divided,
    make_engine,
    partition_to_train_on,
    rounds_of,
    rows_to_train_on,
    useful_threads,
)
from fedskew.server.trained_models import TrainedModels
from fedskew.tasks.task import BY_TARGET, Task, resolve
from fedskew.tasks.thresholds import Threshold
from fedskew.topology.client_table import Row
from fedskew.topology.context import RoundContext
from fedskew.topology.outcome import RoundOutcome
from fedskew.topology.parallel import Invited, ParallelRounds
from fedskew.topology.participation import Participation
from fedskew.topology.payload import models_compared, sample_payload
from fedskew.topology.run_state import RunState, group_of, grouped

_PARTICIPATION, _TOPOLOGY = "participation", "topology"  # groups of names in a checkpoint


class Server:
    """One run in memory; ``advance`` runs one round.

    ``make_clients`` says where the clients are. Without ``trains`` no round will be run: then what only rounds need
    is not checked, and no client is hostile.
    """

    def __init__(
        self,
        fed: Federation,
        model: nn.Module,
        algorithm: Algorithm,
        settings: Settings,
        engine: Engine | None = None,
        task: Task | None = None,
        make_clients: MakeClients = LocalClients,
        trains: bool = True,
    ) -> None:
        self.fed = fed
        self.settings = settings
        self.algorithm = algorithm
        self.schedule = schedules.choose(settings.schedule)
        fleet = fleets.choose(settings.fleet)
        self.trained_on = partition_to_train_on(fed, algorithm)
        self.per_round = clients_per_round(settings, self.trained_on, fed.clients)
        self.weights = weights_of(algorithm, settings)
        task = task or resolve(BY_TARGET[fed.data.target])
        self.rows, partition = fed.train, self.trained_on
        if trains:
            self.rows, partition = rows_to_train_on(fed, partition, algorithm, settings.seed)
        classes = len(fed.data.classes)
        self.job = make_job(model, self.rows, partition, algorithm, settings, 0, task, classes)
        self.model = self.job.model
        self.least = least_batch(self.model, self.trained_on, settings.batch_size, fed)
        self.device = self.job.x.device
        if trains:
            check_all(self.job, settings, self.per_round)
        self.headline = task.headline(settings.metric)
        self.engine = divided(engine or make_engine(settings), self.job, self.weights, settings)
        self.threads = settings.threads or useful_threads(self.job, settings, self.per_round)
        if settings.thresholds is not None:
            check_thresholds(task, fed, self.job)
        self.state = RunState.initial(self.job)
        fresh = fresh_client(self.job)
        machines = fleets.get(fleet.name)(fed.clients, settings.seed, **fleet.options)
        self.participation = Participation(
            algorithm,
            settings,
            fed,
            self.trained_on,
            machines,
            self.least,
            models_compared(algorithm, self.state),
        )
        context = RoundContext(
            job=self.job,
            settings=settings,
            engine=self.engine,
            participation=self.participation,
            trained_on=self.trained_on,
            per_round=self.per_round,
            least=self.least,
            weights=self.weights,
            fresh_client=fresh,
            mirrored=frozenset(self.state.server_state.keys() & parts(fresh, STATE).keys()),
        )
        self.clients = make_clients(fed, context, self.state)
        self.labels = LabelHolders(fed, self.rows.y, context, self.state)
        trained = TrainedModels(settings, self.state)
        self.rounds = rounds_of(context, self.state, self.clients, self.labels, trained)
        if trains:
            check_buffers_of_models(self.job, self.state.server_state)
            check_fleet(algorithm, machines)
            check_drawn(algorithm, self.trained_on)
            check_candidates(algorithm, self.per_round)
            if isinstance(self.rounds, ParallelRounds):
                check_private(self.job, settings, machines, sample_payload(context, self.state))
        # The protocol for secret labels is slow, and a resumed run has its result in the checkpoint: it is run later
        if not self.job.secure:
            self.labels.find()
        self.scorer = Scorer(fed, context, self.state, self.clients, trained)
        self.evaluator = self.scorer.evaluator
        self.calibration = HeadCalibration(context, self.state, self.clients, self.scorer)

    @property
    def round(self) -> int:
        """Return how many rounds are done."""
        return self.state.round

    @property
    def protocol(self) -> Agreement | None:
        """Return the result of the label protocol, if it was run."""
        return self.labels.agreement

    @property
    def has_common_model(self) -> bool:
        """Return whether clients share a whole model: without one there is no global model to score or to use."""
        return self.scorer.has_common_model

    @property
    def personalised(self) -> bool:
        """Return whether clients use models of their own."""
        return self.scorer.personalised

    def client_model(self, client: int) -> Tensors:
        """Return the model that a client uses, as the method's ``client_model`` makes it."""
        return self.clients.model(client)

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
        if not (isinstance(self.rounds, ParallelRounds) and self.rounds.in_halves):
            return None
        with computing(self.threads):
            return self.rounds.invite(self._lr())

    def complete(self, invited: Invited, learnt: Updates | None = None) -> RoundResult:
        """End the round that ``invite`` began; its clients are trained here, unless they have learnt elsewhere."""
        assert isinstance(self.rounds, ParallelRounds)
        with computing(self.threads):
            return self._advanced(self.rounds.complete(invited, learnt), invited.lr)

    def _lr(self) -> float:
        schedule = schedules.get(self.schedule.name)
        factor = schedule(self.round, self.settings.rounds, **self.schedule.options)
        return self.settings.lr * factor

    def _advanced(self, outcome: RoundOutcome, lr: float) -> RoundResult:
        """Count the round, and return its rows for the tables."""
        self.state.round += 1
        if self.round == 1:
            outcome = self.labels.with_protocol(outcome)
        result = self.scorer.result(outcome, lr)
        self.calibration.add_to(result.round)
        return result

    # -- at the end ----------------------------------------------------------------------------------------------------

    def last_scores(self) -> Row:
        """Return all metrics of the global model on validation and test rows, after the last round."""
        with computing(self.threads):
            scores = self.scorer.all_scores()
        row: Row = {}
        for part, score in scores.items():
            for name, value in score.items():
                row[f"{part}_{name}_last"] = value
        return row

    def calibrate(self) -> Row:
        """Replace the head after the last round, if the method calibrates; returns the scores and the cost."""
        with computing(self.threads):
            return self.calibration.finish()

    def adaptation_cost(self) -> Row:
        """Return how long the slowest client takes to adapt the model before one use, where clients do that."""
        adaptation = self.algorithm.adaptation
        if adaptation is None:
            return {}
        adapter = Adapter(self.engine, self.job, adaptation, self.settings)
        seconds = adaptation_seconds(adapter, self.participation.fleet, self.round)
        return {"adaptation_simulated_seconds": float(seconds.max())}

    def confusion(self) -> Ints | None:
        """Return the confusion matrix of the global model on the test rows, or None without test rows or classes."""
        with computing(self.threads):
            return self.scorer.confusion()

    def threshold(self) -> tuple[Threshold, dict[str, Score]] | None:
        """Return the threshold that ``thresholds`` asks for, with its scores; see ``Evaluator.threshold``."""
        with computing(self.threads):
            return self.scorer.threshold()

    def final_clients(self) -> FinalClients:
        """Return one row for each client with the scores of its final model, and their confusion matrix."""
        with computing(self.threads):
            return self.scorer.final_clients()

    # -- to disk and back ----------------------------------------------------------------------------------------------

    def stores(self) -> dict[str, ClientStore]:
        """Return what clients keep, by name; empty where they keep nothing."""
        return self.clients.stores()

    def checkpoint(self) -> Tensors:
        """Return all that changes over rounds, as flat named tensors."""
        kept = {}
        for part, store in self.stores().items():
            kept[f"{STORE}/{part}"] = store.state()
        return {**self.checkpoint_without_stores(), **grouped(kept)}

    def checkpoint_without_stores(self) -> Tensors:
        """Return the checkpoint without what clients keep, which is large where clients are many."""
        groups = {
            _PARTICIPATION: self.participation.state(),
            _TOPOLOGY: self.rounds.checkpoint(),
        }
        return {
            **self.state.flat(),
            **grouped(groups),
            **self.labels.checkpoint(),
            "round": torch.tensor(self.round),
            **self.clients.checkpoint(),
        }

    def restore(self, flat: Tensors) -> None:
        """Restore what ``checkpoint`` returned; without stores, all clients have their initial state."""
        self.state.restore(flat, self.device)
        self.participation.restore(group_of(flat, _PARTICIPATION))
        self.rounds.restore(group_of(flat, _TOPOLOGY))
        self.clients.restore(flat)
        self.labels.restore(flat)
