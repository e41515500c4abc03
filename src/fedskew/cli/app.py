"""The command line: run, resume, list, data. Help and options come from the registries; nothing here trains."""

import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from fedskew import __version__
from fedskew.cli import listing as cli_list
from fedskew.cli import split as cli_split
from fedskew.cli.listing import Once, console_for, escape
from fedskew.core.config import CHOICES, Experiment, read_file
from fedskew.core.errors import FedskewError, Interrupted
from fedskew.core.registry import Option, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedskew.runs.callbacks import CallbackSpec
    from fedskew.runs.summary import Row
    from fedskew.runs.sweep import Member


# Newer versions of Typer carry a Click of their own: its exceptions must be those, whichever they are.
_UsageError: Any = typer.BadParameter.__bases__[0]


class _StoppedError(Exception):
    """Ctrl-C or a signal, with what to do next and the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _Commands(TyperGroup):
    """The commands; Ctrl-C keeps its message, which Typer would throw away."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            raise _StoppedError(str(stopped) or "interrupted", getattr(stopped, "code", 130)) from None


app = typer.Typer(
    cls=_Commands,
    help="Federated learning for clients that are nothing alike.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point: what users can put right ends in one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except _StoppedError as stopped:
        code = _complain(str(stopped), stopped.code)
    except _UsageError as problem:
        where = f" (see {problem.ctx.command_path} --help)" if problem.ctx and problem.message else ""
        code = _complain(problem.format_message().rstrip(".") + where)
    except FedskewError as problem:
        code = _complain(str(problem))
    except BrokenPipeError:  # whoever read the output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as problem:  # a file that may not be read, a disk that failed
        code = _complain(f"{problem.filename}: {problem.strerror}" if problem.filename else str(problem))
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str, code: int = 2) -> int:
    if message:  # Typer shows the help for a command that is missing, and has nothing to add
        print(f"fedskew: {' '.join(message.split())}", file=sys.stderr)
    return code


