"""A stack of clients on a GPU, whose rounds are captured as CUDA graphs and replayed.

Every part of a round is captured when it first runs, and short rounds that come again as a whole. A graph reads and
writes the tensors that were there when it was captured; so inputs are copied into tensors that stay where they are, and
the results of a round are in the state of the graph that was replayed.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedskew.core.trees import Tree, copied, tensors_of
from fedskew.engine.augment import moves_of
from fedskew.engine.cost import measure_cost
from fedskew.engine.job import Job, Start
from fedskew.engine.kept_outputs import CapturedOutputs
from fedskew.engine.replay import Replay
from fedskew.engine.round_blocks import CapturedBlocks
from fedskew.engine.shapes import Block, Room, joined
from fedskew.engine.stack import Stack
from fedskew.engine.stack_hooks import RoundState
from fedskew.engine.tables import COLUMNS, move_words, row_table, stream_words

_STEPS_AT_ONCE, _BYTES_AT_ONCE = 16, 256 << 20  # steps in one CUDA graph, and bytes of their inputs
# Of rounds that are one CUDA graph, and how many of these there are
_STEPS_IN_A_ROUND, _ROUNDS_KEPT = 64, 4
_STEPS = COLUMNS.index("steps")
_PARTS: tuple[Block, ...] = ()  # stands for a round that is taken part by part


class CapturedStack(Stack):
    """Clients of a job, side by side on a GPU.

    Args:
        job: the job
        room: the largest plan that the captured parts can take
        channels_last: whether images lie in memory with their channels last
        joint: whether the clients belong to several runs, with ``own_lr`` each with its own learning rate
    """

    overwrites: ClassVar[bool] = True

    def __init__(
        self,
        job: Job,
        room: Room,
        channels_last: bool = False,
        joint: bool = False,
        own_lr: bool = False,
    ) -> None:
        super().__init__(job, channels_last, joint, own_lr)
        self.room = room
        self.slots = torch.arange(room.width, device=self.device)
        steps = _STEPS_AT_ONCE
        if measure_cost(job.model, job.x, room.width).lstm:
            steps = 1  # of over a thousand kernels: one is a graph that pays, and is captured soon
        self.most_in_a_round = _STEPS_IN_A_ROUND // _STEPS_AT_ONCE * steps
        most = _steps_at_once(job, room, steps)
        self.blocks = CapturedBlocks(job, room, most)
        self.outputs = CapturedOutputs(job, room, most)
        self.inside = False  # a round that is captured as a whole
        self.seen: Counter[tuple[Block, ...]] = Counter()
        self.states: dict[tuple[Block, ...], RoundState] = {}

    @cached_property
    def replay(self) -> Replay:
        """The graphs of the parts, and of whole rounds."""
        return Replay(self._moving)

    def _moving(self) -> list[Tensor]:
        """Return the tensors that a captured part changes in place."""
        if not hasattr(self, "state"):
            return []
        state = self.state
        moving: Tree = {"params": state.params, "buffers": state.buffers, **state.optimizer_state}
        own = [*tensors_of(state.client_state), *tensors_of(state.own_state)]
        return [*tensors_of(moving), *own, state.sums, state.at]

    # -- one round -----------------------------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Leave the room as it is: captured parts have it."""

    def _take_round(self, blocks: list[Block]) -> None:
        """Take a round as one graph if it comes again, else part by part; both have a state of their own."""
        whole = self._repeats(blocks)
        known = _PARTS
        if whole:
            known = tuple(blocks)
        if known in self.states:
            self.state = self.states[known]
        if whole:
            self.inside = True
            self.replay(known, partial(super()._take_round, self._joined(blocks)))
            self.inside = False
        else:
            super()._take_round(blocks)
        self.states[known] = self.state  # what cannot be captured has a new one each time

    def _repeats(self, blocks: list[Block]) -> bool:
        """Return whether a round is captured as a whole: a short one without measurements that was there before."""
        known = tuple(blocks)
        self.seen[known] += 1
        if known in self.states:
            return True
        measured = {"loss_before", "loss_after", "full_gradient", "class_features"}
        measures = (measured | {"candidate_losses"}) & self.requires
        if measures or len(self.counts) > self.most_in_a_round:
            return False
        return self.seen[known] > 1 and len(self.states) <= _ROUNDS_KEPT

    def _joined(self, blocks: list[Block]) -> list[Block]:
        """Return blocks of the same shape as one, as far as there is room for their inputs and outputs."""
        return joined(blocks, _steps_at_once(self.job, self.room, len(self.outputs)))

    def _play(self, name: Hashable, part: Callable[[], None]) -> None:
        """Replay a part of the round; of a round that is captured as a whole, parts are not captured again."""
        if self.inside:
            part()
        else:
            self.replay(name, part)

    def _load(self, start: Start, kept: Tree) -> None:
        """Copy the inputs of the round to the addresses that captured parts know."""
        shared, own, packed = self._inputs(start, kept)
        plan, clients = self.plan, self.room.clients
        count = len(plan.clients)
        # One copy to the GPU for all numbers: whole ones, and the bits of others.
        first = self.job.partition.offsets[plan.places - self.job.first]
        columns = [plan.clients, first, plan.sizes, plan.batch, plan.steps, plan.steps_per_epoch]
        columns += [stream_words(plan, plan.purpose), stream_words(plan, "augment")]
        if "second_batch" in self.requires:
            columns.append(stream_words(plan, plan.second().purpose))
        words = np.concatenate([np.stack(columns, 1), packed.view(np.int64)], 1)
        numbers = torch.from_numpy(words)
        if not self.given:
            self.given = copied(shared)
            for part, tensors in {**own, "numbers": {"": numbers}}.items():
                self.given[part] = {}
                for name, value in tensors.items():
                    self.given[part][name] = _room(value, clients).to(self.device)
        there = self.given["numbers"][""]
        there[:count].copy_(numbers, non_blocking=True)
        given: list[Tensor] = []
        new: list[Tensor] = []
        for part in shared:
            for name, value in self.given[part].items():
                given.append(value)
                new.append(shared[part][name])
        for part in own:
            for name, value in self.given[part].items():
                given.append(value[:count])
                new.append(own[part][name])
        torch._foreach_copy_(given, new)
        if count < clients:
            there[count:, _STEPS] = 0  # clients without steps are not there

    def _second_rows(self) -> Tensor:
        """Return the row numbers of the second batches of all steps."""
        numbers = self.given["numbers"][""]
        return self._row_table(numbers[:, len(COLUMNS) + 2])[0]

    def _row_table(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row numbers of all steps, drawn from these streams, and how many of them are real."""
        room = self.room
        return row_table(
            self.given["numbers"][""][:, : len(COLUMNS)].T,
            words,
            self.job.rows_in_order,
            room.steps,
            room.width,
            room.epochs,
            room.longest,
        )

    def _tables(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the row numbers of all steps, how many of them are real, and the moves of images."""
        room = self.room
        numbers = self.given["numbers"][""]
        plan = numbers[:, : len(COLUMNS)].T
        words = numbers[:, len(COLUMNS) : len(COLUMNS) + 2].T
        rows, real = self._row_table(words[0])
        moves = None
        if self.job.augment != "none":
            move_bits = move_words(plan, words[1], room.steps, room.width)
            moves = moves_of(move_bits, self.job.augment)
        return rows, real, moves

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _now(self, table: Tensor, steps: int) -> Tensor:
        """Return the entries of the present steps in a table of steps; a graph finds them by the steps so far."""
        return table.index_select(0, self.state.at[0] + torch.arange(steps, device=self.device))


def _steps_at_once(job: Job, room: Room, most: int) -> int:
    """Return how many steps are taken together: so many, or as there is room for their inputs."""
    row = max(1, math.prod(job.x.shape[1:])) * job.x.element_size()
    step = room.clients * room.width * row
    steps: int = _BYTES_AT_ONCE // step
    return max(1, min(most, steps))


def _room(value: Tensor, clients: int) -> Tensor:
    """Return a tensor for so many clients; those that are not there are like the last one."""
    if clients > len(value):
        return torch.cat([value, value[-1:].expand(clients - len(value), *value.shape[1:])])
    return value.clone()
