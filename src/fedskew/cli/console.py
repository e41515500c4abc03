"""What a command prints: consoles, the progress of a training, and the table of results at its end."""

import math
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedskew.runs.callbacks import Callback, CallbackSpec
    from fedskew.runs.summary import Row


_RECENT = 50  # rounds, from whose time the time left is told
_LARGE = 1e6  # from here on numbers are in powers of ten
_ENDING = ("seeds", "p")  # columns at the end of the table of a comparison
_WIDE = 70  # columns of a terminal with room for bars
_BLOCKS = "▁▂▃▄▅▆▇█"


class _Console(Console):
    """A console that raises BrokenPipeError, where Rich would exit with an error."""

    def on_broken_pipe(self) -> None:
        """Raise the error again, so that the command line can exit normally."""
        raise BrokenPipeError


def console_for(stderr: bool = False) -> Console:
    """Return a console; without a terminal it has no colours and is 200 columns wide."""
    console = _Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 200
    return console


def escape(text: str) -> str:
    """Return the text with brackets escaped, so that Rich prints it unchanged."""
    return text.replace("[", "\\[")


@contextmanager
def show_progress(names: Sequence[str], rounds: int) -> "Iterator[Any]":
    """Show progress bars, or lines without a terminal; yield a function from the name of a run to its callbacks."""
    console = Console(stderr=True)
    with (
        _bars(console, max(map(len, names)), len(f"{rounds}/{rounds}"))
        if console.is_terminal
        else log_lines() as follow
    ):
        yield lambda name: [_following(follow, Progress(name, rounds))]


@contextmanager
def live_page(wanted: bool) -> "Iterator[list[Callback]]":
    """Serve the page of a run while it goes on, if that is wanted, and print its address; yield its callback."""
    from fedskew.report.live import serving

    with serving(wanted) as pages:
        for page in pages:
            print(f"live: {page.url}", file=sys.stderr, flush=True)
        yield list(pages)


class Progress:
    """What is known of a run while it goes on."""

    def __init__(
        self, name: str, rounds: int, clock: "Callable[[], float]" = time.monotonic
    ) -> None:
        self.name = name
        self.rounds = rounds
        self.round = 0
        self.clock = clock
        self.ends: deque[float] = deque(maxlen=_RECENT)  # when the recent rounds ended
        self.updates = self.lost = self.sent = 0
        self.row: Row = {}
        # Of the global and of personal models, where they were evaluated
        self.scores: dict[str, list[float]] = {}
        self.metric = ""

    def begin(self, rows: "Sequence[Row]") -> None:
        """Count the earlier rounds of a resumed run."""
        for row in rows:
            self._count(row)
        self.ends.append(self.clock())

    def add(self, row: "Row", rounds: int) -> None:
        """Count a round that has just ended."""
        self.rounds = rounds
        self._count(row)
        self.ends.append(self.clock())

    def _count(self, row: "Row") -> None:
        self.row = row
        self.round = row["round"]
        self.updates += row["clients"]
        self.lost += sum(row[reason] for reason in _LOSSES)
        self.sent += row["bytes_down"] + row["bytes_up"]
        for part, title in (("test", "test {}"), ("own_test", "personal models")):
            metric, value = headline(row, part)
            if value is not None:
                self.scores.setdefault(title.format(metric), []).append(value)
                self.metric = metric

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds left, if rounds go on as the recent ones did; None before the first has ended."""
        if len(self.ends) < 2:
            return None
        each = (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)
        return max(0.0, each * (self.rounds - self.round) - (self.clock() - self.ends[-1]))

    @property
    def left(self) -> list[str]:
        """Return the time left; nothing after the last round."""
        if self.round < self.rounds:
            return [f"{duration(self.seconds_left)} left"]
        return []

    @property
    def score(self) -> list[str]:
        """Return the metric after the last evaluation; empty before the first."""
        result: list[str] = []
        for title, values in self.scores.items():
            result.append(f"{title} {shown(self.metric, values[-1])}")
        return result

    @property
    def curve(self) -> list[float]:
        """Return the metric of all evaluations."""
        return next(iter(self.scores.values()), [])

    @property
    def details(self) -> list[str]:
        """Return the local loss of the last round, and what was lost, sent and simulated so far."""
        from fedskew.core.units import SIZES, TIMES

        if not self.row:
            return []
        loss = self.row["local_loss"]
        clock = self.row["clock"]
        words = ["no updates" if loss is None else f"local loss {loss:.3f}"]
        if self.lost:
            words += [f"{self.lost:,} of {self.updates:,} lost"]
        if self.sent:
            words += [f"{_in_units(self.sent, SIZES)} sent"]
        return [*words, *([f"{_in_units(clock, TIMES)} simulated"] if clock else [])]


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve of block characters from the lowest to the highest value; with many, some at even steps.

    >>> sparkline([0, 1, 2, 3], 10), sparkline(range(100), 3), sparkline([5, 5], 3)
    ('▁▃▅█', '▁▄█', '▁▁')
    """
    known = [value for value in values if math.isfinite(value)]
    if len(known) > width:
        known = [known[round(i * (len(known) - 1) / (width - 1))] for i in range(width)]
    low = min(known, default=0.0)
    high = max(known, default=0.0)
    return "".join(
        _BLOCKS[int((value - low) / ((high - low) or 1) * (len(_BLOCKS) - 1))] for value in known
    )


