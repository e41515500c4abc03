"""The progress of a training on stderr: bars on a terminal, lines in a log, and the address of a live page."""

import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedskew.cli.console.progress_lines import log_lines
from fedskew.cli.console.run_progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedskew.runs.callbacks import Callback, CallbackSpec
    from fedskew.runs.folder import Row


@contextmanager
def show_progress(names: Sequence[str], rounds: int, simulated: bool = True) -> "Iterator[Any]":
    """Show progress bars, or lines without a terminal; yield a function from the name of a run to its callbacks.

    A run that is not ``simulated`` has no simulated time.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        from fedskew.cli.console.progress_bars import show_bars

        showing = show_bars(console, names, rounds)
    else:
        showing = log_lines()
    with showing as follow:
        yield lambda name: [_following(follow, Progress(name, rounds, simulated=simulated))]


def _following(follow: "Callable[[Progress], None]", progress: Progress) -> "CallbackSpec":
    """Return a callback that counts the rounds of a run, and lets them be shown."""
    from fedskew.runs.callbacks import Callback

    class Following(Callback):
        def on_run_start(self, server: Any, folder: Path | None, rows: "Sequence[Row]") -> None:
            progress.begin(rows)

        def on_round_end(self, result: Any, rounds: int) -> None:
            progress.add(result.round, rounds)
            follow(progress)

    follow(progress)
    return Following()


@contextmanager
def live_page(wanted: bool) -> "Iterator[list[Callback]]":
    """Serve the page of a run while it goes on, if that is wanted, and print its address; yield its callback."""
    from fedskew.report.live import serving

    with serving(wanted) as pages:
        for page in pages:
            print(f"live: {page.url}", file=sys.stderr, flush=True)
        yield list(pages)
