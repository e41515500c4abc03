"""A stack of clients on a GPU, whose rounds are captured as CUDA graphs and replayed.

Every part of a round is captured when it first runs, and short rounds that come again as a whole. A graph reads and
writes the tensors that were there when it was captured; so inputs are copied into tensors that stay where they are, and
the results of a round are in the state of the graph that was replayed.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedskew.core.streams import Ints
from fedskew.core.trees import Tree, copied, tensors_of
from fedskew.engine.augment import moves_of
from fedskew.engine.job import Job, Start
from fedskew.engine.replay import Replay
from fedskew.engine.shapes import Block, Room, few, joined
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
        return [*tensors_of(moving), state.sums, state.at]

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
        measures = {"loss_before", "loss_after", "full_gradient"} & self.requires
        if measures or len(self.counts) > _STEPS_IN_A_ROUND:
            return False
        return self.seen[known] > 1 and len(self.states) <= _ROUNDS_KEPT

    def _joined(self, blocks: list[Block]) -> list[Block]:
        """Return blocks of the same shape as one, as far as there is room for their inputs and outputs."""
        assert self.outputs is not None
        return joined(blocks, self._at_once(len(self.outputs)))

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
        for part in shared:
            given.extend(self.given[part].values())
        for part in own:
            for value in self.given[part].values():
                given.append(value[:count])
        torch._foreach_copy_(given, [*tensors_of(shared), *tensors_of(own)])
        if count < clients:
            there[count:, _STEPS] = 0  # clients without steps are not there

    def _tables(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the row numbers of all steps, how many of them are real, and the moves of images."""
        room = self.room
        numbers = self.given["numbers"][""]
        plan = numbers[:, : len(COLUMNS)].T
        words = numbers[:, len(COLUMNS) : len(COLUMNS) + 2].T
        rows, real = row_table(
            plan,
            words[0],
            self.job.rows_in_order,
            room.steps,
            room.width,
            room.epochs,
            room.longest,
        )
        moves = None
        if self.job.augment != "none":
            move_bits = move_words(plan, words[1], room.steps, room.width)
            moves = moves_of(move_bits, self.job.augment)
        return rows, real, moves

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _at_once(self, most: int) -> int:
        """Return how many steps are taken together: so many, or as there is room for their inputs."""
        row = max(1, self.job.x[0].numel()) * self.job.x.element_size()
        step = self.room.clients * self.room.width * row
        return max(1, min(most, _BYTES_AT_ONCE // step))

    def _grouped(self, steps: list[Block]) -> list[Block]:
        """Return steps of the same shape as one block; what is left is taken step by step, for few different shapes."""
        most = self._at_once(_STEPS_AT_ONCE)
        blocks: list[Block] = []
        for block in joined(steps, most):
            if block.steps == most:
                blocks.append(block)
            else:
                blocks += [replace(block, steps=1)] * block.steps
        return blocks

    def _shape(self, step: int, count: Ints) -> Block:
        """Return one of few shapes, with room for a step with these batch sizes."""
        exact = super()._shape(step, count)
        active = exact.active
        if not exact.shares:
            active = min(few(active), self.room.clients)
        more = active > exact.active
        padded = exact.padded or more
        width = exact.width
        if padded:
            width = self.room.width
        trained = self._trained(step, active)
        return replace(
            exact, active=active, width=width, padded=padded, partial=more, trained=trained
        )

    def _now(self, table: Tensor, steps: int) -> Tensor:
        """Return the entries of the present steps in a table of steps; a graph finds them by the steps so far."""
        return table.index_select(0, self.state.at[0] + torch.arange(steps, device=self.device))

    # -- losses and scores of the steps --------------------------------------------------------------------------------

    def _whole_blocks(self, steps: int) -> int:
        """Return so many steps or a few more, because a block is kept as a whole."""
        most = self._at_once(_STEPS_AT_ONCE)
        return -(-steps // most) * most

    def _keep_outputs(self, there: Tensor, logits: list[Tensor]) -> None:
        """Keep the outputs of the present steps."""
        step = torch.arange(len(logits), device=self.device)
        there.index_copy_(0, self.state.at[1] + step, torch.stack(logits).to(there.dtype))
        self.state.at.add_(len(logits))

    def _waiting(self, steps: int) -> tuple[Tensor, Tensor]:
        """Return row numbers and batch sizes of the steps whose outputs are kept; there is room for so many."""
        state = self.state
        step = torch.arange(steps, device=self.device)
        some = (state.at[0] - state.at[1] + step).clamp_max(self.room.steps - 1)
        counts = torch.where(
            (step < state.at[1])[:, None], state.real_rows.index_select(0, some), 0
        )
        state.at[1:].zero_()
        return state.rows.index_select(0, some), counts


def _room(value: Tensor, clients: int) -> Tensor:
    """Return a tensor for so many clients; those that are not there are like the last one."""
    if clients > len(value):
        return torch.cat([value, value[-1:].expand(clients - len(value), *value.shape[1:])])
    return value.clone()