def _in_units(value: float, units: Mapping[str, float]) -> str:
    from fedskew.core.units import unit_for

    unit = unit_for(value, units)
    number = value / units[unit]
    if number >= 100:
        return f"{number:,.0f} {unit}"
    return f"{number:.3g} {unit}"


def shown(metric: str, value: float) -> str:
    """Return the value of a metric: an accuracy in per cent."""
    if metric == "accuracy":
        return f"{value:.1%}"
    return f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Return seconds as they are read on a clock.

    >>> duration(75), duration(3700), duration(None)
    ('1:15', '1:01:40', '-:--')
    """
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


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
def _bars(console: Console, width: int, least: int) -> "Iterator[Callable[[Progress], None]]":
    """Show one line a run, and below them what else is known of the one that has just ended a round.

    ``width`` is that of the names, and ``least`` that of the rounds, which are never cut.
    """
    from rich import progress as bars
    from rich.table import Column
    from rich.text import Text

    wide = console.width >= _WIDE
    latest: list[Progress] = []

    class Bars(bars.Progress):
        def get_renderables(self) -> "Iterable[Any]":
            yield self.make_tasks_table(self.tasks)
            for one in latest:
                words = "   ".join([*([] if wide else one.left), *one.score[1:], *one.details])
                yield Text(words, style="dim", no_wrap=True, overflow="ellipsis")

    def text(of: "Callable[[Progress], str]", **look: Any) -> bars.ProgressColumn:
        class Words(bars.ProgressColumn):
            def render(self, task: bars.Task) -> Text:
                return Text(of(task.fields["progress"]), overflow="ellipsis")

        return Words(table_column=Column(no_wrap=True, **look))

    columns = [
        text(lambda one: one.name, width=min(width, max(8, console.width // 4))),
        *([bars.BarColumn(bar_width=console.width // 6)] if wide else []),
        text(lambda one: f"{one.round}/{one.rounds}", justify="right", min_width=least),
        text(lambda one: " ".join([*one.score[:1], sparkline(one.curve, console.width // 8)])),
        *([text(lambda one: " ".join(one.left), min_width=9)] if wide else []),
    ]
    with Bars(*columns, console=console) as shown:
        tasks: dict[Progress, bars.TaskID] = {}

        def follow(progress: Progress) -> None:
            if progress not in tasks:
                tasks[progress] = shown.add_task("", total=progress.rounds, progress=progress)
            latest[:] = [progress]
            shown.update(tasks[progress], completed=progress.round, total=progress.rounds)

        yield follow


@contextmanager
def log_lines(
    least: float = 1.0, most: float = 10.0, clock: "Callable[[], float]" = time.monotonic
) -> "Iterator[Callable[[Progress], None]]":
    """Print a line for a tenth of the rounds, at most one in ``least`` seconds, and one after ``most`` seconds anyway.

    The last round of a run always has its line.
    """
    lock = threading.Lock()
    ended = threading.Event()
    began = clock()
    printed = -math.inf
    latest: list[Progress] = []
    told: dict[Progress, int] = {}  # the round of each run that was printed last

    def tell(one: Progress) -> None:
        nonlocal printed
        printed = clock()
        told[one] = one.round
        words = [f"{one.name}: round {one.round}/{one.rounds}", *one.score, *one.details]
        words += one.left
        with suppress(OSError, ValueError):  # an error of stderr does not stop the training
            print("  ".join(words), file=sys.stderr, flush=True)

    def follow(one: Progress) -> None:
        with lock:
            latest[:] = [one]
            step = max(1, one.rounds // 10)
            due = one.round - told.get(one, 0) >= step and clock() - printed >= least
            if one.round and (one.round == one.rounds or due):
                tell(one)

    def watch() -> None:
        while not ended.wait(max(0.01, most - (clock() - max(began, printed)))):
            with lock:
                if latest and clock() - max(began, printed) >= most:
                    tell(latest[0])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield follow
    finally:
        ended.set()
        watcher.join()


def headline(row: "Row", part: str) -> "tuple[str, float | None]":
    """Return the task's first metric on this part: the column after that of the loss."""
    names = []
    for name in row:
        if name.startswith(f"{part}_"):
            names.append(name.removeprefix(f"{part}_"))
    metric = next((name for name in names if name != "loss"), "")
    return metric, row.get(f"{part}_{metric}")


