"""The commands ``fedskew atlas run``, ``status``, ``page``, ``near``, ``add`` and ``reality``."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedskew.cli.command import Once
from fedskew.cli.compare_command import Budget, TheShard
from fedskew.cli.comparison_progress import duration, show_comparison
from fedskew.cli.console import console_for, escape
from fedskew.cli.partition_options import Json
from fedskew.core.errors import BudgetSpentError

if TYPE_CHECKING:
    from fedskew.atlas.nearest_cells import Nearest

_Out = Annotated[Path, typer.Option("--out", metavar="PATH", help="folder of the atlas")]
_Cells = Annotated[
    list[str] | None,
    typer.Option(
        "--cell",
        metavar="NAME",
        help="only this cell; repeat the option for several",
        show_default=False,
    ),
]
_Protocol = Annotated[
    Path | None,
    typer.Option(
        "--protocol",
        metavar="FILE",
        help="a protocol of your own in TOML; by default the one of this version",
        show_default=False,
    ),
]
_Goal = Annotated[
    str,
    typer.Option(
        "--goal", metavar="shared|own", help="one model for everybody, or a model for each client"
    ),
]
_FOLDER = Path("atlas")


def add_to(app: typer.Typer) -> None:
    """Add the commands of ``atlas`` to the command line."""
    atlas_app = typer.Typer(
        help="Which method helps under which heterogeneity: measured over many cells by one protocol.",
        no_args_is_help=True,
    )
    commands: dict[str, Callable[..., None]] = {
        "run": atlas_run,
        "status": atlas_status,
        "page": atlas_page,
        "near": atlas_near,
        "add": atlas_add,
        "reality": atlas_reality,
    }
    for name, command in commands.items():
        atlas_app.command(name, cls=Once)(command)
    app.add_typer(atlas_app, name="atlas")


def atlas_run(
    out: _Out = _FOLDER,
    cell: _Cells = None,
    budget: Budget = None,
    shard: TheShard = None,
    protocol: _Protocol = None,
) -> None:
    """Run what is left of the atlas: every method in every cell, with learning rates chosen on validation rows.

    A cell that has ended is recorded in a file, and not run again. The command can be interrupted and given again.
    With --cell, a single cell is run: in a new folder, that repeats it.

    \b
    fedskew atlas run --budget 9m
    fedskew atlas run --cell digits-label-50 --out again
    """
    from fedskew.atlas.atlas_runs import open_atlas, run_atlas
    from fedskew.study.sitting import Sitting

    console = console_for(stderr=True)
    sitting = Sitting.of(budget, shard)
    atlas = open_atlas(out, protocol, cell or ())

    def say(line: str) -> None:
        console.print(escape(line), soft_wrap=True)

    try:
        run_atlas(atlas, cells=cell or (), sitting=sitting, watch=show_comparison, say=say)
    except BudgetSpentError:
        done, all_studies = len(atlas.results), len(atlas.protocol.studies)
        raise BudgetSpentError(
            f"the budget is spent, {done} of {all_studies} studies are done; give the command again to go on"
        ) from None
    say(f"{len(atlas.results)} of {len(atlas.protocol.studies)} studies are done, in {out}")


def atlas_status(out: _Out = _FOLDER, as_json: Json = False) -> None:
    """Say what has ended, what is left, and about how long that will take."""
    from fedskew.atlas.atlas_runs import atlas_in, progress_of

    found = progress_of(atlas_in(out))
    if as_json:
        print(json.dumps(asdict(found)))
        return
    console = console_for()
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for title in ("cell", "goal", "runs", "state"):
        table.add_column(title, overflow="fold")
    for study in found.studies:
        state = "left"
        if study.seconds is not None:
            state = f"done in {duration(study.seconds)}"
        table.add_row(study.cell, study.goal, str(study.runs), state)
    console.print(table)
    console.print(f"{found.runs_done} of {found.runs} runs are done", soft_wrap=True)
    if found.seconds_left:
        console.print(f"about {duration(found.seconds_left)} left on one core", soft_wrap=True)


def atlas_page(out: _Out = _FOLDER) -> None:
    """Write the map of what has ended: a page, figures as PDF, and the rows of all runs with their description."""
    from fedskew.atlas.atlas_files import write_atlas
    from fedskew.atlas.atlas_runs import atlas_in

    console = console_for()
    for path in write_atlas(atlas_in(out), out):
        console.print(escape(f"written: {path}"), soft_wrap=True)


def atlas_near(
    measured: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="what fedskew measure --json printed", show_default=False
        ),
    ],
    goal: _Goal = "shared",
    as_json: Json = False,
) -> None:
    """Look clients up on the map by what was measured of them: the nearest cells, and what helped there.

    \b
    fedskew measure --data digits --skew dirichlet:alpha=0.3 --clients 10 --json > measured.json
    fedskew atlas near measured.json
    """
    from fedskew.atlas.look_up import look_up

    found = look_up(measured, goal)
    if as_json:
        print(json.dumps(_near_as_values(found)))
        return
    console = console_for()
    console.print(escape(found.says), soft_wrap=True)
    console.print(_cells_table(found))
    console.print(_predictions_table(found))


def _near_as_values(found: "Nearest") -> dict[str, Any]:
    """Return the nearest cells and what they predict as plain numbers."""
    cells = []
    for place, far in zip(found.places, found.distances, strict=True):
        cells.append({"cell": place.cell, "title": place.title, "distance": round(far, 3)})
    predictions = []
    for one in found.predictions:
        predictions.append(
            {
                "method": one.method,
                "gain": one.mean,
                "low": one.interval.low,
                "high": one.interval.high,
                "verdicts": list(one.verdicts),
            }
        )
    return {"says": found.says, "cells": cells, "predictions": predictions, "best": found.best}


def _cells_table(found: "Nearest") -> Table:
    """Return the nearest cells."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for title in ("nearest cell", "distance", "FedAvg's lr"):
        table.add_column(title, overflow="fold")
    for place, far in zip(found.places, found.distances, strict=True):
        table.add_row(escape(place.title), f"{far:.2f}", f"{place.control_lr:g}")
    return table


