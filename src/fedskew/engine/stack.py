"""Clients of a round that are trained together: stacked on a new first axis, they take the same step at the same time.

Clients are sorted by their number of steps, so that the active ones are always a prefix of the stack and a finished
client costs nothing. Short batches are padded and masked, BatchNorm included. A round has parts: ``_begin``, one block
of steps after the other, and ``_end``. What they use and leave is one ``RoundState``, of tensors only.
"""

import copy
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedskew.algorithms.contract import Report, difference, overridden
from fedskew.batchnorm.shared import settle_in_stack
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree, copied, rows_of, tensors_of, without
from fedskew.engine.augment import augment, draw_moves
from fedskew.engine.job import LOCAL, OPTIMIZER, STATE, Job, Start, Updates, parts, prefixed
from fedskew.engine.joint_plan import JointPlan
from fedskew.engine.plan import Plan
from fedskew.engine.shapes import Block, Names, Room
from fedskew.engine.stack_hooks import RoundState, Seen, StackHooks
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
        hooks = ("objective", "correct_gradients", "trainable", "on_receive", "linear_correction")
        self.changes_objective, self.corrects, self.in_phases, self.receives, self.linear = (
            overridden(algorithm, hook) for hook in hooks
        )
        self.keeps_more = overridden(algorithm, "payload") or overridden(algorithm, "client_state")
        self.layers = StackedModel(
            job.model, trainable(job.model), "features" in self.requires, job.precision
        )
        self.hooks = StackHooks(job, self.layers, joint)
        self.channels_last = channels_last
        if channels_last:
            self.x = job.images_channels_last
        else:
            self.x = job.x
        self.given: Tree = {}
        self.outputs: Tensor | None = None
        self.masks: dict[tuple[tuple[Names, ...], str], Tensor] = {}
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
            losses = self.measured["loss_before"] = self._mean_loss()
            self.state.numbers["loss_before"][: len(losses)] = torch.from_numpy(losses).to(
                self.state.lr
            )
        if "full_gradient" in self.requires:
            self._find_full_gradient()
        if self.receives:
            self._play(("receive", blocks[0]), partial(self._receive, blocks[0]))
        if self.linear:
            self._play("correct", self._correct)
        waiting = 0
        for block in blocks:
            if self.outputs is not None and waiting + block.steps > len(self.outputs):
                self._play("sums", self._add_sums)
                waiting = 0
            self._play(block, partial(self._steps, block))
            self.now += block.steps
            waiting += block.steps
        self._play("sums", self._add_sums)
        if "loss_after" in self.requires:
            self.measured["loss_after"] = self._mean_loss()
        self._play("end", self._end)

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
        self.number_names = [
            *numbers,
            *(["loss_before"] if "loss_before" in self.requires else []),
            "lr",
        ]
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
        given, count = self.given, self.room.clients
        received = given["params"]
        kept = parts(given, "kept.")
        local = kept.get(LOCAL, {})
        if self.joint:
            copies = Tensor.clone
        else:
            copies = partial(_copies, count=count)
        params, buffers = (
            {n: local[n].clone() if n in local else copies(value) for n, value in tensors.items()}
            for tensors in (received, given["buffers"])
        )
        packed = (
            given["numbers"][""]
            .view(torch.float64)[:, -len(self.number_names) :]
            .to(self.job.x.dtype)
        )
        numbers = dict(zip(self.number_names, packed.unbind(1), strict=True))
        measures = "full_gradient" in self.requires
        rows, real_rows, moves = self._tables()
        self.state = RoundState(
            params=params,
            buffers=buffers,
            begin={name: local.get(name, value) for name, value in received.items()},
            own_begin=[name for name in received if self.joint or name in local],
            server=parts(given, "server."),
            client_state=parts(kept, STATE),
            optimizer_state=copied(parts(kept, OPTIMIZER))
            or self.job.optimizer.init(params, stacked=True),
            class_counts=given.get("class_counts", {}).get(""),
            packed=packed,
            numbers=numbers,
            lr=numbers["lr"] if self.own_lr else numbers["lr"][0],
            full_gradient={name: torch.zeros_like(value) for name, value in params.items()}
            if measures
            else {},
            rows=rows,
            real_rows=real_rows,
            moves=moves,
            sums=torch.zeros(2, count, dtype=torch.float64, device=self.device),
            at=torch.zeros(2, dtype=torch.int64, device=self.device),
        )

    def _tables(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the row numbers of all steps, how many of them are real, and the moves of images."""
        rows = self.job.rows(self.plan.places, self.plan.table()[0])
        return (
            rows,
            torch.from_numpy(self.counts),
            draw_moves(self.job.augment, self.plan, self.device),
        )

    @torch.no_grad()
    def _correct(self) -> None:
        """Let the method find the linear correction of gradients."""
        state = self.state
        state.correction = self.hooks.linear_correction(state)
        names = set()
        for tensors in state.correction.values():
            for name in tensors:
                names.add(name)
        state.scratch = {
            name: torch.empty_like(value) for name, value in state.params.items() if name in names
        }

    @torch.no_grad()
    def _receive(self, first: Block) -> None:
        """Let the method set the weights from which clients start."""
        (x,), (y,), reals = self._batches(replace(first, steps=1))
        seen = Seen(None, None, x, y, None if reals is None else reals[0], self.state.buffers)
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
            self.known[known] = (
                self._grouped([self._shape(*step) for step in enumerate(counts)]),
                counts,
            )
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
        phases = zip(step // self.plan.steps_per_epoch[:here], self.plan.epochs[:here], strict=True)
        names = []
        for phase in phases:
            names.append(frozenset(self.job.algorithm.trainable(self.job.layout, *map(int, phase))))
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
        x, y = (
            data.index_select(0, flat).view(*rows.shape, *data.shape[1:])
            for data in (self.x, self.job.y)
        )
        if self.channels_last:
            x = x.movedim(-1, 3)
        if self.state.moves is not None:
            x = augment(
                x, *(self._now(part, block.steps)[:, head, slots] for part in self.state.moves)
            )
        if not block.padded:
            return x, y, None
        counts = self._now(self.state.real_rows, block.steps)[:, head, None]
        return x, y, (self.slots[: block.width] < counts).to(self.job.x.dtype)

    @torch.no_grad()
    def _steps(self, block: Block) -> None:
        """Take the steps of a block, one after the other."""
        if block.shares:
            self.layers.mask.agree = settle_in_stack
        else:
            self.layers.mask.agree = None
        x, y, real = self._batches(block)
        logits = []
        for i in range(block.steps):
            logits.append(self._step(block, x[i], y[i], None if real is None else real[i]))
        self._note(logits, block)

    def _step(self, block: Block, x: Tensor, y: Tensor, real: Tensor | None) -> Tensor:
        """Take one step of the active clients in place, and return the outputs before it.

        A client's loss depends on its own slice of the stacked weights alone, so the gradient of the sum of all losses
        is the stack of their gradients.
        """
        job = self.job
        now = self._active(block)
        params = now["params"]
        buffers = now["buffers"]
        # A model may write to its input, and hooks run other models on the same rows.
        observed = self.changes_objective or self.corrects
        logits = self.layers.forward({**params, **buffers}, x.clone() if observed else x, real)
        if real is None:
            share = None
        else:
            share = real / real.sum(1, keepdim=True).clamp_min(1)
        seen = Seen(logits, self.layers.features, x, y, real, buffers)
        if self.changes_objective:
            grads = self._gradients_of_objective(params, seen, share)
        else:
            grads = self.layers.backward(
                job.task.slopes(logits, y, 1 / y.shape[1] if share is None else share)
            )
        grads = {
            name: grads[name] if name in grads else torch.zeros_like(value)
            for name, value in params.items()
        }
        if self.corrects:
            grads = self.hooks.correct_gradients(grads, params, self.state, seen)
        if block.partial:
            moving = tensors_of(now)
        else:
            moving = []
        before = [value.clone() for value in moving]
        for name, value in self.layers.moved.items():
            buffers[name].copy_(value)
        self._move(
            params, self._corrected(grads, params, block.active), parts(now, OPTIMIZER), block
        )
        if real is not None:
            alive = real[:, 0] > 0
            for value, old in zip(moving, before, strict=False):
                value.copy_(torch.where(alive.view(-1, *(1,) * (value.dim() - 1)), value, old))
        return logits

    def _gradients_of_objective(self, params: Tensors, seen: Seen, share: Tensor | None) -> Tensors:
        """Return the gradients of what the method minimises: through outputs and features, and direct ones."""
        logits, features, x, y, real, buffers = seen
        assert logits is not None
        with torch.enable_grad():
            logits = logits.detach().requires_grad_()
            if features is None:
                inside = None
            else:
                inside = features.detach().requires_grad_()
            leaves = {}
            for name, value in params.items():
                leaves[name] = value.detach().requires_grad_()
            losses = self.job.task.losses(logits, y, "none")
            if share is None:
                loss = losses.mean(1)
            else:
                loss = (losses * share).sum(1)
            total = self.hooks.objective(
                loss, leaves, self.state, Seen(logits, inside, x, y, real, buffers)
            )
            ends = [logits, *([] if inside is None else [inside]), *leaves.values()]
            found = list(torch.autograd.grad(total.sum(), ends, allow_unused=True))
        slopes = found.pop(0)
        if inside is None:
            of_features = None
        else:
            of_features = found.pop(0)
        grads = self.layers.backward(
            torch.zeros_like(logits) if slopes is None else slopes, of_features
        )
        direct = {}
        for name, value in zip(leaves, found, strict=True):
            if value is not None:
                direct[name] = value
        return {
            **grads,
            **{
                name: grads[name] + more if name in grads else more for name, more in direct.items()
            },
        }

    def _corrected(self, grads: Tensors, params: Tensors, active: int) -> Tensors:
        """Return gradients with each client's linear correction, in scratch memory: a gradient may be a view."""
        scale, offset = (self.state.correction.get(part, {}) for part in ("scale", "offset"))
        result = {}
        for name, found in grads.items():
            if name in scale:
                numbers = scale[name][:active].view(-1, *(1,) * (found.dim() - 1))
                found = torch.addcmul(
                    found, params[name], numbers, out=self.state.scratch[name][:active]
                )
            if name in offset:
                found = torch.add(
                    found, offset[name][:active], out=self.state.scratch[name][:active]
                )
            result[name] = found
        return result

    def _active(self, block: Block) -> Tree:
        """Return what a step changes: parameters, buffers and the optimiser's state of the active clients."""
        state = self.state
        every: Tree = {
            "params": state.params,
            "buffers": state.buffers,
            **prefixed(state.optimizer_state, OPTIMIZER),
        }
        if block.active == self.room.clients:
            return every
        return rows_of(every, slice(block.active))

    def _move(self, params: Tensors, grads: Tensors, state: Tree, block: Block) -> None:
        """Take an optimiser step with the parameters that each client trains in its epoch."""
        optimizer = self.job.optimizer
        if self.own_lr:
            lr = self.state.lr[: block.active]
        else:
            lr = self.state.lr
        if block.trained is None:
            optimizer.step_(params, grads, state, lr, stacked=True)
            return
        anybody = frozenset().union(*block.trained)
        params = {name: value for name, value in params.items() if name in anybody}
        state = {
            part: {n: v for n, v in ts.items() if n in anybody or n not in self.state.params}
            for part, ts in state.items()
        }
        mixed = len(block.trained) > 1
        if mixed:
            before = {"": {n: v.clone() for n, v in params.items()}, **copied(state)}
        else:
            before = {}
        if params:
            optimizer.step_(params, grads, state, lr, stacked=True)
        for part, tensors in before.items():
            for name, old in tensors.items():
                if name in params:  # restored for clients that do not train it in their epoch
                    moves = self._mask(block.trained, name).view(-1, *(1,) * (old.dim() - 1))
                    if part == "":
                        now = params[name]
                    else:
                        now = state[part][name]
                    now.copy_(torch.where(moves, now, old))

    def _mask(self, trained: tuple[Names, ...], name: str) -> Tensor:
        """Return which clients train a parameter; kept, because a captured step must find it on the GPU."""
        known = (trained, name)
        if known not in self.masks:
            self.masks[known] = torch.tensor(
                [name in names for names in trained], device=self.device
            )
        return self.masks[known]

    # -- losses and scores of the steps --------------------------------------------------------------------------------

    def _note(self, logits: list[Tensor], block: Block) -> None:
        """Keep the outputs of the steps of a block."""
        shape = (self.room.clients, self.room.width, *logits[0].shape[2:])
        if self.outputs is None or self.outputs.shape[1:] != shape:
            steps = max(1, min(self.room.steps, _OUTPUTS_KEPT // math.prod(shape)))
            outputs = logits[0].new_zeros(self._whole_blocks(steps), *shape)
            # Laid out as layers do
            if len(shape) == 3:
                self.outputs = outputs.mT.contiguous().mT
            else:
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
        found = (task.losses(outputs, targets, "none"), task.row_scores(outputs, targets))
        for total, each in zip(self.state.sums, found, strict=True):
            total += torch.where(real, each, 0).sum((0, 2), dtype=torch.float64)

    @torch.no_grad()
    def _mean_loss(self) -> Floats:
        """Return the loss of every client's model on all of its rows, in evaluation mode."""
        total = torch.stack([*self._losses(self.state.params)]).sum(0)
        return total.cpu().numpy() / self.plan.sizes

    def _find_full_gradient(self) -> None:
        """Find the gradient of that loss at every client's weights."""
        params = {}
        for name, value in self.state.params.items():
            params[name] = value.detach().requires_grad_()
        for losses in self._losses(params):
            loss = (losses / torch.from_numpy(self.plan.sizes).to(losses)).sum()
            grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
            for total, found in zip(self.state.full_gradient.values(), grads, strict=True):
                total += found

    def _losses(self, params: Tensors) -> Iterator[Tensor]:
        """Yield the sum of each client's losses in evaluation mode, over all its rows, a batch at a time."""
        model = copy.deepcopy(self.job.model).eval()
        sizes = self.plan.sizes
        width = int(self.plan.batch.max())
        tensors = {}
        for name, value in {**params, **self.state.buffers}.items():
            tensors[name] = value[: len(sizes)]

        def losses(tensors: Tensors, x: Tensor, y: Tensor) -> Tensor:
            return self.job.task.losses(functional_call(model, tensors, (x,)), y, "none")

        for first in range(0, int(sizes.max()), width):
            positions = np.arange(first, first + width)
            real = positions < sizes[:, None]
            rows = self.job.rows(self.plan.places, np.where(real, positions, 0))
            each = vmap(losses)(tensors, self.job.x[rows], self.job.y[rows])
            yield (each.double() * torch.from_numpy(real).to(each.device)).sum(1)

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
        everything = {**state.params, **state.buffers}
        kept: Tree = prefixed(state.kept, STATE)
        if job.local_names:
            kept[LOCAL] = {name: everything[name] for name in sorted(job.local_names)}
        if "optimizer_state" in self.requires:
            kept |= prefixed(state.optimizer_state, OPTIMIZER)
        sent = {}
        for name, value in state.buffers.items():
            if name not in job.unsent:
                sent[name] = value
        trained = {
            **state.params,
            **{name: state.buffers[name] for name in job.frozen_names & state.buffers.keys()},
        }
        found: Tree = {
            **prefixed(state.payload, "payload."),
            "buffers": sent,
            **prefixed(kept, "kept."),
        }
        here = slice(len(plan.clients))
        if self.overwrites:
            found = copied(rows_of(found, here))
            trained = rows_of({"": trained}, here)[""]
        if not self.keeps_more:
            ends = {}
            for name, value in state.params.items():
                if name not in job.unsent:
                    ends[name] = value[here]
            begin = {}
            for name, value in state.begin.items():
                if name in state.own_begin:
                    begin[name] = value[here]
                else:
                    begin[name] = value
            found["payload.delta"] = difference(ends, begin)
        loss, score = state.sums[:, : len(plan.clients)].cpu().numpy() / self.counts.sum(0)
        report = Report(
            plan.clients, plan.sizes, plan.steps, loss, score, {**plan.numbers, **self.measured}
        )
        payload = without(parts(found, "payload."), job.unsent)
        return Updates(report, payload, found["buffers"], parts(found, "kept."), trained)


def _copies(value: Tensor, count: int) -> Tensor:
    return value.expand(count, *value.shape).clone()
