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
from fedskew.papers.verdicts import Verdict, verdict
from fedskew.study.claims import Outcome
from fedskew.study.significance import FEWEST_BLOCKS

FOLDER = "replication"  # of the results, beside the page of the same name
_ENDINGS = ("svg", "png")
_VERSIONS = ("fedskew", "python", "torch", "numpy")


def results_folder(out: Path, quick: bool = False) -> Path:
    """Return the folder of the results."""
    return out / (f"{FOLDER}-quick" if quick else FOLDER)


def write_page(out: Path, quick: bool = False) -> Path:
    """Draw the figures of all tables beside their results, write the pages and return the path of the first."""
    folder = results_folder(out, quick)
    for name in papers():
        for table in _tables(name, quick):
            drawn = draw_table(measured(table, Results(folder, table.label)))
            for ending in _ENDINGS:
                path = folder / f"{table.label}.{ending}"
                if drawn and drawn[0] == ending:
                    write_atomically(path, drawn[1])
                else:
                    path.unlink(missing_ok=True)
    for name, text in pages(folder, quick).items():
        write_atomically(out / name, text.encode())
    return out / f"{folder.name}.md"


def pages(folder: Path, quick: bool = False) -> dict[str, str]:
    """Return the pages in Markdown: one with all claims, and beside the results and the figures one for each paper.

    They are named by their paths from the parent of ``folder``; the page with all claims is the first.
    """
    summary = [["paper", "table", "claim", "verdict"]]
    details = {}
    outcomes = []
    for name, paper in papers().items():
        path = f"{folder.name}/{name}.md"
        sections = [_about(paper, quick)]
        headings = []
        for table in _tables(name, quick):
            found = measured(table, Results(folder, table.label))
            judged = [verdict(found, claim) for claim in table.claims]
            claimed = [one for one in judged if one.claim.kind != "chosen"]
            outcomes += [one.outcome for one in claimed]
            headings.append(f"{table.printed}: {table.title}")
            link = f"[{table.printed}]({path}#{_anchor(headings)})"
            for one in claimed:
                summary.append(
                    [paper.method, link, one.claim.text, f"**{one.outcome}**{_reason(one)}"]
                )
            sections.append(_section(found, judged, folder))
        details[path] = "\n\n".join(sections) + "\n"
    counts = []
    for outcome in get_args(Outcome):
        if outcome in outcomes:
            counts.append(f"{outcomes.count(outcome)} {outcome}")
    if counts:
        counted = f"Of {len(outcomes)} claims: {'; '.join(counts)}."
    else:
        counted = ""
    links = []
    for name, paper in papers().items():
        links.append(f"[{paper.method}]({folder.name}/{name}.md)")
    parts = [
        _head(quick),
        f"The pages of the papers: {', '.join(links)}.",
        counted,
        _markdown(summary),
    ]
    return {f"{folder.name}.md": "\n\n".join(filter(None, parts)) + "\n", **details}


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
    result: list[PaperTable] = []
    for table in tables_of(paper):
        result.append(table.reduced() if quick else table)
    return result


def _head(quick: bool) -> str:
    if quick:
        option = " --quick"
    else:
        option = ""
    commands = "\n".join(f"fedskew paper {name}{option}" for name in papers())
    smaller = ""
    if quick:
        smaller = (
            "These are the quick versions: fewer seeds, cases and methods. Where data, model or training are replaced, "
            "the heading says by what, and there is neither the paper's number nor a verdict. "
        )
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
    command = f"fedskew paper {paper.name}{' --quick' * quick}"
    parts = [
        f"# {paper.method}",
        f"*{paper.title}*. {paper.authors}. {paper.identifier}.",
        paper.adds,
        paper.use.strip(),
        f"Below are its tables, measured again by `{command}`; [this page](../{results_folder(Path(), quick)}.md) says "
        "how to read them, and has the claims of all papers.",
    ]
    if paper.checks:
        checks = "\n".join(f"- {check}" for check in paper.checks)
        parts.append(f"What was checked where a claim did not hold:\n\n{checks}")
    return "\n\n".join(filter(None, parts))


def _section(found: Measured, judged: Sequence[Verdict], folder: Path) -> str:
    """Return one table: notes, numbers, settings, how it was made, claims, figure."""
    table = found.table
    results = Results(folder, found.table.label)
    parts = [f"## {table.printed}: {table.title}", _bullets(table.notes)]
    if found.cells:
        seeds = f"{len(found.seeds)} seed{'s' * (len(found.seeds) > 1)} ({', '.join(map(str, found.seeds))})"
        for value in table.values:
            if value.paper:
                shown = f"*paper* / ours, {seeds} / difference"
            else:
                shown = f"ours, {seeds}"
            parts += [f"{value.name}: {shown}", _markdown(value_table(found, value, "*"))]
        files = [f"{table.label}.csv", f"{table.label}-curves.csv"]
        links = [f"[{name}]({name})" for name in files if (folder / name).exists()]
        parts.append(f"Every run: {', '.join(links)}.")
    else:
        parts.append("Not measured yet.")
    if found.left_out:
        parts.append(
            f"Left out: {found.left_out} recorded runs of other settings than the table has now."
        )
    parts += [_settings(table), "\n\n".join(_made(results.history()))]
    if judged:
        tuned = all(one.claim.kind == "chosen" for one in judged)
        parts += ["" if tuned else "What is claimed:", "\n".join(_claim(one) for one in judged)]
    images = []
    for ending in _ENDINGS:
        if (folder / f"{table.label}.{ending}").exists():
            images.append(f"{table.label}.{ending}")
    parts += [f"![{table.printed}: {table.title}]({name})" for name in images]
    return "\n\n".join(filter(None, parts))


def _settings(table: PaperTable) -> str:
    """Return the settings that all cells share, and those of single cases and methods."""
    if table.settings:
        lines = [f"Settings: `{_pairs(table.settings)}`"]
    else:
        lines = []
    for kind, entries in (("Cases", table.cases), ("Methods", table.methods)):
        own = [(entry.name, _pairs(_own(table, entry))) for entry in entries]
        texts = [f"{name} `{pairs}`" for name, pairs in own if pairs]
        if texts:
            lines += [f"{kind}: {'; '.join(texts)}"]
    return "\n\n".join(lines)


def _own(table: PaperTable, entry: Entry) -> dict[str, Any]:
    shared = table.settings
    result: dict[str, Any] = {}
    for key, value in entry.settings.items():
        if key not in shared or shared[key] != value:
            result[key] = value
    return result


def _pairs(settings: Mapping[str, Any]) -> str:
    return " ".join(
        f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in settings.items()
    )


def _made(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how results were made, one line for sittings that differ in their cases and their time only."""
    seconds: dict[str, float] = {}
    for sitting in history:
        versions = ", ".join(f"{name} {sitting[name]}" for name in _VERSIONS)
        command = re.sub(r" --case ('[^']*'|\S+)", "", sitting["command"])
        made = f"`{command}`, {versions}, {sitting['machine']}"
        seconds[made] = seconds.get(made, 0.0) + sitting["seconds"]
    return [f"Made by {made}: {spent:,.0f} s." for made, spent in seconds.items()]


def _claim(one: Verdict) -> str:
    numbers = "".join(f"\n  - {line}" for line in one.numbers)
    return f"- {one.claim.text.rstrip('.')}: **{one.outcome}**{_reason(one)}{numbers}"


def _reason(one: Verdict) -> str:
    if one.reason:
        return f" ({one.reason})"
    return ""


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of Markdown; the first is its heading."""
    lines = []
    for row in rows:
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