def _predictions_table(found: "Nearest") -> Table:
    """Return the predicted gains."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for title in ("method", "gain in points (95 % of cells)", "verdicts there"):
        table.add_column(title, overflow="fold")
    for one in found.predictions:
        low, high = 100 * one.interval.low, 100 * one.interval.high
        gain = f"{100 * one.mean:+.1f} ({low:+.1f} to {high:+.1f})"
        table.add_row(escape(one.method), gain, ", ".join(one.verdicts))
    return table


def atlas_add(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help="a Python file that registers a method of your own, or the spelling of a method",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="PATH", help="folder of its runs and its page")
    ] = Path("atlas-added"),
    goal: _Goal = "shared",
    cell: _Cells = None,
    budget: Budget = None,
) -> None:
    """Run a method of your own through the cells of the atlas, and draw it beside the others.

    It gets the same cells, blocks and learning rates as every other method. FedAvg is run beside it, so that you see
    whether this machine repeats the published runs. Cells that refuse the method are listed with their reason.

    \b
    fedskew atlas add my_method.py --budget 9m
    fedskew atlas add "fedprox:mu=0.1" --cell digits-label-50 --cell heart-disease
    """
    from fedskew.atlas.adding import add_method
    from fedskew.study.sitting import Sitting

    console = console_for(stderr=True)

    def say(line: str) -> None:
        console.print(escape(line), soft_wrap=True)

    sitting: Sitting = Sitting.of(budget)
    try:
        page = add_method(
            method, out, goal, cells=cell or (), sitting=sitting, watch=show_comparison, say=say
        )
    except BudgetSpentError:
        raise BudgetSpentError(
            f"the budget is spent; give the command again to go on in {out}"
        ) from None
    say(f"written: {page}")


def atlas_reality(
    out: Annotated[
        Path, typer.Option("--out", metavar="PATH", help="folder of the table and the figure")
    ] = Path("reality"),
    as_json: Json = False,
) -> None:
    """Measure how heterogeneous natural federations are, beside the levels that skews make.

    Data sets that are not on this machine are left out, and the command says how to get them.

    \b
    fedskew atlas reality --out reality
    """
    from fedskew.atlas.reality import measure_reality, write_reality

    console = console_for(stderr=True)

    def say(line: str) -> None:
        console.print(escape(line), soft_wrap=True)

    rows, missing = measure_reality(say)
    for reason in missing:
        say(f"left out: {reason}")
    if as_json:
        print(json.dumps([row.as_values() for row in rows]))
        return
    for path in write_reality(rows, out):
        say(f"written: {path}")
