"""The command ``fedskew resume``: continue a run, or a group of runs, that was stopped."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.command import Once
from fedskew.cli.compare_command import print_comparison
from fedskew.cli.comparison_progress import show_comparison
from fedskew.cli.console import print_summary, show_progress
from fedskew.core.config import workers_of_torchrun


def add_to(app: typer.Typer) -> None:
    """Add ``resume`` to the command line."""
    app.command(cls=Once)(resume)


def resume(
    folder: Annotated[Path, typer.Argument(help="folder of a run or of a comparison")],
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="use the last intact checkpoint, and accept a changed configuration"
        ),
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="in a comparison, run those again that failed")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", help="processes that train, if the run began with another number of them"
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", metavar="N", help="of a comparison, processes that train")
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the summary as JSON in the last line of stdout")
    ] = False,
) -> None:
    """Resume a run, or a comparison, after a crash, Ctrl-C or kill -9; the results are the same, bit for bit."""
    from fedskew.runs.folder import GROUP, SUMMARY, RunFolder

    workers = workers_of_torchrun() or workers
    if (folder / GROUP).is_file():
        from fedskew.report.comparison_files import WRITERS
        from fedskew.study.compare import carry_out
        from fedskew.study.study_folder import open_study

        study = open_study(folder, jobs, workers)
        outcome = carry_out(study, WRITERS, watch=show_comparison, retry=retry, force=force)
        print_comparison(outcome, as_json)
        return
    disk = RunFolder.open(folder)
    if disk.finished:
        print(f"{folder} is finished already", file=sys.stderr)
        summary = disk.read_json(SUMMARY)
    else:
        from fedskew.api import resume as resume_run
        from fedskew.runs.choices import brief
        from fedskew.runs.environment import check_imports
        from fedskew.runs.execute import read_config

        # First, as the configuration may name what imported modules register.
        check_imports(folder, disk.environment(), force)
        config = read_config(disk)
        name = brief("algorithm", config["algorithm"])
        with show_progress([name], config.get("rounds", 0)) as callbacks_of:
            summary = resume_run(
                folder, callbacks=callbacks_of(name), force=force, workers=workers
            ).summary
    print_summary([summary["algorithm"]], [summary], folder, summary, as_json)
