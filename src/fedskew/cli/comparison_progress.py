"""The progress of a comparison: rounds of all its runs, and about how long the others will take."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from fedskew.runs.callbacks import CallbackSpec
    from fedskew.study.member import Member

_EVERY = 10.0  # seconds between two lines, where there is no terminal


@dataclass
class RoundsDone:
    """How many rounds are done and left, and how long those that are left will take at the pace of those done.

    The pace leaves out the earlier rounds of resumed runs, and the first round of all, whose end starts the clock.
    """

    rounds: dict[str, int]  # of every run that was not finished
    before: int = 0  # runs that had ended before
    clock: Callable[[], float] = time.monotonic
    _began: float | None = None
    _first: dict[str, int] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)

    def heard(self, name: str, round: int, rounds: int) -> None:
        """Record that a run has ended a round."""
        self.rounds[name] = rounds
        if self._began is None:
            self._began = self.clock()
            self._first[name] = round
        self._first.setdefault(name, round - 1)
        self._last[name] = round

    @property
    def total(self) -> int:
        """Return the rounds of all runs."""
        return sum(self.rounds.values())

    @property
    def done(self) -> int:
        """Return how many rounds of all runs have ended."""
        return sum(self._last.values())

    @property
    def ended(self) -> int:
        """Return how many runs have had their last round."""
        return self.before + sum(self._last[name] >= self.rounds[name] for name in self._last)

    @property
    def left(self) -> float | None:
        """Return the seconds that the other rounds will take; None in the first second, when there is no pace yet."""
        new = self.done - sum(self._first.values())
        spent = self.clock() - (self._began or 0.0)
        if new and self._began is not None and spent >= 1:
            return spent / new * (self.total - self.done)
        return None

    def __str__(self) -> str:
        runs = self.before + len(self.rounds)
        text = f"{self.done}/{self.total} rounds, {self.ended} of {runs} runs done"
        left = self.left
        if left:
            text += f", about {duration(left)} left"
        return text


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(7.2), duration(300), duration(9000)
    ('8 s', '5 min', '2.5 h')
    """
    if seconds < 120:
        return f"{int(seconds) + 1} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


@contextmanager
def show_comparison(
    wanted: "Sequence[Member]", ended: int
) -> "Iterator[Callable[[Member], list[CallbackSpec]]]":
    """Show a bar, or a line every ten seconds without a terminal; yield a function from a run to its callbacks.

    ``wanted`` are the runs of this sitting, and ``ended`` is how many had ended before.
    """
    console = Console(stderr=True)
    pace = RoundsDone({member.name: member.experiment().rounds for member in wanted}, ended)
    if not console.is_terminal:
        yield _lines(pace)
        return
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    words = TextColumn(
        "{task.fields[state]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
    )
    with Progress(BarColumn(console.width // 6), words, console=console) as bars:
        bar = bars.add_task("", total=pace.total, state=str(pace))

        def watch(member: "Member") -> "list[CallbackSpec]":
            def show(result: Any, rounds: int) -> None:
                pace.heard(member.name, result.round["round"], rounds)
                bars.update(
                    bar, completed=pace.done, total=pace.total, state=f"{pace}  {member.name}"
                )

            return [show]

        yield watch


def _lines(pace: RoundsDone) -> "Callable[[Member], list[CallbackSpec]]":
    said = -_EVERY

    def watch(member: "Member") -> "list[CallbackSpec]":
        def show(result: Any, rounds: int) -> None:
            nonlocal said
            pace.heard(member.name, result.round["round"], rounds)
            if pace.clock() - said >= _EVERY or pace.done == pace.total:
                said = pace.clock()
                with suppress(OSError, ValueError):  # an error of stderr does not stop the training
                    print(f"{pace}; {member.name}", file=sys.stderr, flush=True)

        return [show]

    return watch
