"""The command ``fedskew compare``: methods x hyper-parameters x skews x seeds in one go, or runs that are finished."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedskew.cli.command import Once
from fedskew.cli.comparison_progress import show_comparison
from fedskew.cli.console import print_summary
from fedskew.cli.run_command import CHOSEN, ENDING, settings_from, with_settings
from fedskew.core.errors import FedskewError, Interrupted

if TYPE_CHECKING:
    from fedskew.study.comparison_table import Comparison
    from fedskew.study.sweep import Member

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
    from fedskew.study import sweep
    from fedskew.study.comparison_table import Target
    from fedskew.study.jobs import checked_jobs

    for path in paths or []:
        if not path.exists():
            raise FedskewError(f"{path}: there is no such folder or file")
    folders = [path for path in paths or [] if path.is_dir()]
    if folders:
        more = {
            "data": data,
            "algorithm": algorithm,
            "skew": skew,
            "seeds": seeds,
            "grid": grid,
            "jobs": jobs,
        }
        asked = []
        for name, value in {**given, **more, "or-resume": or_resume}.items():
            if value:
                asked.append(f"--{name}")
        others = [*(str(path) for path in paths or [] if path not in folders), *asked]
        if others:
            raise FedskewError(f"{others[0]}: finished runs are compared as they are, leave it out")
        _compare_finished(folders, out, target, as_json)
        return
    if paths and len(paths) > 1:
        raise FedskewError(f"{paths[1]}: give one experiment file, or folders of finished runs")
    values = settings_from(
        paths[0] if paths else None, data, {**given, "algorithm": algorithm, "skew": skew}
    )
    if seeds is not None or given["seed"] is not None:
        values.pop("seeds" if seeds is None else "seed", None)
    if seeds is not None and given["seed"] is not None:
        raise FedskewError(f"--seed {given['seed']} clashes with --seeds {seeds}: give one of them")
    for name, one in (("seeds", seeds), ("grid", grid)):
        if one is not None:
            values[name] = one
    in_file = {}
    for name, usual in (("target", None), ("jobs", 1)):
        in_file[name] = values.pop(name, usual)
    if target is None:
        wish = in_file["target"]
    else:
        wish = target
    if wish is None:
        metric = ""
    else:
        metric = Target.of(wish).metric or ""
    processes = checked_jobs(in_file["jobs"] if jobs is None else jobs, values.get("workers"))
    if or_resume and out is None:
        raise FedskewError("--or-resume needs --out: give the folder to resume")
    wanted = sweep.plan(values)
    try:
        place = sweep.prepared(out, wanted, or_resume, None if wish is None else str(wish), metric)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted before the first run: nothing was written, give the command again"
        ) from None
    run_group(place, wanted, as_json, jobs=processes)


def _compare_finished(
    folders: Sequence[Path], out: Path | None, target: str | None, as_json: bool
) -> None:
    """Compare runs that are there, and write the files into the folder of the comparison or a new one."""
    from fedskew.report.comparison_files import record_comparison
    from fedskew.runs.execute import fresh_folder
    from fedskew.runs.folder import GROUP
    from fedskew.study.comparison_table import comparison

    found = comparison(folders, target)
    if len(folders) == 1 and (folders[0] / GROUP).is_file():
        own = folders[0]
    else:
        own = None
    place = out or own or fresh_folder("compare")
    record_comparison(found, place, folders)
    _print(found, place, {}, as_json)


def run_group(
    place: Path,
    wanted: "list[Member]",
    as_json: bool,
    *,
    jobs: int = 1,
    retry: bool = False,
    force: bool = False,
) -> None:
    """Run the members of a comparison that are not finished yet, write its files, and print the table of all."""
    from fedskew.report.comparison_files import write_comparison
    from fedskew.report.page import PageWriter
    from fedskew.runs.folder import resume_command
    from fedskew.study import sweep
    from fedskew.study.comparison_table import comparison

    with show_comparison(wanted) as callbacks_of:
        try:
            summaries = sweep.run_all(
                place,
                wanted,
                callbacks_of,
                writers=[PageWriter()],
                retry=retry,
                force=force,
                jobs=jobs,
            )
        except KeyboardInterrupt as stop:
            code = getattr(stop, "code", 130)
            raise Interrupted(f"interrupted; resume with: {resume_command(place)}", code) from None
    result = sweep.overview(wanted, summaries)
    if all("failed" in row for row in summaries):
        print_summary([member.algorithm for member in wanted], summaries, place, result, as_json)
        raise typer.Exit(SOME_FAILED)
    found = comparison([place])
    write_comparison(found, place)
    _print(found, place, result, as_json)


def _print(found: "Comparison", place: Path, result: "dict[str, Any]", as_json: bool) -> None:
    """Print the table of all runs, who is ahead, and what was written; exit with an error if a run failed."""
    from fedskew.report.comparison_files import files_of

    methods = list[str]()
    rows = list[dict[str, Any]]()
    columns = list[dict[str, Any]]()
    # The target is there instead
    if found.target:
        left_out = "rounds_to_90_percent_of_last_test_accuracy"
    else:
        left_out = ""
    for one, line in zip(found.configurations, found.lines(), strict=True):
        seeds = line[len(found.head()) - len(found.columns) - 2]
        kept = []
        for row in one.rows:
            kept.append({name: value for name, value in row.items() if name != left_out})
        for row in (*kept, *({"failed": reason} for reason in one.failed)):
            methods.append(line[0])
            columns.append({**one.options, **one.conditions, "seeds": seeds, "p": line[-1]})
            rows.append(row)
    notes = [text for text in (*found.findings(), found.no_ranks) if text]
    notes.append(f"tables and figures: {', '.join(path.name for path in files_of(place))}")
    frame = found.frame()
    table = {"rows": frame.astype(object).where(frame.notna(), None).to_dict("records")}
    result = {**result, "comparison": {**table, **frame.attrs}}
    print_summary(methods, rows, place, result, as_json, columns, notes, found.goal)
    if found.runs.failed:
        raise typer.Exit(SOME_FAILED)


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
