"""The progress of a training on a terminal: one line with a bar for each run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.table import Column
from rich.text import Text

from fedskew.cli.console.readable_values import sparkline
from fedskew.cli.console.run_progress import Progress

_WIDE = 70  # columns of a terminal with room for bars


@contextmanager
def show_bars(
    console: Console, names: Sequence[str], rounds: int
) -> "Iterator[Callable[[Progress], None]]":
    """Show the runs with these names; yield the function that is told what is new of one."""
    wide = console.width >= _WIDE
    columns = _columns(console.width, wide, names, rounds)
    with _Bars(columns, console, wide) as shown:
        tasks: dict[Progress, bars.TaskID] = {}

        def follow(progress: Progress) -> None:
            if progress not in tasks:
                tasks[progress] = shown.add_task("", total=progress.rounds, progress=progress)
            shown.latest = progress
            shown.update(tasks[progress], completed=progress.round, total=progress.rounds)

        yield follow


class _Bars(bars.Progress):
    """One line a run, and below them what else is known of the one that has just ended a round."""

    def __init__(
        self, columns: Sequence[bars.ProgressColumn], console: Console, wide: bool
    ) -> None:
        self.wide = wide
        self.latest: Progress | None = None
        super().__init__(*columns, console=console)

    def get_renderables(self) -> "Iterable[Any]":
        """Return the lines of the runs, and the one below them."""
        yield self.make_tasks_table(self.tasks)
        if self.latest is not None:
            words = [*self.latest.score[1:], *self.latest.details]
            if not self.wide:  # where the lines have no room for it
                words = [*self.latest.left, *words]
            yield Text("   ".join(words), style="dim", no_wrap=True, overflow="ellipsis")


class _Words(bars.ProgressColumn):
    """A column with a text about each run."""

    def __init__(self, say: "Callable[[Progress], str]", **look: Any) -> None:
        super().__init__(table_column=Column(no_wrap=True, **look))
        self._say = say

    def render(self, task: bars.Task) -> Text:
        """Return the text about one run."""
        return Text(self._say(task.fields["progress"]), overflow="ellipsis")


def _columns(
    width: int, wide: bool, names: Sequence[str], rounds: int
) -> list[bars.ProgressColumn]:
    """Return name, bar, rounds, score and time left; a narrow terminal has neither bar nor time."""
    longest = max(map(len, names))
    width_of_rounds = len(f"{rounds}/{rounds}")  # which are never cut
    name = _Words(lambda run: run.name, width=min(longest, max(8, width // 4)))
    done = _Words(
        lambda run: f"{run.round}/{run.rounds}", justify="right", min_width=width_of_rounds
    )
    score = _Words(lambda run: " ".join([*run.score[:1], sparkline(run.curve, width // 8)]))
    if not wide:
        return [name, done, score]
    bar = bars.BarColumn(bar_width=width // 6)
    left = _Words(lambda run: " ".join(run.left), min_width=9)
    return [name, bar, done, score, left]
