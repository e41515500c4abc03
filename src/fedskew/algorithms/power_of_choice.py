"""Power-of-choice: of some candidates, those train whose loss under the shared model is highest."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedskew.algorithms.contract import Algorithm, Weighting, algorithms
from fedskew.algorithms.selection import (
    ClientPool,
    Probe,
    Selection,
    SelectionAround,
    TrainConfig,
    selects_itself,
)
from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne
from fedskew.core.streams import Floats, Ints, Stream


@algorithms.register("power-of-choice")
@dataclass(frozen=True)
class PowerOfChoice(Algorithm):
    """Selection of clients with a high loss (Cho, Wang and Joshi 2020, section 4, "pow-d").

    Training is that of the method it is added to, FedAvg when alone. In every round ``d`` candidates are drawn without
    replacement, in proportion to their rows; each gets the model and measures its mean loss, on all its rows or on one
    batch (the paper's "cpow-d"); the ``m`` of the highest loss train, ``m`` being the setting ``per_round``. Ties go
    to the lower client number. The clock and the bytes include what candidates measure. ``candidates = 1`` draws
    ``d = m`` and is selection in proportion to rows.

    Readings: the paper gives ``d``; here it is ``candidates`` for each place, ``d = candidates m`` rounded, at most all
    clients that are available. The paper counts the selected clients equally, ``weights=uniform`` (or ``paper``). A
    method that selects clients itself is refused.

    Args:
        candidates: candidates for each place in the round, the paper's d over m
        rows: the loss is taken on all rows of a candidate (all) or on one batch (batch)

    >>> pool, losses = ClientPool(0, sizes=np.array([9, 9, 9])), {"loss": np.array([0.5, 2.0, 1.0])}
    >>> PowerOfChoice().client_selection.configure_training(pool, np.arange(3), losses, count=2).clients.tolist()
    [1, 2]
    """

    addition: ClassVar[bool] = True
    read_by_part: ClassVar[frozenset[str]] = frozenset({"rows", "candidates"})

    candidates: Annotated[float, AtLeastOne] = 2.0
    rows: Literal["all", "batch"] = "all"

    @property
    def client_selection(self) -> Selection:
        """Return the selection of candidates with a high loss."""
        inside = super().client_selection
        if selects_itself(inside):
            raise FedskewError(
                f"algorithm {self.label()}: the method selects clients itself, and so does power-of-choice: "
                "leave one of them out"
            )
        mine = self.own(PowerOfChoice)
        return HighestLoss(inside, mine.candidates, mine.rows)

    @property
    def weighting(self) -> Weighting:
        """Return the method's weighting; the paper's own is the same for all clients."""
        return replace(super().weighting, paper="uniform")


class HighestLoss(SelectionAround):
    """Selects the clients with the highest loss among candidates that are drawn in proportion to size."""

    def __init__(self, inner: Selection, candidates: float, rows: Literal["all", "batch"]) -> None:
        super().__init__(inner)
        self.candidates = candidates
        self.rows = rows

    @property
    def probe(self) -> tuple[Probe, ...]:  # type: ignore[override]
        """Return that candidates measure their loss."""
        return ("loss",)

    def select(self, pool: ClientPool, count: int, stream: Stream) -> Ints:
        """Return the candidates."""
        drawn = min(round(self.candidates * count), len(pool))
        if drawn == len(pool):
            return np.arange(drawn)
        return stream.weighted_sample(pool.sizes, drawn)

    def probe_rows(self, pool: ClientPool, chosen: Ints) -> Ints:
        """Return the number of all rows of a candidate, or the batch size."""
        if self.rows == "all":
            return pool.sizes[chosen]
        return super().probe_rows(pool, chosen)

    def configure_training(
        self, pool: ClientPool, chosen: Ints, probed: Mapping[str, Floats], count: int
    ) -> TrainConfig:
        """Return the candidates of the highest loss; one whose loss is NaN comes last."""
        # Stable, so that the first of equals is taken
        highest = np.sort(np.argsort(-probed["loss"], kind="stable")[:count])
        return super().configure_training(pool, chosen[highest], {}, count)
