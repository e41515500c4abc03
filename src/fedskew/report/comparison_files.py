"""What a comparison leaves in its folder: the table as CSV, Markdown and LaTeX, the figures, and the page."""

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedskew.core.writing import write_atomically
from fedskew.report.comparison_figures import draw_curves, draw_ranks
from fedskew.report.page import comparison_page
from fedskew.runs.folder import GROUP, PAGE
from fedskew.runs.runner import only_warned
from fedskew.study.comparison_table import Comparison
from fedskew.study.significance import said_p
from fedskew.study.sweep import record_target

CSV, MARKDOWN, LATEX = "comparison.csv", "comparison.md", "comparison.tex"
CURVES, RANKS = "curves", "critical_difference"
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "–": "--", "≤": r"$\leq$", "★": r"$\star$", "…": r"\ldots{}",
}  # fmt: skip


def write_comparison(found: Comparison, folder: Path) -> None:
    """Write all files of a comparison; one that cannot be made is only a warning, as the runs are whole."""
    write_atomically(folder / CSV, found.frame().to_csv(index=False).encode())
    write_atomically(folder / MARKDOWN, markdown(found).encode())
    write_atomically(folder / LATEX, latex(found).encode())
    with only_warned(str(folder / PAGE)):
        write_atomically(folder / PAGE, comparison_page(found))
    with only_warned(f"the figures in {folder}"):
        drawn = {CURVES: draw_curves(found), RANKS: draw_ranks(found.ranks) if found.ranks else {}}
        for name, files in drawn.items():
            for ending in ("svg", "pdf"):
                if ending in files:
                    write_atomically(folder / f"{name}.{ending}", files[ending])
                else:
                    # Of a time with other runs
                    (folder / f"{name}.{ending}").unlink(missing_ok=True)


def record_comparison(found: Comparison, folder: Path, compared: Sequence[Path]) -> None:
    """Write the files of a comparison of finished runs; a given target is recorded if the folder is that of these runs.

    A target that cannot be looked for raises an error before anything is written.
    """
    target = found.target
    folder.mkdir(parents=True, exist_ok=True)
    if target and found.given and list(compared) == [folder] and (folder / GROUP).is_file():
        record_target(folder, str(found.asked))
    write_comparison(found, folder)


def markdown(found: Comparison) -> str:
    """Return the table with its notes; names are text, whatever they contain."""
    lines = []
    for line in (found.head(), *found.lines()):
        lines.append([in_markdown(cell) for cell in line])
    for line, one in zip(lines[1:], found.configurations, strict=True):
        if one.label == found.verdict.winner:
            line[0] = f"**{line[0]}**"
    rule = []
    for text in found.texts():
        rule.append("---" if text else "---:")
    rows = []
    for line in (lines[0], rule, *lines[1:]):
        rows.append("| " + " | ".join(line) + " |")
    meanings = [f"{title}: {meaning}" for title, meaning in found.meanings().items()]
    goal, *others = _notes(found)
    notes = [f"- {in_markdown(text)}" for text in (*others, *meanings)]
    return "\n".join(
        [f"# {in_markdown(found.runs.title)}", "", in_markdown(goal), "", *rows, "", *notes, ""]
    )


def _notes(found: Comparison) -> list[str]:
    if found.ranks is None:
        said = ""
    else:
        said = _ranks(found)
    return [*found.notes(), said or found.no_ranks]


def _ranks(found: Comparison) -> str:
    """Return the mean ranks in words."""
    assert found.ranks
    means = ", ".join(f"{name} {mean:.2f}" for name, mean in found.ranks.means.items())
    return (
        f"Mean ranks over {found.ranks.blocks} blocks: {means}; Friedman's test p = {said_p(found.ranks.p)}, critical "
        f"difference {found.ranks.distance:.2f} (Nemenyi)."
    )


def latex(found: Comparison) -> str:
    """Return the table for LaTeX with the package booktabs, with its notes as comments."""
    head = [in_latex(title) for title in found.head()]
    rows = [list(map(in_latex, line)) for line in found.lines()]
    for row, one in zip(rows, found.configurations, strict=True):
        if one.label == found.verdict.winner:
            row[0] = rf"\textbf{{{row[0]}}}"
    comments = []
    for text in (found.runs.title, *_notes(found)):
        comments.append(f"% {' '.join(text.split())}")
    form = "".join("l" if text else "r" for text in found.texts())
    return "\n".join(
        [
            r"% \usepackage{booktabs}", *comments, rf"\begin{{tabular}}{{{form}}}", r"\toprule", _latex_row(head),
            r"\midrule", *map(_latex_row, rows), r"\bottomrule", r"\end{tabular}", "",
        ]
    )  # fmt: skip


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def in_latex(text: str) -> str:
    r"""Return a text so that LaTeX prints it as it is.

    >>> in_latex("$x_$")
    '\\$x\\_\\$'
    """
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def in_markdown(text: str) -> str:
    r"""Return a text so that Markdown shows it as it is.

    >>> in_markdown("a|b <script> $x_$")
    'a\\|b &lt;script&gt; \\$x\\_\\$'
    """
    return re.sub(r"([\\`*_\[\]|$~#])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def files_of(folder: Path) -> Iterable[Path]:
    """Return the files of a comparison that are in a folder."""
    names = (
        CSV,
        MARKDOWN,
        LATEX,
        *(f"{name}.{ending}" for name in (CURVES, RANKS) for ending in ("svg", "pdf")),
    )
    return [folder / name for name in names if (folder / name).is_file()]
