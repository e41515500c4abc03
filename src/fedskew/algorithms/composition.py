"""Compositions of a method with additions: ``fedprox:mu=0.1 + krum:attackers=2`` is one class with two bases."""

from collections.abc import Mapping
from dataclasses import fields, make_dataclass
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING, Any

from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice, Composing, compose, parts_of

if TYPE_CHECKING:
    from fedskew.algorithms.contract import Algorithm


class Algorithms(Composing["type[Algorithm]"]):
    """The registry of methods by name; a choice may consist of a method and additions."""

    def choose(self, spec: "str | Mapping[str, Any] | Choice") -> Choice:
        """Validate a choice: each of its parts, and whether they can be combined."""
        parts = []
        for part in parts_of(spec, self.kind):
            parts.append(super().choose(part))
        composed(tuple(self.get(part.name) for part in parts))
        return compose(parts)

    def name_of(self, thing: Any) -> str | None:
        """Return the name of a registered class, or the names of the registered classes that a class is composed of."""
        names = []
        for part in getattr(thing, "parts", ()) or (thing,):
            names.append(super().name_of(part))
        if None in names:
            return None
        return " + ".join(map(str, names))


@cache
def composed(parts: "tuple[type[Algorithm], ...]") -> "type[Algorithm]":
    """Return the class with all parts as its bases, the same one for the same parts; a single part is returned as is.

    Additions go before the method, in the order in which they are written: the ``combine`` of the first gets the
    clients' payloads, and passes its result on to the next.
    """
    if len(parts) == 1:
        return parts[0]
    spelling = " + ".join(part.label() for part in parts)
    _refuse_what_does_not_go_together(parts, f"algorithm {spelling}")
    bases = tuple(sorted(parts, key=lambda part: not part.addition))
    name = "+".join(part.__name__ for part in parts)
    about = {
        "parts": parts,
        "addition": all(part.addition for part in parts),
        "__doc__": f"{spelling}, put together.",
    }
    made: type[Algorithm] = make_dataclass(name, (), bases=bases, namespace=about, frozen=True)
    return made


def _refuse_what_does_not_go_together(parts: "tuple[type[Algorithm], ...]", where: str) -> None:
    for part in parts[1:]:
        if not part.addition:
            raise FedskewError(
                f"{where}: {part.label()} is a method of its own: what may follow a + are additions (fedskew list "
                "algorithms)"
            )
    for one, other in permutations(parts, 2):
        if one.addition and issubclass(other, one):
            raise FedskewError(f"{where}: {one.label()} is in it twice: keep one")
    owner: dict[str, str] = {}
    for part in parts:
        for option in fields(part):
            if option.name in owner:
                raise FedskewError(
                    f"{where}: {owner[option.name]} and {part.label()} both have an option {option.name}: leave one "
                    "of them out"
                )
            owner[option.name] = part.label()
