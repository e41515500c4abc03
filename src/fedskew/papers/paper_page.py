"""The page of one paper: what it says, what was run, what came out and why they differ; then its tables."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.papers.comparison import Measured, value_table
from fedskew.papers.paper_tables import Entry, Paper, PaperTable
from fedskew.papers.question_counts import shared_questions
from fedskew.papers.results import Results
from fedskew.papers.set_ups import HEAD, seeds_measured, set_up
from fedskew.papers.stopping import cells_that_lack_seeds
from fedskew.papers.verdicts import Verdict
from fedskew.study.claims import OUTCOMES, Outcome
from fedskew.study.judge import VERDICTS
from fedskew.study.judge import Verdict as Word

ENDINGS = ("svg", "png")  # of the figures of tables
_VERSIONS = ("fedskew", "python", "torch", "numpy")


@dataclass(frozen=True)
class JudgedTable:
    """A table with what was measured of it, the verdicts on its claims, and the link to its section."""

    found: Measured
    verdicts: Sequence[Verdict]
    anchor: str

    @property
    def table(self) -> PaperTable:
        """Return the table."""
        return self.found.table

    @property
    def is_about_claims(self) -> bool:
        """Return whether it does more than settle what the paper leaves open."""
        return any(verdict.claim.kind != "chosen" for verdict in self.verdicts)

    @property
    def counts(self) -> dict[Outcome, int]:
        """Return how often each outcome occurs among the claims of the paper."""
        return counted(self.verdicts)

    @property
    def answers(self) -> dict[Word, int]:
        """Return how often the judge says each word in the answers to our questions."""
        return counted_answers(self.verdicts)


def counted_answers(verdicts: Sequence[Verdict]) -> dict[Word, int]:
    """Return how often the judge says each word in the answers to our questions."""
    counts: dict[Word, int] = dict.fromkeys(VERDICTS, 0)
    for verdict in verdicts:
        if verdict.answer is not None:
            for word, names in verdict.answer.by_verdict.items():
                counts[word] += len(names)
    return counts


def counted(verdicts: Sequence[Verdict]) -> dict[Outcome, int]:
    """Return how often each outcome occurs among the claims of the paper."""
    found = []
    for verdict in verdicts:
        if verdict.of_the_paper:
            found.append(verdict.outcome)
    counts: dict[Outcome, int] = {}
    for outcome in OUTCOMES:
        counts[outcome] = found.count(outcome)
    return counts


def said(verdicts: Sequence[Verdict]) -> str:
    """Return in words what became of the claims of papers, and how many are undecided because runs are lacking."""
    counts = counted(verdicts)
    lacking = 0
    for verdict in verdicts:
        if verdict.of_the_paper and verdict.lacks_runs:
            lacking += 1
    beside = ""
    if lacking:
        beside = f" ({lacking} for lack of runs)"
    return (
        f"of {sum(counts.values())} claims {counts['held']} held, {counts['refuted']} are refuted, "
        f"{counts['undecided']} undecided{beside}, and {counts['cannot be tested here']} cannot be tested here"
    )


def page_of(paper: Paper, tables: Sequence[JudgedTable], folder: Path, quick: bool) -> str:
    """Return the page of a paper in Markdown; ``folder`` has its results and figures."""
    sections = [_about(paper, tables, quick, folder.name)]
    for judged in tables:
        sections.append(_section(judged, folder))
    return "\n\n".join(sections) + "\n"


def _about(paper: Paper, tables: Sequence[JudgedTable], quick: bool, name: str) -> str:
    """Return the first screen, and how the method is used."""
    command = f"fedskew paper {paper.name}"
    if quick:
        command += " --quick"
    differs = ""
    if paper.differs:
        differs = f"**Why they differ**, and what was checked:\n\n{bullets(paper.differs)}"
    verdicts: list[Verdict] = []
    for judged in tables:
        verdicts += judged.verdicts
    counts = counted(verdicts)
    has_claims = sum(counts.values()) > 0
    came_out = ""
    of_what = "the answers to our questions"
    if has_claims:
        came_out = f"**What came out**: {said(verdicts)}. [All claims](../{name}.md)."
        of_what = "the claims of the paper"
    elif paper.came_out and not quick:
        came_out = f"**What came out**:\n\n{bullets(paper.came_out)}"
    counted_questions = ""
    shared = shared_questions([judged.found for judged in tables])
    if shared and not quick:
        counted_questions = (
            "How often the method of a row is better, equal or worse than the one above a column, over all data sets "
            f"and kinds of heterogeneity of the tables below:\n\n{markdown(shared)}"
        )
    return paragraphs(
        f"# {paper.method}",
        f"*{paper.title}*. {paper.authors}. {paper.identifier}. {paper.adds}",
        f"**What it says.** {paper.says.strip()}",
        f"**What was run**, by `{command}`; the last columns count {of_what}:",
        markdown(_what_was_run(tables, has_claims)),
        came_out,
        counted_questions,
        differs,
        f"## How it is used\n\n{paper.use.strip()}",
    )


def _what_was_run(tables: Sequence[JudgedTable], has_claims: bool) -> list[list[str]]:
    """Return a line for each table with claims or questions: its set-up, its seeds and what became of them."""
    words: Sequence[str] = VERDICTS
    if has_claims:
        words = OUTCOMES
    rows = [["table", *HEAD, "seeds", *words]]
    for judged in tables:
        if not judged.is_about_claims:
            continue
        link = f"[{judged.table.printed}]({judged.anchor})"
        counts: Sequence[int] = list(judged.answers.values())
        if has_claims:
            counts = list(judged.counts.values())
        shown = [str(count or "") for count in counts]
        rows.append([link, *set_up(judged.table), seeds_measured(judged.found), *shown])
    return rows


# -- the section of a table --------------------------------------------------------------------------------------------


def _section(judged: JudgedTable, folder: Path) -> str:
    """Return one table: notes, numbers, settings, how it was made, claims, figure."""
    found = judged.found
    table = found.table
    heading = heading_of(table)
    numbers = ["Not measured yet."]
    if found.cells:
        numbers = _numbers(found, folder)
    not_run = ""
    if table.not_run:
        not_run = f"**Not run**: {table.not_run}"
    lacking = cells_that_lack_seeds(found)
    if found.cells and lacking:
        numbers.append(
            f"Seeds are missing: by the stopping rule, {lacking} of {table.cell_count} cells need more than they have."
        )
    if found.left_out:
        numbers.append(
            f"Left out: {found.left_out} recorded runs of other settings than the table has now."
        )
    figures = []
    for ending in ENDINGS:
        if (folder / f"{table.label}.{ending}").exists():
            figures.append(f"![{heading}]({table.label}.{ending})")
    return paragraphs(
        f"## {heading}",
        bullets(table.filled_notes),
        not_run,
        *_claims(judged.verdicts),
        *numbers,
        *figures,
        *_settings(table),
        *_how_made(Results(folder, table.label).history()),
    )


def heading_of(table: PaperTable) -> str:
    """Return the heading of a table's section."""
    return f"{table.printed}: {table.title}"


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
        parts += [f"{value.name}: {shown}", markdown(value_table(found, value, "*"))]
    links = []
    for name in (f"{table.label}.csv", f"{table.label}-curves.csv"):
        if (folder / name).exists():
            links.append(f"[{name}]({name})")
    return [*parts, f"Every run: {', '.join(links)}."]


