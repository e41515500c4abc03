"""The shapes of a round's steps, and the room that a stack of clients has for them."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from fedskew.engine.plan import Plan

Names: TypeAlias = frozenset[str]


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
    trained: tuple[Names, ...] | None


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
        return cls(
            clients=len(plan.clients),
            steps=int(plan.steps.max()),
            width=int(plan.batch.max()),
            epochs=int(plan.epochs.max()),
            longest=int(plan.sizes.max()),
        )

    def fits(self, other: "Room") -> bool:
        """Return whether the other fits in, without wasting half of it."""
        if self.clients > 2 * other.clients:
            return False
        names = ("clients", "steps", "width", "epochs", "longest")
        return all(getattr(self, name) >= getattr(other, name) for name in names)


def joined(blocks: list[Block], most: int) -> list[Block]:
    """Return neighbours of the same shape as one, of at most so many steps."""
    longer: list[Block] = []
    for block in blocks:
        if longer and replace(longer[-1], steps=block.steps) == block:
            total = longer[-1].steps + block.steps
            if total <= most:
                longer[-1] = replace(block, steps=total)
                continue
        longer.append(block)
    return longer


def few(count: int) -> int:
    """Return the next number with three significant bits, so that steps have few different shapes.

    >>> [few(count) for count in (1, 7, 8, 9, 15, 17, 33, 100)]
    [1, 7, 8, 10, 16, 20, 40, 112]
    """
    unit = 1 << max(0, count.bit_length() - 3)
    return -(-count // unit) * unit
