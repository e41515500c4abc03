"""The complete works of Shakespeare, divided by speaking role as LEAF divides them: the next character of a line."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.registry import AtLeastOne
from fedskew.core.streams import Ints
from fedskew.data.dataset import Rows
from fedskew.data.readers.arrays import Arrays
from fedskew.data.source import Source, TestShare, find, register

# LEAF's characters, in its order (models/utils/language_utils.py, ALL_LETTERS)
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_FILE = "shakespeare/t8.shakespeare.txt"
_AUTHOR = "by William Shakespeare"
_LAST_LINE = 124_196  # after it come the poems
_FEWEST_LINES = 3  # of a role
# How a speech begins, and how it goes on: everywhere, and in the one play that is not indented
_BEGINS = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_GOES_ON = re.compile(r"    (.*)")
_BEGINS_FLUSH = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
_GOES_ON_FLUSH = re.compile(r"(.*)")
_FLUSH_PLAY = "THE COMEDY OF ERRORS"


@register(
    "shakespeare",
    Source(
        "plays: public domain, this edition: Project Gutenberg and World Library 1994, not for commercial copies; "
        "roles as in LEAF, Caldas et al. 2018",
        files=(_FILE,),
        manual=(
            "get Project Gutenberg's etext 100 of 1994 (t8.shakespeare.txt, 5,458,199 bytes) and copy it to "
            "{root}/shakespeare/t8.shakespeare.txt"
        ),
    ),
)
def shakespeare(
    *,
    window: Annotated[int, AtLeastOne] = 80,
    stride: Annotated[int, AtLeastOne] = 20,
    test: TestShare = 0.2,
    roles: Annotated[int | None, AtLeastOne] = None,
    targets: Literal["next", "sequence"] = "next",
) -> Arrays:
    """The next of 80 characters after 80 others, in the plays of Shakespeare, with the speaking role as group (LEAF).

    Rows are tokens, for a model such as char-lstm. Windows of a role overlap, so a skew deals whole roles; the end of
    every role's text is for test, and shares no character with what is trained on. Roles of fewer than three lines are
    left out, as in LEAF.

    Args:
        window: characters of a row
        stride: characters from one row to the next; LEAF has 1, which is 4.2 million rows and several gigabytes
        test: share of every role's text, at its end, that is for test
        roles: how many roles, those with the most text; by default all, 1,130 with windows of 80
        targets: next for the character after each window, a class; sequence for the one after each of its characters,
            for task=next-token
    """
    path = find("shakespeare", _FILE)
    with reading(path):
        text = path.read_text(encoding="ascii", errors="replace")
    said = speeches(text)
    chosen = sorted(said, key=lambda role: (-len(said[role]), role))[:roles]
    names = sorted(role for role in chosen if len(said[role]) > window)
    if not names:
        raise FedskewError(
            f"shakespeare: no role has more than window={window} characters in {path}: use a smaller one, or put the "
            "published file there"
        )
    trained, tested = _Windows(window, stride, targets), _Windows(window, stride, targets)
    for number, role in enumerate(names):
        tokens = _tokens(said[role])
        cut = len(tokens) - int(test * len(tokens))
        if len(tokens) - cut <= window:  # too short for a row of test
            cut = len(tokens)
        trained.add(tokens[:cut], number)
        tested.add(tokens[cut:], number)
    return Arrays(
        trained.rows(overlap=stride <= window),
        tested.rows(overlap=stride <= window),
        tuple(LETTERS.replace("\n", "¶")),
        groups=tuple(names),
        notes=(f"the last {test:g} of every role's text held out for test",),
    )


class _Windows:
    """Collects the windows of texts, and the token after each of them or (``sequence``) of their tokens."""

    def __init__(self, window: int, stride: int, targets: str) -> None:
        self.window = window
        self.stride = stride
        self.sequence = targets == "sequence"
        self.x: list[NDArray[Any]] = [np.zeros((0, window), dtype=np.uint8)]
        self.y: list[NDArray[Any]] = [np.zeros(self._of_targets(), dtype=np.uint8)]
        self.roles: list[Ints] = [np.zeros(0, dtype=np.int64)]

    def _of_targets(self) -> tuple[int, ...]:
        """Return the shape of the targets of no window."""
        if self.sequence:
            return (0, self.window)
        return (0,)

    def add(self, tokens: NDArray[Any], role: int) -> None:
        """Add the windows of a text, if it is longer than one."""
        if len(tokens) <= self.window:
            return
        views = np.lib.stride_tricks.sliding_window_view(tokens, self.window + 1)[:: self.stride]
        self.x.append(views[:, :-1])
        if self.sequence:
            self.y.append(views[:, 1:])
        else:
            self.y.append(views[:, -1])
        self.roles.append(np.full(len(views), role))

    def rows(self, overlap: bool) -> Rows:
        """Return all windows; those that overlap say of which role they are."""
        group = np.concatenate(self.roles)
        series = None
        if overlap:
            series = group
        labels = np.concatenate(self.y).astype(np.int64)
        return Rows(np.concatenate(self.x), labels, group, series)


def _tokens(text: str) -> NDArray[Any]:
    """Return the number of every character; a character that LEAF does not know counts as a space."""
    place = np.full(128, LETTERS.index(" "), dtype=np.uint8)
    for number, letter in enumerate(LETTERS):
        place[ord(letter)] = number
    codes = np.frombuffer(text.encode("ascii", errors="replace"), dtype=np.uint8)
    return place[codes]


def speeches(text: str) -> dict[str, str]:
    """Return what every role says, as one text with single spaces, by ``PLAY_ROLE``.

    >>> play = "\\n\\n\\n\\n\\n1\\nTHE PLAY\\n\\nby William Shakespeare\\n"
    >>> both = "  ANNE. One\\n    two.\\n  Bob. Yes.\\n    No.\\n    So.\\n  ANNE. Three."
    >>> speeches("x\\nby William Shakespeare" + play + both)
    {'THE_PLAY_ANNE': 'One two. Three.', 'THE_PLAY_BOB': 'Yes. No. So.'}
    """
    found: dict[str, list[str]] = {}
    for title, lines in _plays(text.splitlines()):
        said = _roles(lines, flush=title == _FLUSH_PLAY)
        if len(said) < 2:  # a poem
            continue
        for role, own in said.items():
            if len(own) >= _FEWEST_LINES:
                name = re.sub(r"\W+", "_", f"{title}_{role}".replace(" ", "_"))
                found.setdefault(name, []).extend(own)
    texts = {}
    for name, own in found.items():
        texts[name] = re.sub(" +", " ", " ".join(own))
    return texts


def _plays(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the lines of every play; the first author's line of the file is that of the collection."""
    lines = lines[: _LAST_LINE + 1]
    starts = [number for number, line in enumerate(lines) if _AUTHOR in line][1:]
    for start, end in pairwise([*starts, len(lines)]):
        yield _title(lines[max(0, start - 7) : start]), lines[start + 1 : end]


def _title(above: list[str]) -> str:
    """Return the last line above the author's that is not empty, the one right above it left out."""
    for line in reversed(above[:-1]):
        if line.strip():
            return line.strip()
    return ""


def _roles(lines: list[str], flush: bool) -> dict[str, list[str]]:
    """Return the lines of every role of a play."""
    begins, goes_on = _BEGINS, _GOES_ON
    if flush:
        begins, goes_on = _BEGINS_FLUSH, _GOES_ON_FLUSH
    said: dict[str, list[str]] = {}
    role = ""
    for line in lines:
        if start := begins.match(line):
            role = start[1].upper()
            if flush and role.startswith("ACT "):
                role = ""
            else:
                said.setdefault(role, []).append(start[2])
            continue
        more = goes_on.match(line)
        if not role or more is None:
            continue
        if flush and more[1].startswith("<"):
            role = ""
        else:
            said[role].append(more[1])
    return said
