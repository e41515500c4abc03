"""The command ``fedskew compare``: methods x hyper-parameters x skews x seeds in one go, or runs that are finished."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fedskew.cli.command import Once
from fedskew.cli.comparison_progress import show_comparison
from fedskew.cli.console import print_summary
from fedskew.cli.console.comparison_output import print_comparison_table
from fedskew.cli.run_command import CHOSEN, ENDING, settings_from, with_settings
from fedskew.core.errors import FedskewError

if TYPE_CHECKING:
    from fedskew.study.compare import Outcome

SOME_FAILED = 1  # exit code


def add_to(app: typer.Typer) -> None:
    """Add ``compare`` to the command line, with the options of ``run``."""
    with_settings(compare, {**_OWN, **CHOSEN, **_SEVERAL, **ENDING})
    app.command(cls=Once)(compare)


def compare(
    paths: list[Path] | None,
    data: list[str] | None,
    algorithm: list[str] | None,
    skew: list[str] | None,
    seeds: str | None,
    grid: list[str] | None,
    target: str | None,
    goal: str | None,
    score: str | None,
    control: str | None,
    equal: str | None,
    pool: bool,
    choose: str | None,
    choose_seeds: str | None,
    jobs: int | None,
    budget: str | None,
    shard: str | None,
    out: Path | None,
    or_resume: bool,
    as_json: bool,
    **given: str | bool | None,
) -> None:
    """Compare methods x hyper-parameters x skews x seeds: better, equal, worse or undecided, figures and a page.

    FILE is an experiment in TOML, in which algorithm and skew may be lists, with seeds, target, jobs, \\[grid] and how
    the study is judged. Or give folders of finished runs, or of a comparison: nothing is trained then.

    \b
    fedskew compare --algorithm fedavg --algorithm fedprox:mu=0.1 --seeds 0-4
    fedskew compare --algorithm fedavg --algorithm scaffold --grid lr=0.01,0.1,1 --seeds 0-4
    fedskew compare --algorithm fedavg --algorithm ditto --client-test 0.2 --seeds 0-4
    fedskew compare runs/A runs/B --out both
    """
    places = paths or []
    own = {"algorithm": algorithm, "skew": skew, "seeds": seeds, "grid": grid, "jobs": jobs}
    own |= {"choose": choose, "choose_seeds": choose_seeds, "budget": budget, "shard": shard}
    judged_by: dict[str, Any] = {"goal": goal, "score": score, "control": control, "equal": equal}
    judged_by["pool"] = pool or None
    folders = _folders(places)
    if folders:
        _refuse_settings(places, {**given, "data": data, **own, "or-resume": or_resume})
        print_comparison(_compare_finished(folders, out, target, judged_by), as_json)
        return
    _check_flags(places, seeds, given["seed"], out, or_resume)
    file = next(iter(places), None)
    values = settings_from(file, data, {**given, **own, **judged_by, "target": target})
    if seeds is not None:
        values.pop("seed", None)  # which only the file has
    elif given["seed"] is not None:
        values.pop("seeds", None)
    # Flags are checked before these import PyTorch
    from fedskew.report.comparison_files import write_comparison
    from fedskew.study.compare import compare as compare_methods

    outcome = compare_methods(
        values, write_comparison, out=out, or_resume=or_resume, watch=show_comparison
    )
    print_comparison(outcome, as_json)


def _folders(places: Sequence[Path]) -> list[Path]:
    """Return the folders among the paths; one that is not there is an error."""
    folders = []
    for path in places:
        if not path.exists():
            raise FedskewError(f"{path}: there is no such folder or file")
        if path.is_dir():
            folders.append(path)
    return folders


def _check_flags(
    places: Sequence[Path], seeds: str | None, seed: Any, out: Path | None, or_resume: bool
) -> None:
    """Refuse flags that clash, before anything is read."""
    if len(places) > 1:
        raise FedskewError(f"{places[1]}: give one experiment file, or folders of finished runs")
    if or_resume and out is None:
        raise FedskewError("--or-resume needs --out: give the folder to resume")
    if seeds is not None and seed is not None:
        raise FedskewError(f"--seed {seed} clashes with --seeds {seeds}: give one of them")


def _refuse_settings(paths: Sequence[Path], given: Mapping[str, Any]) -> None:
    """Refuse what would change runs that have finished."""
    others = [str(path) for path in paths if not path.is_dir()]
    others += [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if others:
        raise FedskewError(f"{others[0]}: finished runs are compared as they are, leave it out")


def _compare_finished(
    folders: Sequence[Path], out: Path | None, target: str | None, judged_by: Mapping[str, Any]
) -> "Outcome":
    """Compare runs that are there, and write the files into the folder of the comparison or a new one."""
    from fedskew.report.comparison_files import write_comparison
    from fedskew.runs.execute import fresh_folder
    from fedskew.study.compare import compare_finished, own_folder

    place = out or own_folder(folders) or fresh_folder("compare")
    return compare_finished(
        folders, write_comparison, target=target, out=place, judged_by=judged_by
    )


def print_left(outcome: "Outcome", as_json: bool) -> None:
    """Say how many runs other shards have left to run."""
    from fedskew.runs.folder import to_json

    runs = f"{outcome.left} runs of other shards are"
    if outcome.left == 1:
        runs = "1 run of another shard is"
    print(
        f"this shard is done, {runs} left in {outcome.folder}: run these shards, or give their commands again; "
        "the one that ends last judges the study",
        file=sys.stderr,
    )
    if as_json:
        print(to_json({"folder": str(outcome.folder), "left": outcome.left}))


def print_comparison(outcome: "Outcome", as_json: bool) -> None:
    """Print the table, the verdicts and what was written; exit with an error if a run failed."""
    comparison = outcome.found
    assert outcome.folder
    if outcome.left:
        print_left(outcome, as_json)
        return
    if comparison is None:
        rows = outcome.runs["runs"]
        methods = [row["algorithm"] for row in rows]
        print_summary(methods, rows, outcome.folder, outcome.runs, as_json)
        raise typer.Exit(SOME_FAILED)
    print_comparison_table(comparison, outcome.folder, outcome.runs, as_json)
    if comparison.rows.runs.failed:
        raise typer.Exit(SOME_FAILED)


Budget: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        help="stop after this time, such as 90s, 9m or 1.5h, with exit code 75; the same command goes on",
    ),
]
TheShard: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="run only this share of the runs, such as 2/8; other processes or machines run the others",
    ),
]
_OWN: dict[str, tuple[Any, Any]] = {
    "paths": (
        Annotated[
            list[Path] | None,
            typer.Argument(
                metavar="[FILE | RUN...]",
                help="experiment in TOML, or finished runs",
                show_default=False,
            ),
        ],
        None,
    ),
}
_SEVERAL: dict[str, tuple[Any, Any]] = {
    "seeds": (
        Annotated[
            str | None,
            typer.Option(
                "--seeds",
                metavar="0-4",
                help="several seeds, such as 0-4 or 0,3,7: at least 3 for an interval",
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
                help="several numbers of an option of a method or of lr, momentum, weight_decay, clip_norm, such as "
                "mu=0,0.01,0.1; repeat the option for all combinations. They are chosen per method, on validation rows",
            ),
        ],
        None,
    ),
    "target": (
        Annotated[
            str | None,
            typer.Option(
                "--target",
                metavar="[METRIC=]X",
                help="score on test rows, such as 0.9 or balanced_accuracy=0.9: rounds and bytes until it is reached "
                "\\[90 % of the best]",
            ),
        ],
        None,
    ),
    "goal": (
        Annotated[
            str | None,
            typer.Option(
                "--goal",
                metavar="shared|own",
                help="what the models are for: one shared model, scored on the common test rows; or the model that "
                "each client uses, scored on its held-out rows \\[own with --client-test, shared if all share a model]",
            ),
        ],
        None,
    ),
    "score": (
        Annotated[
            str | None,
            typer.Option(
                "--score",
                metavar="last|validation-best",
                help="score of a run: that of the last round, or of the round that is best on validation rows \\[last]",
            ),
        ],
        None,
    ),
    "control": (
        Annotated[
            str | None,
            typer.Option(
                "--control",
                metavar="METHOD",
                help="method that all others are compared with \\[fedavg if it is there, else all pairs]",
            ),
        ],
        None,
    ),
    "equal": (
        Annotated[
            str | None,
            typer.Option(
                "--equal",
                metavar="X",
                help="differences up to this are of no interest, in the metric's own unit \\[0.005, or two test rows]",
            ),
        ],
        None,
    ),
    "pool": (
        Annotated[
            bool, typer.Option("--pool", help="judge also the mean over the skews that were given")
        ],
        False,
    ),
    "choose": (
        Annotated[
            str | None,
            typer.Option(
                "--choose",
                metavar="validation|none",
                help="rows by which the numbers of --grid are chosen; none compares all of them \\[validation]",
            ),
        ],
        None,
    ),
    "choose_seeds": (
        Annotated[
            str | None,
            typer.Option(
                "--choose-seeds",
                metavar="100-102",
                help="choose numbers by runs with these seeds \\[the seeds that methods are judged by]",
            ),
        ],
        None,
    ),
    "jobs": (
        Annotated[
            int | None,
            typer.Option(
                "--jobs",
                metavar="N",
                help="processes for methods, skews and runs that are not in one stack \\[1]",
            ),
        ],
        None,
    ),
    "budget": (Budget, None),
    "shard": (TheShard, None),
    "out": (
        Annotated[
            Path | None,
            typer.Option("--out", help="folder of the comparison; by default a new one in runs/"),
        ],
        None,
    ),
}
