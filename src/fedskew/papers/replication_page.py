"""The page with the claims of all papers and what became of them, and beside it a page for each paper."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedskew.core.writing import write_atomically
from fedskew.papers.comparison import measured
from fedskew.papers.paper_page import (
    ENDINGS,
    JudgedTable,
    anchor_of,
    bold,
    bullets,
    counted,
    heading_of,
    markdown,
    page_of,
    paragraphs,
    said,
)
from fedskew.papers.paper_tables import Paper, PaperTable, papers, tables_of
from fedskew.papers.results import Results
from fedskew.papers.stopping import STAGES
from fedskew.papers.table_figure import draw_table
from fedskew.papers.verdicts import Verdict, verdicts_on
from fedskew.plots.replication_figures import figure_file
from fedskew.plots.verdict_bars import draw_verdicts
from fedskew.study.claims import FEWEST_TO_REFUTE, OUTCOMES, Outcome
from fedskew.study.judge import FEWEST_BLOCKS, VERDICTS

FOLDER = "replication"  # of the results, beside the page of the same name
DIAGRAM = "verdicts.svg"


def results_folder(out: Path, quick: bool = False) -> Path:
    """Return the folder of the results."""
    if quick:
        return out / f"{FOLDER}-quick"
    return out / FOLDER


def write_page(out: Path, quick: bool = False) -> Path:
    """Draw the figures of all tables beside their results, write the pages and return the path of the first."""
    folder = results_folder(out, quick)
    judged = judged_papers(folder, quick)
    for tables in judged.values():
        for one in tables:
            _write_figure(one, folder)
    if _has_verdicts(judged):
        write_atomically(folder / DIAGRAM, diagram(judged))
    for name, text in pages(folder, quick, judged).items():
        write_atomically(out / name, text.encode())
    return out / f"{folder.name}.md"


def _write_figure(judged: JudgedTable, folder: Path) -> None:
    """Draw the figure of a table; one with another ending, of other results, is removed."""
    drawn = draw_table(judged.found)
    for ending in ENDINGS:
        path = folder / f"{judged.table.label}.{ending}"
        if drawn and drawn[0] == ending:
            write_atomically(path, drawn[1])
        else:
            path.unlink(missing_ok=True)


Judged = dict[str, list[JudgedTable]]  # the tables of every paper


def judged_papers(folder: Path, quick: bool = False) -> Judged:
    """Return the tables of all papers with their results, judged."""
    judged: Judged = {}
    for name in papers():
        headings: list[str] = []
        judged[name] = []
        for table in _tables(name, quick):
            headings.append(heading_of(table))
            found = measured(table, Results(folder, table.label))
            judged[name].append(JudgedTable(found, verdicts_on(found), anchor_of(headings)))
    return judged


def _tables(paper: str, quick: bool) -> list[PaperTable]:
    tables = tables_of(paper)
    if quick:
        return [table.reduced() for table in tables]
    return tables


def _all(tables: Sequence[JudgedTable]) -> list[Verdict]:
    """Return the verdicts of some tables."""
    verdicts: list[Verdict] = []
    for one in tables:
        verdicts += one.verdicts
    return verdicts


def _everything(judged: Judged) -> list[Verdict]:
    """Return the verdicts of all papers."""
    verdicts: list[Verdict] = []
    for tables in judged.values():
        verdicts += _all(tables)
    return verdicts


def _has_verdicts(judged: Judged) -> bool:
    return any(verdict.of_the_paper for verdict in _everything(judged))


def headline(folder: Path) -> str:
    """Return what became of the claims of the papers, in words."""
    return said(_everything(judged_papers(folder)))


def diagram(judged: Judged) -> bytes:
    """Return the diagram of the verdicts on the claims of the papers, the same bytes for the same verdicts."""
    counts: dict[str, Mapping[Outcome, int]] = {}
    known = papers()
    for name, tables in judged.items():
        of_paper = counted(_all(tables))
        if sum(of_paper.values()):
            counts[known[name].method] = of_paper
    return figure_file(draw_verdicts(counts, OUTCOMES))[1]


def pages(folder: Path, quick: bool = False, judged: Judged | None = None) -> dict[str, str]:
    """Return the pages in Markdown: one with all claims, and beside the results and the figures one for each paper.

    They are named by their paths from the parent of ``folder``; the page with all claims is the first.
    """
    if judged is None:
        judged = judged_papers(folder, quick)
    details = {}
    links = []
    for name, paper in papers().items():
        path = f"{folder.name}/{name}.md"
        links.append(f"[{paper.method}]({path})")
        details[path] = page_of(paper, judged[name], folder, quick)
    claims = ""
    picture = ""
    if _has_verdicts(judged):
        claims = f"## What the papers claim\n\n{said(_everything(judged)).capitalize()}."
        picture = f"![What became of the claims of each paper]({folder.name}/{DIAGRAM})"
    summary = paragraphs(
        _introduction(quick),
        f"The pages of the papers: {', '.join(links)}.",
        claims,
        picture,
        _table_of_claims(judged, folder.name),
        _table_of_questions(judged, folder.name),
        _what_was_not_run(judged, folder.name),
        _how_judged(quick),
    )
    return {f"{folder.name}.md": f"{summary}\n", **details}


def _table_of_claims(judged: Judged, folder: str) -> str:
    """Return the claims of the papers, with the place in the paper and the verdict."""
    rows = [["paper", "where", "claim", "verdict", "table"]]
    for name, paper in papers().items():
        for one in judged[name]:
            for verdict in one.verdicts:
                if verdict.of_the_paper:
                    claim = verdict.claim
                    link = _link(paper, one, folder)
                    rows.append([paper.method, claim.place, claim.text, bold(verdict), link])
    if len(rows) == 1:
        return ""
    return markdown(rows)


def _table_of_questions(judged: Judged, folder: str) -> str:
    """Return how our questions were answered, a line for each table; the questions stand on the papers' pages."""
    rows = [["paper", "table", "questions", *VERDICTS]]
    for name, paper in papers().items():
        for one in judged[name]:
            answers = [verdict.answer for verdict in one.verdicts if verdict.answer is not None]
            if answers:
                counts = [str(count or "") for count in one.answers.values()]
                rows.append([paper.method, _link(paper, one, folder), str(len(answers)), *counts])
    if len(rows) == 1:
        return ""
    return (
        "## What we asked\n\nNo paper claims these. A question compares a method with one or several others, and is "
        "answered once for each of them: so often the method of the question is better, equal or worse.\n\n"
        f"{markdown(rows)}"
    )


