"""The command ``fedskew resume``: continue a run, or a group of runs, that was stopped."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.command import Once
from fedskew.cli.compare_command import Budget, TheShard, print_comparison
from fedskew.cli.comparison_progress import show_comparison
from fedskew.cli.console import print_summary, show_progress
from fedskew.core.config import workers_of_torchrun
from fedskew.core.errors import FedskewError


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
        bool, typer.Option("--retry", help="run the failed runs of a comparison again")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", help="how many processes train, if another number than at the beginning"
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", metavar="N", help="how many processes train the runs of a comparison"
        ),
    ] = 1,
    budget: Budget = None,
    shard: TheShard = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the summary as JSON in the last line of stdout")
    ] = False,
) -> None:
    """Resume a run, or a comparison, after a crash, Ctrl-C or kill -9, to the same results, bit for bit."""
    from fedskew.runs.folder import GROUP, SUMMARY, RunFolder

    workers = workers_of_torchrun() or workers
    if (folder / GROUP).is_file():
        from fedskew.report.comparison_files import write_comparison
        from fedskew.study.compare import carry_out
        from fedskew.study.sitting import Sitting
        from fedskew.study.study_folder import open_study

        sitting = Sitting.of(budget, shard)
        study = open_study(folder, jobs, workers)
        outcome = carry_out(
            study,
            write_comparison,
            sitting=sitting,
            watch=show_comparison,
            retry=retry,
            force=force,
        )
        print_comparison(outcome, as_json)
        return
    for name, value in {"budget": budget, "shard": shard}.items():
        if value is not None:
            raise FedskewError(f"--{name} {value}: {folder} is a run, and that is for comparisons")
    disk = RunFolder.open(folder)
    if disk.finished:
        print(f"{folder} is finished already", file=sys.stderr)
        summary = disk.read_json(SUMMARY)
    else:
        from fedskew.runs.resume_checks import check_folder

        # Before PyTorch is imported, and first, as the configuration may name what imported modules register
        config = check_folder(disk, force, workers)
        from fedskew.api import resume as resume_run
        from fedskew.runs.choices import brief

        name = brief("algorithm", config["algorithm"])
        with show_progress([name], config.get("rounds", 0)) as callbacks_of:
            summary = resume_run(
                folder, callbacks=callbacks_of(name), force=force, workers=workers
            ).summary
    print_summary([summary["algorithm"]], [summary], folder, summary, as_json)
