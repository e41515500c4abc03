"""The command ``fedskew run``: train one method, or several, with every setting of an experiment as an option."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedskew.cli.command import Once
from fedskew.cli.console import escape, live_page, print_summary, show_progress
from fedskew.core.config import AUTO, CHOICES, Experiment, read_file, workers_of_torchrun
from fedskew.core.errors import FedskewError, Interrupted
from fedskew.core.registry import Option, options_of

if TYPE_CHECKING:
    from fedskew.runs.sweep import Member


def add_to(app: typer.Typer) -> None:
    """Add ``run`` to the command line, with one option for each setting of an experiment."""
    own = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
        for name, (kind, default) in _OWN_OPTIONS.items()
    ]
    parameters = [*own, *options_as_parameters(_PANELS)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(cls=Once)(run)


def run(
    file: Path | None,
    data: list[str] | None,
    algorithm: list[str] | None,
    seeds: str | None,
    grid: list[str] | None,
    folder: Path | None,
    or_resume: bool,
    live: bool,
    as_json: bool,
    **given: str | bool | None,
) -> None:
    """Train one method, or compare several, on a partitioned data set.

    FILE is an experiment in TOML, such as the config.toml of an earlier run; options override it.

    A SPEC is a name, or a name with options: dirichlet:alpha=0.2,min_size=5

    \b
    fedskew run --algorithm fedprox:mu=0.1 --clients 20
    fedskew run --algorithm fedavg --algorithm fedprox --seeds 0-4
    fedskew run --algorithm fedprox --seeds 0-4 --grid mu=0,0.01,0.1
    fedskew run --algorithm "fedprox:mu=0.1 + median"
    fedskew run --data "hospital_*.csv:label=outcome" --algorithm fedbn
    fedskew run experiment.toml --rounds 20
    """
    values = read_file(file) if file else {}
    values |= {name: value for name, value in given.items() if value is not None}
    if data:
        from fedskew.data.catalogue import together

        values["data"] = together(data)
    if (started := workers_of_torchrun()) is not None:
        if given["workers"] is not None:
            raise FedskewError(f"--workers {given['workers']}: torchrun has started {started} processes, leave it out")
        values["workers"] = started
    asked = algorithm or values.pop("algorithm", "fedavg")
    algorithms: list[Any] = list(asked) if isinstance(asked, (list, tuple)) else [asked]
    if not algorithms:
        raise FedskewError(f"{file}: algorithm = [] is empty: give one or several (fedskew list algorithms)")
    if seeds is not None and given.get("seed") is not None:
        raise FedskewError(f"--seed {given['seed']} clashes with --seeds {seeds}: give one of them")
    from fedskew.report.page import PageWriter
    from fedskew.runs import sweep as several
    from fedskew.runs.choices import spell
    from fedskew.runs.experiment import run_experiment, run_or_resume
    from fedskew.runs.folder import must_be_new

    if or_resume and folder is None:
        raise FedskewError("--or-resume needs --folder: give the folder to resume")
    if seeds is None and not grid and len(algorithms) == 1:
        experiment = Experiment(**{**values, "algorithm": algorithms[0]})
        name = spell("algorithm", experiment.algorithm)
        with live_page(live) as watching, show_progress([name], experiment.rounds) as callbacks_of:
            callbacks = [PageWriter(), *watching, *callbacks_of(name)]
            if or_resume and folder:
                done = run_or_resume(experiment, folder, callbacks)
            else:
                done = run_experiment(experiment, folder=folder, callbacks=callbacks)
        assert done.folder is not None
        print_summary([name], [done.summary], done.folder, done.summary, as_json)
        return
    if live:
        raise FedskewError("--live shows one run, and these are several: leave it out, or run one of them")
    seed_list = [Experiment(**values).seed] if seeds is None else several.parse_seeds(seeds)
    spelled = [spell("algorithm", entry) for entry in algorithms]
    wanted = several.members(values, spelled, seed_list, several.parse_grid(grid or []))
    if or_resume and folder and folder.exists():
        several.must_be_the_same(folder, wanted)
        run_group(folder, wanted, as_json)
        return
    if folder:
        must_be_new(folder)
    several.check(wanted)
    run_group(_create_group(folder, wanted), wanted, as_json)


def _create_group(folder: Path | None, wanted: "list[Member]") -> Path:
    """Create and return the folder of a group; without a given folder, names are tried until one is free."""
    from fedskew.runs import sweep as several
    from fedskew.runs.choices import spell
    from fedskew.runs.execute import fresh_folder
    from fedskew.runs.federate import DEFAULT_SKEW
    from fedskew.runs.folder import TakenError

    experiment = wanted[0].experiment()
    data, skew = spell("data", experiment.data), experiment.skew
    if skew == AUTO:
        skew = "natural" if data.startswith("silos:") else DEFAULT_SKEW
    while True:
        place = folder or fresh_folder("compare", data, spell("skew", skew))
        try:
            several.create(place, wanted)
        except TakenError:
            if folder:
                raise
        else:
            return place


def run_group(place: Path, wanted: "list[Member]", as_json: bool, *, retry: bool = False, force: bool = False) -> None:
    """Run the members of a group that are not finished yet, write their pages, and print the summary of all."""
    from fedskew.report.page import PageWriter, report
    from fedskew.runs import sweep as several
    from fedskew.runs.folder import PAGE, resume_command
    from fedskew.runs.runner import only_warned

    with show_progress([member.name for member in wanted], wanted[0].experiment().rounds) as callbacks_of:
        try:
            summaries = several.run_all(
                place, wanted, lambda member: [PageWriter(), *callbacks_of(member.name)], retry=retry, force=force
            )
        except KeyboardInterrupt as stop:
            code = getattr(stop, "code", 130)
            raise Interrupted(f"interrupted; resume with: {resume_command(place)}", code) from None
    if any("failed" not in row for row in summaries):
        with only_warned(str(place / PAGE)):
            report([place])
    methods, varied = [member.algorithm for member in wanted], [member.varied for member in wanted]
    print_summary(methods, summaries, place, several.overview(wanted, summaries), as_json, varied)


def options_as_parameters(panels: Mapping[str, Sequence[str]]) -> list[inspect.Parameter]:
    """Return one option for each of these settings of an experiment, which itself converts and checks the values."""
    result = []
    options = options_of(Experiment)
    for panel, names in panels.items():
        for option in (options[name] for name in names):
            flag, text = "--" + option.name.replace("_", "-"), option.type is not bool
            flag = flag if text else f"{flag}/--no-{flag[2:]}"  # so that a file's true can be overridden
            look: dict[str, Any] = {"help": _help(option), "rich_help_panel": panel, "show_default": False}
            kind = typer.Option(flag, metavar=_metavar(option) if text else None, **look)
            annotation: Any = Annotated[str | None, kind] if text else Annotated[bool | None, kind]
            result.append(
                inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )
    return result


_PANELS = {
    "Data and clients": ("skew", "clients", "bins", "validation", "client_test", "split_seed"),
    "Training": (
        "model", "task", "rounds", "per_round", "sampling", "epochs", "batch_size", "lr", "schedule", "optimizer",
        "momentum", "weight_decay", "nesterov", "clip_norm", "augment", "weights", "norm", "seed",
    ),
    "Execution and output": (
        "secure", "round_totals", "engine", "device", "dtype", "precision", "workers", "threads", "memory", "fleet",
        "eval_every",
        "eval_rows", "metric", "metrics", "thresholds", "test_trained", "stop_after", "checkpoint_every", "tensorboard",
        "mlflow", "wandb",
    ),
}  # fmt: skip


def _metavar(option: Option) -> str:
    if option.name in CHOICES:
        return "SPEC"
    numbers = {"a whole number": "N", "a number": "X", "a whole number or none": "N", "a number or none": "X"}
    return {**numbers, "a list of text (a+b+c)": "A+B"}.get(option.type_name(), "TEXT")


def _help(option: Option) -> str:
    kind = option.type_name()
    choices = f" ({kind.removeprefix('one of ')})" if kind.startswith("one of ") else ""
    default = "" if option.default in (None, ()) or option.type is bool else f" \\[{option.default}]"
    return f"{escape(option.help)}{choices}{default}"


_OWN_OPTIONS: dict[str, tuple[Any, Any]] = {
    "file": (Annotated[Path | None, typer.Argument(help="experiment in TOML", show_default=False)], None),
    "data": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--data",
                metavar="SPEC",
                help="data set (fedskew list data), a CSV, Parquet or NPZ file, or a folder of images; a pattern or a "
                "folder of files, or several --data, are one client a file \\[digits]",
                rich_help_panel="Data and clients",
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
                help="method (fedskew list algorithms); repeat the option to compare several",
            ),
        ],
        None,
    ),
    "seeds": (
        Annotated[
            str | None,
            typer.Option(
                "--seeds", metavar="0-4", help="several seeds, such as 0-4 or 0,3,7: mean ± standard deviation"
            ),
        ],
        None,
    ),
    "grid": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--grid",
                metavar="NAME=X,Y",
                help="several numbers of an option of the method or of lr, momentum, weight_decay, clip_norm, such as "
                "mu=0,0.01,0.1; repeat the option for all combinations",
            ),
        ],
        None,
    ),
    "folder": (
        Annotated[Path | None, typer.Option("--folder", help="run folder; by default a new one under runs/")],
        None,
    ),
    "or_resume": (
        Annotated[
            bool,
            typer.Option(
                "--or-resume", help="resume the folder if it holds the same run, so that a job can be started again"
            ),
        ],
        False,
    ),
    "live": (
        Annotated[
            bool, typer.Option("--live", help="show the page of the run in a browser on this machine while it goes on")
        ],
        False,
    ),
    "as_json": (
        Annotated[bool, typer.Option("--json", help="print the summary as JSON in the last line of stdout")],
        False,
    ),
}
