"""The federations of a study: data is read once, and each partition is made once."""

from collections.abc import Sequence
from dataclasses import replace

from fedskew.core.config import Experiment
from fedskew.data.dataset import Dataset
from fedskew.data.federation import Federation
from fedskew.runs.execute import PARTITION_SETTINGS
from fedskew.skew.federate import federate

_MEMORY = 4 << 30  # bytes of data sets and partitions that are kept


class Partitions:
    """The federations of a study, which its check and its runs share.

    Data is read once, or once per seed where the seed sets validation rows aside. A partition is made again only if
    memory had no room for it.
    """

    def __init__(self, memory: int = _MEMORY) -> None:
        self._memory = memory
        self._known: dict[tuple[str, ...], Federation] = {}

    def of(self, experiment: Experiment) -> Federation:
        """Return the federation of this experiment."""
        settled = _with_its_seed(experiment)
        key = _values(settled, PARTITION_SETTINGS)
        if key not in self._known:
            made = federate(settled, self._data(settled))
            self._make_room(made)
            self._known[key] = made
        return self._known[key]

    def _data(self, settled: Experiment) -> Dataset | None:
        """Return the data of an experiment, if they were read for another one."""
        names = ["data", "validation", "bins"]
        if settled.validation:
            names.append("split_seed")
        wanted = _values(settled, names)
        for key, fed in self._known.items():
            known = dict(zip(PARTITION_SETTINGS, key, strict=True))
            if tuple(known[name] for name in names) == wanted:
                return fed.data
        return None

    def _make_room(self, new: Federation) -> None:
        """Forget the oldest federations while memory has no room for all and the new one."""
        while self._known and _bytes_of([*self._known.values(), new]) > self._memory:
            del self._known[next(iter(self._known))]


def _with_its_seed(experiment: Experiment) -> Experiment:
    """Return the experiment with the seed of its partition, which is its own by default."""
    if experiment.split_seed is not None:
        return experiment
    return replace(experiment, split_seed=experiment.seed)


def _values(experiment: Experiment, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(repr(getattr(experiment, name)) for name in names)


def _bytes_of(federations: list[Federation]) -> int:
    """Return the memory of federations; arrays that several of them share count once."""
    arrays = {}
    for fed in federations:
        for array in (fed.data.train.x, fed.data.test.x, fed.train.x, fed.partition.rows):
            arrays[id(array)] = array.nbytes
    return sum(arrays.values())
