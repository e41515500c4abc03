"""The command ``fedskew paper``: the tables of a paper, measured again beside the printed numbers."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedskew.cli.command import Once
from fedskew.cli.compare_command import Budget
from fedskew.cli.comparison_progress import duration, show_comparison
from fedskew.cli.console import console_for, escape
from fedskew.cli.partition_options import Json
from fedskew.core.errors import BudgetSpentError, unknown

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
            help="one case of the table; repeat the option for several",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="one method of the table; repeat the option for several",
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
            help="seeds \\[five, then up to 20 until every interval is within ±1 point]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="TEXT", help="cpu, cuda, ... or auto", show_default=False),
    ] = None,
    budget: Budget = None,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="PATH", help="folder for replication.md and its results"),
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Measure the tables of a paper again: the paper's number, ours, and whether its claims held or are refuted.

    Without NAME, the papers and their tables are listed.

    Every cell has five seeds, and more until the intervals of all claims are within ±1 point, at most 20. What is
    recorded already is not measured again, so the command can be interrupted and given again. Results are CSV files in
    a folder, and a page with all of them is written: replication.md (replication-quick.md).

    \b
    fedskew paper layers
    fedskew paper fedpbs --table 3 --quick
    fedskew paper stratify --table 2 --device cuda --budget 9m
    """
    from fedskew.engine.device import pick_device
    from fedskew.papers.paper_tables import choose
    from fedskew.papers.replication_page import results_folder, write_page
    from fedskew.papers.rerun import rerun
    from fedskew.papers.results import Results
    from fedskew.study.grid import parse_seeds
    from fedskew.study.sitting import Sitting

    console = console_for(stderr=as_json)
    if name is None:
        _list_papers(console, as_json)
        return
    tables = choose(name, table)
    seed_numbers = None
    if seeds is not None:
        seed_numbers = parse_seeds(seeds)
    cases = list(case or ())
    methods = list(method or ())
    _check_names(name, tables, cases, methods)
    pick_device(device or "auto")
    sitting = Sitting.of(budget)
    folder = results_folder(out, quick)
    if quick:
        tables = _reduced(console, tables)
    for chosen in tables:
        console.print(escape(f"{chosen.printed}: {chosen.title}"), soft_wrap=True)
        with _saying_how_to_go_on(chosen, partial(write_page, out, quick)):
            rerun(
                chosen,
                folder,
                show_comparison,
                seeds=seed_numbers,
                cases=cases,
                methods=methods,
                device=device,
                sitting=sitting,
            )
        _print_results(console, chosen, Results(folder, chosen.label))
    page = write_page(out, quick)
    console.print(escape(f"written to {page}"), soft_wrap=True)
    if as_json:
        print(json.dumps({"page": str(page), "tables": _as_values(tables, folder)}))


def _as_values(tables: "Sequence[PaperTable]", folder: Path) -> list[dict[str, Any]]:
    """Return the printed and measured numbers of tables, and the verdicts on their claims."""
    from fedskew.papers.comparison import summary_table
    from fedskew.papers.results import Results
    from fedskew.papers.verdicts import verdicts

    values = []
    for table in tables:
        results = Results(folder, table.label)
        claims = []
        for verdict in verdicts(table, results):
            said = {"claim": verdict.claim.text, "of_the_paper": verdict.of_the_paper}
            claims.append({**said, "verdict": str(verdict)})
        lines = summary_table(table, results)
        values.append(
            {"table": table.label, "title": table.title, "lines": lines, "claims": claims}
        )
    return values


@contextmanager
def _saying_how_to_go_on(table: "PaperTable", write: Callable[[], Path]) -> Iterator[None]:
    """Turn the end of a sitting into an error that says how to go on, when the page of what there is is written."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if getattr(stop, "code", 0) != BudgetSpentError.code:
            raise
        write()
        raise BudgetSpentError(
            f"the budget is spent at {table.printed}; give the command again to go on"
        ) from None


def _reduced(console: Console, tables: "Sequence[PaperTable]") -> "list[PaperTable]":
    """Print how long the quick versions of all these tables take together, and return them."""
    seconds = 0.0
    smaller = []
    for table in tables:
        seconds += table.quick.seconds
        smaller.append(table.reduced())
    noun = "tables"
    if len(tables) == 1:
        noun = "table"
    console.print(f"{len(tables)} {noun}, about {duration(seconds)} on two cores", soft_wrap=True)
    return smaller


def _list_papers(console: Console, as_json: bool) -> None:
    """Print the papers and their tables."""
    from fedskew.papers.paper_tables import papers, tables_of

    if as_json:
        found = {}
        for entry in papers().values():
            tables = {table.name: table.title for table in tables_of(entry.name)}
            found[entry.name] = {"title": entry.title, "authors": entry.authors, "tables": tables}
        print(json.dumps(found))
        return
    for entry in papers().values():
        console.print(escape(f"{entry.name}: {entry.title} ({entry.authors})"), soft_wrap=True)
        for table in tables_of(entry.name):
            line = f"  --table {table.name}  {table.printed}: {table.title}"
            console.print(escape(line), soft_wrap=True)


def _check_names(
    name: str, tables: "Sequence[PaperTable]", cases: Sequence[str], methods: Sequence[str]
) -> None:
    """Raise an error for a case or a method that none of the tables has."""
    known_cases: set[str] = set()
    known_methods: set[str] = set()
    for table in tables:
        known_cases.update(table.case_names)
        known_methods.update(table.method_names)
    for kind, given, known in (("case", cases, known_cases), ("method", methods, known_methods)):
        for strange in set(given) - known:
            raise unknown(f"{kind} of {name}", strange, known)


def _print_results(console: Console, table: "PaperTable", results: "Results") -> None:
    """Print the paper's numbers beside those that were measured, and what became of its claims."""
    from fedskew.papers.comparison import summary_table
    from fedskew.papers.verdicts import verdicts

    for line in summary_table(table, results):
        console.print(escape("  ".join(line)), soft_wrap=True)
    for verdict in verdicts(table, results):
        console.print(escape(f"{verdict.claim.text} {verdict}"), soft_wrap=True)
