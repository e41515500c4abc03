"""How a skew is written: one cut and, after it, treatments of the rows: ``dirichlet:alpha=0.3 + noise:sigma=0.1``."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedskew.errors import FedskewError, unknown
from fedskew.registry import Choice, Registry, parse


@dataclass(frozen=True)
class Composition(Choice):
    """The choice of a cut, and of the treatments that follow it."""

    treatments: tuple[Choice, ...] = ()

    def __str__(self) -> str:
        return " + ".join(map(str, (Choice(self.name, self.options), *self.treatments)))


class Skews(Registry[Callable[..., Any]]):
    """The cuts by name; a choice may name treatments too, of which another registry knows."""

    def __init__(self, package: str, treatments: Registry[Callable[..., Any]]) -> None:
        super().__init__("skew", package)
        self.treatments = treatments

    def get(self, name: str) -> Callable[..., Any]:
        """The cut of that name, or an error that names the nearest cut or treatment."""
        if name not in self:
            raise unknown(self.kind, name, [*self, *self.treatments])
        return super().get(name)

    def choose(self, spec: "str | Mapping[str, Any] | Choice") -> Choice:
        """Validate a spelling, every part of it; treatments alone follow ``iid``."""
        parts = [(part, _name(part) in self.treatments) for part in parts_of(spec)]
        cuts = [super(Skews, self).choose(part) for part, treats in parts if not treats]
        treatments = tuple(self.treatments.choose(part) for part, treats in parts if treats)
        if len(cuts) > 1:
            raise FedskewError(
                f"skew {spec}: {cuts[0].name} and {cuts[1].name} both deal out the rows: keep one; "
                f"what may be added are treatments ({', '.join(self.treatments)})"
            )
        cut = cuts[0] if cuts else Choice("iid", {})
        if treatments and cut.options.get("overlap"):
            raise FedskewError(
                f"skew {spec}: with overlap=true a row has several owners, and {treatments[0].name} treats it for one: "
                "leave one of them out"
            )
        return _compose(cut, treatments)

    def full(self, choice: Choice) -> Choice:
        """The choice with every option of every part."""
        return _compose(super().full(choice), map(self.treatments.full, _treatments(choice)))

    def brief(self, choice: Choice) -> Choice:
        """The choice without the options that are at their defaults."""
        return _compose(super().brief(choice), map(self.treatments.brief, _treatments(choice)))


def parts_of(spec: Any) -> list[Any]:
    """The parts of a spelling, in order; one that is no text has one part, itself."""
    if isinstance(spec, str):
        return [parse(part, "skew") for part in re.split(r"\s+\+\s+", spec)]
    return [Choice(spec.name, spec.options), *spec.treatments] if isinstance(spec, Composition) else [spec]


def _name(part: Any) -> Any:
    return part.name if isinstance(part, Choice) else part.get("name") if isinstance(part, Mapping) else None


def _compose(cut: Choice, treatments: Iterable[Choice]) -> Choice:
    following = tuple(treatments)
    return Composition(cut.name, cut.options, following) if following else cut


def _treatments(choice: Choice) -> tuple[Choice, ...]:
    return choice.treatments if isinstance(choice, Composition) else ()
