"""What a command prints: consoles, the progress of a training, and the table of results at its end."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedskew.runs.callbacks import CallbackSpec
    from fedskew.runs.summary import Row


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


def few(lines: Sequence[str], most: int = 50) -> list[str]:
    """Return the first lines, and how many more there are.

    >>> few(["a", "b", "c"], most=1)
    ['a', '… and 2 more']
    """
    return [*lines[:most], *([f"… and {len(lines) - most} more"] if len(lines) > most else [])]


@contextmanager
def show_progress(names: Sequence[str], rounds: int) -> "Iterator[Any]":
    """Show progress bars, or lines without a terminal; yield a function from the name of a run to its callbacks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda name: [_plain_progress(name)]
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    width = max(map(len, names))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:

        def progress(name: str) -> "list[CallbackSpec]":
            task = bars.add_task(name.ljust(width), total=rounds, state="")

            def show(result: Any, rounds: int) -> None:
                bars.update(task, completed=result.round["round"], total=rounds, state=_state(result.round))

            return [show]

        yield progress


def _plain_progress(name: str) -> "CallbackSpec":
    def show(result: Any, rounds: int) -> None:
        number = result.round["round"]
        if number == rounds or number % max(1, rounds // 10) == 0:
            with suppress(OSError, ValueError):  # an error of stderr does not stop the training
                print(f"{name}: round {number}/{rounds}  {_state(result.round)}", file=sys.stderr, flush=True)

    return show


def _state(row: "Row") -> str:
    words = ["no updates" if row["local_loss"] is None else f"local loss {row['local_loss']:.3f}"]
    for part, name in (("test", "test {metric}"), ("own_test", "personal models")):
        metric, value = _headline(row, part)
        if value is not None:
            words.append(f"{name.format(metric=metric)} {f'{value:.1%}' if metric == 'accuracy' else f'{value:.4g}'}")
    if lost := sum(row[reason] for reason in _LOSSES):
        words.append(f"{lost} of {row['clients']} lost")
    return "  ".join(words)


def _headline(row: "Row", part: str) -> "tuple[str, float | None]":
    """Return the task's first metric on this part: the column after that of the loss."""
    names = [name.removeprefix(f"{part}_") for name in row if name.startswith(f"{part}_")]
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
    "calibrated_test_accuracy": ("calibrated", 100, 1, "accuracy of the calibrated model after the last round, in %"),
    "backdoor_success_last": (
        "backdoor",
        100,
        1,
        "share of the test rows of other classes, with the trigger, that are taken for the attackers' target, in %",
    ),
    "own_test_accuracy_mean": ("own test", 100, 1, "mean accuracy of the personal models on the test rows, in %"),
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
    "rounds_to_90_percent_of_last_test_accuracy": ("to 90 %", 1, 0, "rounds until 90 % of the last test accuracy"),
    "rounds_to_target": ("to target", 1, 0, "rounds until the target is reached, of the seeds that reach it"),
    "weights": ("weights", 0, 0, "aggregation weights of the clients (--weights)"),
    "gini_of_client_weights": ("Gini", 1, 3, "Gini coefficient of the clients' total weights over all rounds"),
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
    r"test_(?!loss)(\w+)_last": ("{} last", "{} of the global model on the test rows after the last round"),
    r"test_(\w+)_best": ("{} best", "the same in the best round"),
    r"own_test_(\w+)_mean": ("own {}", "mean {} of the personal models on the test rows"),
    r"client_(mae)_mean": (
        "clients {}",
        "mean over the clients of the {} of the model that each uses, on its own rows",
    ),
    r"client_(\w+)_worst_10_percent": ("worst {}", "mean {} of the worst 10 % of the clients on their own rows"),
}


