"""Simulated hostile clients as an addition to a method: ``fedavg + attack:kind=sign-flip,share=0.2 + median``."""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms.backdoor import Backdoor, part_of
from fedskew.algorithms.contract import Algorithm, Requirement, View, algorithms
from fedskew.algorithms.poison import FlippedLabels, Poison
from fedskew.algorithms.selection import KeyedSelection, Selection, SelectionAround
from fedskew.algorithms.topologies import Scheduled
from fedskew.core.device_streams import normal
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Positive, Share
from fedskew.core.streams import Floats, Ints, Stream
from fedskew.core.trees import Tensors, Tree

_HOSTILE, _KEY = "hostile", "attack"  # of the numbers of a client


@algorithms.register("attack")
@dataclass(frozen=True)
class Attack(Algorithm):
    """Hostile clients: the same random ``share`` of all clients in every round, whoever else is selected.

    ``sign-flip`` sends the negative update times ``strength``; ``gaussian`` sends normal noise of standard deviation
    ``strength`` in place of the update; ``label-flip`` sends an honest update for wrong labels, y -> classes - 1 - y
    (these three, e.g., in Fang et al. 2020 and Li et al. 2019). ``backdoor`` trains on rows of which a part,
    ``poisoned``, carries a trigger and the label ``target``, the same rows in every round, and sends its update times
    ``strength`` (Gu et al. 2017; Bagdasaryan et al. 2020, without their choice of the factor). The trigger is the first
    three features of a row, or the 3 x 3 pixels in the corner of an image, set to the largest value of any feature in
    the training rows. The column ``backdoor_success`` of the table of rounds is the share of the test rows of other
    classes, with the trigger, that the global model takes for the target. Other parts of what the method sends, and
    buffers, are as those of honest clients. The table of clients has a column ``hostile``; aggregation rules do not
    see it.

    Methods that train one model on the samples of all clients (Stratify, SFL) have no updates. Hostile clients change
    their rows there, with ``label-flip`` and with ``backdoor`` at ``strength=1``, and announce to a label schedule the
    labels that they claim to have. The other kinds are refused.

    Args:
        kind: what hostile clients do
        share: share of the clients that are hostile, rounded to a whole number of clients
        strength: factor of the update (negative in sign-flip), or standard deviation of the noise; label-flip has none
        target: with backdoor, the class of the poisoned rows, by name or number
        poisoned: with backdoor, share of a hostile client's rows that are poisoned

    >>> hostile_clients(0, 10, 0.2).tolist() == hostile_clients(0, 10, 0.2).tolist(), len(hostile_clients(0, 10, 0.25))
    (True, 3)
    """

    addition: ClassVar[bool] = True

    kind: Literal["sign-flip", "label-flip", "gaussian", "backdoor"] = "sign-flip"
    share: Annotated[float, Share] = 0.2
    strength: Annotated[float, Positive] = 1.0
    target: str = "0"
    poisoned: Annotated[float, Share] = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._changes_updates and isinstance(self.topology(0), Scheduled):
            raise FedskewError(
                f"algorithm {self.label()}: one model is trained by all clients, so no updates are sent that "
                f"kind={self.kind},strength={self.strength:g} could change: use kind=label-flip, or kind=backdoor "
                "with strength=1, which change rows"
            )

    @property
    def poison(self) -> Poison | None:
        """Return what hostile clients do to their rows."""
        hostile = partial(hostile_clients, share=self.share)
        if self.kind == "backdoor":
            return Backdoor(hostile, self.poisoned, self.target)
        if self._flips_rows:
            return FlippedLabels(hostile)
        return super().poison

    @property
    def _changes_updates(self) -> bool:
        """Return whether hostile clients send another update than that of their rows."""
        if self.kind == "backdoor":
            return self.strength != 1
        return self.kind != "label-flip"

    @property
    def _flips_rows(self) -> bool:
        """Return whether labels are flipped in the rows: steps of a sample schedule know no objective."""
        return self.kind == "label-flip" and isinstance(self.topology(0), Scheduled)

    @property
    def requires(self) -> frozenset[Requirement]:
        """Return that clients send updates that are changed, and that there are classes whose labels can be flipped."""
        needed: set[Requirement] = set()
        if self._changes_updates:
            needed.add("updates")
        if self.kind == "label-flip":
            needed.add("classes")
        return super().requires | needed

    @property
    def client_selection(self) -> Selection:
        """Return the method's selection, in which each client knows whether it is hostile."""
        inside = super().client_selection
        return HostileSelection(
            KeyedSelection(inside, _KEY) if self.kind == "gaussian" else inside, self.share
        )

    def objective(self, loss: Tensor, view: View) -> Tensor:
        """Return the method's objective; with label-flip, hostile clients have it for other labels."""
        batch = view.batch
        if self.kind != "label-flip" or self._flips_rows or batch is None:
            return super().objective(loss, view)
        hostile = view.numbers[_HOSTILE] > 0

        # The loss of y with the outputs in reverse is that of classes - 1 - y
        def flipped(logits: Tensor) -> Tensor:
            return torch.where(hostile, batch.loss(logits.flip(-1)), batch.loss(logits))

        labels = torch.where(hostile, batch.logits.shape[-1] - 1 - batch.labels, batch.labels)
        counts = view.class_counts
        if counts is not None:
            counts = torch.where(hostile, counts.flip(-1), counts)
        other = replace(
            view, batch=replace(batch, labels=labels, loss=flipped), class_counts=counts
        )
        return super().objective(
            torch.where(hostile, batch.loss(batch.logits.flip(-1)), loss), other
        )

    def payload(self, view: View) -> Tree:
        """Return what the method sends; hostile clients send another update."""
        sent = super().payload(view)
        if self.kind == "label-flip":
            return sent
        if "delta" not in sent:
            raise FedskewError(
                f"{self.label()} changes updates (delta), and the method sends {', '.join(sent)}"
            )
        hostile = view.numbers[_HOSTILE] > 0
        delta = sent["delta"]
        if self.kind == "gaussian":
            bad = self._noise(delta, view)
        else:
            bad = delta
        if self.kind == "sign-flip":
            bad = {name: -value for name, value in delta.items()}
        return {
            **sent,
            "delta": {
                name: torch.where(hostile, self.strength * bad[name], value)
                for name, value in delta.items()
            },
        }

    def _noise(self, delta: Tensors, view: View) -> Tensors:
        result: Tensors = {}
        for i, name in enumerate(sorted(delta)):
            result[name] = normal(view.numbers[_KEY], i, delta[name])
        return result


class HostileSelection(SelectionAround):
    """Tells a share of the clients, always the same ones, that they are hostile."""

    def __init__(self, inner: Selection, share: float) -> None:
        super().__init__(inner)
        self.share = share

    def client_numbers(
        self, clients: Ints, population: int, round: int, seed: int
    ) -> dict[str, Floats]:
        """Return 1 for hostile clients and 0 for others, in addition to what clients know otherwise."""
        hostile = np.isin(clients, hostile_clients(seed, population, self.share)).astype(np.float64)
        return {**self.inner.client_numbers(clients, population, round, seed), _HOSTILE: hostile}


@lru_cache(maxsize=8)
def hostile_clients(seed: int, population: int, share: float) -> Ints:
    """Return the hostile ones of so many clients: the share of them, halves rounded up, by the seed alone."""
    return np.sort(Stream(seed, _HOSTILE).sample(population, part_of(population, share)))
