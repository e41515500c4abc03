"""Writing tables, lists, text and whole numbers as a pickle of protocol 0, for tools that read nothing else.

It is written sign by sign, as no module here may load the code that unpickles.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedskew.core.errors import FedskewError


def pickled(value: Any) -> bytes:
    """Return a value as a pickle, which ``pickle.load`` of any Python 3 reads.

    >>> pickled({"train": [0, 1]})
    b'(dVtrain\\n(lI0\\naI1\\nas.'
    """
    signs: list[str] = []
    _write(value, signs)
    return ("".join(signs) + ".").encode("ascii")


def _write(value: Any, signs: list[str]) -> None:
    if isinstance(value, Mapping):
        signs.append("(d")
        for key, item in value.items():
            _write(key, signs)
            _write(item, signs)
            signs.append("s")
    elif isinstance(value, str):
        if not value.isascii() or not value.isprintable() or "\\" in value:
            raise FedskewError(f"{value!r} cannot be written as a pickle: use plain letters")
        signs.append(f"V{value}\n")
    elif isinstance(value, Sequence):
        signs.append("(l")
        for item in value:
            _write(item, signs)
            signs.append("a")
    else:
        signs.append(f"I{value:d}\n")
