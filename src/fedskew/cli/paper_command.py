"""The command ``fedskew paper``: the tables of a paper, measured again beside the printed numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedskew.cli.command import Once
from fedskew.cli.console import console_for, escape, show_progress
from fedskew.core.errors import unknown

if TYPE_CHECKING:
    from fedskew.papers.paper_tables import PaperTable
    from fedskew.papers.results import Results


def add_to(app: typer.Typer) -> None:
    """Add ``paper`` to the command line."""
    app.command(cls=Once)(paper)


def paper(
    name: Annotated[
        str | None,
        typer.Argument(help="fedpbs, layers, stratify, afl-cp or mfedbn", show_default=False),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="N",
            help="one table or figure, such as 2 or figure4; by default all",
            show_default=False,
        ),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            metavar="NAME",
            help="one case of it; repeat the option for several",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="a smaller version of each table, with no verdict where its settings are not the paper's",
        ),
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="0-2",
            help="seeds; by default those of the table, at least three",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="TEXT", help="cpu, cuda, ... or auto", show_default=False),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="PATH", help="folder for replication.md and its results"),
    ] = Path(),
) -> None:
    """Measure the tables of a paper again: the paper's number, ours, the difference, and whether its claim holds.

    Without NAME, the papers and their tables are listed.

    What is recorded already is not measured again, so the command can be interrupted and given again. Results are CSV
    files in a folder, and a page with all of them is written: replication.md (replication-quick.md).

    \b
    fedskew paper layers
    fedskew paper fedpbs --table 3 --quick
    fedskew paper stratify --table 2 --device cuda --seeds 0-4
    """
    from fedskew.engine.device import pick_device
    from fedskew.papers.paper_tables import choose
    from fedskew.papers.replication_page import results_folder, write_page
    from fedskew.papers.rerun import rerun
    from fedskew.papers.results import Results
    from fedskew.study.grid import parse_seeds

    console = console_for()
    if name is None:
        _list_papers(console)
        return
    tables = choose(name, table)
    seed_numbers = None
    if seeds is not None:
        seed_numbers = parse_seeds(seeds)
    _check_cases(name, tables, case or ())
    pick_device(device or "auto")
    folder = results_folder(out, quick)
    if quick:
        tables = [chosen.reduced() for chosen in tables]
    for chosen in tables:
        console.print(escape(f"{chosen.printed}: {chosen.title}"), soft_wrap=True)
        rerun(chosen, folder, show_progress, seeds=seed_numbers, cases=case or (), device=device)
        _print_results(console, chosen, Results(folder, chosen.label))
    console.print(escape(f"written to {write_page(out, quick)}"), soft_wrap=True)


def _list_papers(console: Console) -> None:
    """Print the papers and their tables."""
    from fedskew.papers.paper_tables import papers, tables_of

    for entry in papers().values():
        console.print(escape(f"{entry.name}: {entry.title} ({entry.authors})"), soft_wrap=True)
        for table in tables_of(entry.name):
            line = f"  --table {table.name}  {table.printed}: {table.title}"
            console.print(escape(line), soft_wrap=True)


def _check_cases(name: str, tables: "Sequence[PaperTable]", cases: Sequence[str]) -> None:
    """Raise an error for a case that none of the tables has."""
    known: set[str] = set()
    for table in tables:
        known.update(table.case_names)
    for strange in set(cases) - known:
        raise unknown(f"case of {name}", strange, known)


def _print_results(console: Console, table: "PaperTable", results: "Results") -> None:
    """Print the paper's numbers beside those that were measured, and whether its claims hold."""
    from fedskew.papers.comparison import summary_table
    from fedskew.papers.verdicts import verdicts

    for line in summary_table(table, results):
        console.print(escape("  ".join(line)), soft_wrap=True)
    for verdict in verdicts(table, results):
        console.print(escape(f"{verdict.claim.text} {verdict}"), soft_wrap=True)
