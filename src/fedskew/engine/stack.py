"""Clients of a round that are trained together: stacked on a new first axis, they take the same step at the same time.

Clients are sorted by their number of steps, so that the active ones are always a prefix of the stack and a finished
client costs nothing. Short batches are padded and masked, BatchNorm included. A round has parts: ``_begin``, one block
of steps after the other, and ``_end``. What they use and leave is one ``RoundState``, of tensors only.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.contract import Report, difference, overridden
from fedskew.batchnorm.shared import settle_in_stack
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree, copied, rows_of, without
from fedskew.engine.augment import augment, draw_moves
from fedskew.engine.job import LOCAL, OPTIMIZER, STATE, Job, Start, Updates, parts, prefixed
from fedskew.engine.joint_plan import JointPlan
from fedskew.engine.plan import Plan
from fedskew.engine.shapes import Block, Names, Room
from fedskew.engine.stack_hooks import RoundState, Seen, StackHooks
from fedskew.engine.stack_losses import add_full_gradient, mean_losses
from fedskew.engine.stack_step import StackStep
from fedskew.engine.stacked_model import StackedModel
from fedskew.models.parameters import trainable

_PLANS_KNOWN = 16  # plans whose blocks are remembered, for rounds with clients of the same sizes
# Numbers: outputs of the steps whose losses and scores are computed together
_OUTPUTS_KEPT = 16 << 20


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
        self.in_phases = overridden(algorithm, "trainable")
        self.receives = overridden(algorithm, "on_receive")
        self.linear = overridden(algorithm, "linear_correction")
        self.keeps_more = overridden(algorithm, "payload") or overridden(algorithm, "client_state")
        self.layers = StackedModel(
            job.model, trainable(job.model), "features" in self.requires, job.precision
        )
        self.hooks = StackHooks(job, self.layers, joint)
        self.step = StackStep(job, self.layers, self.hooks, own_lr)
        self.channels_last = channels_last
        self.x = job.x
        if channels_last:
            self.x = job.images_channels_last
        self.given: Tree = {}
        self.outputs: Tensor | None = None
        self.known: dict[tuple[bytes, bytes, bytes], tuple[list[Block], Ints]] = {}

    # -- one round -----------------------------------------------------------------------------------------------------

    def train(self, start: Start, kept: Tree, plan: Plan) -> Updates:
        """Train the clients of a plan, those with the most steps first."""
        self.plan = plan
        self.measured = dict[str, Floats]()
        self._fit()
        blocks, self.counts = self._blocks()
        self._load(start, kept)
        self._take_round(blocks)
        return self._updates()

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
        if "full_gradient" in self.requires:
            add_full_gradient(self.job, self.plan, self.state)
        if self.receives:
            self._play(("receive", blocks[0]), partial(self._receive, blocks[0]))
        if self.linear:
            self._play("correct", self._correct)
        self._take_steps(blocks)
        if "loss_after" in self.requires:
            self.measured["loss_after"] = mean_losses(self.job, self.plan, self.state)
        self._play("end", self._end)

    def _take_steps(self, blocks: list[Block]) -> None:
        """Take the steps of a round; losses and scores are added up whenever the room for outputs is full."""
        waiting = 0
        for block in blocks:
            if self.outputs is not None and waiting + block.steps > len(self.outputs):
                self._play("sums", self._add_sums)
                waiting = 0
            self._play(block, partial(self._steps, block))
            self.now += block.steps
            waiting += block.steps
        self._play("sums", self._add_sums)

    def _play(self, name: Hashable, part: Callable[[], None]) -> None:
        """Run a part of the round."""
        part()

    def _load(self, start: Start, kept: Tree) -> None:
        """Make the inputs of the round available."""
        shared, own, numbers = self._inputs(start, kept)
        self.given = {**shared, **own, "numbers": {"": torch.from_numpy(numbers)}}

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
        local = kept.get(LOCAL, {})
        params = self._own_copies(received, local)
        buffers = self._own_copies(given["buffers"], local)
        own_begin = [name for name in received if self.joint or name in local]
        optimizer_state = copied(parts(kept, OPTIMIZER))
        if not optimizer_state:
            optimizer_state = self.job.optimizer.init(params, stacked=True)
        words = given["numbers"][""].view(torch.float64)
        packed = words[:, -len(self.number_names) :].to(self.job.x.dtype)
        numbers = dict(zip(self.number_names, packed.unbind(1), strict=True))
        lr = numbers["lr"]
        if not self.own_lr:
            lr = lr[0]
        full_gradient: Tensors = {}
        if "full_gradient" in self.requires:
            full_gradient = {name: torch.zeros_like(value) for name, value in params.items()}
        rows, real_rows, moves = self._tables()
        self.state = RoundState(
            params=params,
            buffers=buffers,
            begin={name: local.get(name, value) for name, value in received.items()},
            own_begin=own_begin,
            server=parts(given, "server."),
            client_state=parts(kept, STATE),
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
        )

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
        return rows, torch.from_numpy(self.counts), moves

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
        (x,), (y,), real = self._batches(replace(first, steps=1))
        if real is not None:
            real = real[0]
        seen = Seen(None, None, x, y, real, self.state.buffers)
        for name, value in self.hooks.on_receive(self.state, seen).items():
            self.state.params[name][: len(y)].copy_(value)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _blocks(self) -> tuple[list[Block], Ints]:
        """Return the blocks of a round, and the batch sizes ``[step, client]``; the last ones are remembered."""
        plan = self.plan
        known = (plan.sizes.tobytes(), plan.batch.tobytes(), plan.epochs.tobytes())
        if known not in self.known:
            counts = plan.counts()
            if len(self.known) >= _PLANS_KNOWN:
                self.known.clear()
            steps = [self._shape(step, count) for step, count in enumerate(counts)]
            self.known[known] = (self._grouped(steps), counts)
        return self.known[known]

    def _grouped(self, steps: list[Block]) -> list[Block]:
        """Return steps as blocks: here each is one."""
        return steps

    def _shape(self, step: int, count: Ints) -> Block:
        """Return the smallest shape of a step with these batch sizes."""
        active = int((count > 0).sum())
        widest = int(count.max())
        shares = self.job.algorithm.batchnorm.shares_statistics(step)
        padded = bool((count[:active] < widest).any())
        return Block(1, active, widest, padded, False, shares, self._trained(step, active))

    def _trained(self, step: int, active: int) -> tuple[Names, ...] | None:
        """Return the parameters that each client of a step trains in its epoch; one entry if all train the same."""
        if not self.in_phases:
            return None
        here = min(active, len(self.plan.clients))
        epoch = step // self.plan.steps_per_epoch[:here]
        names = []
        for phase, phases in zip(epoch.tolist(), self.plan.epochs[:here].tolist(), strict=True):
            trained = self.job.algorithm.trainable(self.job.layout, phase, phases)
            names.append(frozenset(trained))
        if len(set(names)) == 1:
            return (names[0],)
        return tuple(names)

    def _now(self, table: Tensor, steps: int) -> Tensor:
        """Return the entries of the present steps in a table of steps."""
        return table[self.now : self.now + steps]

    def _batches(self, block: Block) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return inputs and targets ``[step, client, slot]``, and which are real; None where all are."""
        head = slice(block.active)
        slots = slice(block.width)
        rows = self._now(self.state.rows, block.steps)[:, head, slots]
        flat = rows.flatten()
        x = self.x.index_select(0, flat).view(*rows.shape, *self.x.shape[1:])
        y = self.job.y.index_select(0, flat).view(*rows.shape, *self.job.y.shape[1:])
        if self.channels_last:
            x = x.movedim(-1, 3)
        if self.state.moves is not None:
            moves = [self._now(part, block.steps)[:, head, slots] for part in self.state.moves]
            x = augment(x, *moves)
        if not block.padded:
            return x, y, None
        counts = self._now(self.state.real_rows, block.steps)[:, head, None]
        return x, y, (self.slots[: block.width] < counts).to(self.job.x.dtype)

    @torch.no_grad()
    def _steps(self, block: Block) -> None:
        """Take the steps of a block, one after the other."""
        self.layers.mask.agree = None
        if block.shares:
            self.layers.mask.agree = settle_in_stack
        x, y, reals = self._batches(block)
        logits = []
        for i in range(block.steps):
            real = None
            if reals is not None:
                real = reals[i]
            logits.append(self.step.take(self.state, block, x[i], y[i], real))
        self._note(logits, block)

    # -- losses and scores of the steps --------------------------------------------------------------------------------

    def _note(self, logits: list[Tensor], block: Block) -> None:
        """Keep the outputs of the steps of a block."""
        shape = (self.room.clients, self.room.width, *logits[0].shape[2:])
        if self.outputs is None or self.outputs.shape[1:] != shape:
            steps = max(1, min(self.room.steps, _OUTPUTS_KEPT // math.prod(shape)))
            outputs = logits[0].new_zeros(self._whole_blocks(steps), *shape)
            if len(shape) == 3:
                outputs = outputs.mT.contiguous().mT  # laid out as layers do
            self.outputs = outputs
        self._keep_outputs(self.outputs[:, : block.active, : block.width], logits)

    def _whole_blocks(self, steps: int) -> int:
        """Return so many steps or a few more, because a block is kept as a whole."""
        return steps

    def _keep_outputs(self, there: Tensor, logits: list[Tensor]) -> None:
        """Keep the outputs of the present steps."""
        there[self.now % len(there)] = logits[0]

    def _waiting(self, steps: int) -> tuple[Tensor, Tensor]:
        """Return row numbers and batch sizes of the steps whose outputs are kept; there is room for so many."""
        first = (self.now - 1) // steps * steps
        last = self.now
        return self.state.rows[first:last], self.state.real_rows[first:last]

    @torch.no_grad()
    def _add_sums(self) -> None:
        """Add up the losses and scores of every client over the steps whose outputs are kept."""
        assert self.outputs is not None
        rows, counts = self._waiting(len(self.outputs))
        outputs = self.outputs[: len(rows)]
        targets = self.job.y[rows]
        task = self.job.task
        real = self.slots[: rows.shape[2]] < counts[..., None]
        losses = task.losses(outputs, targets, "none")
        scores = task.row_scores(outputs, targets)
        for total, each in zip(self.state.sums, (losses, scores), strict=True):
            total += torch.where(real, each, 0).sum((0, 2), dtype=torch.float64)

    # -- the end of a round --------------------------------------------------------------------------------------------
    # -- the end of a round --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _end(self) -> None:
        """Find what every client sends and keeps."""
        state = self.state
        if self.keeps_more:
            state.payload, state.kept = self.hooks.finish(state)
        else:  # the payload is a difference, which needs no capture
            state.payload, state.kept = {}, state.client_state

    def _updates(self) -> Updates:
        """Return the results of the round, as copies if the next round overwrites them."""
        job, plan, state = self.job, self.plan, self.state
        sent = {name: value for name, value in state.buffers.items() if name not in job.unsent}
        trained = dict(state.params)
        for name in job.frozen_names & state.buffers.keys():
            trained[name] = state.buffers[name]
        results: Tree = {
            **prefixed(state.payload, "payload."),
            "buffers": sent,
            **prefixed(self._kept(), "kept."),
        }
        if self.overwrites:
            here = slice(len(plan.clients))
            results = copied(rows_of(results, here))
            trained = rows_of({"": trained}, here)[""]
        if not self.keeps_more:
            results["payload.delta"] = self._change()
        loss, score = state.sums[:, : len(plan.clients)].cpu().numpy() / self.counts.sum(0)
        numbers = {**plan.numbers, **self.measured}
        report = Report(plan.clients, plan.sizes, plan.steps, loss, score, numbers)
        payload = without(parts(results, "payload."), job.unsent)
        return Updates(report, payload, results["buffers"], parts(results, "kept."), trained)

    def _kept(self) -> Tree:
        """Return what clients keep: the method's state, tensors that never leave them, the optimiser's state."""
        state = self.state
        kept = prefixed(state.kept, STATE)
        if self.job.local_names:
            everything = {**state.params, **state.buffers}
            kept[LOCAL] = {name: everything[name] for name in sorted(self.job.local_names)}
        if "optimizer_state" in self.requires:
            kept |= prefixed(state.optimizer_state, OPTIMIZER)
        return kept

    def _change(self) -> Tensors:
        """Return how local training has changed the weights that clients send."""
        here = slice(len(self.plan.clients))
        ends = {}
        for name, value in self.state.params.items():
            if name not in self.job.unsent:
                ends[name] = value[here]
        begin = dict(self.state.begin)
        for name in self.state.own_begin:
            begin[name] = begin[name][here]
        return difference(ends, begin)
