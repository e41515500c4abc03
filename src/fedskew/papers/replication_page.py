"""The pages of the papers' tables: their numbers beside ours, what held, and how it was measured."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from fedskew.core.writing import write_atomically
from fedskew.papers.comparison import Measured, measured, value_table
from fedskew.papers.paper_tables import Entry, Paper, PaperTable, papers, tables_of
from fedskew.papers.results import Results
from fedskew.papers.table_figure import draw_table
from fedskew.papers.verdicts import Verdict, verdicts_on
from fedskew.study.claims import Outcome
from fedskew.study.judge import FEWEST_BLOCKS

FOLDER = "replication"  # of the results, beside the page of the same name
_ENDINGS = ("svg", "png")
_VERSIONS = ("fedskew", "python", "torch", "numpy")


def results_folder(out: Path, quick: bool = False) -> Path:
    """Return the folder of the results."""
    if quick:
        return out / f"{FOLDER}-quick"
    return out / FOLDER


def write_page(out: Path, quick: bool = False) -> Path:
    """Draw the figures of all tables beside their results, write the pages and return the path of the first."""
    folder = results_folder(out, quick)
    for name in papers():
        for table in _tables(name, quick):
            _write_figure(table, folder)
    for name, text in pages(folder, quick).items():
        write_atomically(out / name, text.encode())
    return out / f"{folder.name}.md"


def _write_figure(table: PaperTable, folder: Path) -> None:
    """Draw the figure of a table; one with another ending, of other results, is removed."""
    drawn = draw_table(measured(table, Results(folder, table.label)))
    for ending in _ENDINGS:
        path = folder / f"{table.label}.{ending}"
        if drawn and drawn[0] == ending:
            write_atomically(path, drawn[1])
        else:
            path.unlink(missing_ok=True)


def pages(folder: Path, quick: bool = False) -> dict[str, str]:
    """Return the pages in Markdown: one with all claims, and beside the results and the figures one for each paper.

    They are named by their paths from the parent of ``folder``; the page with all claims is the first.
    """
    claims = [["paper", "table", "claim", "verdict"]]
    details = {}
    outcomes: list[Outcome] = []
    links = []
    for name, paper in papers().items():
        path = f"{folder.name}/{name}.md"
        links.append(f"[{paper.method}]({path})")
        sections = [_about(paper, quick)]
        headings = []
        for table in _tables(name, quick):
            found = measured(table, Results(folder, table.label))
            judged = verdicts_on(found)
            headings.append(f"{table.printed}: {table.title}")
            link = f"[{table.printed}]({path}#{_anchor(headings)})"
            for verdict in judged:
                if verdict.claim.kind != "chosen":
                    outcomes.append(verdict.outcome)
                    claims.append([paper.method, link, verdict.claim.text, _bold(verdict)])
            sections.append(_section(found, judged, folder))
        details[path] = "\n\n".join(sections) + "\n"
    summary = _paragraphs(
        _introduction(quick),
        f"The pages of the papers: {', '.join(links)}.",
        _counts_of(outcomes),
        _markdown(claims),
    )
    return {f"{folder.name}.md": f"{summary}\n", **details}


def _counts_of(outcomes: Sequence[Outcome]) -> str:
    """Return how often each outcome occurs, in a sentence; nothing without claims."""
    if not outcomes:
        return ""
    counts = []
    for outcome in get_args(Outcome):
        if outcome in outcomes:
            counts.append(f"{outcomes.count(outcome)} {outcome}")
    return f"Of {len(outcomes)} claims: {'; '.join(counts)}."


def _paragraphs(*parts: str) -> str:
    """Return the parts that are not empty, as paragraphs."""
    return "\n\n".join(filter(None, parts))


def _anchor(headings: Sequence[str]) -> str:
    """Return the anchor of the last heading, as hosts of Markdown pages make it.

    >>> _anchor(["Table I: MNIST, batches"])
    'table-i-mnist-batches'
    >>> _anchor(["Same", "Same"])
    'same-1'
    """
    made = []
    for heading in headings:
        made.append(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    before = made[:-1].count(made[-1])
    if before:
        return f"{made[-1]}-{before}"
    return made[-1]


def _tables(paper: str, quick: bool) -> list[PaperTable]:
    tables = tables_of(paper)
    if quick:
        return [table.reduced() for table in tables]
    return tables


def _introduction(quick: bool) -> str:
    option = ""
    smaller = ""
    if quick:
        option = " --quick"
        smaller = (
            "These are the quick versions: fewer seeds, cases and methods. Where data, model or training are replaced, "
            "the heading says by what, and there is neither the paper's number nor a verdict. "
        )
    commands = "\n".join(f"fedskew paper {name}{option}" for name in papers())
    return f"""# The papers' tables, measured again

{smaller}This page is made from the results by the commands below; nothing in it is written by hand. In the tables,
numbers in *italics* are the paper's, then come ours (mean ± standard deviation over seeds) and the difference, ours
minus the paper's. A claim that one method is better than others **held** if the 95 % interval of the mean difference
(Student's t over seeds, each seed's difference being the mean over the cases) is in its favour against every one of
them; with fewer than {FEWEST_BLOCKS} seeds it can only point that way or another. In such comparisons a difference with
a plus is in favour of the paper's method, also where lower is better. Runs that diverged are counted where they occur:
a claim of a method that diverged did not hold, and cases in which a rival diverged are left out of the mean, and named.

