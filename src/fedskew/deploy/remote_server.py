"""A server that has no rows: what the rounds need of clients is asked of nodes, everything else is as in simulation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from fedskew.algorithms.contract import Algorithm
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.deploy.checks import (
    checked_confusion,
    checked_scores,
    checked_sums,
    finite,
    fits,
    most_bytes,
)
from fedskew.deploy.remote_clients import Nodes, Versions
from fedskew.deploy.remote_engine import RemoteEngine
from fedskew.deploy.requests import Evaluate, Scored, Statistics
from fedskew.deploy.rowless_federation import positions_of
from fedskew.engine.job import Start
from fedskew.engine.plan import Plan
from fedskew.server.calibration import statistics_of
from fedskew.server.client_store import ClientStore
from fedskew.server.evaluation import (
    Evaluator,
    FinalClients,
    OwnModel,
    Score,
    final_columns,
    own_columns,
    round_metrics,
)
from fedskew.server.server import AWAY, OWN, PERSONAL, Server, jobs_of, models_away
from fedskew.tasks.additive import Sums, added, additive_metrics, metrics_from, sums_over
from fedskew.tasks.task import Task
from fedskew.topology.collector import Arrived
from fedskew.topology.parallel import ParallelRounds

VERSIONS = "versions"  # name of what stands for clients' state in a checkpoint


class RemoteEvaluator:
    """Evaluates models by asking nodes for sums over their rows, and for the scores of their own models."""

    def __init__(self, server: "RemoteServer", settings: Settings) -> None:
        self.server, self.task = server, server.job.task
        self.metrics = sent_metrics(self.task, settings)
        self.names = ("loss", *self.metrics)
        fed = server.fed
        others = {"validation": fed.validation, "test": fed.test}
        there = {}
        for name, rows in others.items():
            if rows is not None and len(rows):
                there[name] = rows
        self._parts = list(there)
        # The most rows that each client can have evaluated; where all have the test rows of all, it is any of them.
        self._most = {"train": fed.partition.sizes} | {
            name: np.full(fed.clients, len(rows))
            if server.everything or rows.group is None
            else np.bincount(rows.group, minlength=fed.clients)
            for name, rows in there.items()
        }
        # On which clients' models are scored
        self._own_rows = (fed.held_out or fed.partition).sizes
        job = server.job
        classes = len(fed.data.classes)
        self._none = sums_over(
            self.task, job.x.new_zeros(0, self.task.width(classes)), job.y[:0], classes
        )
        self._last: dict[int, Scored] = {}
        self._state: Tensors | None = None  # of which the last answers are

    holds_out = True

    def parts(self, common: bool, personal: bool, trained: bool) -> list[str]:
        """Return the parts of the data with scores."""
        if personal and "test" in self._parts and self.server.everything:
            tested = ["own_test"]
        else:
            tested = []
        return [*(["train", *self._parts] if common else []), *tested]

    def evaluate(
        self, state: Tensors | None, own: OwnModel | None, clients: Ints, split: Partition
    ) -> tuple[dict[str, Score], dict[str, Floats]]:
        """Return the scores of the global model on each part, and those of the invited clients' models."""
        self._ask(state, own is not None)
        names = own_columns(own is not None, state is not None, self.task.row_metric)
        found = {}
        for name in names:
            found[name] = np.array([self._value(c, name) for c in clients.tolist()])
        return self._scores(state), found

    def _value(self, client: int, name: str) -> float:
        scored = self._last.get(client)
        if scored is None:
            return np.nan
        return scored.own[name]

    def mean_on_test(self, own: OwnModel, clients: Ints) -> Score | None:
        """Return the mean score of clients' models on the test rows, where nodes have those of all."""
        tested = []
        for c in clients.tolist():
            if (s := self._last.get(c)) and s.own_test is not None:
                tested.append(s.own_test)
        if tested:
            result = {}
            for name in self.names:
                result[name] = float(np.mean([one[name] for one in tested]))
            return result
        return None

    def scores(self, state: Tensors) -> dict[str, Score]:
        """Return the scores of the global model on each part of the data."""
        self._need(state)
        return self._scores(state)

    def all_scores(self, state: Tensors) -> dict[str, Score]:
        """Return all metrics of the global model that follow from sums, on validation and test rows."""
        self._need(state)
        return {part: self._score(part) for part in self._parts}

    def confusion(self, state: Tensors) -> Ints | None:
        """Return the confusion matrix of the global model on the test rows."""
        if "test" not in self._parts or self.task.target != "class":
            return None
        self._need(state)
        matrix: Ints = self._sums("test")["confusion"].astype(np.int64)
        return matrix

    def final(self, state: Tensors | None, own: OwnModel | None) -> FinalClients:
        """Return one row for each client that answers, and the confusion matrix of clients' models."""
        self._ask(state, own is not None, final=True)
        sizes = self.server.fed.partition.sizes
        table = []
        for c, one in self._last.items():
            table.append({"client": c, "rows": int(sizes[c]), **(one.row or {})})
        matrices = []
        for one in self._last.values():
            if one.confusion is not None:
                matrices.append(one.confusion)
        return FinalClients(table, sum(matrices[1:], matrices[0]) if matrices else None)

    def _need(self, state: Tensors) -> None:
        """Ask nodes for the sums of a model, unless the last answers are those: the very same tensors."""
        known = self._state
        if (
            known is None
            or known.keys() != state.keys()
            or any(known[name] is not state[name] for name in known)
        ):
            self._ask(state, False)

    def _ask(self, state: Tensors | None, own: bool, final: bool = False) -> None:
        server = self.server
        shared = state
        if shared is None:
            shared = {}
            for name, value in server.state().items():
                if name not in server.job.local_names:
                    shared[name] = value
        requests = {
            client: Evaluate(
                shared, [versions.of(client) for versions in server.remote.versions], final, own
            )
            for client in range(server.fed.clients)
        }

        def check(client: int, answer: Scored) -> Scored:
            return self._checked(client, answer, state is not None, own, final)

        # Training rows, other parts, clients' own models
        most = (2 + len(self._parts)) * most_bytes(self._none)

        def without(missing: Sequence[int]) -> str:
            if state is None or "test" not in self._parts or server.everything:
                return ""
            everyone = self._most["test"]
            left = int(np.delete(everyone, missing).sum())
            total = int(everyone.sum())
            return f"; scores are of {left:,} of {total:,} test rows, not to be compared with those of other rounds"

        self._last = server.remote.nodes.ask(requests, Scored, check, most, without=without)
        self._state = state

    def _checked(self, client: int, answer: Scored, common: bool, own: bool, final: bool) -> Scored:
        """Return the answer of a client that has scored a model; an error names the part that cannot be."""
        task = self.task
        empty = not self._own_rows[client]
        tested = own and "test" in self._parts
        self._check_sums(client, answer.parts, common)
        checked_scores(
            answer.own,
            () if final else own_columns(own, common, task.row_metric),
            task,
            empty,
            "scores",
        )
        if tested and self.server.everything and not final:
            checked_scores(answer.own_test, self.names, task, False, "scores on test rows")
        else:
            fits(answer.own_test, None, "scores on test rows")
        if tested and final:
            matrix = self._none.get("confusion")
        else:
            matrix = None
        if matrix is None:
            like = None
        else:
            like = matrix.astype(np.int64)
        checked_confusion(answer.confusion, like, int(self._most["test"][client]) if tested else 0)
        if not final:
            fits(answer.row, None, "last row")
            return answer
        columns = final_columns(task, self.metrics, own, common, tested)
        fits(answer.row, {"client": 0, "rows": 0, **dict.fromkeys(columns, 0.0)}, "last row")
        told = {}
        for name, value in (answer.row or {}).items():
            if name in columns:
                told[name] = value
        return replace(answer, row=checked_scores(told, columns, task, empty, "last row"))

    def _check_sums(self, client: int, told: Any, common: bool) -> None:
        """Raise an error unless there are sums of all parts of the data of which a client has rows."""
        if common:
            most = {part: int(sizes[client]) for part, sizes in self._most.items()}
        else:
            most = {}
        fits(
            told, {part: self._none for part, rows in most.items() if rows or part in told}, "sums"
        )
        for part, sums in told.items():
            # Then, each sums up a share of the same rows
            shared = self.server.everything and part != "train"
            checked_sums(sums, 0 if shared else most[part], most[part], self.task, f"sums/{part}")

    def _scores(self, state: Tensors | None) -> dict[str, Score]:
        if state is None:
            return {}
        result: dict[str, Score] = {}
        for part in ("train", *self._parts):
            result[part] = {n: self._score(part)[n] for n in self.names}
        return result

    def _score(self, part: str) -> Score:
        return metrics_from(self.task, self._sums(part))

    def _sums(self, part: str) -> Sums:
        """Return the sums over the rows of all clients that have such rows."""
        return added(
            [self._none, *(one.parts[part] for one in self._last.values() if part in one.parts)]
        )


