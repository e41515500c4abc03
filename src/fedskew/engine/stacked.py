"""The default engine: the clients of a round are trained together in stacks, whose size a memory budget limits."""

import gc
import math
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from queue import Queue
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedskew.algorithms.contract import Algorithm, overridden
from fedskew.algorithms.selection import Probe
from fedskew.batchnorm.masked import maskable
from fedskew.batchnorm.shared import clients_share
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats
from fedskew.core.trees import Tensors, Tree, rows_of, stacked
from fedskew.engine.captured import CapturedStack
from fedskew.engine.cost import Cost, measure_cost
from fedskew.engine.device import in_threads, products_in, random_layers
from fedskew.engine.input_rows import Inputs, reads_rows
from fedskew.engine.job import Job, ModelState, ScheduleResult, Start, Updates
from fedskew.engine.joint_plan import JointPlan
from fedskew.engine.loop import GRADIENTS_AT_ONCE, Loop
from fedskew.engine.lstm import vmappable
from fedskew.engine.plan import Plan
from fedskew.engine.probe import StackedProbe
from fedskew.engine.scheduled import run_schedule
from fedskew.engine.shapes import Room
from fedskew.engine.stack import Stack
from fedskew.sample_schedules.sample_schedule import SampleSchedule

_CPU_MEMORY = 2 << 30
_STACKS_KEPT = 4  # of a job on a GPU, for rounds of different shapes
_KEYS_AT_ONCE = 1 << 25  # row visits that are drawn together on a GPU


