"""The page of all papers' tables: their numbers beside ours, what held, and how it was measured."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from fedskew.papers.comparison import Measured, measured, value_table
from fedskew.papers.paper_tables import Entry, Paper, PaperTable, papers, tables_of
from fedskew.papers.replication_figures import draw_table
from fedskew.papers.results import Results
from fedskew.papers.verdicts import Outcome, Verdict, verdict
from fedskew.runs.folder import write_atomically
from fedskew.runs.significance import FEWEST_BLOCKS

FOLDER = "replication"  # of the results, beside the page of the same name
_ENDINGS = ("svg", "png")
_VERSIONS = ("fedskew", "python", "torch", "numpy")


def results_folder(out: Path, quick: bool = False) -> Path:
    """Return the folder of the results."""
    return out / (f"{FOLDER}-quick" if quick else FOLDER)


def write_page(out: Path, quick: bool = False) -> Path:
    """Draw the figures of all tables beside their results, write the page and return its path."""
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
    path = out / f"{folder.name}.md"
    write_atomically(path, page(folder, quick).encode())
    return path


def page(folder: Path, quick: bool = False) -> str:
    """Return the page in Markdown; ``folder`` has the results and the figures, and is beside the page."""
    summary, sections, outcomes = [["paper", "table", "claim", "verdict"]], [], []
    for name, paper in papers().items():
        sections.append(_about(paper))
        for table in _tables(name, quick):
            found = measured(table, Results(folder, table.label))
            judged = [verdict(found, claim) for claim in table.claims]
            claimed = [one for one in judged if one.claim.kind != "chosen"]
            outcomes += [one.outcome for one in claimed]
            link = f"[{table.printed}](#{table.label})"
            summary += [[paper.method, link, one.claim.text, f"**{one.outcome}**{_reason(one)}"] for one in claimed]
            sections.append(_section(found, judged, folder))
    counts = [f"{outcomes.count(outcome)} {outcome}" for outcome in get_args(Outcome) if outcome in outcomes]
    counted = f"Of {len(outcomes)} claims: {'; '.join(counts)}." if counts else ""
    parts = [_head(quick), counted, _markdown(summary), *sections]
    return "\n\n".join(filter(None, parts)) + "\n"


def _tables(paper: str, quick: bool) -> list[PaperTable]:
    return [table.reduced() if quick else table for table in tables_of(paper)]


def _head(quick: bool) -> str:
    option = " --quick" if quick else ""
    commands = "\n".join(f"fedskew paper {name}{option}" for name in papers())
    smaller = "These are the quick versions: fewer seeds, cases and methods, and less training. " if quick else ""
    return f"""# The papers' tables, measured again

{smaller}This page is made from the results by the commands below; nothing in it is written by hand. In the tables,
numbers in *italics* are the paper's, then come ours (mean ± standard deviation over seeds) and the difference, ours
minus the paper's. A claim that one method is better than others **held** if the 95 % interval of the mean difference
(Student's t over seeds, each seed's difference being the mean over the cases) is in its favour against every one of
them; with fewer than {FEWEST_BLOCKS} seeds it can only point that way or another. In such comparisons a difference with
a plus is in favour of the paper's method, also where lower is better. Runs that diverged are counted where they occur:
a claim of a method that diverged did not hold, and cases in which a rival diverged are left out of the mean, and named.

```
{commands}
```"""


def _about(paper: Paper) -> str:
    about = f"## {paper.method}\n\n*{paper.title}*. {paper.authors}. {paper.identifier}.\n\n{paper.adds}"
    checks = "\n".join(f"- {check}" for check in paper.checks)
    return f"{about}\n\nWhat was checked where a claim did not hold:\n\n{checks}" if checks else about


def _section(found: Measured, judged: Sequence[Verdict], folder: Path) -> str:
    """Return one table: notes, numbers, settings, how it was made, claims, figure."""
    table, results = found.table, Results(folder, found.table.label)
    parts = [f'<a id="{table.label}"></a>\n\n### {table.printed}: {table.title}', _bullets(table.notes)]
    if found.cells:
        seeds = f"{len(found.seeds)} seed{'s' * (len(found.seeds) > 1)} ({', '.join(map(str, found.seeds))})"
        for value in table.values:
            shown = f"*paper* / ours, {seeds} / difference" if value.paper else f"ours, {seeds}"
            parts += [f"{value.name}: {shown}", _markdown(value_table(found, value, "*"))]
        files = [f"{table.label}.csv", f"{table.label}-curves.csv"]
        links = [f"[{name}]({folder.name}/{name})" for name in files if (folder / name).exists()]
        parts.append(f"Every run: {', '.join(links)}.")
    else:
        parts.append("Not measured yet.")
    if found.left_out:
        parts.append(f"Left out: {found.left_out} recorded runs of other settings than the table has now.")
    parts += [_settings(table), "\n\n".join(_made(results.history()))]
    if judged:
        tuned = all(one.claim.kind == "chosen" for one in judged)
        parts += ["" if tuned else "What is claimed:", "\n".join(_claim(one) for one in judged)]
    images = [f"{table.label}.{ending}" for ending in _ENDINGS if (folder / f"{table.label}.{ending}").exists()]
    parts += [f"![{table.printed}: {table.title}]({folder.name}/{name})" for name in images]
    return "\n\n".join(filter(None, parts))


def _settings(table: PaperTable) -> str:
    """Return the settings that all cells share, and those of single cases and methods."""
    lines = [f"Settings: `{_pairs(table.settings)}`"] if table.settings else []
    for kind, entries in (("Cases", table.cases), ("Methods", table.methods)):
        own = [(entry.name, _pairs(_own(table, entry))) for entry in entries]
        texts = [f"{name} `{pairs}`" for name, pairs in own if pairs]
        lines += [f"{kind}: {'; '.join(texts)}"] if texts else []
    return "\n\n".join(lines)


def _own(table: PaperTable, entry: Entry) -> dict[str, Any]:
    shared = table.settings
    return {key: value for key, value in entry.settings.items() if key not in shared or shared[key] != value}


def _pairs(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in settings.items())


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
    return f" ({one.reason})" if one.reason else ""


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of Markdown; the first is its heading."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