```sh
{commands}
```"""


def _about(paper: Paper, quick: bool) -> str:
    """Return the beginning of a paper's page: what it is, how it is used, how its tables are made, what was checked."""
    command = f"fedskew paper {paper.name}"
    if quick:
        command += " --quick"
    checks = ""
    if paper.checks:
        checks = f"What was checked where a claim did not hold:\n\n{_bullets(paper.checks)}"
    return _paragraphs(
        f"# {paper.method}",
        f"*{paper.title}*. {paper.authors}. {paper.identifier}.",
        paper.adds,
        paper.use.strip(),
        f"Below are its tables, measured again by `{command}`; [this page](../{results_folder(Path(), quick)}.md) says "
        "how to read them, and has the claims of all papers.",
        checks,
    )


def _section(found: Measured, judged: Sequence[Verdict], folder: Path) -> str:
    """Return one table: notes, numbers, settings, how it was made, claims, figure."""
    table = found.table
    heading = f"{table.printed}: {table.title}"
    numbers = ["Not measured yet."]
    if found.cells:
        numbers = _numbers(found, folder)
    if found.left_out:
        numbers.append(
            f"Left out: {found.left_out} recorded runs of other settings than the table has now."
        )
    figures = []
    for ending in _ENDINGS:
        if (folder / f"{table.label}.{ending}").exists():
            figures.append(f"![{heading}]({table.label}.{ending})")
    return _paragraphs(
        f"## {heading}",
        _bullets(table.notes),
        *numbers,
        *_settings(table),
        *_how_made(Results(folder, table.label).history()),
        *_claims(judged),
        *figures,
    )


def _numbers(found: Measured, folder: Path) -> list[str]:
    """Return a table for every value, and links to the files with every run."""
    table = found.table
    seeds = f"{len(found.seeds)} seeds"
    if len(found.seeds) == 1:
        seeds = "1 seed"
    ours = f"ours, {seeds} ({', '.join(map(str, found.seeds))})"
    parts = []
    for value in table.values:
        shown = ours
        if value.paper:
            shown = f"*paper* / {ours} / difference"
        parts += [f"{value.name}: {shown}", _markdown(value_table(found, value, "*"))]
    links = []
    for name in (f"{table.label}.csv", f"{table.label}-curves.csv"):
        if (folder / name).exists():
            links.append(f"[{name}]({name})")
    return [*parts, f"Every run: {', '.join(links)}."]


def _claims(judged: Sequence[Verdict]) -> list[str]:
    """Return the claims with their verdicts; what a table only settles is not called a claim."""
    claims = "\n".join(_claim(verdict) for verdict in judged)
    if all(verdict.claim.kind == "chosen" for verdict in judged):
        return [claims]
    return ["What is claimed:", claims]


def _settings(table: PaperTable) -> list[str]:
    """Return the settings that all cells share, and those of single cases and methods."""
    lines = []
    if table.settings:
        lines.append(f"Settings: `{_pairs(table.settings)}`")
    for kind, entries in (("Cases", table.cases), ("Methods", table.methods)):
        texts = []
        for entry in entries:
            own = _own_settings(table, entry)
            if own:
                texts.append(f"{entry.name} `{_pairs(own)}`")
        if texts:
            lines.append(f"{kind}: {'; '.join(texts)}")
    return lines


def _own_settings(table: PaperTable, entry: Entry) -> dict[str, Any]:
    """Return the settings of a case or a method that differ from those of the table."""
    own = {}
    for name, value in entry.settings.items():
        if name not in table.settings or table.settings[name] != value:
            own[name] = value
    return own


def _pairs(settings: Mapping[str, Any]) -> str:
    pairs = []
    for name, value in settings.items():
        text = value
        if not isinstance(value, str):
            text = json.dumps(value)
        pairs.append(f"{name}={text}")
    return " ".join(pairs)


def _how_made(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how results were made; sittings that differ only in their cases and their time share a line."""
    seconds: dict[str, float] = {}
    for sitting in history:
        versions = ", ".join(f"{name} {sitting[name]}" for name in _VERSIONS)
        command = re.sub(r" --case ('[^']*'|\S+)", "", sitting["command"])
        made = f"`{command}`, {versions}, {sitting['machine']}"
        seconds[made] = seconds.get(made, 0.0) + sitting["seconds"]
    return [f"Made by {made}: {spent:,.0f} s." for made, spent in seconds.items()]


def _claim(verdict: Verdict) -> str:
    lines = [f"- {verdict.claim.text.rstrip('.')}: {_bold(verdict)}"]
    for line in verdict.numbers:
        lines.append(f"  - {line}")
    return "\n".join(lines)


def _bold(verdict: Verdict) -> str:
    """Return the outcome in bold, and the reason."""
    if verdict.reason:
        return f"**{verdict.outcome}** ({verdict.reason})"
    return f"**{verdict.outcome}**"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of Markdown; the first is its heading."""
    lines = []
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)