class RemoteServer(Server):
    """A server whose clients are nodes: it sees sums, updates and numbers of rows.

    The transport of the nodes may be set later, before the first round; ``everything`` says that nodes have the test
    rows of all clients, as in a simulation.
    """

    def __init__(
        self,
        fed: Federation,
        model: nn.Module,
        algorithm: Algorithm,
        settings: Settings,
        task: Task | None = None,
        nodes: Nodes | None = None,
        everything: bool = True,
    ) -> None:
        refuse(algorithm, settings)
        self.everything = everything
        self.remote = RemoteEngine(nodes or Nodes(None), [Versions(fed.clients) for _ in range(2)])
        super().__init__(fed, model, algorithm, settings, self.remote, task)
        self.remote.mirrored = tuple(f"state.{name}" for name in sorted(self.mirrored))
        self.remote.job, self.remote.positions = self.job, positions_of(fed)
        if fed.named:
            self.remote.nodes.names = fed.client_names
        else:
            self.remote.nodes.names = ()
        if isinstance(self.rounds, ParallelRounds):
            self.remote.sent, self.remote.reported = (
                self.rounds.sample_payload(),
                tuple(self.rounds.reported()),
            )

    def _store(self, fresh: Tree) -> ClientStore:
        return ClientStore({})  # with the clients

    def _evaluator(self) -> Evaluator:
        return RemoteEvaluator(self, self.settings)  # type: ignore[return-value]

    def keep(self, arrived: Arrived, counted: Ints) -> None:
        """Note whose new state counts."""
        versions = self.remote.versions[0]
        now = self.round + 1
        versions.rounds[0, arrived.valid] = now
        versions.rounds[1, np.intersect1d(arrived.valid, counted)] = now

    def train_personal(self, start: Start, plan: Plan) -> None:
        """Let clients train the models of their own, if the method has any, and note who did."""
        if self.personal is None:
            return
        _, job = jobs_of(self.job)
        for updates in self.engine.train(
            job, replace(start, server={"weights": self.shared()}), plan
        ):
            self.remote.versions[1].rounds[:, updates.report.clients] = self.round + 1

    def client_model(self, client: int) -> Tensors:
        """Refuse to return what is not here."""
        raise models_away(self.fed.client_names[client])

    def checkpoint_without_stores(self) -> Tensors:
        """Return the checkpoint, in which the versions stand for what clients keep."""
        kept = {
            f"{VERSIONS}/{i}": versions.state() for i, versions in enumerate(self.remote.versions)
        }
        store, names = (
            (PERSONAL, self.state().keys())
            if self.personal is not None
            else (OWN, self.job.local_names)
        )
        away = {f"{AWAY}/{store}/{name}": torch.zeros(0) for name in sorted(names)}
        return {**super().checkpoint_without_stores(), **kept, **away}

    def restore(self, flat: Tensors) -> None:
        """Restore what ``checkpoint`` returned; clients go back to the state that they had then."""
        super().restore(flat)
        for i, versions in enumerate(self.remote.versions):
            versions.restore(flat[f"{VERSIONS}/{i}"])

    def _statistics(self) -> Tree:
        requests = {
            client: Statistics(self.state(), self.remote.versions[0].of(client))
            for client in range(self.fed.clients)
        }
        calibrator = self.job.algorithm.calibrator
        assert calibrator
        like = statistics_of(self.job, [(self.state(), self.fed.partition.rows[:1])])

        def check(client: int, answer: Tree) -> Tree:
            fits(answer, like, "statistics")
            finite(answer, "statistics")
            calibrator.check_statistics(answer, self.job.class_counts(np.array([client]))[0])
            return answer

        total: Tree = {}
        for answer in self.remote.nodes.ask(requests, dict, check, most_bytes(like)).values():
            for part, tensors in answer.items():
                sums = total.setdefault(part, {})
                for name, value in tensors.items():
                    if name in sums:
                        sums[name] = sums[name] + value
                    else:
                        sums[name] = value
        return total


def sent_metrics(task: Task, settings: Settings) -> tuple[str, ...]:
    """Return the metrics of a run, all of which must follow from sums."""
    first, known = () if settings.metric is None else (settings.metric,), additive_metrics(task)
    wanted = tuple(dict.fromkeys((*first, *round_metrics(task), *settings.metrics)))
    if missing := [name for name in wanted if name not in known]:
        raise FedskewError(
            f"metric {missing[0]} needs the predictions for all rows in one place, which no server has here: "
            f"choose among {', '.join(known)}"
        )
    return wanted


def refuse(algorithm: Algorithm, settings: Settings) -> None:
    """Refuse what cannot be done where rows stay with their clients."""
    reasons = {
        f"{algorithm.label()} trains on all rows in one place": "pooled_rows" in algorithm.requires,
        "hostile clients are simulated": algorithm.poison is not None,
        "secure=true simulates the clients' side of the label protocol": settings.secure,
        "test_trained=true evaluates clients' models on the server": settings.test_trained,
        "thresholds need the predictions for all rows in one place": settings.thresholds
        is not None,
        "workers are processes of a simulation": settings.workers is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            raise FedskewError(
                f"{reason}, and here rows and models stay with their clients: leave it out"
            )