def _claims(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the claims of the paper with their verdicts, our questions with their answers, and what was chosen."""
    claimed, asked, chosen = [], [], []
    for verdict in verdicts:
        if verdict.of_the_paper:
            claimed.append(_claim(verdict))
        elif verdict.claim.ours:
            asked.append(_claim(verdict))
        else:
            chosen.append(_claim(verdict))
    parts = []
    for heading, lines in (
        ("What the paper claims:", claimed),
        ("What we asked:", asked),
        ("What was chosen here, on validation rows:", chosen),
    ):
        if lines:
            parts += [heading, "\n".join(lines)]
    return parts


def _claim(verdict: Verdict) -> str:
    place = ""
    if verdict.claim.place:
        place = f" ({verdict.claim.place})"
    lines = [f"- {verdict.claim.text}{place} {bold(verdict)}"]
    for line in verdict.numbers:
        lines.append(f"  - {line}")
    return "\n".join(lines)


def bold(verdict: Verdict) -> str:
    """Return what became of a claim in bold, and the reason."""
    if verdict.answer is not None:
        return f"**{verdict.answer}**"
    if verdict.reason:
        return f"**{verdict.outcome}** ({verdict.reason})"
    return f"**{verdict.outcome}**"


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


# -- Markdown ----------------------------------------------------------------------------------------------------------


def anchor_of(headings: Sequence[str]) -> str:
    """Return the link to the last heading of a page, as hosts of Markdown pages make it.

    >>> anchor_of(["Table I: MNIST, batches"])
    '#table-i-mnist-batches'
    >>> anchor_of(["Same", "Same"])
    '#same-1'
    """
    made = []
    for heading in headings:
        made.append(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    before = made[:-1].count(made[-1])
    if before:
        return f"#{made[-1]}-{before}"
    return f"#{made[-1]}"


def paragraphs(*parts: str) -> str:
    """Return the parts that are not empty, as paragraphs."""
    return "\n\n".join(filter(None, parts))


def bullets(lines: Sequence[str]) -> str:
    """Return lines as a list."""
    return "\n".join(f"- {line}" for line in lines)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table of Markdown; the first is its heading."""
    lines = []
    for row in rows:
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)
