"""Compositions of a method with additions: ``fedprox:mu=0.1 + krum:attackers=2`` is one class with two bases."""

from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING, Any, ClassVar

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
    places = _places_of_options(parts, f"algorithm {spelling}")
    about = {
        "parts": parts,
        "places": places,
        "addition": all(part.addition for part in parts),
        "__doc__": f"{spelling}, put together.",
    }
    declared = _declared(parts, places)
    made: type[Algorithm] = make_dataclass(
        name, declared, bases=bases, namespace=about, frozen=True
    )
    return made


Places = dict["type[Algorithm]", dict[str, str]]  # of a part -> its option -> the field that has it


def _places_of_options(parts: "tuple[type[Algorithm], ...]", where: str) -> Places:
    """Return in which field each option of each part is.

    An option of a name that several parts have is in a field of its own, if its part reads it by ``own``. One part may
    read it as it is written; two of these do not go together.
    """
    owners: dict[str, list[type[Algorithm]]] = {}
    for part in parts:
        for option in fields(part):
            owners.setdefault(option.name, []).append(part)
    places: Places = {part: {} for part in parts}
    for name, those in owners.items():
        plain = [part for part in those if len(those) == 1 or name not in part.read_by_part]
        if len(plain) > 1:
            raise FedskewError(
                f"{where}: {plain[0].label()} and {plain[1].label()} both have an option {name}: leave one "
                "of them out"
            )
        for part in those:
            places[part][name] = name
            if part not in plain:
                places[part][name] = f"{part.label()}_{name}".replace("-", "_")
    return places


def _declared(parts: "tuple[type[Algorithm], ...]", places: Places) -> "list[tuple[str, Any, Any]]":
    """Return the fields of a composed class for options whose names several parts have."""
    declared = []
    moved = {name for part in parts for name, place in places[part].items() if place != name}
    for part in parts:
        for option in fields(part):
            if option.name in moved:
                default = field(default=option.default)
                declared.append((places[part][option.name], option.type, default))
    used = {place for some in places.values() for place in some.values()}
    for name in moved - used:
        declared.append((name, ClassVar[Any], None))  # no option of the whole any more
    return declared


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