_LOSSES = {
    "dropped": "dropped out",
    "late": "missed the deadline",
    "excluded": "NaN or infinite",
}  # why an update was lost


_COLUMNS = {  # of the summary: title, factor, digits, meaning
    "test_accuracy_last": (
        "test last",
        100,
        1,
        "accuracy of the global model on the test rows after the last round, in %",
    ),
    "test_accuracy_best": ("test best", 100, 1, "the same in the best round"),
    "test_balanced_accuracy_last": (
        "balanced",
        100,
        1,
        "balanced accuracy: the mean over the classes of the accuracy on each, in %",
    ),
    "test_balanced_accuracy_best": ("balanced best", 100, 1, "the same in the best round"),
    "test_majority_rate": (
        "majority",
        100,
        1,
        "accuracy of always predicting the most frequent class, in %",
    ),
    "thresholded_test_balanced_accuracy": (
        "at threshold",
        100,
        1,
        "balanced accuracy with the threshold that was chosen on the validation rows, in %",
    ),
    "calibrated_test_accuracy": (
        "calibrated",
        100,
        1,
        "accuracy of the calibrated model after the last round, in %",
    ),
    "backdoor_success_last": (
        "backdoor",
        100,
        1,
        "share of the test rows of other classes, with the trigger, that are taken for the attackers' target, in %",
    ),
    "own_test_accuracy_mean": (
        "own test",
        100,
        1,
        "mean accuracy of the personal models on the test rows, in %",
    ),
    "own_test_balanced_accuracy_mean": (
        "own balanced",
        100,
        1,
        "mean balanced accuracy of the personal models on the test rows, in %",
    ),
    "client_accuracy_mean": (
        "clients",
        100,
        1,
        "mean over the clients of the accuracy of the model that each uses, on its own rows, in %",
    ),
    "client_balanced_accuracy_mean": (
        "clients balanced",
        100,
        1,
        "likewise, of the balanced accuracy",
    ),
    "client_majority_rate_mean": (
        "clients majority",
        100,
        1,
        "likewise, of always predicting the client's most frequent class",
    ),
    "client_accuracy_worst_10_percent": (
        "worst 10 %",
        100,
        1,
        "mean accuracy of the worst 10 % of the clients on their own rows, in %",
    ),
    "client_balanced_accuracy_worst_10_percent": (
        "worst balanced",
        100,
        1,
        "mean balanced accuracy of the worst 10 % of the clients on their own rows, in %",
    ),
    "rounds_to_90_percent_of_last_test_accuracy": (
        "to 90 %",
        1,
        0,
        "rounds until 90 % of the last test accuracy",
    ),
    "rounds_to_target": (
        "to target",
        1,
        0,
        "rounds until the target is reached, of the seeds that reach it",
    ),
    "weights": ("weights", 0, 0, "aggregation weights of the clients (--weights)"),
    "gini_of_client_weights": (
        "Gini",
        1,
        3,
        "Gini coefficient of the clients' total weights over all rounds",
    ),
    "bytes": ("MB", 1e-6, 2, "megabytes sent, both ways"),
    "simulated_seconds": ("simulated s", 1, 1, "simulated seconds on the fleet (--fleet)"),
    "seconds": ("s", 1, 1, "seconds of real time"),
}