def _show_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated learning for clients that are nothing alike."""


# -- run and resume ----------------------------------------------------------------------------------------------------


def run(
    file: Path | None,
    algorithm: list[str] | None,
    seeds: str | None,
    folder: Path | None,
    or_resume: bool,
    as_json: bool,
    **given: str | bool | None,
) -> None:
    """Train one method, or several, on one data set cut into clients.

    FILE is an experiment in TOML, such as the config.toml of an earlier run; an option given here goes before it.

    A SPEC is a name, or a name with options: dirichlet:alpha=0.2,min_size=5

    \b
    fedskew run --algorithm fedprox:mu=0.1 --clients 20
    fedskew run --algorithm fedavg --algorithm fedprox --seeds 0-4
    fedskew run --algorithm "fedprox:mu=0.1 + median"
    fedskew run experiment.toml --rounds 20
    """
    values = read_file(file) if file else {}
    values |= {name: value for name, value in given.items() if value is not None}
    asked = algorithm or values.pop("algorithm", "fedavg")
    algorithms: list[Any] = list(asked) if isinstance(asked, (list, tuple)) else [asked]
    if not algorithms:
        raise FedskewError(f"{file}: algorithm = [] names none: give one or several (fedskew list algorithms)")
    if seeds is not None and given.get("seed") is not None:
        raise FedskewError(f"--seed {given['seed']} clashes with --seeds {seeds}: give one of them")
    from fedskew.runs import sweep as several
    from fedskew.runs.choices import spell
    from fedskew.runs.experiment import run_experiment, run_or_resume
    from fedskew.runs.folder import must_be_new

    if or_resume and folder is None:
        raise FedskewError("--or-resume goes on with what a folder holds: say which with --folder")
    if seeds is None and len(algorithms) == 1:
        experiment = Experiment(**{**values, "algorithm": algorithms[0]})
        name = spell("algorithm", experiment.algorithm)
        with _progress([name], experiment.rounds) as watch:
            if or_resume and folder:
                done = run_or_resume(experiment, folder, watch(name))
            else:
                done = run_experiment(experiment, folder=folder, callbacks=watch(name))
        assert done.folder is not None
        _tell([name], [done.summary], done.folder, done.summary, as_json)
        return
    seed_list = [Experiment(**values).seed] if seeds is None else several.parse_seeds(seeds)
    wanted = several.members(values, [spell("algorithm", entry) for entry in algorithms], seed_list)
    if or_resume and folder and folder.exists():
        several.must_be_the_same(folder, wanted)
        _run_group(folder, wanted, as_json)
        return
    if folder:
        must_be_new(folder)
    several.check(wanted)
    _run_group(_create_group(folder, wanted), wanted, as_json)


def _options_as_parameters() -> list[inspect.Parameter]:
    """Every setting of an experiment as an option; text on the way in, converted and checked by the experiment itself."""
    result = []
    options = options_of(Experiment)
    for panel, names in _PANELS.items():
        for option in (options[name] for name in names):
            flag, text = "--" + option.name.replace("_", "-"), option.type is not bool
            flag = flag if text else f"{flag}/--no-{flag[2:]}"  # so that it can be taken back from a file
            look: dict[str, Any] = {"help": _help(option), "rich_help_panel": panel, "show_default": False}
            kind = typer.Option(flag, metavar=_metavar(option) if text else None, **look)
            annotation: Any = Annotated[str | None, kind] if text else Annotated[bool | None, kind]
            result.append(inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))
    return result


_PANELS = {
    "Data and clients": ("data", "skew", "clients", "bins", "validation", "client_test", "split_seed"),
    "Training": (
        "model", "task", "rounds", "per_round", "sampling", "epochs", "batch_size", "lr", "schedule", "optimizer",
        "momentum", "weight_decay", "nesterov", "clip_norm", "augment", "weights", "norm", "seed",
    ),
    "Execution and record": (
        "secure", "round_totals", "engine", "device", "dtype", "threads", "memory", "fleet", "eval_every", "eval_rows",
        "metrics", "test_trained", "stop_after", "checkpoint_every", "tensorboard",
    ),
}  # fmt: skip


def _metavar(option: Option) -> str:
    if option.name in CHOICES:
        return "SPEC"
    shown = {"a whole number": "N", "a number": "X", "a whole number or none": "N", "a list of text (a+b+c)": "A+B"}
    return shown.get(option.type_name(), "TEXT")


def _help(option: Option) -> str:
    kind = option.type_name()
    choices = f" ({kind.removeprefix('one of ')})" if kind.startswith("one of ") else ""
    default = "" if option.default in (None, ()) or option.type is bool else f" \\[{option.default}]"
    return f"{escape(option.help)}{choices}{default}"


def _command(function: Any, own: Mapping[str, tuple[Any, Any]], extra: Sequence[inspect.Parameter]) -> None:
    """Register a command whose options are put together from the settings."""
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
        for name, (kind, default) in own.items()
    ]
    function.__signature__ = inspect.Signature([*parameters, *extra])
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in [*parameters, *extra]}
    app.command(cls=Once)(function)


_command(
    run,
    {
        "file": (Annotated[Path | None, typer.Argument(help="experiment in TOML", show_default=False)], None),
        "algorithm": (
            Annotated[
                list[str] | None,
                typer.Option(
                    "--algorithm",
                    metavar="SPEC",
                    help="method (fedskew list algorithms); several to compare them",
                ),
            ],
            None,
        ),
        "seeds": (Annotated[str | None, typer.Option("--seeds", metavar="0-4", help="several seeds: mean and spread")], None),
        "folder": (
            Annotated[Path | None, typer.Option("--folder", help="where to write; a fresh one under runs/ when left out")],
            None,
        ),
        "or_resume": (
            Annotated[
                bool,
                typer.Option(
                    "--or-resume", help="go on with the folder if it holds the same run, so that a job can be requeued"
                ),
            ],
            False,
        ),
        "as_json": (Annotated[bool, typer.Option("--json", help="print the summary as JSON, the last line of stdout")], False),
    },
    _options_as_parameters(),
)


@app.command(cls=Once)
def resume(
    folder: Annotated[Path, typer.Argument(help="the folder of a run, or of several")],
    force: Annotated[
        bool,
        typer.Option("--force", help="go on from the last checkpoint that is whole, and with a configuration that was changed"),
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="of several runs, try those again that failed")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON, the last line of stdout")] = False,
) -> None:
    """Go on with a run, or with several, after a crash, Ctrl-C, kill -9 or a power cut: as if it had never stopped."""
    from fedskew.runs.folder import SUMMARY, RunFolder

    if (folder / "group.json").is_file():
        from fedskew.runs import sweep as several

        _run_group(folder, several.read(folder), as_json, retry=retry, force=force)
        return
    disk = RunFolder.open(folder)
    if disk.finished:
        print(f"{folder} had come to its end already", file=sys.stderr)
        summary = disk.read_json(SUMMARY)
    else:
        from fedskew.api import resume as resume_run
        from fedskew.runs.choices import brief
        from fedskew.runs.execute import read_config

        config = read_config(disk)
        name = brief("algorithm", config["algorithm"])
        with _progress([name], config.get("rounds", 0)) as watch:
            summary = resume_run(folder, callbacks=watch(name), force=force).summary
    _tell([summary["algorithm"]], [summary], folder, summary, as_json)


def _create_group(folder: Path | None, wanted: "list[Member]") -> Path:
    """The folder of a group; a fresh name if none was given, and the next one if somebody else was quicker."""
    from fedskew.runs import sweep as several
    from fedskew.runs.choices import spell
    from fedskew.runs.execute import fresh_folder
    from fedskew.runs.folder import TakenError

    experiment = wanted[0].experiment()
    while True:
        place = folder or fresh_folder("compare", *(spell(kind, getattr(experiment, kind)) for kind in ("data", "skew")))
        try:
            several.create(place, wanted)
        except TakenError:
            if folder:
                raise
        else:
            return place


def _run_group(place: Path, wanted: "list[Member]", as_json: bool, *, retry: bool = False, force: bool = False) -> None:
    from fedskew.runs import sweep as several
    from fedskew.runs.folder import resume_command

    with _progress([member.name for member in wanted], wanted[0].experiment().rounds) as watch:
        try:
            summaries = several.run_all(place, wanted, lambda member: watch(member.name), retry=retry, force=force)
        except KeyboardInterrupt as stop:
            code = getattr(stop, "code", 130)
            raise Interrupted(f"interrupted; resume with: {resume_command(place)}", code) from None
    methods = [member.algorithm for member in wanted]
    _tell(methods, summaries, place, several.overview(wanted, summaries), as_json)


# -- what the user sees -------------------------------------------------------------------------------------------------


@contextmanager
def _progress(names: Sequence[str], rounds: int) -> "Iterator[Any]":
    """Show a bar on a terminal, a line now and then without one. Yields a function: name of a run -> its callbacks."""
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
            with suppress(OSError, ValueError):  # a full disk or a closed pipe behind stderr does not stop a training
                print(f"{name}: round {number}/{rounds}  {_state(result.round)}", file=sys.stderr, flush=True)

    return show


def _state(row: "Row") -> str:
    words = ["no answers" if row["local_loss"] is None else f"local loss {row['local_loss']:.3f}"]
    for part, name in (("test", "test {metric}"), ("own_test", "own models")):
        metric, value = _headline(row, part)
        if value is not None:
            words.append(f"{name.format(metric=metric)} {f'{value:.1%}' if metric == 'accuracy' else f'{value:.4g}'}")
    if lost := sum(row[fate] for fate in _FATES):
        words.append(f"{lost} of {row['clients']} lost")
    return "  ".join(words)


def _headline(row: "Row", part: str) -> "tuple[str, float | None]":
    """The task's first metric on this part: the column after that of the loss."""
    names = [name.removeprefix(f"{part}_") for name in row if name.startswith(f"{part}_")]
    metric = next((name for name in names if name != "loss"), "")
    return metric, row.get(f"{part}_{metric}")


