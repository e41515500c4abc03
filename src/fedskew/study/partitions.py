"""The federations of a study: data is read once, and each partition is made once."""

from fedskew.core.config import Experiment
from fedskew.data.federation import Federation
from fedskew.skew.federate import federate

MOST = 16  # partitions that are kept
_MEMORY = 4 << 30  # bytes of data sets that depend on the seed


class Partitions:
    """The federations of a study; data is read once, or once for every seed if rows are set aside by it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Federation] = {}

    def of(self, experiment: Experiment) -> Federation:
        """Return the federation of this experiment."""
        seed = experiment.split_seed
        if seed is None:
            seed = experiment.seed
        key = str(experiment.skew), seed
        if key not in self._known:
            self._known[key] = self._make(experiment)
        return self._known[key]

    def _make(self, experiment: Experiment) -> Federation:
        """Make a federation from data that was read before, where it may; forget the others where they are too many."""
        data = None
        if self._known and not experiment.validation:
            data = next(reversed(self._known.values())).data
        bytes_held = sum(fed.data.train.x.nbytes for fed in self._known.values())
        too_large = experiment.validation and bytes_held > _MEMORY
        if too_large or len(self._known) >= MOST:
            self._known.clear()
        return federate(experiment, data)
