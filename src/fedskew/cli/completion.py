"""What a shell completes: the names of components, and of their options behind a colon."""

from collections.abc import Callable

Completer = Callable[[str], list[str]]


def completing(kind: str) -> Completer:
    """Return what completes a SPEC of this kind of component, such as ``fedprox:m`` to ``fedprox:mu=``."""

    def complete(incomplete: str) -> list[str]:
        from fedskew.cli.listing import components

        things = components([kind])[kind]
        name, colon, options = incomplete.partition(":")
        if not colon:
            return [known for known in things if known.startswith(name)]
        if name not in things:
            return []
        earlier, comma, last = options.rpartition(",")
        found = []
        for option in things[name]["options"]:
            if option.startswith(last):
                found.append(f"{name}:{earlier}{comma}{option}=")
        return found

    return complete