_FATES = {"dropped": "dropped out", "late": "missed the deadline", "excluded": "NaN or infinite"}  # of a lost update


_COLUMNS = {  # of the summary: title, factor, digits, what it says
    "test_accuracy_last": ("test last", 100, 1, "accuracy of the global model on the test rows after the last round, in %"),
    "test_accuracy_best": ("test best", 100, 1, "the same in its best round"),
    "test_balanced_accuracy_last": (
        "balanced",
        100,
        1,
        "mean over the classes of its accuracy on each, in %",
    ),
    "test_majority_rate": ("majority", 100, 1, "what predicting the most frequent class for every test row would score, in %"),
    "calibrated_test_accuracy": ("calibrated", 100, 1, "of the model with its new head, after the last round, in %"),
    "own_test_accuracy_mean": ("own test", 100, 1, "mean accuracy of the clients' own models on the test rows, in %"),
    "own_test_balanced_accuracy_mean": ("own balanced", 100, 1, "the same as a mean over the classes, in %"),
    "client_accuracy_worst_10_percent": ("worst 10 %", 100, 1, "mean accuracy of the worst clients on their own rows, in %"),
    "rounds_to_90_percent_of_last_test_accuracy": ("to 90 %", 1, 0, "rounds until 90 % of the last test accuracy"),
    "weights": ("weights", 0, 0, "what clients count by in the mean (--weights)"),
    "gini_of_client_weights": ("Gini", 1, 3, "of the weights that the clients had in all rounds"),
    "bytes": ("MB", 1e-6, 2, "sent, both ways"),
    "simulated_seconds": ("simulated s", 1, 1, "seconds that it would take in the world (--fleet)"),
    "seconds": ("s", 1, 1, "seconds of computing"),
}

