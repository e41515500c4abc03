"""Clients of a round that are trained together: stacked on a new first axis, they take the same step at the same time.

Clients are sorted by their number of steps, so that the active ones are always a prefix of the stack and a finished
client costs nothing. Short batches are padded and masked, BatchNorm included. A round has three parts, which use and
leave tensors only: ``_begin``, one ``_step`` after the other, and ``_end``. On a GPU each is captured once as a CUDA
graph and replayed in all rounds of the same shape; so its inputs are copied into tensors that stay where they are.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedskew.algorithms.contract import Algorithm, Batch, Report, View, difference, overridden
from fedskew.batchnorm.shared import settle_in_stack
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree, copied, rows_of, without
from fedskew.engine.augment import augment, draw_moves, moves_of
from fedskew.engine.features import Tap
from fedskew.engine.job import LOCAL, OPTIMIZER, STATE, Job, Start, Updates, parts, prefixed
from fedskew.engine.joint_plan import OPTION, JointPlan
from fedskew.engine.layers import StackedModel
from fedskew.engine.plan import Plan
from fedskew.engine.replay import Replay
from fedskew.engine.tables import COLUMNS, move_words, row_table, stream_words
from fedskew.models.parameters import trainable

# logits, features, inputs, targets, which rows are real, and buffers of the clients' batches
_Seen: TypeAlias = "tuple[Tensor | None, Tensor | None, Tensor, Tensor, Tensor | None, Tensors]"
_Names: TypeAlias = frozenset[str]

_STEPS_AT_ONCE, _BYTES_AT_ONCE = 16, 256 << 20  # steps in one CUDA graph, and bytes of their inputs
_STEPS_IN_A_ROUND, _ROUNDS_KEPT = 64, 4  # of rounds that are one CUDA graph, and how many of these there are
_STEPS = COLUMNS.index("steps")
_PLACES = (
    "params", "buffers", "begin", "begin_dims", "own_begin", "server", "client_state", "optimizer_state",
    "class_counts", "packed", "numbers", "lr", "full_gradient", "correction", "scratch", "sums", "at", "rows",
    "real_rows", "moves", "payload", "state",
)  # fmt: skip
_PARTS: "tuple[Block, ...]" = ()  # stands for a round that is taken part by part
_PLANS_KNOWN = 16  # plans whose blocks are remembered, for rounds with clients of the same sizes
_OUTPUTS_KEPT = 16 << 20  # numbers: outputs of the steps whose losses and scores are computed together


class _Numbers(dict[str, Tensor]):
    """Numbers of one client by name, sliced from one tensor when read, because under ``vmap`` each slice costs time."""

    def __init__(self, names: list[str], packed: Tensor) -> None:
        self.names, self.packed = names, packed

    def __missing__(self, name: str) -> Tensor:
        return self.packed[self.names.index(name)]


@dataclass(frozen=True)
class Block:
    """Steps that are taken one after the other: the shape of their batches, and what the method does in them.

    Args:
        steps: how many
        active: clients in each step, the first ones of the stack
        width: rows of each of them
        padded: whether some batches are shorter than that
        partial: whether some of these clients have finished, and must stay as they are
        shares: whether BatchNorm statistics are shared
        trained: the parameters that each client trains; None where all train all
    """

    steps: int
    active: int
    width: int
    padded: bool
    partial: bool
    shares: bool
    trained: tuple[_Names, ...] | None


@dataclass(frozen=True)
class Room:
    """The largest plan that a stack can take: clients, steps, rows of a batch, epochs, and rows of a client."""

    clients: int
    steps: int
    width: int
    epochs: int
    longest: int

    @classmethod
    def of(cls, plan: Plan) -> "Room":
        """Return just enough room for a plan."""
        sizes = (plan.steps, plan.batch, plan.epochs, plan.sizes)
        return cls(len(plan.clients), *(int(numbers.max()) for numbers in sizes))

    def fits(self, other: "Room") -> bool:
        """Return whether the other fits in, without wasting half of it."""
        names = ("clients", "steps", "width", "epochs", "longest")
        return all(getattr(self, name) >= getattr(other, name) for name in names) and self.clients <= 2 * other.clients


class Stack:
    """Some clients of a job, side by side; ``train`` may be called for round after round.

    Args:
        job: the job
        room: on a GPU, the largest plan that the captured parts can take
        channels_last: whether images lie in memory with their channels last
        joint: whether the clients belong to several runs: weights, broadcast, options and, with ``own_lr``, the
            learning rate are those of each client
    """

    def __init__(
        self, job: Job, room: Room, channels_last: bool = False, joint: bool = False, own_lr: bool = False
    ) -> None:
        self.joint, self.own_lr = joint, own_lr
        self.job, self.room, algorithm = job, room, job.algorithm
        self.requires, self.device = algorithm.requires, job.y.device
        hooks = ("objective", "correct_gradients", "trainable", "on_receive", "linear_correction")
        self.changes_objective, self.corrects, self.in_phases, self.receives, self.linear = (
            overridden(algorithm, hook) for hook in hooks
        )
        self.keeps_more = overridden(algorithm, "payload") or overridden(algorithm, "client_state")
        self.layers = StackedModel(job.model, trainable(job.model), "features" in self.requires, job.precision)
        # Hooks run the model of one client with other weights, and may ask for its features.
        self.tap = Tap(self.layers.model) if "features" in self.requires else None
        self.channels_last = channels_last
        self.x = job.images_channels_last if channels_last else job.x
        self.on_gpu, self.inside = self.device.type == "cuda", False
        self.replay = Replay(self._moving) if self.on_gpu else None
        self.slots = torch.arange(room.width, device=self.device)
        self.given: Tree = {}
        self.outputs: Tensor | None = None
        self.masks: dict[tuple[tuple[_Names, ...], str], Tensor] = {}
        self.seen: Counter[tuple[Block, ...]] = Counter()
        self.places: dict[tuple[Block, ...], dict[str, Any]] = {}
        self.known: dict[tuple[bytes, bytes, bytes], tuple[list[Block], Ints]] = {}

    # -- one round -----------------------------------------------------------------------------------------------------

    def train(self, start: Start, kept: Tree, plan: Plan) -> Updates:
        """Train the clients of a plan, those with the most steps first."""
        self.plan = plan
        if not self.on_gpu:
            self.room = Room.of(plan)
        blocks, self.counts = self._blocks()
        self._load(start, kept, plan)
        self.measured: dict[str, Floats] = {}
        if self.on_gpu and self._repeats(blocks):
            self._replay_round(blocks)
        else:
            self._use(_PARTS)
            self._take_round(blocks)
            self._note_places(_PARTS)
        return self._updates()

    def _use(self, captured: tuple[Block, ...]) -> None:
        """Find the tensors of a round where the graph of a whole round, or those of its parts, have put them."""
        self.__dict__.update(self.places.get(captured, {}))

    def _note_places(self, captured: tuple[Block, ...]) -> None:
        """Note where the tensors of a round are; every graph has its own."""
        if self.on_gpu:
            self.places[captured] = {name: self.__dict__[name] for name in _PLACES if name in self.__dict__}

    def _take_round(self, blocks: list[Block]) -> None:
        """Take a round part by part."""
        plan, self.now = self.plan, 0
        self._play("begin", self._begin)
        if "loss_before" in self.requires:
            self.measured["loss_before"] = self._mean_loss()
            self.numbers["loss_before"][: len(plan.clients)] = torch.from_numpy(self.measured["loss_before"]).to(
                self.lr
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

    def _repeats(self, blocks: list[Block]) -> bool:
        """Return whether a round is captured as a whole: a short one without measurements that was there before."""
        known = tuple(blocks)
        self.seen[known] += 1
        short = (
            len(self.counts) <= _STEPS_IN_A_ROUND and not {"loss_before", "loss_after", "full_gradient"} & self.requires
        )
        return known in self.places or (short and self.seen[known] > 1 and len(self.places) <= _ROUNDS_KEPT)

    def _replay_round(self, blocks: list[Block]) -> None:
        """Replay a round as one graph; its results are where they were when it was captured."""
        known = tuple(blocks)
        self._use(known)
        self.inside = True  # of a part, parts are not captured again
        assert self.replay is not None
        self.replay(known, partial(self._take_round, self._joined(blocks)))
        self.inside = False
        self._note_places(known)  # a round that cannot be captured has new tensors each time

    def _joined(self, blocks: list[Block]) -> list[Block]:
        """Return blocks of the same shape as one, as far as there is room for their inputs and outputs."""
        assert self.outputs is not None
        step = self.room.clients * self.room.width * max(1, self.job.x[0].numel()) * self.job.x.element_size()
        most = max(1, min(len(self.outputs), _BYTES_AT_ONCE // step))
        result: list[Block] = []
        for block in blocks:
            total = result[-1].steps + block.steps if result else 0
            if result and total <= most and replace(result[-1], steps=block.steps) == block:
                result[-1] = replace(block, steps=total)
            else:
                result.append(block)
        return result

    def _play(self, name: Any, part: Callable[[], None]) -> None:
        """Run a part of the round, on a GPU as a replayed graph."""
        if self.inside or not self.on_gpu:
            part()
        else:
            assert self.replay is not None
            self.replay(name, part)

    def _load(self, start: Start, kept: Tree, plan: Plan) -> None:
        """Make the inputs of the round available, on a GPU at the addresses that captured parts know."""
        count = len(plan.clients)
        numbers = {"size": plan.sizes, "steps": plan.steps, **plan.numbers}
        self.number_names = [*numbers, *(["loss_before"] if "loss_before" in self.requires else []), "lr"]
        packed = np.ones((count, len(self.number_names)))
        packed[:, : len(numbers)] = np.stack(list(numbers.values()), 1)
        packed[:, -1] = plan.lrs if isinstance(plan, JointPlan) else start.lr
        shared: Tree = {"params": start.params, "buffers": start.buffers, **prefixed(start.server, "server.")}
        own: Tree = prefixed(kept, "kept.")
        if self.joint:
            shared, own = {}, {**shared, **own}
        if "class_counts" in self.requires:
            own["class_counts"] = {"": self.job.class_counts(plan.places)}
        if not self.on_gpu:
            own["numbers"] = {"": torch.from_numpy(packed)}
            positions, _ = plan.table()
            self.rows, self.real_rows = self.job.rows(plan.places, positions), torch.from_numpy(self.counts)
            self.slots, self.moves = torch.arange(self.room.width), draw_moves(self.job.augment, plan, self.device)
            self.given = {**shared, **own}
            return
        # One copy to the GPU for all numbers: whole ones, and the bits of others.
        first = self.job.partition.offsets[plan.places - self.job.first]
        columns = [plan.clients, first, plan.sizes, plan.batch, plan.steps, plan.steps_per_epoch]
        words = [stream_words(plan, purpose) for purpose in (plan.purpose, "augment")]
        both = np.concatenate([np.stack([*columns, *words], 1), packed.view(np.int64)], 1)
        own["numbers"] = {"": torch.from_numpy(both)}
        if not self.given:
            clients = self.room.clients
            room = {
                part: {name: _room(value, clients).to(self.device) for name, value in ts.items()}
                for part, ts in own.items()
            }
            self.given = {**copied(shared), **room}
        self.given["numbers"][""][:count].copy_(own.pop("numbers")[""], non_blocking=True)
        there = [value for part in shared for value in self.given[part].values()]
        there += [value[:count] for part in own for value in self.given[part].values()]
        torch._foreach_copy_(there, [*_tensors(shared), *_tensors(own)])
        if count < self.room.clients:
            self.given["numbers"][""][count:, _STEPS] = 0  # clients without steps are not there

    def _begin(self) -> None:
        """Set the state of every client at the start of its local training."""
        given, count = self.given, self.room.clients
        params, buffers, kept = given["params"], given["buffers"], parts(given, "kept.")
        local = kept.get(LOCAL, {})
        copies = Tensor.clone if self.joint else partial(_copies, count=count)
        self.params, self.buffers = (
            {n: local[n].clone() if n in local else copies(value) for n, value in tensors.items()}
            for tensors in (params, buffers)
        )
        # Start weights are shared by the stack, except those that stay with their client, or in a joint stack.
        self.begin = {name: local.get(name, value) for name, value in params.items()}
        self.own_begin = [name for name in params if self.joint or name in local]
        self.begin_dims = {name: 0 if name in self.own_begin else None for name in params}
        self.server, self.client_state = parts(given, "server."), parts(kept, STATE)
        self.optimizer_state = copied(parts(kept, OPTIMIZER)) or self.job.optimizer.init(self.params, stacked=True)
        self.class_counts = given.get("class_counts", {}).get("")
        numbers = given["numbers"][""]
        self.packed = numbers.view(torch.float64)[:, -len(self.number_names) :].to(self.job.x.dtype)
        self.numbers = dict(zip(self.number_names, self.packed.unbind(1), strict=True))
        self.lr = self.numbers["lr"] if self.own_lr else self.numbers["lr"][0]
        self.full_gradient: Tensors = {}
        if "full_gradient" in self.requires:
            self.full_gradient = {name: torch.zeros_like(value) for name, value in self.params.items()}
        self.correction: Tree = {}
        self.sums = torch.zeros(2, count, dtype=torch.float64, device=self.device)
        self.at = torch.zeros(2, dtype=torch.int64, device=self.device)  # steps taken, and those since the last sums
        if self.on_gpu:
            plan, words = numbers[:, : len(COLUMNS)].T, numbers[:, len(COLUMNS) : len(COLUMNS) + 2].T
            sizes = (self.room.steps, self.room.width, self.room.epochs, self.room.longest)
            self.rows, self.real_rows = row_table(plan, words[0], self.job.rows_in_order, *sizes)
            self.moves = None
            if self.job.augment != "none":
                self.moves = moves_of(move_words(plan, words[1], self.room.steps, self.room.width), self.job.augment)

    @torch.no_grad()
    def _correct(self) -> None:
        """Let the method find the linear correction of gradients."""
        self.correction = self._linear_correction()
        names = {name for tensors in self.correction.values() for name in tensors}
        self.scratch = {name: torch.empty_like(value) for name, value in self.params.items() if name in names}

    @torch.no_grad()
    def _receive(self, first: Block) -> None:
        """Let the method set the weights from which clients start."""
        (x,), (y,), reals = self._batches(replace(first, steps=1))
        seen = (None, None, x, y, None if reals is None else reals[0], self.buffers)

        def hook(method: Algorithm, given: Tensors, view: View) -> Tensors:
            start = method.on_receive(view)
            return {name: start.get(name, value) for name, value in given.items()}

        head = {name: value[: len(y)] for name, value in self.params.items()}
        for name, value in self._hook(hook, head, head, len(y), seen).items():
            self.params[name][: len(y)].copy_(value)

    def _linear_correction(self) -> Tree:
        """Return the linear correction of every client, before the first step."""

        def one_client(*client: Any) -> Tree:
            view = self.view(*client)
            return self.method(view.numbers).linear_correction(view)

        found: Tree = vmap(one_client, in_dims=self._dims())(*self._clients())
        return found

    def _clients(self) -> tuple[Any, ...]:
        """Return the arguments of ``view`` for all clients, of which ``_dims`` has the axes of the clients."""
        return (self.params, self.begin, self.server, self.client_state, self.numbers, self.class_counts)

    def _dims(self) -> tuple[Any, ...]:
        return (0, self.begin_dims, 0 if self.joint else None, 0, 0, None if self.class_counts is None else 0)

    def view(
        self, params: Tensors, begin: Tensors, server: Tree, state: Tree, numbers: Tensors, counts: Tensor | None
    ) -> View:
        """Return one client's view for the hooks; called inside ``vmap``."""
        return View(params, begin, server, state, numbers, self.job.optimizer.momentum, class_counts=counts)

    def method(self, numbers: Tensors) -> Algorithm:
        """Return the method of one client: in a joint stack with its run's options; called inside ``vmap``."""
        names = [name for name in self.number_names if name.startswith(OPTION)]
        return with_options(self.job.algorithm, {name.removeprefix(OPTION): numbers[name] for name in names})

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _blocks(self) -> tuple[list[Block], Ints]:
        """Return the blocks of a round, and the batch sizes ``[step, client]``; the last ones are remembered."""
        plan = self.plan
        known = (plan.sizes.tobytes(), plan.batch.tobytes(), plan.epochs.tobytes())
        if known not in self.known:
            counts = plan.counts()
            most = self._steps_at_once() if self.on_gpu else 1
            blocks: list[Block] = []
            for step in range(len(counts)):
                one = self._shape(step, counts[step])
                if blocks and blocks[-1].steps < most and replace(blocks[-1], steps=1) == one:
                    one = replace(one, steps=blocks.pop().steps + 1)
                blocks.append(one)
            # Few different shapes: what is left of a block is taken step by step.
            single = [[block] if block.steps == most else [replace(block, steps=1)] * block.steps for block in blocks]
            if len(self.known) >= _PLANS_KNOWN:
                self.known.clear()
            self.known[known] = [block for some in single for block in some], counts
        return self.known[known]

    def _steps_at_once(self) -> int:
        """Return how many steps are gathered and captured together."""
        step = self.room.clients * self.room.width * max(1, self.job.x[0].numel()) * self.job.x.element_size()
        return max(1, min(_STEPS_AT_ONCE, _BYTES_AT_ONCE // step))

    def _shape(self, step: int, count: Ints) -> Block:
        """Return the shape of a step with these batch sizes: on a CPU the smallest one, on a GPU one of few."""
        exact = active = int((count > 0).sum())
        shares = self.job.algorithm.batchnorm.shares_statistics(step)
        if self.on_gpu and not shares:
            active = min(_few(exact), self.room.clients)
        widest = int(count.max())
        padded = active > exact or bool((count[:exact] < widest).any())
        width = self.room.width if padded and self.on_gpu else widest
        return Block(1, active, width, padded, active > exact, shares, self._trained(step, active))

    def _trained(self, step: int, active: int) -> tuple[_Names, ...] | None:
        """Return the parameters that each client of a step trains in its epoch; one entry if all train the same."""
        if not self.in_phases:
            return None
        here = min(active, len(self.plan.clients))
        phases = zip(step // self.plan.steps_per_epoch[:here], self.plan.epochs[:here], strict=True)
        names = [frozenset(self.job.algorithm.trainable(self.job.layout, *map(int, phase))) for phase in phases]
        return (names[0],) if len(set(names)) == 1 else tuple(names)

    def _now(self, table: Tensor, steps: int) -> Tensor:
        """Return the entries of the present steps in a table of steps."""
        if not self.on_gpu:
            return table[self.now : self.now + steps]
        return table.index_select(0, self.at[0] + torch.arange(steps, device=self.device))

    def _batches(self, block: Block) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return inputs and targets ``[step, client, slot]``, and which are real; None where all are."""
        head, slots = slice(block.active), slice(block.width)
        rows = self._now(self.rows, block.steps)[:, head, slots]
        flat = rows.flatten()
        x, y = (data.index_select(0, flat).view(*rows.shape, *data.shape[1:]) for data in (self.x, self.job.y))
        if self.channels_last:
            x = x.movedim(-1, 3)
        if self.moves is not None:
            x = augment(x, *(self._now(part, block.steps)[:, head, slots] for part in self.moves))
        if not block.padded:
            return x, y, None
        counts = self._now(self.real_rows, block.steps)[:, head, None]
        return x, y, (self.slots[: block.width] < counts).to(self.job.x.dtype)

    @torch.no_grad()
    def _steps(self, block: Block) -> None:
        """Take the steps of a block, one after the other."""
        self.layers.mask.agree = settle_in_stack if block.shares else None
        x, y, real = self._batches(block)
        logits = [self._step(block, x[i], y[i], None if real is None else real[i]) for i in range(block.steps)]
        self._note(logits, block)

    def _step(self, block: Block, x: Tensor, y: Tensor, real: Tensor | None) -> Tensor:
        """Take one step of the active clients in place, and return the outputs before it.

        A client's loss depends on its own slice of the stacked weights alone, so the gradient of the sum of all losses
        is the stack of their gradients.
        """
        job, now = self.job, self._active(block)
        params, buffers = now["params"], now["buffers"]
        # A model may write to its input, and hooks run other models on the same rows.
        observed = self.changes_objective or self.corrects
        logits = self.layers.forward({**params, **buffers}, x.clone() if observed else x, real)
        share = None if real is None else real / real.sum(1, keepdim=True).clamp_min(1)
        seen = (logits, self.layers.features, x, y, real, buffers)
        if self.changes_objective:
            grads = self._gradients_of_objective(params, seen, share)
        else:
            grads = self.layers.backward(job.task.slopes(logits, y, 1 / y.shape[1] if share is None else share))
        grads = {name: grads[name] if name in grads else torch.zeros_like(value) for name, value in params.items()}
        if self.corrects:
            grads = self._hook(_correct_gradients, grads, params, block.active, seen)
        moving = _tensors(now) if block.partial else []
        before = [value.clone() for value in moving]
        for name, value in self.layers.moved.items():
            buffers[name].copy_(value)
        self._move(params, self._corrected(grads, params, block.active), parts(now, OPTIMIZER), block)
        if real is not None:
            alive = real[:, 0] > 0
            for value, old in zip(moving, before, strict=False):
                value.copy_(torch.where(alive.view(-1, *(1,) * (value.dim() - 1)), value, old))
        return logits

    def _gradients_of_objective(self, params: Tensors, seen: "_Seen", share: Tensor | None) -> Tensors:
        """Return the gradients of what the method minimises: through outputs and features, and direct ones."""
        logits, features, x, y, real, buffers = seen
        assert logits is not None
        with torch.enable_grad():
            logits = logits.detach().requires_grad_()
            inside = None if features is None else features.detach().requires_grad_()
            leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
            losses = self.job.task.losses(logits, y, "none")
            loss = losses.mean(1) if share is None else (losses * share).sum(1)
            total = self._hook(_objective, loss, leaves, len(y), (logits, inside, x, y, real, buffers))
            ends = [logits, *([] if inside is None else [inside]), *leaves.values()]
            found = list(torch.autograd.grad(total.sum(), ends, allow_unused=True))
        slopes, of_features = found.pop(0), None if inside is None else found.pop(0)
        grads = self.layers.backward(torch.zeros_like(logits) if slopes is None else slopes, of_features)
        direct = {name: value for name, value in zip(leaves, found, strict=True) if value is not None}
        return {**grads, **{name: grads[name] + more if name in grads else more for name, more in direct.items()}}

    def _active(self, block: Block) -> Tree:
        """Return what a step changes: parameters, buffers and the optimiser's state of the active clients."""
        every: Tree = {"params": self.params, "buffers": self.buffers, **prefixed(self.optimizer_state, OPTIMIZER)}
        return every if block.active == self.room.clients else rows_of(every, slice(block.active))

    def _move(self, params: Tensors, grads: Tensors, state: Tree, block: Block) -> None:
        """Take an optimiser step with the parameters that each client trains in its epoch."""
        optimizer = self.job.optimizer
        lr = self.lr[: block.active] if self.own_lr else self.lr
        if block.trained is None:
            optimizer.step_(params, grads, state, lr, stacked=True)
            return
        anybody = frozenset().union(*block.trained)
        params = {name: value for name, value in params.items() if name in anybody}
        state = {
            part: {n: v for n, v in ts.items() if n in anybody or n not in self.params} for part, ts in state.items()
        }
        mixed = len(block.trained) > 1
        before = {"": {n: v.clone() for n, v in params.items()}, **copied(state)} if mixed else {}
        if params:
            optimizer.step_(params, grads, state, lr, stacked=True)
        for part, tensors in before.items():
            for name, old in tensors.items():
                if name in params:  # restored for clients that do not train it in their epoch
                    moves = self._mask(block.trained, name).view(-1, *(1,) * (old.dim() - 1))
                    now = params[name] if part == "" else state[part][name]
                    now.copy_(torch.where(moves, now, old))

    def _mask(self, trained: tuple[_Names, ...], name: str) -> Tensor:
        """Return which clients train a parameter; kept, because a captured step must find it on the GPU."""
        known = (trained, name)
        if known not in self.masks:
            self.masks[known] = torch.tensor([name in names for names in trained], device=self.device)
        return self.masks[known]

    # -- losses and scores of the steps --------------------------------------------------------------------------------

    def _note(self, logits: list[Tensor], block: Block) -> None:
        """Keep the outputs of the steps of a block."""
        shape = (self.room.clients, self.room.width, *logits[0].shape[2:])
        if self.outputs is None or self.outputs.shape[1:] != shape:
            steps = max(1, min(self.room.steps, _OUTPUTS_KEPT // math.prod(shape)))
            most = self._steps_at_once() if self.on_gpu else 1
            outputs = logits[0].new_zeros(-(-steps // most) * most, *shape)  # a block is kept as a whole
            self.outputs = outputs.mT.contiguous().mT if len(shape) == 3 else outputs  # laid out as layers do
        there = self.outputs[:, : block.active, : block.width]
        if not self.on_gpu:
            there[self.now % len(self.outputs)] = logits[0]
        else:
            step = torch.arange(block.steps, device=self.device)
            there.index_copy_(0, self.at[1] + step, torch.stack(logits).to(there.dtype))
            self.at.add_(block.steps)

    @torch.no_grad()
    def _add_sums(self) -> None:
        """Add up the losses and scores of every client over the steps whose outputs are kept."""
        assert self.outputs is not None
        steps = len(self.outputs)
        if not self.on_gpu:
            first, last = (self.now - 1) // steps * steps, self.now
            rows, counts = self.rows[first:last], self.real_rows[first:last]
        else:
            step = torch.arange(steps, device=self.device)
            some = (self.at[0] - self.at[1] + step).clamp_max(self.room.steps - 1)
            rows = self.rows.index_select(0, some)
            counts = torch.where((step < self.at[1])[:, None], self.real_rows.index_select(0, some), 0)
            self.at[1:].zero_()
        outputs, targets, task = self.outputs[: len(rows)], self.job.y[rows], self.job.task
        real = self.slots[: rows.shape[2]] < counts[..., None]
        found = (task.losses(outputs, targets, "none"), task.row_scores(outputs, targets))
        for total, each in zip(self.sums, found, strict=True):
            total += torch.where(real, each, 0).sum((0, 2), dtype=torch.float64)

    @torch.no_grad()
    def _mean_loss(self) -> Floats:
        """Return the loss of every client's model on all of its rows, in evaluation mode."""
        total = torch.stack([*self._losses(self.params)]).sum(0)
        return total.cpu().numpy() / self.plan.sizes

    def _find_full_gradient(self) -> None:
        """Find the gradient of that loss at every client's weights."""
        params = {name: value.detach().requires_grad_() for name, value in self.params.items()}
        for losses in self._losses(params):
            loss = (losses / torch.from_numpy(self.plan.sizes).to(losses)).sum()
            grads = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
            for total, found in zip(self.full_gradient.values(), grads, strict=True):
                total += found

    def _losses(self, params: Tensors) -> Iterator[Tensor]:
        """Yield the sum of each client's losses in evaluation mode, over all its rows, a batch at a time."""
        model, sizes, width = copy.deepcopy(self.job.model).eval(), self.plan.sizes, int(self.plan.batch.max())
        tensors = {name: value[: len(sizes)] for name, value in {**params, **self.buffers}.items()}

        def losses(tensors: Tensors, x: Tensor, y: Tensor) -> Tensor:
            return self.job.task.losses(functional_call(model, tensors, (x,)), y, "none")

        for first in range(0, int(sizes.max()), width):
            positions = np.arange(first, first + width)
            real = positions < sizes[:, None]
            rows = self.job.rows(self.plan.places, np.where(real, positions, 0))
            each = vmap(losses)(tensors, self.job.x[rows], self.job.y[rows])
            yield (each.double() * torch.from_numpy(real).to(each.device)).sum(1)

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def _hook(
        self,
        hook: Callable[[Algorithm, Any, View], Any],
        value: Tensor | Tensors,
        params: Tensors,
        active: int,
        seen: "_Seen",
    ) -> Any:
        """Return a hook's results for the first ``active`` clients; ``seen`` are their batches.

        Arguments of ``vmap`` are flat here too, with numbers in one tensor; values that all clients share are not
        arguments.
        """
        given = [value] if isinstance(value, Tensor) else list(value.values())
        own = rows_of({"": {name: self.begin[name] for name in self.own_begin}}, slice(active))[""]
        sent = rows_of(self.server, slice(active)) if self.joint else {}
        states = [tensor[:active] for tensors in self.client_state.values() for tensor in tensors.values()]
        numbers = self.packed[:active]
        *of_batch, buffers = seen
        counts = None if self.class_counts is None else self.class_counts[:active]
        optional: list[Any] = [*of_batch, counts]

        def one_client(
            numbers: Tensor, logits: Any, features: Any, x: Any, y: Any, real: Any, counts: Any, *leaves: Tensor
        ) -> Any:
            left = iter(leaves)
            mine = [next(left) for _ in given]
            weights = {name: next(left) for name in params}
            begin = {**self.begin, **{name: next(left) for name in own}}
            server = {part: {name: next(left) for name in tensors} for part, tensors in sent.items()} or self.server
            old = {part: {name: next(left) for name in tensors} for part, tensors in self.client_state.items()}
            moving = {name: next(left) for name in buffers}
            view = self.view(weights, begin, server, old, _Numbers(self.number_names, numbers), counts)
            method = self.method(view.numbers)
            view = self._with_batch(method, view, logits, features, x, y, real, moving)
            if isinstance(value, Tensor):
                return hook(method, mine[0], view)
            result = hook(method, dict(zip(value, mine, strict=True)), view)
            return tuple(result[name] for name in value)

        leaves = [*given, *params.values(), *own.values(), *_tensors(sent), *states, *buffers.values()]
        dims = (0, *(None if part is None else 0 for part in optional), *(0 for _ in leaves))
        result = vmap(one_client, in_dims=dims, randomness="different")(numbers, *optional, *leaves)
        return result if isinstance(value, Tensor) else dict(zip(value, result, strict=True))

    def _with_batch(
        self,
        method: Algorithm,
        view: View,
        logits: Tensor | None,
        features: Tensor | None,
        x: Tensor,
        y: Tensor,
        real: Tensor | None,
        buffers: Tensors,
    ) -> View:
        """Return the view with the batch of one client; called inside ``vmap``."""
        own = {name: value.detach() for name, value in view.params.items()}

        def forward(weights: Tensors) -> tuple[Tensor, Tensor | None]:
            self.layers.mask.rows = real
            still = {name: value.clone() for name, value in buffers.items()}  # must not change running statistics
            outputs: Tensor = functional_call(self.layers.model, {**own, **weights, **still}, (x.clone(),))
            return outputs, self.tap.features if self.tap else None

        def mean(values: Tensor) -> Tensor:
            return values.mean() if real is None else (values * real).sum() / real.sum()

        @torch.no_grad()
        def logits_at(weights: Tensors) -> Tensor:
            return forward(weights)[0]

        @torch.no_grad()
        def features_at(weights: Tensors) -> Tensor:
            found = forward(weights)[1]
            assert found is not None, "features_at is for methods that require features"
            return found

        def loss(outputs: Tensor) -> Tensor:
            return mean(self.job.task.losses(outputs, y, "none"))

        def minimised(weights: Tensors) -> Tensor:
            outputs, inside = forward(weights)
            other = replace(view, params=weights, batch=Batch(outputs, y, loss, mean, logits_at, features_at, inside))
            return method.objective(loss(outputs), other)

        def gradient_at(weights: Tensors) -> Tensors:
            found: Tensors = grad(minimised)({**own, **weights})
            return found

        if logits is not None:
            view = replace(view, batch=Batch(logits, y, loss, mean, logits_at, features_at, features))
        return replace(view, gradient_at=gradient_at)

    def _corrected(self, grads: Tensors, params: Tensors, active: int) -> Tensors:
        """Return gradients with each client's linear correction, in scratch memory: a gradient may be a view."""
        scale, offset = self.correction.get("scale", {}), self.correction.get("offset", {})
        result = {}
        for name, found in grads.items():
            if name in scale:
                numbers = scale[name][:active].view(-1, *(1,) * (found.dim() - 1))
                found = torch.addcmul(found, params[name], numbers, out=self.scratch[name][:active])
            if name in offset:
                found = torch.add(found, offset[name][:active], out=self.scratch[name][:active])
            result[name] = found
        return result

    # -- the end of a round --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _end(self) -> None:
        """Find what every client sends and keeps."""

        def finish(full: Tensors, *client: Any) -> tuple[Tree, Tree]:
            view = replace(self.view(*client), full_gradient=full)
            method = self.method(view.numbers)
            return method.payload(view), method.client_state(view)

        if not self.keeps_more:  # the payload is a difference, which needs no capture
            self.payload: Tree = {}
            self.state = self.client_state
            return
        found = vmap(finish, in_dims=(0, *self._dims()))(self.full_gradient, *self._clients())
        self.payload, self.state = found

    def _updates(self) -> Updates:
        """Return the results of the round; on a GPU as copies, because the next round overwrites them."""
        job, plan = self.job, self.plan
        everything = {**self.params, **self.buffers}
        kept: Tree = prefixed(self.state, STATE)
        if job.local_names:
            kept[LOCAL] = {name: everything[name] for name in sorted(job.local_names)}
        if "optimizer_state" in self.requires:
            kept |= prefixed(self.optimizer_state, OPTIMIZER)
        sent = {name: value for name, value in self.buffers.items() if name not in job.unsent}
        trained = {**self.params, **{name: self.buffers[name] for name in job.frozen_names & self.buffers.keys()}}
        found: Tree = {**prefixed(self.payload, "payload."), "buffers": sent, **prefixed(kept, "kept.")}
        here = slice(len(plan.clients))
        if self.on_gpu:
            found, trained = copied(rows_of(found, here)), rows_of({"": trained}, here)[""]
        if not self.keeps_more:
            ends = {name: value[here] for name, value in self.params.items() if name not in job.unsent}
            begin = {name: value[here] if name in self.own_begin else value for name, value in self.begin.items()}
            found["payload.delta"] = difference(ends, begin)
        loss, score = self.sums[:, : len(plan.clients)].cpu().numpy() / self.counts.sum(0)
        report = Report(plan.clients, plan.sizes, plan.steps, loss, score, {**plan.numbers, **self.measured})
        payload = without(parts(found, "payload."), job.unsent)
        return Updates(report, payload, found["buffers"], parts(found, "kept."), trained)

    def _moving(self) -> list[Tensor]:
        """Return the tensors that a captured part changes in place."""
        if not hasattr(self, "params"):
            return []
        return [*self.params.values(), *self.buffers.values(), *_tensors(self.optimizer_state), self.sums, self.at]


def _objective(method: Algorithm, loss: Tensor, view: View) -> Tensor:
    return method.objective(loss, view)


def _correct_gradients(method: Algorithm, grads: Tensors, view: View) -> Tensors:
    return method.correct_gradients(grads, view)


def with_options(method: Algorithm, options: Tensors) -> Algorithm:
    """Return a method whose options are tensors, which the check of options would not take."""
    if not options:
        return method
    other = copy.copy(method)
    for name, value in options.items():
        object.__setattr__(other, name, value)
    return other


def _tensors(tree: Tree) -> list[Tensor]:
    return [value for tensors in tree.values() for value in tensors.values()]


def _copies(value: Tensor, count: int) -> Tensor:
    return value.expand(count, *value.shape).clone()


def _room(value: Tensor, clients: int) -> Tensor:
    """Return a tensor for so many clients; those that are not there are like the last one."""
    return (
        torch.cat([value, value[-1:].expand(clients - len(value), *value.shape[1:])])
        if clients > len(value)
        else value.clone()
    )


def _few(count: int) -> int:
    """Return the next number with three significant bits, so that steps have few different shapes.

    >>> [_few(count) for count in (1, 7, 8, 9, 15, 17, 33, 100)]
    [1, 7, 8, 10, 16, 20, 40, 112]
    """
    unit = 1 << max(0, count.bit_length() - 3)
    return -(-count // unit) * unit
