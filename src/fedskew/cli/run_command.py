"""The command ``fedskew run``: train one method, with every setting of an experiment as an option."""

import inspect
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedskew.cli.command import Once
from fedskew.cli.completion import completing
from fedskew.cli.console import escape, live_page, print_summary, show_progress
from fedskew.core.config import CHOICES, FORMER, Experiment, read_file, workers_of_torchrun
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Option, options_of

# Settings of a comparison, in a file beside those of an experiment
COMPARED = (
    "seeds", "grid", "target", "jobs", "goal", "score", "control", "equal", "pool", "choose", "choose_seeds",
)  # fmt: skip


def add_to(app: typer.Typer) -> None:
    """Add ``run`` to the command line, with one option for each setting of an experiment."""
    folder = Annotated[
        Path | None, typer.Option("--folder", help="run folder; by default a new one under runs/")
    ]
    file = Annotated[Path | None, typer.Argument(help="experiment in TOML", show_default=False)]
    page = typer.Option(
        "--live", help="print an address on this machine; open it in a browser to follow the run"
    )
    own = {"folder": (folder, None), "live": (Annotated[bool, page], False)}
    with_settings(run, {"file": (file, None), **CHOSEN, **own, **ENDING})
    app.command(cls=Once)(run)


def with_settings(
    command: Any,
    own: Mapping[str, tuple[Any, Any]],
    panels: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Give a command options of its own, and then one for each setting of an experiment, or for those in ``panels``."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = []
    for name, (annotation, default) in own.items():
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    parameters += _options_as_parameters(panels or _PANELS)
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def run(
    file: Path | None,
    data: list[str] | None,
    algorithm: list[str] | None,
    skew: list[str] | None,
    folder: Path | None,
    or_resume: bool,
    live: bool,
    as_json: bool,
    **given: str | bool | None,
) -> None:
    """Train one method on a partitioned data set. To compare several: fedskew compare.

    FILE is an experiment in TOML, such as the config.toml of an earlier run. Options override it.
    Options are settings, with their names: --client-test 0.2 is client_test = 0.2 in a file and in Python.

    A SPEC is a name, or a name with options: dirichlet:alpha=0.2,min_size=5

    \b
    fedskew run --algorithm fedprox:mu=0.1 --clients 20
    fedskew run --algorithm "fedprox:mu=0.1 + median"
    fedskew run --data "hospital_*.csv:label=outcome" --algorithm fedbn
    fedskew run experiment.toml --rounds 20
    """
    values = settings_from(file, data, {**given, "algorithm": algorithm, "skew": skew})
    values = _settings_of_one_run(values)
    if or_resume and folder is None:
        raise FedskewError("--or-resume needs --folder: give the folder to resume")
    experiment = Experiment(**values)
    # Settings are checked before these import PyTorch
    from fedskew.report.page import PageWriter
    from fedskew.runs.choices import spell
    from fedskew.runs.experiment import run_experiment, run_or_resume

    name = spell("algorithm", experiment.algorithm)
    with live_page(live) as watching, show_progress([name], experiment.rounds) as callbacks_of:
        callbacks = [PageWriter(), *watching, *callbacks_of(name)]
        if or_resume and folder:
            done = run_or_resume(experiment, folder, callbacks)
        else:
            done = run_experiment(experiment, folder=folder, callbacks=callbacks)
    assert done.folder is not None
    print_summary([name], [done.summary], done.folder, done.summary, as_json)


def _settings_of_one_run(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with one method and one skew; raise an error if they are those of several runs."""
    from fedskew.study.grid import several

    single = dict(values)
    many = []
    for name in ("algorithm", "skew"):
        if name in values:
            choices = several(name, values[name])
            single[name] = choices[0]
            if len(choices) > 1:
                many.append(name)
    many += [name for name in COMPARED if name in values]
    if many:
        raise FedskewError(
            f"fedskew run is one run, not several ({', '.join(many)}): use {_command_as_comparison()}"
        )
    return single


def _command_as_comparison() -> str:
    """Return the command that was given, as a comparison."""
    words = sys.argv[1:]
    place = words.index("run")
    renamed = []
    for word in words[place + 1 :]:
        if word.startswith("--folder"):
            word = word.replace("--folder", "--out")
        renamed.append(word)
    return shlex.join(["fedskew", *words[:place], "compare", *renamed])


def settings_from(
    file: Path | None, data: list[str] | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a file, and over them those of the command line that were given."""
    values: dict[str, Any] = {}
    if file:
        values |= read_file(file, COMPARED)
    for name, value in given.items():
        if value is not None:
            values[name] = value
    if data:
        from fedskew.data.catalogue import together

        values["data"] = together(data)
    if (started := workers_of_torchrun()) is not None:
        if given["workers"] is not None:
            raise FedskewError(
                f"--workers {given['workers']}: torchrun has started {started} processes, leave it out"
            )
        values["workers"] = started
    return values


def _options_as_parameters(panels: Mapping[str, Sequence[str]]) -> list[inspect.Parameter]:
    """Return one option for each of these settings of an experiment, which itself converts and checks the values."""
    parameters = []
    options = options_of(Experiment)
    kind = inspect.Parameter.KEYWORD_ONLY
    for panel, names in panels.items():
        for name in names:
            annotation = _annotation(options[name], panel)
            parameters.append(inspect.Parameter(name, kind, default=None, annotation=annotation))
    return parameters


def _annotation(option: Option, panel: str) -> Any:
    """Return a setting as the annotation of an option of a command, whose help stands in this panel."""
    flag = "--" + option.name.replace("_", "-")
    look: dict[str, Any] = {
        "help": _help(option),
        "rich_help_panel": panel,
        "show_default": False,
        "hidden": option.name in FORMER,
    }
    if option.type in (bool, bool | None):
        # With both flags, so that a file's true can be overridden
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", **look)]
    if option.name in _COMPLETED:
        look["autocompletion"] = completing(_COMPLETED[option.name])
    return Annotated[str | None, typer.Option(flag, metavar=_metavar(option), **look)]


_PANELS = {
    "Data and clients": ("clients", "bins", "validation", "client_test", "client_validation", "unseen", "split_seed"),
    "Training": (
        "model", "task", "rounds", "per_round", "sampling", "epochs", "batch_size", "lr", "schedule", "optimizer",
        "momentum", "weight_decay", "nesterov", "clip_norm", "augment", "weights", "norm", "seed",
    ),
    "Execution and output": (
        "engine", "device", "dtype", "precision", "workers", "threads", "memory", "fleet", "eval_every", "eval_rows",
        "metric", "metrics", "thresholds", "test_trained", "stop_after", "checkpoint_every", "tensorboard", "mlflow",
        "wandb", *FORMER,
    ),
}  # fmt: skip


_COMPLETED = {"model": "models", "task": "tasks", "fleet": "fleets", "schedule": "schedules"}


def _metavar(option: Option) -> str:
    if option.name in CHOICES:
        return "SPEC"
    numbers = {
        "a whole number": "N",
        "a number": "X",
        "a whole number or none": "N",
        "a number or none": "X",
    }
    return {**numbers, "a list of text (a+b+c)": "A+B"}.get(option.type_name(), "TEXT")


def _help(option: Option) -> str:
    text = escape(option.help)
    kind = option.type_name()
    if kind.startswith("one of "):
        text += f" ({kind.removeprefix('one of ')})"
    if option.default not in (None, ()) and option.type is not bool:
        text += f" \\[{option.default}]"
    return text


CHOSEN: dict[str, tuple[Any, Any]] = {  # options that may be repeated, of run and compare
    "data": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--data",
                metavar="SPEC",
                help="data set (fedskew list data), a CSV, Parquet or NPZ file, or a folder of images; a pattern or a "
                "folder of files, or several --data, make one client per file \\[digits]",
                rich_help_panel="Data and clients",
                autocompletion=completing("data"),
            ),
        ],
        None,
    ),
    "algorithm": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--algorithm",
                metavar="SPEC",
                help="method (fedskew list algorithms) \\[fedavg]",
                autocompletion=completing("algorithms"),
            ),
        ],
        None,
    ),
    "skew": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--skew",
                metavar="SPEC",
                help=f"{escape(options_of(Experiment)['skew'].help)} \\[auto]",
                rich_help_panel="Data and clients",
                autocompletion=completing("skews"),
            ),
        ],
        None,
    ),
}
ENDING: dict[str, tuple[Any, Any]] = {
    "or_resume": (
        Annotated[
            bool,
            typer.Option(
                "--or-resume",
                help="resume the folder if it holds the same run, so that a job can be started again",
            ),
        ],
        False,
    ),
    "as_json": (
        Annotated[
            bool,
            typer.Option("--json", help="print the summary as JSON in the last line of stdout"),
        ],
        False,
    ),
}