@dataclass(frozen=True)
class Stacked:
    """Trains clients in stacks of at most ``memory`` bytes; ``mode`` overrides the measured choice of stack or loop.

    Without a number for ``memory`` it is 2 GB on a CPU, and half of what is free on a GPU when the first stack is made.
    """

    memory: int | None = None
    mode: Literal["auto", "stack", "loop"] = "auto"
    _stacks: dict[Any, list[Stack]] = field(default_factory=dict, repr=False, compare=False)
    _free: dict[torch.device, int] = field(default_factory=dict, repr=False, compare=False)

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Yield the plan's clients in stacks, those with the most steps first."""
        cost = measure_cost(job.model, job.x, int(plan.batch.max()))
        room = self.room(job, plan)
        if room < len(plan.clients) and clients_share(
            job.model, job.algorithm.batchnorm, plan.steps
        ):
            needed = math.ceil(10 * len(plan.clients) * cost.bytes_per_client / 2**30) / 10
            raise FedskewError(
                f"{job.algorithm.label()} trains all {len(plan.clients)} clients of a round side by side, but memory "
                f"has room for {room}: use memory={needed:g} or fewer clients (per_round)"
            )
        if not self._stacks_clients(job, cost, len(plan.clients)):
            yield from self._one_by_one(job, start, plan, cost)
            return
        by_steps = np.argsort(-plan.steps, kind="stable")
        for first in range(0, len(by_steps), room):
            members = by_steps[first : first + room]
            some, kept = plan, start.kept
            if not np.array_equal(members, np.arange(len(plan.clients))):
                some = plan.only(members)
                kept = rows_of(start.kept, torch.from_numpy(members))
            yield self._train(self._stack(job, some), start, kept, some)

    def room(self, job: Job, plan: Plan) -> int:
        """Return how many clients of a plan fit in one stack."""
        cost = measure_cost(job.model, job.x, int(plan.batch.max()))
        return max(1, self._budget(job) // cost.bytes_per_client)

    def gains(self, job: Job, batch: int, clients: int) -> bool:
        """Return whether so many clients with batches of that size are stacked."""
        return self._stacks_clients(job, measure_cost(job.model, job.x, batch), clients)

    def _stacks_clients(self, job: Job, cost: Cost, clients: int) -> bool:
        """Return whether so many clients are stacked: as the mode says, or as is faster."""
        if self.mode == "auto":
            return self._stack_is_better(job, cost, clients)
        return self.mode == "stack"

    def in_one_stack(self, job: Job, plan: Plan) -> bool:
        """Return whether all clients of a plan are trained in one stack, each on its own."""
        clients = len(plan.clients)
        if clients_share(job.model, job.algorithm.batchnorm, plan.steps):
            return False
        if not self.gains(job, int(plan.batch.max()), clients):
            return False
        return clients <= self.room(job, plan)

    def train_joint(self, job: Job, start: Start, plan: JointPlan) -> Updates | None:
        """Train clients of several runs in one stack, sorted by steps; None if their layers draw random numbers.

        All tensors of ``start`` are stacked in the order of the plan's clients.
        """
        stack = self._stack(job, plan, joint=True, own_lr=len(np.unique(plan.lrs)) > 1)
        if stack.layers.draws:
            return None
        return self._train(stack, start, start.kept, plan)

    @staticmethod
    def _train(stack: Stack, start: Start, kept: Tree, plan: Plan) -> Updates:
        """Train a stack, with its own random numbers if layers draw some."""
        job = stack.job
        with ExitStack() as around:
            if job.precision == "tf32":
                around.enter_context(products_in("tf32"))
            if stack.layers.draws:
                around.enter_context(
                    random_layers(job.x.device, job.seed, plan.round, int(plan.clients[0]))
                )
            return stack.train(start, kept, plan)

    def _one_by_one(self, job: Job, start: Start, plan: Plan, cost: Cost) -> Iterator[Updates]:
        """Yield clients one by one in the plan's order; on a CPU each in a thread of its own, as many as there are."""
        shared = clients_share(job.model, job.algorithm.batchnorm, plan.steps)
        hooks_fail = hooks_run_models(job.algorithm) and not can_be_stacked(job.model, job.x)
        if shared or hooks_fail or job.x.device.type != "cpu":
            yield from Loop().train(job, start, plan)
            return
        channels_last = job.x.dim() == 4 and cost.channels_last()
        threads = torch.get_num_threads()
        known = (id(job.model), id(job.x), repr(job.algorithm), channels_last)
        stacks = self._stacks.setdefault(known, [])
        while len(stacks) < max(1, min(threads, len(plan.clients))):
            stacks.append(Stack(job, channels_last))
        if stacks[0].layers.draws:
            threads = 1  # random numbers come from one generator, so clients must take turns
        free: Queue[Stack] = Queue()
        for stack in stacks[:threads]:
            free.put(stack)

        def one(i: int) -> Updates:
            alone = plan.only(np.array([i]))
            kept = rows_of(start.kept, slice(i, i + 1))
            stack = free.get()
            try:
                return self._train(stack, start, kept, alone)
            finally:
                free.put(stack)

        yield from in_threads(one, len(plan.clients), free.qsize())

    @property
    def not_captured(self) -> dict[str, str]:
        """Return why parts of a round were not captured as CUDA graphs, and the first such part for each reason."""
        captured: list[CapturedStack] = []
        for stacks in self._stacks.values():
            for stack in stacks:
                if isinstance(stack, CapturedStack):
                    captured.append(stack)
        reasons: dict[str, str] = {}
        for stack in captured:
            for part, reason in reversed(stack.replay.refused.items()):
                reasons[reason] = str(part)
        return reasons

    def _budget(self, job: Job) -> int:
        """Return the memory for a stack in bytes."""
        if self.memory is not None:
            return self.memory
        if job.x.device.type == "cpu":
            return _CPU_MEMORY
        if job.x.device not in self._free:
            self._free[job.x.device] = torch.cuda.mem_get_info(job.x.device)[0] // 2
        return self._free[job.x.device]

    def _stack(self, job: Job, plan: Plan, joint: bool = False, own_lr: bool = False) -> Stack:
        """Return a stack with room for the plan: one that is there from an earlier round, or a new one."""
        known = (id(job.model), id(job.x), repr(job.algorithm), joint, own_lr, tuple(plan.numbers))
        stacks = self._stacks.setdefault(known, [])
        # A graph cannot ask the host for rows
        if job.x.device.type == "cpu" or reads_rows(job.x):
            if not stacks:
                stacks.append(Stack(job, joint=joint, own_lr=own_lr))
            return stacks[0]
        needed = Room.of(plan)
        for stack in stacks:
            if stack.room.fits(needed):
                return stack
        room = _for_all_rounds(job, plan, needed)
        self._make_room(job, stacks, room)
        stacks.append(CapturedStack(job, room, job.x.dim() == 4, joint, own_lr))
        return stacks[-1]

    def _make_room(self, job: Job, stacks: list[Stack], room: Room) -> None:
        """Forget the oldest stacks of a job: no more than a few are kept, and no more than memory has room for."""
        most = self._budget(job) // measure_cost(job.model, job.x, room.width).bytes_per_client
        before = len(stacks)
        while len(stacks) >= _STACKS_KEPT:
            stacks.pop(0)
        while stacks and sum(stack.room.clients for stack in stacks) + room.clients > most:
            stacks.pop(0)
        if len(stacks) < before:
            gc.collect()  # a stack and its graphs refer to each other

    def run_schedule(
        self, job: Job, state: ModelState, schedule: SampleSchedule, reset_optimizer: bool
    ) -> ScheduleResult:
        """Train on the samples of a step as one batch, whichever clients hold them."""
        return run_schedule(job, state, schedule, reset_optimizer)

    def probe(
        self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]
    ) -> dict[str, Floats]:
        """Measure all clients at once, or as many as fit in memory; a client that does not fit, some rows at a time."""
        widest = int(plan.batch.max())
        of_gradients = "gradient_variance" in what
        if not self._probes_in_stacks(job, plan, of_gradients):
            return Loop().probe(job, start, plan, what)
        weights = sum(value.nbytes for value in start.params.values())

        def needed(rows: int) -> int:
            of_losses = measure_cost(job.model, job.x, rows).bytes_per_client
            return of_losses + 2 * rows * weights * of_gradients

        memory = self._budget(job)
        width = min(max(1, (memory - needed(0)) // (needed(1) - needed(0))), widest)
        if of_gradients:
            # Per-row gradients are computed in pieces that fit in the processor's cache if possible.
            memory = min(memory, GRADIENTS_AT_ONCE)
        room = max(1, memory // needed(width))
        by_rows = np.argsort(plan.batch, kind="stable")
        found: dict[str, Floats] = {name: np.zeros(len(plan.clients)) for name in what}
        for first in range(0, len(by_rows), room):
            members = by_rows[first : first + room]
            probe = StackedProbe(job, start, members, plan.only(members), width)
            for name, value in probe.measure(what).items():
                found[name][members] = value.double().cpu().numpy()
        return found

    def _probes_in_stacks(self, job: Job, plan: Plan, of_gradients: bool) -> bool:
        """Return whether to stack a probe; a variance of gradients, with a backward pass per row, always gains."""
        if self.mode == "auto" and of_gradients:
            return can_be_stacked(job.model, job.x)
        return self.gains(job, int(plan.batch.max()), len(plan.clients))

    @staticmethod
    def _stack_is_better(job: Job, cost: Cost, clients: int) -> bool:
        """Return whether to stack: always on a GPU, by the measured rule on a CPU, if the model can be stacked."""
        if job.x.device.type == "cpu" and not cost.stacking_pays(clients):
            return False
        return can_be_stacked(job.model, job.x)


def hooks_run_models(algorithm: Algorithm) -> bool:
    """Return whether a method has the model run on rows beside the steps: the hooks of a stack do so under ``vmap``."""
    measured = {"loss_before", "loss_after", "full_gradient", "class_features", "candidate_losses"}
    if measured & algorithm.requires:
        return True
    hooks = ("on_receive", "objective", "correct_gradients")
    return any(overridden(algorithm, hook) for hook in hooks)


_stackable: "WeakKeyDictionary[nn.Module, bool]" = WeakKeyDictionary()


def can_be_stacked(model: nn.Module, x: Inputs) -> bool:
    """Return whether all layers run under ``vmap`` without a slow fallback (a GRU does not); tested once a model."""
    if model not in _stackable:
        rows = x[:1].repeat(2, 2, *(1,) * (x.dim() - 1))
        copied = vmappable(maskable(model)[0])
        tensors = stacked({**dict(copied.named_parameters()), **dict(copied.named_buffers())}, 2)

        def outputs(tensors: Tensors, x: Tensor) -> Tensor:
            found: Tensor = functional_call(copied, tensors, (x,))
            return found

        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("error")
                vmap(outputs, randomness="different")(tensors, rows)
            _stackable[model] = True
        except (RuntimeError, NotImplementedError, UserWarning):
            _stackable[model] = False
    return _stackable[model]


def _for_all_rounds(job: Job, plan: Plan, needed: Room) -> Room:
    """Return room for every client of the job, as long as that is not too much for the clients of this plan."""
    longest = int(job.partition.sizes.max())
    if needed.clients * needed.epochs * longest > _KEYS_AT_ONCE:
        longest = 1 << (needed.longest - 1).bit_length()
    steps = needed.epochs * -(-longest // int(plan.batch.min()))
    return replace(needed, longest=longest, steps=max(steps, needed.steps))
