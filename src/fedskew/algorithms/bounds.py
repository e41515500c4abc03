"""The two bounds of every comparison: all data in one place, and no sharing at all."""

from dataclasses import dataclass

from fedskew.algorithms.contract import Algorithm, Weighting, algorithms
from fedskew.models.layout import Layout


@algorithms.register("central")
@dataclass(frozen=True)
class Central(Algorithm):
    """Training on all data in one place, with one optimiser that is never reset: the upper bound.

    One round is ``epochs`` passes over the pooled rows.

    >>> sorted(Central().requires)
    ['optimizer_state', 'pooled_rows']
    """

    requires = frozenset({"pooled_rows", "optimizer_state"})
    weighting = Weighting(name="-")


@algorithms.register("local")
@dataclass(frozen=True)
class Local(Algorithm):
    """Training without sharing: each client trains its own model from a common start, with its own optimiser.

    The global model stays at its start; what counts are the clients' own models.
    """

    requires = frozenset({"optimizer_state"})
    weighting = Weighting(name="-")

    def local_names(self, layout: Layout) -> frozenset[str]:
        """Return every parameter and buffer."""
        return layout.parameters | layout.buffers
