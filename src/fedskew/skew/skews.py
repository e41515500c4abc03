"""The registry of skews: one skew and then treatments of the rows: ``dirichlet:alpha=0.3 + noise:sigma=0.1``."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fedskew.core.errors import FedskewError, unknown
from fedskew.core.registry import YOURS, Choice, Composing, Registry, compose, parts_of
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition

# (rows: Rows, clients: int, stream: Stream, *, options) -> Partition
Skew: TypeAlias = Callable[..., Partition]
# (rows: Rows, partition: Partition, stream: Stream, *, options) -> Rows
Treatment: TypeAlias = Callable[..., Rows]


class Skews(Composing[Callable[..., Any]]):
    """The skews by name; a choice may also have treatments, which are in another registry."""

    def __init__(self, package: str, treatments: Registry[Callable[..., Any]]) -> None:
        super().__init__("skew", package)
        self.treatments = self.beside = treatments
        treatments.beside = self

    def get(self, name: str) -> Callable[..., Any]:
        """Return the skew of that name, or raise an error that names the nearest skew or treatment."""
        if name not in self:
            raise unknown(self.kind, name, [*self, *self.treatments], YOURS)
        return super().get(name)

    def home(self, part: Choice) -> Registry[Any]:
        """Return the treatments' registry for a treatment, this one for a skew."""
        if self._treats(part.name):
            return self.treatments
        return self

    def _treats(self, name: Any) -> bool:
        return name not in self.loaded() and name in self.treatments

    def choose(self, spec: "str | Mapping[str, Any] | Choice") -> Choice:
        """Validate every part of a specification; without a skew, treatments follow ``iid``."""
        if isinstance(spec, str):
            spec = _with_partitioner(spec)
        skew_parts = []
        treatment_parts = []
        for part in parts_of(spec, self.kind):
            if self._treats(_name(part)):
                treatment_parts.append(part)
            else:
                skew_parts.append(part)
        chosen = []
        for part in skew_parts:
            chosen.append(super().choose(part))
        treatments = [self.treatments.choose(part) for part in treatment_parts]
        if len(chosen) > 1:
            raise FedskewError(
                f"skew {spec}: {chosen[0].name} and {chosen[1].name} both partition the rows: keep one; "
                f"what may be added are treatments ({', '.join(self.treatments)})"
            )
        skew = Choice("iid", {})
        if chosen:
            skew = chosen[0]
        if treatments and skew.options.get("overlap"):
            raise FedskewError(
                f"skew {spec}: with overlap=true a row has several clients, and {treatments[0].name} treats it for "
                "one: leave one of them out"
            )
        return compose([skew, *treatments])

    def settle(
        self, spec: "str | Mapping[str, Any] | Choice", options: Mapping[str, Any]
    ) -> Choice:
        """Return the choice with these options of its skew."""
        first, *added = parts_of(self.choose(spec), self.kind)
        return compose([Choice(first.name, {**first.options, **options}), *added])


def _with_partitioner(spec: str) -> str:
    """Return a text that starts with a partitioner of Flower by its bare name, with this name as an option.

    >>> _with_partitioner("flower:IidPartitioner + noise:sigma=0.1")
    'flower:partitioner=IidPartitioner + noise:sigma=0.1'
    """
    return re.sub(r"^\s*flower:(\w+)(?=,|\s|$)", r"flower:partitioner=\1", spec)


def _name(part: Any) -> Any:
    if isinstance(part, Choice):
        return part.name
    if isinstance(part, Mapping):
        return part.get("name")
    return None


treatments: Registry[Treatment] = Registry("treatment", "fedskew.skew")
skews = Skews("fedskew.skew", treatments)