# Titles of columns that are left out of a table that is too wide, the first ones first; the files have all.
_DISPENSABLE = (
    "clients majority", "clients balanced", "majority", "simulated s", "s", "balanced best", "balanced", "MB", "Gini",
    "to target", "clients", "worst 10 %",
)  # fmt: skip

_OTHER_COLUMNS = {  # of the summary, about metrics other than accuracy: title, meaning
    r"test_(?!loss)(\w+)_last": (
        "{} last",
        "{} of the global model on the test rows after the last round",
    ),
    r"test_(\w+)_best": ("{} best", "the same in the best round"),
    r"own_test_(\w+)_mean": ("own {}", "mean {} of the personal models on the test rows"),
    r"client_(mae)_mean": (
        "clients {}",
        "mean over the clients of the {} of the model that each uses, on its own rows",
    ),
    r"client_(\w+)_worst_10_percent": (
        "worst {}",
        "mean {} of the worst 10 % of the clients on their own rows",
    ),
}


def print_summary(
    methods: Sequence[str],
    summaries: "Sequence[Row]",
    folder: Path,
    result: Mapping[str, Any],
    as_json: bool,
    varied: "Sequence[Mapping[str, Any]] | None" = None,
    notes: Sequence[str] | None = None,
    first: str = "",
) -> None:
    """Print the table of results, failures, lost updates, the folder and its page; with ``as_json`` the result as JSON.

    ``varied`` are the hyper-parameters and conditions that have a column, in which the runs of a comparison differ,
    ``first`` is a sentence before the table, and ``notes`` are those after it; by default, why cells are empty.
    """
    from fedskew.runs.folder import PAGE, to_json
    from fedskew.runs.summary import without_shared_score
    from fedskew.study.overview import warnings_of

    console = console_for(stderr=as_json)
    failed = [row for row in summaries if "failed" in row]
    every = list(zip(methods, varied or [{}] * len(methods), strict=True))
    kinds = []
    for kind, row in zip(every, summaries, strict=True):
        if "failed" not in row:
            kinds.append(kind)
    lost_kinds = []
    for i, kind in enumerate(every):
        if varied and kind not in kinds and kind not in every[:i]:
            lost_kinds.append(kind)
    summaries = [row for row in summaries if "failed" not in row]
    rows = []
    for row in summaries:
        rows.append({**row, "bytes": row["bytes_down"] + row["bytes_up"]})
    if first:
        console.print(escape(first), soft_wrap=True)
    if rows:
        _table(console, kinds, rows, lost_kinds)
    for note in (
        without_shared_score([method for method, _ in kinds], rows) if notes is None else notes
    ):
        console.print(f"\n{escape(note)}", soft_wrap=True)
    for row in failed:
        console.print(f"\nfailed: {escape(row['failed'])}", soft_wrap=True)
    for warned in warnings_of([method for method, _ in kinds], summaries):
        console.print(f"\n{escape(warned)}", soft_wrap=True)
    if lost := _lost(summaries):
        console.print(f"\n{lost}", soft_wrap=True)
    console.print(f"\nrun folder: {escape(str(folder))}", soft_wrap=True)
    if (folder / PAGE).is_file():
        console.print(f"report: {escape(str(folder / PAGE))}", soft_wrap=True)
    if as_json:
        print(to_json({**result, "folder": str(folder)}))


def _table(
    console: Console,
    kinds: Sequence[tuple[str, Mapping[str, Any]]],
    rows: "Sequence[Row]",
    failed: Sequence[tuple[str, Mapping[str, Any]]],
) -> None:
    """Print one row per method and its hyper-parameters, those that failed last, and the meaning of the columns."""
    shown = {}
    for key, look in _columns(rows).items():
        if any(row.get(key) is not None for row in rows):
            shown[key] = look
    if len(rows) > 1 and len({row.get("weights") for row in rows}) == 1:
        shown.pop("weights", None)
    numbers, ending = (
        [name for name in kinds[0][1] if (name in _ENDING) == last] for last in (False, True)
    )
    lines = [["method", *numbers, *(title for title, *_ in shown.values()), *ending]]
    for kind in [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]]:
        mine = [row for other, row in zip(kinds, rows, strict=True) if other == kind]
        cells = (
            _mean([row.get(key) for row in mine], scale, digits)
            for key, (_, scale, digits, _) in shown.items()
        )
        lines.append([escape(kind[0]), *(_option(kind[1][name]) for name in numbers), *cells])
        lines[-1] += [_option(kind[1][name]) for name in ending]
    for method, options in failed:
        lines.append(
            [
                escape(method),
                *(_option(options[name]) for name in numbers),
                *["failed"] * len(shown),
            ]
        )
        lines[-1] += [_option(options[name]) for name in ending]
    upright = _transposed(lines)
    if _width(lines) > console.width and _width(upright) <= console.width:
        lines = upright
    for title in _DISPENSABLE:  # where neither way fits
        if _width(lines) > console.width and title in lines[0]:
            lines = _transposed([column for column in _transposed(lines) if column[0] != title])
    console.print()
    console.print(_grid(lines))
    console.print()
    printed = {*lines[0], *(line[0] for line in lines)}
    meanings = {}
    for title, _, _, meaning in shown.values():
        if title in printed:
            meanings[title] = meaning
    width = max(map(len, meanings))
    for title, meaning in meanings.items():
        console.print(f"[dim]{title:{width}}  {meaning}[/dim]")


