"""What a comparison leaves in its folder: the table as CSV, Markdown and LaTeX, the figures, and the page."""

import html
import re
from collections.abc import Iterable
from pathlib import Path

from fedskew.core.writing import write_atomically
from fedskew.plots.comparison_figures import draw_curves, draw_forest
from fedskew.report.charts import SHARES
from fedskew.report.comparison_curves import curve_panels, curve_title
from fedskew.report.comparison_latex import latex_table
from fedskew.report.comparison_page import comparison_page
from fedskew.runs.folder import PAGE
from fedskew.runs.runner import only_warned
from fedskew.study.comparison_table import Comparison

CSV, MARKDOWN, LATEX = "comparison.csv", "comparison.md", "comparison.tex"
CURVES, FOREST = "curves", "forest"
_ENDINGS = ("svg", "pdf")  # of the figures


def write_comparison(found: Comparison, folder: Path) -> None:
    """Write all files of a comparison; one that cannot be made is only a warning, as the runs are whole."""
    write_atomically(folder / CSV, found.frame().to_csv(index=False).encode())
    write_atomically(folder / MARKDOWN, markdown(found).encode())
    write_atomically(folder / LATEX, latex_table(found).encode())
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
    return {
        CURVES: draw_curves(curve_panels(found), curve_title(found), bounded),
        FOREST: draw_forest(found.forest),
    }


def markdown(found: Comparison) -> str:
    """Return the table with its notes; names are text, whatever they contain."""
    lines = []
    for line in (found.head(), *found.lines()):
        lines.append([in_markdown(cell) for cell in line])
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
    goal, *others = found.notes()
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


def in_markdown(text: str) -> str:
    r"""Return a text so that Markdown shows it as it is.

    >>> in_markdown("a|b <script> $x_$")
    'a\\|b &lt;script&gt; \\$x\\_\\$'
    """
    return re.sub(r"([\\`*_\[\]|$~#])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def files_of(folder: Path) -> Iterable[Path]:
    """Return the files of a comparison that are in a folder."""
    names = [CSV, MARKDOWN, LATEX]
    for figure in (CURVES, FOREST):
        names += [f"{figure}.{ending}" for ending in _ENDINGS]
    return [folder / name for name in names if (folder / name).is_file()]