_OTHER_COLUMNS = {  # of the summary, about metrics other than accuracy: title, what it says
    r"test_(?!loss)(\w+)_last": ("{} last", "{} of the global model on the test rows after the last round"),
    r"test_(\w+)_best": ("{} best", "the same in its best round"),
    r"own_test_(\w+)_mean": ("own {}", "mean {} of the clients' own models on the test rows"),
    r"client_(\w+)_worst_10_percent": ("worst {}", "mean {} of the worst 10 % of the clients on their own rows"),
}


def _tell(methods: Sequence[str], summaries: "Sequence[Row]", folder: Path, result: Mapping[str, Any], as_json: bool) -> None:
    """The table at the end, what its columns say, the folder, and JSON when asked for."""
    from fedskew.runs import sweep as several
    from fedskew.runs.folder import to_json

    console = console_for(stderr=as_json)
    failed = [row for row in summaries if "failed" in row]
    methods = [method for method, row in zip(methods, summaries, strict=True) if "failed" not in row]
    summaries = [row for row in summaries if "failed" not in row]
    rows = [{**row, "bytes": row["bytes_down"] + row["bytes_up"]} for row in summaries]
    if rows:
        _table(console, methods, rows)
    for row in failed:
        console.print(f"\nfailed: {escape(row['failed'])}", soft_wrap=True)
    if warned := several.unequal_weights(methods, summaries):
        console.print(f"\n{warned}", soft_wrap=True)
    if lost := _lost(summaries):
        console.print(f"\n{lost}", soft_wrap=True)
    console.print(f"\nrun folder: {escape(str(folder))}", soft_wrap=True)
    if as_json:
        print(to_json({**result, "folder": str(folder)}))


def _table(console: Console, methods: Sequence[str], rows: "Sequence[Row]") -> None:
    """One line a method, and what the columns say."""
    shown = {key: look for key, look in _columns(rows).items() if any(row.get(key) is not None for row in rows)}
    lines = [["method", *(title for title, *_ in shown.values())]]
    for method in dict.fromkeys(methods):
        mine = [row for name, row in zip(methods, rows, strict=True) if name == method]
        cells = (_mean([row.get(key) for row in mine], scale, digits) for key, (_, scale, digits, _) in shown.items())
        lines.append([escape(method), *cells])
    columns = [list(column) for column in zip(*lines, strict=True)]
    too_wide = sum(max(map(len, column)) + 2 for column in columns) > console.width
    console.print()
    console.print(_grid(columns if too_wide else lines))
    console.print()
    width = max(len(title) for title, *_ in shown.values())
    for title, _, _, meaning in shown.values():
        console.print(f"[dim]{title:{width}}  {meaning}[/dim]")


def _columns(rows: "Sequence[Row]") -> dict[str, tuple[str, float, int, str]]:
    """The usual columns and, after those of accuracy, one for every other metric that was followed.

    Where classes are learnt, metrics that nobody asked for (``--metrics``) are left to summary.json.
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
    return {**dict(usual[:place]), **more, **dict(usual[place:])}


def _lost(summaries: "Sequence[Row]") -> str:
    """How many updates were lost, and how; nothing if none was."""
    counts = {fate: sum(row[f"{fate}_updates"] for row in summaries) for fate in _FATES}
    counts = {fate: count for fate, count in counts.items() if count}
    if not counts:
        return ""
    hows = ", ".join(f"{count} {_FATES[fate]}" for fate, count in counts.items())
    total = sum(row["updates"] for row in summaries)
    return f"{sum(counts.values())} of {total} updates were lost: {hows} ({', '.join(counts)} in rounds.csv)"


def _grid(lines: Sequence[Sequence[str]]) -> Table:
    """Words on the left, numbers on the right, as wide as they are."""
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
    mean = sum(numbers) / len(numbers)
    if len(numbers) == 1:
        return f"{mean:.{digits}f}"
    spread = (sum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)) ** 0.5
    return f"{mean:.{digits}f} ± {spread:.{digits}f}"


cli_split.add_to(app)
cli_list.add_to(app)