def _transposed(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*lines, strict=True)]


def _width(lines: Sequence[Sequence[str]]) -> int:
    """Return how many characters wide a table is."""
    return sum(max(map(len, column)) + 2 for column in _transposed(lines))


def _option(value: Any) -> str:
    """Return a hyper-parameter; empty where a method has no such one."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return escape(str(value))


def _columns(rows: "Sequence[Row]") -> dict[str, tuple[str, float, int, str]]:
    """Return the usual columns and, after those of accuracy, one for every other metric that was followed.

    Those of the metric that decides (``--metric``) come first. For classes, metrics that the user did not ask for
    (``--metrics``) are in summary.json only.
    """
    more: dict[str, tuple[str, float, int, str]] = {}
    for row in rows:
        classes = str(row.get("task", "classification")).split(":")[0] in (
            "classification",
            "binary",
        )
        for key in row:
            for pattern, (title, meaning) in _OTHER_COLUMNS.items():
                found = re.fullmatch(pattern, key)
                if (
                    found
                    and key not in _COLUMNS
                    and (not classes or f"train_{found[1]}_last" in row)
                ):
                    more[key] = (title.format(found[1]), 1, 4, meaning.format(found[1]))
    usual = list(_COLUMNS.items())
    place = list(_COLUMNS).index("calibrated_test_accuracy")
    columns = {**dict(usual[:place]), **more, **dict(usual[place:])}
    if where := rows[0].get("client_accuracy_rows"):
        title, scale, digits, meaning = columns["client_accuracy_mean"]
        columns["client_accuracy_mean"] = (
            title,
            scale,
            digits,
            meaning.replace("its own rows", where),
        )
    headline = f"test_{rows[0].get('metric', 'accuracy')}_"
    return dict(sorted(columns.items(), key=lambda item: not item[0].startswith(headline)))


def _lost(summaries: "Sequence[Row]") -> str:
    """Return how many updates were lost and why; empty if none was."""
    counts = {}
    for reason in _LOSSES:
        counts[reason] = sum(row[f"{reason}_updates"] for row in summaries)
    counts = {reason: count for reason, count in counts.items() if count}
    if not counts:
        return ""
    reasons = ", ".join(f"{count} {_LOSSES[reason]}" for reason, count in counts.items())
    total = sum(row["updates"] for row in summaries)
    return f"{sum(counts.values())} of {total} updates were lost: {reasons} ({', '.join(counts)} in rounds.csv)"


def _grid(lines: Sequence[Sequence[str]]) -> Table:
    """Return a table with the first column aligned left and the others right."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for number, title in enumerate(lines[0]):
        table.add_column(title, justify="right" if number else "left", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _mean(values: Sequence[Any], scale: float, digits: int) -> str:
    if isinstance(values[0], str):
        return escape(values[0])
    numbers = [scale * value for value in values if value is not None]
    if not numbers:
        return "-"
    from fedskew.runs.summary import mean_and_std

    mean, std = mean_and_std(numbers)
    if abs(mean) < _LARGE:
        form, form_of_std = (f".{digits}f",) * 2
    else:
        form, form_of_std = (".3g", ".2g")
    if len(numbers) < len(values):
        some = f" ({len(numbers)} of {len(values)})"
    else:
        some = ""
    return (f"{mean:{form}}" if std is None else f"{mean:{form}} ± {std:{form_of_std}}") + some
