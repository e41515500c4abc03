"""The command ``fedskew compare``: methods x hyper-parameters x skews x seeds in one go, or runs that are finished."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedskew.cli.command import Once
from fedskew.cli.comparison_progress import show_comparison
from fedskew.cli.console import print_summary
from fedskew.cli.run_command import CHOSEN, ENDING, settings_from, with_settings
from fedskew.core.errors import FedskewError

if TYPE_CHECKING:
    from fedskew.study.compare import Outcome
    from fedskew.study.comparison_table import Comparison

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
    jobs: int | None,
    out: Path | None,
    or_resume: bool,
    as_json: bool,
    **given: str | bool | None,
) -> None:
    """Compare methods x hyper-parameters x skews x seeds: a table, who is ahead beyond noise, figures and a page.

    FILE is an experiment in TOML, in which algorithm and skew may be lists, with seeds, target, jobs and \\[grid].
    Or give folders of finished runs, or of a comparison: nothing is trained then.

    \b
    fedskew compare --algorithm fedavg --algorithm fedprox:mu=0.1 --seeds 0-4
    fedskew compare --algorithm fedavg --algorithm fedprox --grid mu=0.01,0.1 --skew iid --skew classes:k=2
    fedskew compare experiment.toml --target accuracy=0.9 --jobs 2
    fedskew compare runs/A runs/B --out both
    """
    from fedskew.report.comparison_files import WRITERS
    from fedskew.study.compare import compare as compare_methods

    places = paths or []
    for path in places:
        if not path.exists():
            raise FedskewError(f"{path}: there is no such folder or file")
    own = {"algorithm": algorithm, "skew": skew, "seeds": seeds, "grid": grid, "jobs": jobs}
    folders = [path for path in places if path.is_dir()]
    if folders:
        _refuse_settings(places, {**given, "data": data, **own, "or-resume": or_resume})
        print_comparison(_compare_finished(folders, out, target), as_json)
        return
    if len(places) > 1:
        raise FedskewError(f"{places[1]}: give one experiment file, or folders of finished runs")
    if or_resume and out is None:
        raise FedskewError("--or-resume needs --out: give the folder to resume")
    if seeds is not None and given["seed"] is not None:
        raise FedskewError(f"--seed {given['seed']} clashes with --seeds {seeds}: give one of them")
    file = None
    if places:
        file = places[0]
    values = settings_from(file, data, {**given, **own, "target": target})
    if seeds is not None:
        values.pop("seed", None)  # which only the file has
    elif given["seed"] is not None:
        values.pop("seeds", None)
    outcome = compare_methods(values, WRITERS, out=out, or_resume=or_resume, watch=show_comparison)
    print_comparison(outcome, as_json)


def _refuse_settings(paths: Sequence[Path], given: Mapping[str, Any]) -> None:
    """Refuse what would change runs that have finished."""
    others = [str(path) for path in paths if not path.is_dir()]
    others += [f"--{name}" for name, value in given.items() if value]
    if others:
        raise FedskewError(f"{others[0]}: finished runs are compared as they are, leave it out")


def _compare_finished(folders: Sequence[Path], out: Path | None, target: str | None) -> "Outcome":
    """Compare runs that are there, and write the files into the folder of the comparison or a new one."""
    from fedskew.report.comparison_files import WRITERS
    from fedskew.runs.execute import fresh_folder
    from fedskew.study.compare import compare_finished, own_folder

    place = out or own_folder(folders) or fresh_folder("compare")
    return compare_finished(folders, WRITERS.comparison, target=target, out=place)


def print_comparison(outcome: "Outcome", as_json: bool) -> None:
    """Print the table of all runs, who is ahead, and what was written; exit with an error if a run failed."""
    comparison = outcome.found
    assert outcome.folder
    if comparison is None:
        rows = outcome.runs["runs"]
        methods = [row["algorithm"] for row in rows]
        print_summary(methods, rows, outcome.folder, outcome.runs, as_json)
        raise typer.Exit(SOME_FAILED)
    _print_table(comparison, outcome.folder, outcome.runs, as_json)
    if comparison.rows.runs.failed:
        raise typer.Exit(SOME_FAILED)


def _print_table(
    comparison: "Comparison", place: Path, runs: "dict[str, Any]", as_json: bool
) -> None:
    """Print one line a configuration, and the notes of the comparison.

    The table is made from one row a run: what is the same for all runs of a configuration is repeated in each.
    """
    from fedskew.report.comparison_files import files_of

    methods = list[str]()
    rows = list[dict[str, Any]]()
    columns = list[dict[str, Any]]()
    seeds_at = len(comparison.head()) - len(comparison.columns) - 2
    for configuration, line in zip(comparison.rows.configurations, comparison.lines(), strict=True):
        failed: list[dict[str, Any]] = [{"failed": reason} for reason in configuration.failed]
        for row in (*configuration.rows, *failed):
            methods.append(line[0])
            varied = {**configuration.options, **configuration.conditions}
            columns.append({**varied, "seeds": line[seeds_at], "p": line[-1]})
            rows.append(_without_second_target(row, comparison))
    notes = [text for text in (*comparison.findings(), comparison.judgement.no_ranks) if text]
    notes.append(f"tables and figures: {', '.join(path.name for path in files_of(place))}")
    frame = comparison.frame()
    table = frame.astype(object).where(frame.notna(), None).to_dict("records")
    result: dict[str, Any] = {**runs, "comparison": {"rows": table, **frame.attrs}}
    print_summary(methods, rows, place, result, as_json, columns, notes, comparison.judgement.goal)


def _without_second_target(row: "dict[str, Any]", found: "Comparison") -> "dict[str, Any]":
    """Return a row without the target of a single run, where the comparison has one."""
    kept = dict(row)
    if found.rows.target:
        kept.pop("rounds_to_90_percent_of_last_test_accuracy", None)
    return kept


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
                help="several seeds, such as 0-4 or 0,3,7: at least 3 for a test",
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
                "mu=0,0.01,0.1; repeat the option for all combinations",
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
    "out": (
        Annotated[
            Path | None,
            typer.Option("--out", help="folder of the comparison; by default a new one in runs/"),
        ],
        None,
    ),
}
