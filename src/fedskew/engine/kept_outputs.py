"""The outputs of a stack's steps, kept until the losses and scores of many steps are computed together."""

import math

import torch
from torch import Tensor

from fedskew.engine.job import Job
from fedskew.engine.shapes import Block, Room
from fedskew.engine.stack_hooks import RoundState

# Numbers: outputs of the steps whose losses and scores are computed together
_OUTPUTS_KEPT = 16 << 20


class KeptOutputs:
    """Keeps outputs ``[step, client, slot]``, and adds up their losses and scores; its length is in steps."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._kept: Tensor | None = None

    def __len__(self) -> int:
        """Return for how many steps there is room: 0 before the first one."""
        if self._kept is None:
            return 0
        return len(self._kept)

    def keep(
        self, state: RoundState, logits: list[Tensor], block: Block, room: Room, now: int
    ) -> None:
        """Keep the outputs of the steps of a block, the first of which is step ``now`` of the round."""
        shape = (room.clients, room.width, *logits[0].shape[2:])
        if self._kept is None or self._kept.shape[1:] != shape:
            steps = max(1, min(room.steps, _OUTPUTS_KEPT // math.prod(shape)))
            kept = logits[0].new_zeros(self._whole_blocks(steps), *shape)
            if len(shape) == 3:
                kept = kept.mT.contiguous().mT  # laid out as layers do
            self._kept = kept
        self._write(self._kept[:, : block.active, : block.width], state, logits, now)

    def _whole_blocks(self, steps: int) -> int:
        """Return so many steps or a few more, because a block is kept as a whole."""
        return steps

    def _write(self, there: Tensor, state: RoundState, logits: list[Tensor], now: int) -> None:
        """Keep the outputs of the present steps."""
        there[now % len(there)] = logits[0]

    @torch.no_grad()
    def add_sums(self, state: RoundState, slots: Tensor, now: int) -> None:
        """Add up the losses and scores of every client over the steps whose outputs are kept."""
        assert self._kept is not None
        rows, counts = self._waiting(state, len(self._kept), now)
        outputs = self._kept[: len(rows)]
        task = self.job.task
        real = slots[: rows.shape[2]] < counts[..., None]
        targets = task.padded(self.job.y[rows], real)
        losses = task.losses(outputs, targets, "none")
        scores = task.row_scores(outputs, targets)
        for total, each in zip(state.sums, (losses, scores), strict=True):
            total += torch.where(real, each, 0).sum((0, 2), dtype=torch.float64)

    def _waiting(self, state: RoundState, steps: int, now: int) -> tuple[Tensor, Tensor]:
        """Return row numbers and batch sizes of the steps whose outputs are kept; there is room for so many."""
        first = (now - 1) // steps * steps
        return state.rows[first:now], state.real_rows[first:now]


class CapturedOutputs(KeptOutputs):
    """Keeps outputs inside CUDA graphs, which find their steps by ``state.at``; blocks have up to so many steps."""

    def __init__(self, job: Job, room: Room, block_steps: int) -> None:
        super().__init__(job)
        self.room = room
        self.block_steps = block_steps

    def _whole_blocks(self, steps: int) -> int:
        """Return so many steps or a few more, because a block is kept as a whole."""
        return -(-steps // self.block_steps) * self.block_steps

    def _write(self, there: Tensor, state: RoundState, logits: list[Tensor], now: int) -> None:
        """Keep the outputs of the present steps."""
        step = torch.arange(len(logits), device=there.device)
        there.index_copy_(0, state.at[1] + step, torch.stack(logits).to(there.dtype))
        state.at.add_(len(logits))

    def _waiting(self, state: RoundState, steps: int, now: int) -> tuple[Tensor, Tensor]:
        """Return row numbers and batch sizes of the steps whose outputs are kept; there is room for so many."""
        step = torch.arange(steps, device=state.at.device)
        some = (state.at[0] - state.at[1] + step).clamp_max(self.room.steps - 1)
        counts = torch.where(
            (step < state.at[1])[:, None], state.real_rows.index_select(0, some), 0
        )
        state.at[1:].zero_()
        return state.rows.index_select(0, some), counts
