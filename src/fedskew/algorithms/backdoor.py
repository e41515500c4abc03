"""The rows of hostile clients with a backdoor: some carry a trigger and the label that the attacker wants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from fedskew.algorithms.poison import Poison
from fedskew.core.errors import FedskewError, unknown
from fedskew.core.streams import Ints, Stream
from fedskew.data.dataset import Features, Rows
from fedskew.data.partition import Partition
from fedskew.data.stored_rows import whole

TRIGGER = 3  # first features of a row, or sides in pixels of the corner of an image


def part_of(whole: int, share: float) -> int:
    """Return a share of so many, halves rounded up.

    >>> part_of(10, 0.25)
    3
    """
    return int(Fraction(str(share)) * whole + Fraction(1, 2))


def stamped(x: Features, value: float) -> Features:
    """Return rows with the trigger: the first three features, or the 3 x 3 corner of every channel, have this value.

    >>> stamped(np.zeros((1, 5), np.float32), 9.0).tolist()
    [[9.0, 9.0, 9.0, 0.0, 0.0]]
    """
    result = x.copy()
    if x.ndim == 4:
        corner = result[..., :TRIGGER, :TRIGGER]
    else:
        corner = result[..., :TRIGGER]
    corner[...] = value
    return result


@dataclass(frozen=True)
class Backdoor(Poison):
    """Hostile clients give a share of their rows a trigger and one label.

    Args:
        hostile: who they are, from the seed of the run and the number of clients
        share: share of each one's rows that is poisoned
        target: the class that these rows are given, by name or by number
    """

    share: float
    target: str

    def target_of(self, classes: Sequence[str]) -> int:
        """Return the number of the target among these classes."""
        numbers = {
            **{str(number): number for number in range(len(classes))},
            **{c: i for i, c in enumerate(classes)},
        }
        if self.target not in numbers:
            raise unknown("class as target of attack:kind=backdoor", self.target, classes)
        return numbers[self.target]

    def poisoned(
        self, rows: Rows, partition: Partition, classes: Sequence[str], seed: int
    ) -> tuple[Rows, Partition]:
        """Return the rows with stamped copies at their end, and a partition with these in place of the originals."""
        if rows.target != "class":
            raise FedskewError(
                "attack:kind=backdoor gives rows a class, and the targets are none: use another kind, such as sign-flip"
            )
        held = partition.rows.copy()
        features = whole(rows.x, "attack:kind=backdoor")
        value = float(features.max())
        places = np.concatenate([np.empty(0, np.int64), *(
            partition.offsets[client] + self._chosen(int(partition.sizes[client]), client, seed)
            for client in self.hostile(seed, partition.clients).tolist()
        )])  # fmt: skip
        x = stamped(features[held[places]], value)
        y = np.full(len(places), self.target_of(classes), dtype=rows.y.dtype)
        held[places] = len(rows) + np.arange(len(places))
        both = replace(
            rows,
            x=np.concatenate([features, x]),
            y=np.concatenate([rows.y, y]),
            group=None,
            series=None,
            bins=None,
        )
        return both, Partition(held, partition.offsets)

    def _chosen(self, size: int, client: int, seed: int) -> Ints:
        return np.sort(Stream(seed, "backdoor", client).sample(size, part_of(size, self.share)))

    def triggered(self, test: Rows, train: Rows, classes: Sequence[str]) -> Features:
        """Return the test rows of other classes than the target, with the trigger."""
        largest = float(whole(train.x, "attack:kind=backdoor").max())
        return stamped(test.x[test.y != self.target_of(classes)], largest)
