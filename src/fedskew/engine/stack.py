"""Clients of a round that are trained together: stacked on a new first axis, they take the same step at the same time.

Clients are sorted by their number of steps, so that the active ones are always a prefix of the stack and a finished
client costs nothing. Short batches are padded and masked, BatchNorm included. A round has parts: ``_begin``, one block
of steps after the other, and ``_end``. What they use and leave is one ``RoundState``, of tensors only.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.contract import TRAINED, overridden
from fedskew.batchnorm.shared import settle_in_stack
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree, copied
from fedskew.engine.augment import augment, draw_moves
from fedskew.engine.features import no_class_sums
from fedskew.engine.input_rows import Inputs
from fedskew.engine.job import (
    ANSWER,
    CANDIDATES,
    CHOSEN,
    LOCAL,
    OPTIMIZER,
    RECEIVED,
    STATE,
    Job,
    Start,
    Updates,
    candidates_of,
    number_of_candidates,
    parts,
    prefixed,
)
from fedskew.engine.joint_plan import JointPlan
from fedskew.engine.kept_outputs import KeptOutputs
from fedskew.engine.plan import Plan
from fedskew.engine.read_ahead import read_ahead
from fedskew.engine.round_blocks import RoundBlocks
from fedskew.engine.shapes import Block, Room
from fedskew.engine.stack_hooks import RoundState, Seen, StackHooks
from fedskew.engine.stack_losses import (
    add_class_features,
    add_full_gradient,
    candidate_losses,
    mean_losses,
)
from fedskew.engine.stack_step import StackStep
from fedskew.engine.stack_updates import round_updates
from fedskew.engine.stacked_model import StackedModel
from fedskew.models.parameters import trainable


class Stack:
    """Some clients of a job, side by side; ``train`` may be called for round after round.

    Args:
        job: the job
        channels_last: whether images lie in memory with their channels last
        joint: whether the clients belong to several runs: weights, broadcast, options and, with ``own_lr``, the
            learning rate are those of each client
    """

    overwrites: ClassVar[bool] = False  # whether the next round writes to the tensors of this one
    plan: Plan
    room: Room
    slots: Tensor
    counts: Ints  # batch sizes ``[step, client]``
    state: RoundState

    def __init__(
        self, job: Job, channels_last: bool = False, joint: bool = False, own_lr: bool = False
    ) -> None:
        self.job = job
        self.joint = joint
        self.own_lr = own_lr
        algorithm = job.algorithm
        self.requires = algorithm.requires
        self.device = job.y.device
        self.receives = overridden(algorithm, "on_receive")
        self.linear = overridden(algorithm, "linear_correction")
        self.keeps_more = overridden(algorithm, "payload") or overridden(algorithm, "client_state")
        self.layers = StackedModel(
            job.model, trainable(job.model), "features" in self.requires, job.precision
        )
        self.hooks = StackHooks(job, self.layers, joint)
        self.step = StackStep(job, self.layers, self.hooks, own_lr)
        self.channels_last = channels_last
        self.x: Inputs = job.x
        if channels_last:
            self.x = job.images_channels_last
        self.ahead = self.x
        self.given: Tree = {}
        self.blocks = RoundBlocks(job)
        self.outputs = KeptOutputs(job)

    # -- one round -----------------------------------------------------------------------------------------------------

    def train(self, start: Start, kept: Tree, plan: Plan) -> Updates:
        """Train the clients of a plan, those with the most steps first."""
        self.plan = plan
        self.measured = dict[str, Floats]()
        self._fit()
        blocks, self.counts = self.blocks.of(plan)
        self._load(start, kept)
        self._take_round(blocks)
        return round_updates(
            self.job,
            plan,
            self.state,
            self.counts,
            self.measured,
            overwritten=self.overwrites,
            sends_difference=not self.keeps_more,
        )

    def _fit(self) -> None:
        """Make room for the plan."""
        self.room = Room.of(self.plan)
        self.slots = torch.arange(self.room.width, device=self.device)

    def _take_round(self, blocks: list[Block]) -> None:
        """Take a round part by part."""
        self.now = 0
        self._play("begin", self._begin)
        if "loss_before" in self.requires:
            losses = mean_losses(self.job, self.plan, self.state)
            self.measured["loss_before"] = losses
            known = self.state.numbers["loss_before"]
            known[: len(losses)] = torch.from_numpy(losses).to(self.state.lr)
        if self.state.candidate_losses is not None:
            losses = candidate_losses(self.job, self.plan, self.state, self.joint)
            self.measured[CHOSEN] = losses.argmin(1).astype(np.float64)
            self.state.candidate_losses[: len(losses)] = torch.from_numpy(losses).to(self.state.lr)
        if "full_gradient" in self.requires:
            add_full_gradient(self.job, self.plan, self.state)
        if self.receives:
            self._play(("receive", blocks[0]), partial(self._receive, blocks[0]))
        if self.linear:
            self._play("correct", self._correct)
        self._take_steps(blocks)
        if "loss_after" in self.requires:
            self.measured["loss_after"] = mean_losses(self.job, self.plan, self.state)
        if "class_features" in self.requires:
            add_class_features(self.job, self.plan, self.state)
        self._play("end", self._end)

    def _take_steps(self, blocks: list[Block]) -> None:
        """Take the steps of a round; losses and scores are added up whenever the room for outputs is full."""
        waiting = 0
        with read_ahead(self.x, self._requests(blocks)) as self.ahead:
            for block in blocks:
                room = len(self.outputs)
                if room and waiting + block.steps > room:
                    self._play("sums", self._add_sums)
                    waiting = 0
                self._play(block, partial(self._steps, block))
                self.now += block.steps
                waiting += block.steps
        self._play("sums", self._add_sums)

    def _requests(self, blocks: list[Block]) -> Iterator[Tensor]:
        """Yield the row numbers of all batches, in the order of their use."""
        tables = [self.state.rows]
        if self.state.second_rows is not None:
            tables.append(self.state.second_rows)
        first = 0
        for block in blocks:
            steps = slice(first, first + block.steps)
            for table in tables:
                yield table[steps, : block.active, : block.width].flatten()
            first += block.steps

    def _play(self, name: Hashable, part: Callable[[], None]) -> None:
        """Run a part of the round."""
        part()

    def _load(self, start: Start, kept: Tree) -> None:
        """Make the inputs of the round available."""
        shared, own, numbers = self._inputs(start, kept)
        packed = torch.from_numpy(numbers).to(self.device)
        self.given = {**shared, **own, "numbers": {"": packed}}

    def _inputs(self, start: Start, kept: Tree) -> tuple[Tree, Tree, Floats]:
        """Return what all clients are given, what each is given, and the numbers of each."""
        plan = self.plan
        numbers = {"size": plan.sizes, "steps": plan.steps, **plan.numbers}
        self.number_names = list(numbers)
        if "loss_before" in self.requires:
            self.number_names.append("loss_before")
        self.number_names.append("lr")
        packed = np.ones((len(plan.clients), len(self.number_names)))
        packed[:, : len(numbers)] = np.stack(list(numbers.values()), 1)
        if isinstance(plan, JointPlan):
            packed[:, -1] = plan.lrs
        else:
            packed[:, -1] = start.lr
        shared: Tree = {
            "params": start.params,
            "buffers": start.buffers,
            **prefixed(start.server, "server."),
        }
        own: Tree = prefixed(kept, "kept.")
        if self.joint:
            shared, own = {}, {**shared, **own}
        if "class_counts" in self.requires:
            own["class_counts"] = {"": self.job.class_counts(plan.places)}
        return shared, own, packed

    def _begin(self) -> None:
        """Set the state of every client at the start of its local training."""
        given = self.given
        received = given["params"]
        kept = parts(given, "kept.")
        local = {**kept.get(RECEIVED, {}), **kept.get(LOCAL, {})}
        params = self._own_copies(received, local)
        buffers = self._own_copies(given["buffers"], local)
        own_begin = [name for name in received if self.joint or name in local]
        optimizer_state = copied(parts(kept, OPTIMIZER))
        if not optimizer_state:
            optimizer_state = self.job.optimizer.init(params, stacked=True)
        words = given["numbers"][""].view(torch.float64)
        packed = words[:, -len(self.number_names) :].to(self.job.scalar.dtype)
        numbers = dict(zip(self.number_names, packed.unbind(1), strict=True))
        lr = numbers["lr"]
        if not self.own_lr:
            lr = lr[0]
        full_gradient: Tensors = {}
        if "full_gradient" in self.requires:
            full_gradient = {name: torch.zeros_like(value) for name, value in params.items()}
        class_features: Tensors = {}
        if "class_features" in self.requires:
            classes, width = self.job.feature_shape
            class_features = no_class_sums(self.job.scalar, classes, width, self.room.clients)
        rows, real_rows, moves = self._tables()
        second_rows = None
        if "second_batch" in self.requires:
            second_rows = self._second_rows()
        client_state, own_state = self._client_states(kept)
        self.state = RoundState(
            params=params,
            buffers=buffers,
            begin={name: local.get(name, value) for name, value in received.items()},
            own_begin=own_begin,
            server=parts(given, "server."),
            client_state=client_state,
            optimizer_state=optimizer_state,
            class_counts=given.get("class_counts", {}).get(""),
            packed=packed,
            numbers=numbers,
            lr=lr,
            full_gradient=full_gradient,
            rows=rows,
            real_rows=real_rows,
            moves=moves,
            sums=torch.zeros(2, self.room.clients, dtype=torch.float64, device=self.device),
            at=torch.zeros(2, dtype=torch.int64, device=self.device),
            own_state=own_state,
            second_rows=second_rows,
            class_features=class_features,
            answer=parts(kept, ANSWER),
            candidate_losses=self._room_for_losses(given),
        )

    def _room_for_losses(self, given: Tree) -> Tensor | None:
        """Return room for every client's losses of the models that it may choose from; None where it does not."""
        if "candidate_losses" not in self.requires:
            return None
        candidates = candidates_of(parts(given, "server."), parts(given, f"kept.{ANSWER}"))
        if self.joint or CANDIDATES not in parts(given, "server."):
            candidates = {name: value[0] for name, value in candidates.items()}
        number = number_of_candidates(candidates)
        return self.job.scalar.new_zeros(self.room.clients, number)

    def _client_states(self, kept: Tree) -> tuple[Tree, Tree]:
        """Return the client states, and the state of the optimiser of what of them is trained."""
        client_state = parts(kept, STATE)
        if self.receives or TRAINED in client_state:
            client_state = copied(client_state)  # which changes in the round
        if TRAINED not in client_state:
            return client_state, {}
        return client_state, self.job.optimizer.init(client_state[TRAINED], stacked=True)

    def _own_copies(self, received: Tensors, local: Tensors) -> Tensors:
        """Return what every client trains: a copy of what it received, or of its own tensor where it has kept one."""
        copies = {}
        for name, value in received.items():
            if name in local:
                copies[name] = local[name].clone()
            elif self.joint:
                copies[name] = value.clone()
            else:
                copies[name] = value.expand(self.room.clients, *value.shape).clone()
        return copies

    def _tables(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the row numbers of all steps, how many of them are real, and the moves of images."""
        rows = self.job.rows(self.plan.places, self.plan.table()[0])
        moves = draw_moves(self.job.augment, self.plan, self.device)
        return rows, torch.from_numpy(self.counts).to(self.device), moves

    def _second_rows(self) -> Tensor:
        """Return the row numbers of the second batches of all steps."""
        return self.job.rows(self.plan.places, self.plan.second().table()[0])

    @torch.no_grad()
    def _correct(self) -> None:
        """Let the method find the linear correction of gradients."""
        state = self.state
        state.correction = self.hooks.linear_correction(state)
        names = set[str]().union(*state.correction.values())
        state.scratch = {}
        for name, value in state.params.items():
            if name in names:
                state.scratch[name] = torch.empty_like(value)

    @torch.no_grad()
    def _receive(self, first: Block) -> None:
        """Let the method set the weights from which clients start."""
        (x,), (y,), real = self._batches(replace(first, steps=1), self.state.rows, self.x)
        if real is not None:
            real = real[0]
        seen = Seen(None, None, x, y, real, self.state.buffers)
        weights, client_state = self.hooks.on_receive(self.state, seen)
        for name, value in weights.items():
            self.state.params[name][: len(y)].copy_(value)
        for part, tensors in client_state.items():
            for name, value in tensors.items():
                self.state.client_state[part][name][: len(y)].copy_(value)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _now(self, table: Tensor, steps: int) -> Tensor:
        """Return the entries of the present steps in a table of steps."""
        return table[self.now : self.now + steps]

    def _batches(
        self, block: Block, table: Tensor, inputs: Inputs
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return inputs and targets ``[step, client, slot]``, and which are real; None where all are.

        ``table`` has the row numbers of all steps, which ``inputs`` is asked for.
        """
        head = slice(block.active)
        slots = slice(block.width)
        rows = self._now(table, block.steps)[:, head, slots]
        flat = rows.flatten()
        x = inputs.index_select(0, flat).view(*rows.shape, *inputs.shape[1:])
        y = self.job.y.index_select(0, flat).view(*rows.shape, *self.job.y.shape[1:])
        if self.channels_last:
            x = x.movedim(-1, 3)
        if self.state.moves is not None:
            moves = [self._now(part, block.steps)[:, head, slots] for part in self.state.moves]
            x = augment(x, *moves)
        if not block.padded:
            return x, y, None
        counts = self._now(self.state.real_rows, block.steps)[:, head, None]
        real = self.slots[: block.width] < counts
        return x, self.job.task.padded(y, real), real.to(self.job.scalar.dtype)

    @torch.no_grad()
    def _steps(self, block: Block) -> None:
        """Take the steps of a block, one after the other."""
        self.layers.mask.agree = None
        if block.shares:
            self.layers.mask.agree = settle_in_stack
        x, y, reals = self._batches(block, self.state.rows, self.ahead)
        if self.state.second_rows is not None:
            second_x, second_y, _ = self._batches(block, self.state.second_rows, self.ahead)
        logits = []
        for i in range(block.steps):
            real = None
            if reals is not None:
                real = reals[i]
            second: tuple[Tensor, ...] = ()
            if self.state.second_rows is not None:
                second = (second_x[i], second_y[i])
            logits.append(self.step.take(self.state, block, x[i], y[i], real, second))
        self.outputs.keep(self.state, logits, block, self.room, self.now)

    def _add_sums(self) -> None:
        """Add up the losses and scores of every client over the steps whose outputs are kept."""
        self.outputs.add_sums(self.state, self.slots, self.now)

    # -- the end of a round --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _end(self) -> None:
        """Find what every client sends and keeps."""
        state = self.state
        if self.keeps_more:
            state.payload, state.kept = self.hooks.finish(state)
        else:  # the payload is a difference, which needs no capture
            state.payload, state.kept = {}, state.client_state
