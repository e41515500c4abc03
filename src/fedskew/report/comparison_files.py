"""What a comparison leaves in its folder: the table as CSV, Markdown and LaTeX, the figures, and the page."""

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedskew.core.writing import write_atomically
from fedskew.plots.comparison_figures import draw_curves, draw_ranks
from fedskew.report.charts import SHARES
from fedskew.report.comparison_curves import curve_panels, curve_title
from fedskew.report.comparison_page import comparison_page
from fedskew.report.page import PageWriter
from fedskew.runs.folder import PAGE
from fedskew.runs.runner import only_warned
from fedskew.study.compare import Writers
from fedskew.study.comparison_table import Comparison
from fedskew.study.significance import Ranks, said_p

CSV, MARKDOWN, LATEX = "comparison.csv", "comparison.md", "comparison.tex"
CURVES, RANKS = "curves", "critical_difference"
_ENDINGS = ("svg", "pdf")  # of the figures
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
        for name, files in _figures(found).items():
            for ending in _ENDINGS:
                path = folder / f"{name}.{ending}"
                if ending in files:
                    write_atomically(path, files[ending])
                else:
                    path.unlink(missing_ok=True)  # it may be there from a comparison of other runs


def _figures(found: Comparison) -> dict[str, dict[str, bytes]]:
    """Return the files of the figures by ending; a figure that cannot be drawn has none."""
    bounded = found.rows.metric in SHARES
    figures = {CURVES: draw_curves(curve_panels(found), curve_title(found), bounded), RANKS: {}}
    ranks = found.judgement.ranks
    if ranks:
        figures[RANKS] = draw_ranks(ranks.means, ranks.distance, ranks.groups)
    return figures


def markdown(found: Comparison) -> str:
    """Return the table with its notes; names are text, whatever they contain."""
    lines = []
    for line in (found.head(), *found.lines()):
        lines.append([in_markdown(cell) for cell in line])
    for line, configuration in zip(lines[1:], found.rows.configurations, strict=True):
        if configuration.label == found.judgement.verdict.winner:
            line[0] = f"**{line[0]}**"
    rule = []
    for is_text in found.texts():
        if is_text:
            rule.append("---")
        else:
            rule.append("---:")
    rows = []
    for line in (lines[0], rule, *lines[1:]):
        rows.append("| " + " | ".join(line) + " |")
    meanings = [f"{title}: {meaning}" for title, meaning in found.meanings().items()]
    goal, *others = _notes(found)
    notes = [f"- {in_markdown(text)}" for text in (*others, *meanings)]
    return "\n".join(
        [
            f"# {in_markdown(found.rows.runs.title)}",
            "",
            in_markdown(goal),
            "",
            *rows,
            "",
            *notes,
            "",
        ]
    )


def _notes(found: Comparison) -> list[str]:
    ranks = found.judgement.ranks
    if ranks is None:
        return [*found.notes(), found.judgement.no_ranks]
    return [*found.notes(), _ranks(ranks)]


def _ranks(ranks: Ranks) -> str:
    """Return the mean ranks in words."""
    means = ", ".join(f"{name} {mean:.2f}" for name, mean in ranks.means.items())
    return (
        f"Mean ranks over {ranks.blocks} blocks: {means}; Friedman's test p = {said_p(ranks.p)}, critical "
        f"difference {ranks.distance:.2f} (Nemenyi)."
    )


def latex(found: Comparison) -> str:
    """Return the table for LaTeX with the package booktabs, with its notes as comments."""
    head = [in_latex(title) for title in found.head()]
    rows = [list(map(in_latex, line)) for line in found.lines()]
    for row, configuration in zip(rows, found.rows.configurations, strict=True):
        if configuration.label == found.judgement.verdict.winner:
            row[0] = rf"\textbf{{{row[0]}}}"
    comments = []
    for text in (found.rows.runs.title, *_notes(found)):
        comments.append(f"% {' '.join(text.split())}")
    alignment = ""
    for is_text in found.texts():
        if is_text:
            alignment += "l"
        else:
            alignment += "r"
    return "\n".join(
        [
            r"% \usepackage{booktabs}", *comments, rf"\begin{{tabular}}{{{alignment}}}", r"\toprule", _latex_row(head),
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
    names = [CSV, MARKDOWN, LATEX]
    for figure in (CURVES, RANKS):
        names += [f"{figure}.{ending}" for ending in _ENDINGS]
    return [folder / name for name in names if (folder / name).is_file()]


# A page for each run, and all files of the comparison
WRITERS = Writers([PageWriter()], write_comparison)
