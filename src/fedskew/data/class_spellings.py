"""Spellings of classes: which ones mean the same, and where clients write the same class in several ways."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.data.cells import distinct, text_of

if TYPE_CHECKING:
    from fedskew.data.cells import Column

AS_IS = "as-is"  # classes are what the files hold, however they are spelled
_QUOTED = 64  # classes of a column of which one may be quoted: more may be the names of persons
_LISTED = 5  # classes of a client in an error
_YES = (
    "yes",
    "y",
    "true",
    "t",
    "1",
    "ja",
    "j",
    "oui",
    "si",
    "sí",
    "positive",
    "positiv",
    "pos",
    "+",
)
_NO = ("no", "n", "false", "f", "0", "nein", "non", "negative", "negativ", "neg", "-")
_KNOWN: dict[str, str] = {**dict.fromkeys(_YES, "yes"), **dict.fromkeys(_NO, "no")}


def with_classes(where: str, column: "Column", labels: Sequence[str]) -> "Column":
    """Return a column of classes with the classes of ``labels=yes:Y:1+no:N:0`` in place of their spellings.

    Capitals, and spaces at the ends, do not matter.
    """
    import pandas as pd

    if not labels or tuple(labels) == (AS_IS,):
        return column
    classes = _classes_by_spelling(labels)
    what = f"column {column.name!r}"
    codes, values = distinct(where, what, column)
    names = []
    for value in values:
        text = text_of(value)
        if _plain(text) not in classes:
            raise _not_named(where, what, text, labels, len(values))
        names.append(classes[_plain(text)])
    return pd.Series(np.array(names, dtype=object)[codes], index=column.index, name=column.name)


def _not_named(
    where: str, what: str, text: str, labels: Sequence[str], classes: int
) -> FedskewError:
    shown = f"the class {text!r}"
    if classes > _QUOTED:
        shown = "a class"
    return FedskewError(
        f"{where}: {what} holds {shown}, which labels={'+'.join(labels)} does not name: add it to its class, or as "
        "one of its own"
    )


def _classes_by_spelling(labels: Sequence[str]) -> dict[str, str]:
    """Return the class of each spelling."""
    classes: dict[str, str] = {}
    for entry in labels:
        name = entry.split(":")[0].strip()
        for spelling in entry.split(":"):
            known = classes.setdefault(_plain(spelling), name)
            if known != name or not spelling.strip():
                raise FedskewError(
                    f"labels={'+'.join(labels)}: {spelling!r} is not a spelling of one class alone: write "
                    "CLASS:SPELLING:SPELLING+CLASS:SPELLING"
                )
    return classes


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


# -- what clients have -------------------------------------------------------------------------------------------------


def refuse_other_spellings(
    name: str, what: str, classes: Mapping[str, Iterable[Any]], labels: Sequence[str]
) -> None:
    """Raise an error if clients seem to spell one class in several ways, or have no class in common.

    ``classes`` are those of each client, by its name. Whoever says ``labels=`` has settled it.
    """
    if labels:
        return
    texts: dict[str, list[str]] = {}
    for client, values in classes.items():
        texts[client] = list(dict.fromkeys(map(text_of, values)))
    groups = _same_classes(texts)
    if max(map(len, groups), default=0) > 1:
        fix = "+".join(map(":".join, groups))
        raise FedskewError(
            f"{name}: {what} spells classes in several ways: {_listed(texts)}: say labels={fix} if these are the same, "
            f"or labels={AS_IS} if all are different classes"
        )
    apart = _nothing_in_common(texts)
    if apart:
        raise FedskewError(
            f"{name}: {_listed(apart)} have no class in common ({what}): if some "
            "are the same, write all classes with their spellings, labels=CLASS:SPELLING+CLASS:SPELLING; if all are "
            f"different classes, say labels={AS_IS}"
        )


def _same_classes(texts: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the classes of all clients, those together that differ in capitals and spaces or mean yes, or no."""
    every: dict[str, None] = {}
    for own in texts.values():
        every |= dict.fromkeys(own)
    known = _are_yes_and_no(every)
    groups: dict[str, list[str]] = {}
    for text in every:
        key = _plain(text)
        if known:
            key = _KNOWN.get(key, key)
        groups.setdefault(key, []).append(text)
    return list(groups.values())


def _are_yes_and_no(texts: Iterable[str]) -> bool:
    """Return whether classes are to be read as yes and no: all are known spellings of these, or several words are.

    Letters and digits alone, such as those of handwriting, are not spellings of yes and no.
    """
    plain = set(map(_plain, texts))
    if plain <= _KNOWN.keys():
        return True
    spellings: dict[str, list[str]] = {}
    for text in plain & _KNOWN.keys():
        spellings.setdefault(_KNOWN[text], []).append(text)
    for same in spellings.values():
        if len(same) > 1 and max(map(len, same)) > 1:
            return True
    return False


def _nothing_in_common(texts: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the classes of two clients that no chain of common classes joins; empty if there are none."""
    clients = [client for client, own in texts.items() if own]
    if not clients:
        return {}
    joined = set(texts[clients[0]])
    left = clients[1:]
    growing = True
    while growing:
        growing = False
        for client in list(left):
            if joined & set(texts[client]):
                joined |= set(texts[client])
                left.remove(client)
                growing = True
    if not left:
        return {}
    return {clients[0]: texts[clients[0]], left[0]: texts[left[0]]}


def _listed(texts: Mapping[str, Sequence[str]]) -> str:
    """Return the classes of the first clients."""
    said = []
    for client, own in list(texts.items())[:_LISTED]:
        shown = ", ".join(map(repr, own[:_LISTED]))
        if len(own) > _LISTED:
            shown += f" and {len(own) - _LISTED} more"
        said.append(f"{client or 'the table'} has {shown}")
    if len(texts) > _LISTED:
        said.append(f"and {len(texts) - _LISTED} more clients")
    return "; ".join(said)
