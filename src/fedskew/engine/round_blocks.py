"""The steps of a round as blocks: which shape the batches of each step have, and which steps are taken together."""

from dataclasses import replace

import numpy as np

from fedskew.algorithms.contract import overridden
from fedskew.core.streams import Ints
from fedskew.engine.job import Job
from fedskew.engine.plan import Plan
from fedskew.engine.shapes import Block, Names, Room, few, joined

_PLANS_KNOWN = 16  # plans whose blocks are remembered, for rounds with clients of the same sizes


class RoundBlocks:
    """Finds the blocks of a plan: each step is one, of the smallest shape."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.in_phases = overridden(job.algorithm, "trainable")
        self._known: dict[bytes, tuple[list[Block], Ints]] = {}

    def of(self, plan: Plan) -> tuple[list[Block], Ints]:
        """Return the blocks of a round, and the batch sizes ``[step, client]``; the last ones are remembered."""
        known = b"".join(map(np.ndarray.tobytes, (plan.sizes, plan.batch, plan.epochs, plan.steps)))
        if known not in self._known:
            counts = plan.counts()
            if len(self._known) >= _PLANS_KNOWN:
                self._known.clear()
            steps = [self._shape(plan, step, count) for step, count in enumerate(counts)]
            self._known[known] = (self._grouped(steps), counts)
        return self._known[known]

    def _grouped(self, steps: list[Block]) -> list[Block]:
        """Return steps as blocks."""
        return steps

    def _shape(self, plan: Plan, step: int, count: Ints) -> Block:
        """Return the smallest shape of a step with these batch sizes."""
        active = int((count > 0).sum())
        widest = int(count.max())
        shares = self.job.algorithm.batchnorm.shares_statistics(step)
        padded = bool((count[:active] < widest).any())
        return Block(1, active, widest, padded, False, shares, self._trained(plan, step, active))

    def _trained(self, plan: Plan, step: int, active: int) -> tuple[Names, ...] | None:
        """Return the parameters that each client of a step trains in its epoch; one entry if all train the same."""
        if not self.in_phases:
            return None
        here = min(active, len(plan.clients))
        epoch = step // plan.steps_per_epoch[:here]
        names = []
        for phase, phases in zip(epoch.tolist(), plan.epochs[:here].tolist(), strict=True):
            trained = self.job.algorithm.trainable(self.job.layout, phase, phases)
            names.append(frozenset(trained))
        if len(set(names)) == 1:
            return (names[0],)
        return tuple(names)


class CapturedBlocks(RoundBlocks):
    """Finds blocks of few different shapes, each of which is captured once.

    Args:
        job: the job
        room: the largest plan that the captured parts can take
        most: steps of a block
    """

    def __init__(self, job: Job, room: Room, most: int) -> None:
        super().__init__(job)
        self.room = room
        self.most = most

    def _grouped(self, steps: list[Block]) -> list[Block]:
        """Return steps of the same shape as one block; what is left is taken step by step, for few different shapes."""
        blocks: list[Block] = []
        for block in joined(steps, self.most):
            if block.steps == self.most:
                blocks.append(block)
            else:
                blocks += [replace(block, steps=1)] * block.steps
        return blocks

    def _shape(self, plan: Plan, step: int, count: Ints) -> Block:
        """Return one of few shapes, with room for a step with these batch sizes."""
        exact = super()._shape(plan, step, count)
        active = exact.active
        if not exact.shares:
            active = min(few(active), self.room.clients)
        more = active > exact.active
        padded = exact.padded or more
        width = exact.width
        if padded:
            width = self.room.width
        trained = self._trained(plan, step, active)
        return replace(
            exact, active=active, width=width, padded=padded, partial=more, trained=trained
        )