def _what_was_not_run(judged: Judged, folder: str) -> str:
    """Return the tables that lack runs, and what they lack."""
    lines = []
    for name, paper in papers().items():
        for one in judged[name]:
            if one.table.not_run:
                lines.append(f"{paper.method}, {_link(paper, one, folder)}: {one.table.not_run}")
    if not lines:
        return ""
    return f"## What was not run\n\n{bullets(lines)}"


def _link(paper: Paper, judged: JudgedTable, folder: str) -> str:
    return f"[{heading_of(judged.table)}]({folder}/{paper.name}.md{judged.anchor})"


def _introduction(quick: bool) -> str:
    smaller = ""
    if quick:
        smaller = (
            "These are the quick versions: fewer seeds, cases and methods. Where data, model or training are replaced, "
            "the heading says by what, and there is neither the paper's number nor a verdict. "
        )
    return (
        "# The papers' tables, measured again\n\n"
        f"{smaller}Every table is run with what its paper prints, its claims are judged as studies are, and this page "
        "is made from the results: no number and no verdict in it is written by hand. What the papers claim stands "
        "apart from what we asked ourselves. A page for each paper says what it claims, what was run, what came out "
        "and why they differ."
    )


def _how_judged(quick: bool) -> str:
    option = ""
    if quick:
        option = " --quick"
    commands = "\n".join(f"fedskew paper {name}{option}" for name in papers())
    return f"""## How claims are judged

As `fedskew compare` judges methods: a block is a seed, a difference is the mean over the cases of a claim, and a
contrast is better, equal, worse or undecided by its paired interval. The intervals of a claim's contrasts hold together
with 95 %. A difference of at most the zone is none: half a point of accuracy, unless a table or a claim names another.

- **Held**: all contrasts of the claim are as it says. Better than several methods means better than each of them.
- **Refuted**: one contrast is the contrary, worse or equal, with at least {FEWEST_TO_REFUTE} seeds.
- **Undecided**: the interval allows both, and the smallest difference that could have been seen stands beside; or there
  are too few seeds, {FEWEST_BLOCKS} for an interval. A claim of which a case or a method was not run is undecided for
  lack of runs, unless a method refutes it that was run in all cases.
- **Cannot be tested here**: the data or the time for it are not at hand; the reason stands beside.

Every cell has {STAGES[0]} seeds, and {STAGES[1]}, then {STAGES[2]} where a claim's interval is wider than ±1 point, or
than its table states. The rule is fixed; it looks at widths, never at verdicts. Where time did not allow it, the table
says how many cells lack seeds.

In the tables of a paper numbers in *italics* are the paper's, then come ours (mean ± standard deviation over seeds)
and the difference, ours minus the paper's. In contrasts a plus is in favour of the claim, also where lower is better.
Where a claim says by how much a method is ahead, that lead is taken off; better is then better by the lead.
Runs that diverged are counted where they occur: they speak against a claim of their method, and cases in which a rival
diverged are left out of the mean, and named.

```sh
{commands}
```

One cell is measured again with `--case` and `--method`. What needs no training comes out to the last digit everywhere;
what was trained on a CPU does so with the same PyTorch on the same processor:

```sh
fedskew paper mfedbn --table table2 --case "as FedArtML" --method VOP --device cpu --out again
fedskew paper stratify --table section3b --case "initial weights" --device cpu --out again
fedskew paper stratify --table tuning-batch --case COVTYPE --method "lr 0.01" --device cpu --out again
```"""