def print_summary(
    methods: Sequence[str],
    summaries: "Sequence[Row]",
    folder: Path,
    result: Mapping[str, Any],
    as_json: bool,
    varied: "Sequence[Mapping[str, Any]] | None" = None,
    notes: Sequence[str] = (),
) -> None:
    """Print the table of results, failures, lost updates, the folder and its page; with ``as_json`` the result as JSON.

    ``varied`` are the hyper-parameters and conditions that have a column, in which the runs of a comparison differ,
    and ``notes`` are sentences about the table.
    """
    from fedskew.runs import sweep as several
    from fedskew.runs.folder import PAGE, to_json

    console = console_for(stderr=as_json)
    failed = [row for row in summaries if "failed" in row]
    kinds = list(zip(methods, varied or [{}] * len(methods), strict=True))
    kinds = [kind for kind, row in zip(kinds, summaries, strict=True) if "failed" not in row]
    summaries = [row for row in summaries if "failed" not in row]
    rows = [{**row, "bytes": row["bytes_down"] + row["bytes_up"]} for row in summaries]
    if rows:
        _table(console, kinds, rows)
    for note in notes:
        console.print(f"\n{escape(note)}", soft_wrap=True)
    for row in failed:
        console.print(f"\nfailed: {escape(row['failed'])}", soft_wrap=True)
    for warned in several.warnings_of([method for method, _ in kinds], summaries):
        console.print(f"\n{escape(warned)}", soft_wrap=True)
    if lost := _lost(summaries):
        console.print(f"\n{lost}", soft_wrap=True)
    console.print(f"\nrun folder: {escape(str(folder))}", soft_wrap=True)
    if (folder / PAGE).is_file():
        console.print(f"report: {escape(str(folder / PAGE))}", soft_wrap=True)
    if as_json:
        print(to_json({**result, "folder": str(folder)}))


def _table(console: Console, kinds: Sequence[tuple[str, Mapping[str, Any]]], rows: "Sequence[Row]") -> None:
    """Print one row per method and its hyper-parameters, and the meaning of the columns."""
    shown = {key: look for key, look in _columns(rows).items() if any(row.get(key) is not None for row in rows)}
    if len(rows) > 1 and len({row.get("weights") for row in rows}) == 1:
        shown.pop("weights", None)
    numbers = list(kinds[0][1])
    lines = [["method", *numbers, *(title for title, *_ in shown.values())]]
    for kind in [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]]:
        mine = [row for other, row in zip(kinds, rows, strict=True) if other == kind]
        cells = (_mean([row.get(key) for row in mine], scale, digits) for key, (_, scale, digits, _) in shown.items())
        lines.append([escape(kind[0]), *(_option(kind[1][name]) for name in numbers), *cells])
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
    meanings = {title: meaning for title, _, _, meaning in shown.values() if title in printed}
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
    return "" if value is None else f"{value:g}" if isinstance(value, float) else escape(str(value))


def _columns(rows: "Sequence[Row]") -> dict[str, tuple[str, float, int, str]]:
    """Return the usual columns and, after those of accuracy, one for every other metric that was followed.

    Those of the metric that decides (``--metric``) come first. For classes, metrics that the user did not ask for
    (``--metrics``) are in summary.json only.
    """
    more: dict[str, tuple[str, float, int, str]] = {}
    for row in rows:
        classes = str(row.get("task", "classification")).split(":")[0] in ("classification", "binary")
        for key in row:
            for pattern, (title, meaning) in _OTHER_COLUMNS.items():
                found = re.fullmatch(pattern, key)
                if found and key not in _COLUMNS and (not classes or f"train_{found[1]}_last" in row):
                    more[key] = (title.format(found[1]), 1, 4, meaning.format(found[1]))
    usual, place = list(_COLUMNS.items()), list(_COLUMNS).index("calibrated_test_accuracy")
    columns = {**dict(usual[:place]), **more, **dict(usual[place:])}
    if where := rows[0].get("client_accuracy_rows"):
        title, scale, digits, meaning = columns["client_accuracy_mean"]
        columns["client_accuracy_mean"] = (title, scale, digits, meaning.replace("its own rows", where))
    headline = f"test_{rows[0].get('metric', 'accuracy')}_"
    return dict(sorted(columns.items(), key=lambda item: not item[0].startswith(headline)))


def _lost(summaries: "Sequence[Row]") -> str:
    """Return how many updates were lost and why; empty if none was."""
    counts = {reason: sum(row[f"{reason}_updates"] for row in summaries) for reason in _LOSSES}
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
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"
