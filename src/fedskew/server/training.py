"""A run in memory: the state between rounds, and how one round changes it."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedskew.algorithms.contract import Algorithm, Crowd, View, Weights, base_weights, overridden
from fedskew.batchnorm.exact import step_bytes
from fedskew.batchnorm.shared import meeting
from fedskew.core.config import Settings
from fedskew.core.errors import DivergedError
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors, Tree, rows_of, size_in_bytes, without
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.cost import measure_cost
from fedskew.engine.device import computing, usable_cores
from fedskew.engine.job import MEMO, Course, Engine, Job, Start, Updates, fresh_client, make_job, parts
from fedskew.engine.loop import Sequential
from fedskew.engine.lr_schedule import schedules
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked
from fedskew.fleet.clock import LOOK, computing_seconds, line_seconds
from fedskew.fleet.machines import fleets
from fedskew.label_privacy.agreement import Agreement
from fedskew.models.layout import layout
from fedskew.models.parameters import trainable
from fedskew.server.calibration import new_head
from fedskew.server.client_rows import Row, client_lines
from fedskew.server.client_store import ClientStore
from fedskew.server.collector import Arrived, WeightedMean, sound_clients
from fedskew.server.evaluation import OWN_TESTED, SCORES, Evaluator, OwnModel, Score, own_columns
from fedskew.server.label_holders import packed, protocol_bytes, protocol_seconds, unpacked, who_holds_what
from fedskew.server.participation import NUMBER, Call, Dispatcher, Traffic
from fedskew.server.refusals import check_combining, check_topology, clients_a_round, least_batch
from fedskew.topology.holdings import Holdings
from fedskew.topology.pending import Air, each, joined
from fedskew.topology.schedule_cost import NOWHERE, Load, as_call, at_least, broadcast, chain, lockstep, of_several

PROTOCOL = "protocol"  # name in a checkpoint: what the label protocol found out


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
        self.schedule, fleet = schedules.choose(settings.schedule), fleets.choose(settings.fleet)
        self.trained_on = algorithm.arrange(fed.partition)
        self.per_round = clients_a_round(settings, self.trained_on, fed.clients)
        algorithm.check(optimizer=settings.optimizer, per_round=self.per_round, secure=settings.secure)
        self.weights = weights_of(algorithm, settings)
        self.total_weight = float(base_weights(self.trained_on.sizes, self.weights).sum())
        self.least = least_batch(model, self.trained_on, settings.batch_size)
        self.job = make_job(model, fed.train, self.trained_on, algorithm, settings)
        self.model, self.device = self.job.model, self.job.x.device
        cost = measure_cost(self.model, self.job.x, 1 if algorithm.one_by_one else settings.batch_size)
        at_once = self.per_round if algorithm.topology(0) == "parallel" else 1
        self.threads = settings.threads or cost.threads(at_once, usable_cores())
        # Contiguous, whatever the layout of the model that was given: a checkpoint file holds nothing else.
        plain = torch.contiguous_format
        self.params: Tensors = {n: value.detach().clone(memory_format=plain) for n, value in trainable(self.model).items()}
        self.buffers: Tensors = {name: value.detach().clone() for name, value in self.model.named_buffers()}
        self.server = algorithm.init(self._shared())
        self.store = ClientStore(fresh_client(self.job))
        own_job = _own_job(self.job)
        self.personal = ClientStore(fresh_client(own_job)) if own_job else None
        machines = fleets.get(fleet.name)(fed.clients, settings.seed, **fleet.options)
        self.dispatcher = Dispatcher(algorithm, settings, fed, self.trained_on, machines, self.least)
        self.air = Air(self.dispatcher, self.per_round)
        self.walking: Tree = {}
        self.protocol: Agreement | None = None
        self._holdings: Holdings | None = None
        check_topology(algorithm, self.job, settings)
        pooled = self.trained_on is not fed.partition
        few = min(algorithm.awaits() or self.per_round, self.per_round) if algorithm.awaits() or pooled else None
        check_combining(algorithm, self.job, few)
        if algorithm.topology(0) != "parallel":
            self.walking = self.job.optimizer.init(self.params, stacked=False)
        self.round = 0
        if not settings.secure:  # with it that takes a while, and a resumed run has it in its checkpoint
            self.agree()
        self._trained: dict[int, Tensors] = {}
        # A copy, because functional_call leaves its tensors behind in a layer that is used in two places.
        self.evaluator = Evaluator(fed, copy.deepcopy(self.model), self.job.x, self.job.y, settings.eval_rows, settings.seed)

    def _shared(self) -> Tensors:
        return {name: value for name, value in self.params.items() if name not in self.job.unsent}

    @property
    def holdings(self) -> Holdings:
        """Who holds what, where one model goes through all clients."""
        self.agree()
        assert self._holdings
        return self._holdings

    def agree(self, agreed: Agreement | None = None) -> None:
        """Find out who holds what, if one model goes through all clients and it is not known yet.

        With ``secure`` that takes a protocol between all parties; ``agreed`` is what came of it before a run was stopped, and
        then it is not played again.
        """
        if self.algorithm.topology(0) == "parallel" or self._holdings:
            return
        self._holdings, self.protocol = who_holds_what(self.fed, self.trained_on, self.algorithm, self.settings, agreed)
        self.algorithm.check_labels(self._holdings)
        if self.protocol and self.round == 0:
            self.dispatcher.clock = protocol_seconds(self.protocol, self.dispatcher.fleet)

    # -- one round ------------------------------------------------------------------------------------------------------

    def advance(self) -> RoundResult:
        """Run the next round and say what happened."""
        with computing(self.threads):
            return self._advance()

    def _advance(self) -> RoundResult:
        lr = self.settings.lr * schedules.get(self.schedule.name)(self.round, self.settings.rounds, **self.schedule.options)
        if self.algorithm.topology(self.round) != "parallel":
            return self._walk(lr)
        awaited, mean = self.algorithm.awaits(), WeightedMean(self.algorithm, self.weights)
        if awaited is None:
            call = self._call(lr, 0, self.per_round, np.zeros(0, dtype=np.int64))
            assert call, "where nobody is busy somebody is free"
            plan = call.arrived()
            arrived = self._work(plan, lr, mean) if len(plan.clients) else []
        else:
            call, arrived = self._collect(min(awaited, self.per_round), lr, mean)
        combined = mean.result() if mean.total > 0 and len(mean) >= self.algorithm.quorum() else None
        if combined:
            crowd = Crowd(combined.weights, self.total_weight, combined.mean)
            moved, self.server = self.algorithm.step(self._shared(), self.server, combined.payload, crowd)
            self.params = {**self.params, **moved}
            self.buffers = combined.merged_buffers(self.buffers)
        counted = combined.counted if combined else np.zeros(0, dtype=np.int64)
        for stack in arrived:
            self._keep(stack, counted)
        self.round += 1
        agreement = dict(zip(combined.clients.tolist(), combined.agreement.tolist(), strict=False)) if combined else {}
        self.dispatcher.went(call, np.concatenate([[], *(stack.sound for stack in arrived)]), agreement)
        shares = dict(zip(combined.clients.tolist(), combined.shares.tolist(), strict=True)) if combined else {}
        return self._record(call, arrived, shares, lr)

    def _keep(self, stack: Arrived, counted: Ints) -> None:
        """Store what clients keep; what the server holds the mean of stays as it was with those that do not count."""
        own, out = stack.own, ~np.isin(stack.sound, counted)
        mirrored = {MEMO + part for part in self.algorithm.mirrored}
        if mirrored and out.any():
            old, index = self.store.get(stack.sound[out]), torch.from_numpy(np.flatnonzero(out))
            own = {
                part: {n: v.index_copy(0, index.to(v.device), old[part][n]) for n, v in tensors.items()}
                if part in mirrored
                else tensors
                for part, tensors in own.items()
            }
        self.store.put(stack.sound, own)

    def _walk(self, lr: float) -> RoundResult:
        """A round in which one model goes through the samples of all clients in an order that the method decides."""
        self.agree()
        began = self.dispatcher.clock if self.round else 0.0
        clock, roster, clients, lost = self.dispatcher.gather(self.round, self.per_round)
        everybody, there = np.arange(self.trained_on.clients), clients[~lost]
        holdings = self.holdings.without(np.setdiff1d(everybody, there))
        stream = Stream(self.settings.seed, "walk", self.round)
        path = at_least(self.algorithm.walk(holdings, roster, stream), self.least) if holdings.counts.any() else NOWHERE
        if self._sums_in_secret():
            path = of_several(path)
        travel = chain if self.algorithm.topology(self.round) == "chain" else lockstep
        journey = travel(path, len(everybody), self.dispatcher.fleet, self._load())
        if travel is chain and self.algorithm.reads() != "nothing":
            journey = broadcast(journey, there, self.dispatcher.fleet, size_in_bytes({"model": self.state()}))
        course = Course(self.params, self.buffers, self.walking, lr * self.algorithm.pace(roster), self.round)
        walked = self.engine.walk(self.job, course, journey.path, resets=not self.algorithm.keeps_optimizer)
        if not all(bool(torch.isfinite(value).all()) for value in walked.params.values()):
            raise DivergedError(
                f"round {self.round + 1}: the model became NaN or infinite on its way through {len(there)} clients; "
                f"lower lr (now {lr:g}) or check the data"
            )
        self.params, self.buffers, self.walking = walked.params, walked.buffers, walked.optimizer
        self.round += 1
        when = (began, clock)
        call, stack, shares = as_call(journey, walked, clients, lost, self.trained_on.sizes, when, self.settings.seed)
        self.dispatcher.went(call, there)
        if self.protocol and self.round == 1:
            down, up = protocol_bytes(self.protocol)
            call = replace(call, others_down=call.others_down + down, others_up=call.others_up + up)
        extra = {"transfers": journey.transfers, "run_length": journey.run_length, "returned": path.returned}
        return self._record(call, [stack], dict(zip(stack.sound.tolist(), shares.tolist(), strict=True)), lr, extra)

    def _sums_in_secret(self) -> bool:
        """Whether the server of this round learns sums over the clients of a step and nothing of each."""
        return self.settings.secure and self.algorithm.topology(self.round) == "lockstep"

    def _load(self) -> Load:
        """What one visit of the model, or one client's part of a batch, puts on the line."""
        order = 0 if self.algorithm.reads() == "nothing" else NUMBER
        if self.algorithm.topology(self.round) == "lockstep":
            up, down = step_bytes(self.model, self.job.x.dtype, self.fed.clients if self._sums_in_secret() else None)
            return Load(down, up, order)
        state = self.walking if self.algorithm.keeps_optimizer else {}
        travels = size_in_bytes({"model": self.state()}) + size_in_bytes(state)
        return Load(travels, travels, order)

    def _call(self, lr: float, turn: int, count: int, busy: Ints) -> Call | None:
        """Send clients to work on the present weights."""
        algorithm = self.algorithm
        down = size_in_bytes({"weights": self._leaving()}) + size_in_bytes(algorithm.broadcast(self.server))
        traffic = Traffic(down, self._bytes_up(), partial(meeting, self.job))

        def probe(plan: Plan) -> Mapping[str, Floats]:
            return self.engine.probe(self.job, self._start(plan, lr), plan, algorithm.probe())

        turns = (self.round, turn) if turn else (self.round,)
        return self.dispatcher.call(self.round, count, probe, traffic, turns, busy)

    def _work(self, plan: Plan, lr: float, mean: WeightedMean) -> list[Arrived]:
        """Train the clients whose answers will be used, and add these up."""
        start, arrived = self._start(plan, lr), []
        for updates in self.engine.train(self.job, start, plan):
            arrived.append(mean.add(updates))
            self._keep_trained(updates)
        if mean.total <= 0:
            raise DivergedError(
                f"round {self.round + 1}: all {len(plan.clients)} clients sent NaN or infinite updates; "
                f"lower lr (now {lr:g}) or check the data"
            )
        if self.personal and (own_job := _own_job(self.job)):
            own = replace(start, server={"weights": self._shared()}, own=self.personal.get(plan.clients))
            for updates in self.engine.train(own_job, own, plan):
                kept = sound_clients(updates)
                self.personal.put(updates.report.clients[kept.numpy()], rows_of(updates.own, kept))
        return arrived

    def _collect(self, awaited: int, lr: float, mean: WeightedMean) -> tuple[Call, list[Arrived]]:
        """Wait for so many answers while others stay at work, and add them up."""
        began = self.dispatcher.clock
        landed, calls = self.air.collect(awaited, lambda turn, count, busy: self._call(lr, turn, count, busy))
        everyone = [*landed, *self.air.flights]
        fresh = [flight.plan for flight in everyone if flight.answers and not flight.update]
        answers: dict[int, Updates] = {}
        if fresh:  # all of them began with the present weights, so they can train together
            plan = Plan.together(fresh)
            for updates in self.engine.train(self.job, self._start(plan, lr), plan):
                answers |= {int(one.report.clients[0]): one for one in each(updates)}
        done = [replace(flight, update=answers.get(flight.client, flight.update)) for flight in everyone]
        self.air.flights = done[len(landed) :]
        arrived = []
        for flight in done[: len(landed)]:
            if flight.update:
                staleness = {"staleness": np.array([float(self.round - flight.plan.round)])}
                report = replace(flight.update.report, numbers={**flight.update.report.numbers, **staleness})
                arrived.append(mean.add(replace(flight.update, report=report)))
        plan = Plan.together([flight.plan for flight in landed])
        down, up = (np.concatenate([getattr(flight, name) for flight in landed]) for name in ("bytes_down", "bytes_up"))
        others = (sum(call.others_down for call in calls), sum(call.others_up for call in calls))
        outcome = joined([flight.outcome for flight in landed])
        return Call(plan, outcome, began, began, self.dispatcher.clock, down, up, None, *others), arrived

    def _start(self, plan: Plan, lr: float) -> Start:
        return Start(self.params, self.buffers, self.algorithm.broadcast(self.server), self.store.get(plan.clients), lr)

    def _leaving(self) -> Tensors:
        """What of the model is sent to clients."""
        return {name: value for name, value in self.state().items() if name not in self.job.kept}

    @torch.no_grad()
    def _bytes_up(self) -> int:
        """What one client will send, known beforehand: its time on the line decides whether it is late."""
        numbers = _Ones(one=torch.ones((), dtype=self.job.x.dtype, device=self.device))
        memo = parts(self.store.fresh, MEMO)
        sent_along = self.algorithm.broadcast(self.server)
        view = View(self.params, self.params, sent_along, memo, numbers, self.settings.momentum, full_gradient=self.params)
        buffers = {name: value for name, value in self.buffers.items() if name not in self.job.unsent}
        sent = size_in_bytes(without(self.algorithm.payload(view), self.job.unsent)) + size_in_bytes({"buffers": buffers})
        return sent + self._reported()

    def _reported(self) -> int:
        """Bytes of the numbers that a client reports with its update because the method weighs by them."""
        return 2 * NUMBER if self.algorithm.measures_fall else 0

    # -- what happened ---------------------------------------------------------------------------------------------------

    def _record(
        self,
        call: Call,
        arrived: list[Arrived],
        shares: Mapping[int, float],
        lr: float,
        told: Mapping[str, float] | None = None,
    ) -> RoundResult:
        """``shares`` are those of the clients in the new model; ``told`` is what a walk adds to the line of the round."""
        extra = ["loss_before", "loss_after"] if self.algorithm.measures_fall else []
        extra += ["staleness"] if self.algorithm.awaits() else []
        clients = client_lines(call, arrived, shares, extra, self._reported())
        rest = call.only_measured()
        sound = sum(len(stack.sound) for stack in arrived)
        answers = sound if told else int(call.outcome.arrived.sum())  # in a walk not everybody who is there is asked
        missed = int(rest.late.sum()) if rest else 0
        line: Row = {"round": self.round, "clients": len(call.plan.clients) + missed, "excluded": answers - sound}
        line |= {"dropped": int(call.outcome.dropped.sum()), "late": int(call.outcome.late.sum()) + missed, "lr": lr}
        counted = [client for client in clients if client["weight"] > 0]
        for name in ("local_loss", "local_accuracy"):
            weighted = np.dot([client["weight"] for client in counted], [client[name] for client in counted])
            line[name] = float(weighted) if counted else None
        line |= self._evaluate(clients, set(call.plan.clients.tolist()))
        others = {"bytes_down": call.others_down, "bytes_up": call.others_up}
        line |= {name: sum(client[name] for client in clients) + more for name, more in others.items()}
        line |= {"simulated_seconds": call.ended - call.began, "clock": call.ended}
        if self.algorithm.probe():
            line["measured"] = len(call.measured.clients) if call.measured else 0
        line |= {**(told or {}), **self.algorithm.notes(self.server)}
        self._score_calibrated(line)
        return RoundResult(line, [{"round": self.round, **client} for client in clients])

    def _evaluate(self, clients: list[Row], sent: set[int]) -> Row:
        """Scores of the global model; also adds to the lines of those sent to train how their models do on their own rows."""
        scores: dict[str, Score | None] = {}
        found: dict[str, Floats] = {}
        due, own, columns = self._due(self.round), self._own(), own_columns(self.personalised, self.has_common_model)
        if due:
            chosen, trained = (np.array(sorted(some), dtype=np.int64) for some in (sent, self._trained))
            common = self._common()
            scores |= self.evaluator.scores(common) if common else {}
            scores["own_test"] = self.evaluator.mean_on_test(own, chosen) if own else None
            scores["trained_test"] = self.evaluator.mean_on_test(self._trained.__getitem__, trained)
            found = self.evaluator.on_own_rows(common, own, chosen, self._own_rows())
        place = {client: i for i, client in enumerate(sorted(sent))}
        for client in clients:
            at = place.get(client["client"])
            client |= {name: float(found[name][at]) if due and at is not None else None for name in columns}
        self._score_trained(clients)
        parts = self.evaluator.parts(self.has_common_model, self.personalised, self.settings.test_trained)
        return {f"{part}_{name}": getattr(scores.get(part), name, None) for part in parts for name in SCORES}

    def _score_trained(self, clients: list[Row]) -> None:
        """Adds to clients' lines how their models did on their own rows right after local training."""
        if not self.settings.test_trained:
            return
        split = self._own_rows()
        for client in clients:
            state, score = self._trained.get(client["client"]), (None, None)
            if state:
                scores = self.evaluator.on_own_rows(state, None, np.array([client["client"]]), split)
                score = tuple(float(scores[name][0]) for name in ("loss", "accuracy"))  # type: ignore[assignment]
            client["trained_loss"], client["trained_accuracy"] = score
        self._trained = {}

    def _own_rows(self) -> Partition:
        """On which rows a client's model is tried: those that it held out, or else those that it trains on."""
        pooled = self.trained_on is not self.fed.partition
        return self.trained_on if pooled else self.fed.held_out or self.fed.partition

    def _due(self, round: int) -> bool:
        return round % self.settings.eval_every == 0 or round == self.settings.rounds

    def _keep_trained(self, updates: Updates) -> None:
        """Remember some clients' models as they are after local training, until the round is scored."""
        if not (self.settings.test_trained and self._due(self.round + 1)):
            return
        everything = {**updates.trained, **updates.buffers, **updates.own.get("kept", {})}
        for i, client in enumerate(updates.report.clients.tolist()):
            if len(self._trained) < OWN_TESTED:
                self._trained[client] = {name: value[i].clone() for name, value in everything.items()}

    @property
    def has_common_model(self) -> bool:
        """Whether there is a global model that learns; where clients share nothing it stays as it began, and says nothing."""
        return bool(self.params.keys() - self.job.kept)

    @property
    def personalised(self) -> bool:
        """Whether clients use models of their own."""
        return bool(self.job.kept) or self.personal is not None

    def _common(self) -> Tensors | None:
        return self.state() if self.has_common_model else None

    def _own(self) -> OwnModel | None:
        return self.client_state if self.personalised else None

    def state(self) -> Tensors:
        """Weights and buffers of the global model."""
        return {**self.params, **self.buffers}

    def client_state(self, client: int) -> Tensors:
        """The model that a client uses: the global one with the parts that the client kept, or one of its own."""
        own = (self.personal or self.store).get(np.array([client])).get("kept", {})
        return {**self.state(), **{name: value[0] for name, value in own.items()}}

    def finish(self) -> Row:
        """Once, after the last round: a new head, if the method makes one; says how good the model is then and what it cost."""
        if not overridden(self.algorithm, "tally"):
            return {}
        with computing(self.threads):
            head, scores, cost = self._calibrate()
        self.params = {**self.params, **head}
        if self.algorithm.calibrates_every():  # then the last round has paid for it
            cost = dict.fromkeys(cost, 0)
        return {**scores, **{f"calibration_{name}": value for name, value in cost.items()}}

    def _calibrate(self) -> tuple[Tensors, Row, Row]:
        """A new head, how good the model is with it, and what it costs to ask all clients for their tallies."""
        head, tally = new_head(self.job, len(self.fed.data.classes), self._models_of_rows(), self.round)
        scores = self.evaluator.scores({**self.state(), **head})
        line = {f"calibrated_{part}_{name}": value for part, score in scores.items() for name, value in vars(score).items()}
        down, up = size_in_bytes({"weights": self._leaving()}), size_in_bytes(tally)
        sizes = self.trained_on.sizes
        machines = self.dispatcher.fleet.machines(np.arange(len(sizes)))
        steps = -(-sizes // self.settings.batch_size)
        seconds = line_seconds(machines, down, up) + computing_seconds(machines, sizes.astype(np.float64) * LOOK, steps)
        cost = {"bytes_down": len(sizes) * down, "bytes_up": len(sizes) * up, "simulated_seconds": float(seconds.max())}
        return head, line, cost

    def _score_calibrated(self, line: Row) -> None:
        """Adds to the line of a round how a copy of the model with a new head does, if the method asks for it."""
        every = self.algorithm.calibrates_every()
        if every is None:
            return
        parts = self.evaluator.parts(True, False, False)
        line |= {f"calibrated_{part}_{name}": None for part in parts for name in SCORES}
        if self.round % every == 0 or self.round == self.settings.rounds:
            _, scores, cost = self._calibrate()
            line |= scores
            for name, value in cost.items():
                line[name] += value
            line["clock"] += cost["simulated_seconds"]
            self.dispatcher.clock = line["clock"]

    def _models_of_rows(self) -> Iterator[tuple[Tensors, Ints]]:
        """Every client's rows with the model it uses: all at once, unless clients keep parts of it."""
        if not self.job.kept:
            yield self.state(), self.trained_on.rows
            return
        for client in range(self.trained_on.clients):
            yield self.client_state(client), self.trained_on.of(client)

    def final_clients(self) -> list[Row]:
        """One line a client about the model it ends with."""
        with computing(self.threads):
            return self.evaluator.final(self._common(), self._own())

    # -- to disk and back ------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Tensors:
        """All that changes over rounds, as flat named tensors."""
        kept = {f"store/{part}/{name}": v for part, store in self.stores().items() for name, v in store.state().items()}
        return {**self.head(), **kept}

    def head(self) -> Tensors:
        """The checkpoint without the stores, which are large where clients are many."""
        # Copies: a method's state may be the weights themselves, and a file must not hold two names for one memory.
        server = {f"{part}/{name}": value.clone() for part, tensors in self.server.items() for name, value in tensors.items()}
        groups = {"params": self.params, "buffers": self.buffers, "server": server}
        groups["walking"] = {
            f"{part}/{n}": value.clone() for part, tensors in self.walking.items() for n, value in tensors.items()
        }
        groups |= {"dispatcher": self.dispatcher.state(), "flights": self.air.state()}
        flat = {f"{group}/{name}": value for group, tensors in groups.items() for name, value in tensors.items()}
        agreed = {PROTOCOL: packed(self.protocol)} if self.protocol else {}
        return {**flat, **agreed, "round": torch.tensor(self.round)}

    def stores(self) -> dict[str, ClientStore]:
        """What clients keep, by name; empty where they keep nothing."""
        named = {"own": self.store, "personal": self.personal}
        return {name: store for name, store in named.items() if store}

    def restore(self, flat: Tensors) -> None:
        """The inverse of ``checkpoint``; also takes a ``head``, and then nobody has kept anything."""

        def group(prefix: str) -> Tensors:
            return {name.removeprefix(prefix): value for name, value in flat.items() if name.startswith(prefix)}

        # In the order of a training that never stopped, not of the file: a method may sum over all of them.
        self.params = {name: flat[f"params/{name}"].to(self.device) for name in self.params}
        self.buffers = {name: flat[f"buffers/{name}"].to(self.device) for name in self.buffers}
        self.server = {
            part: {name: flat[f"server/{part}/{name}"].to(self.device) for name in tensors}
            for part, tensors in self.server.items()
        }
        self.walking = {
            part: {name: flat[f"walking/{part}/{name}"].to(self.device) for name in tensors}
            for part, tensors in self.walking.items()
        }
        self.dispatcher.restore(group("dispatcher/"))
        nobody = np.zeros(0, dtype=np.int64)
        self.air.restore(group("flights/"), Plan(self.settings.seed, 0, *(nobody,) * 4, self.least), self.device)
        for part, store in self.stores().items():
            store.restore(group(f"store/{part}/"))
        self.round = int(flat["round"])
        if PROTOCOL in flat:
            self.agree(unpacked(flat[PROTOCOL]))


class _Ones(dict[str, Tensor]):
    """Every number there is, and it is 1."""

    def __missing__(self, name: str) -> Tensor:
        return self["one"]


def _own_job(job: Job) -> Job | None:
    """How clients train models all of their own beside the global one."""
    method = job.algorithm.personal()
    if method is None:
        return None
    return replace(
        job, algorithm=method, kept=frozenset({*trainable(job.model), *layout(job.model).buffers}), fixed=frozenset()
    )


def weights_of(algorithm: Algorithm, settings: Settings) -> Weights:
    """What clients count by in the mean: as the setting says, or the paper of the method, or the method's own option."""
    return algorithm.counts_by(algorithm.paper_weights if settings.weights == "paper" else settings.weights)


def _engine(settings: Settings) -> Engine:
    return Sequential() if settings.engine == "sequential" else Stacked(memory=int(settings.memory * 2**30))
