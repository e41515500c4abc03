"""The table of a comparison for a paper: LaTeX with booktabs, at most seven columns, and a caption that says it all."""

from collections.abc import Sequence

from fedskew.algorithms.titles import title_of
from fedskew.runs.summary_reading import mean_and_std
from fedskew.study.comparison_rows import SCORE, Configuration
from fedskew.study.comparison_table import Comparison
from fedskew.study.run_data import name_of

MOST_COLUMNS = 7
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "−": "$-$", "–": "--", "≤": r"$\leq$", "…": r"\ldots{}",
}  # fmt: skip


def latex_table(found: Comparison) -> str:
    """Return the table, with what else is to be known as comments."""
    head, alignment, rows = _columns(found)
    comments = []
    for text in (found.rows.runs.title, *found.notes()):
        comments.append(f"% {' '.join(text.split())}")
    lines = [
        r"% \usepackage{booktabs}",
        *comments,
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{in_latex(_caption(found))}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        _row([in_latex(title) for title in head]),
        r"\midrule",
    ]
    for row in rows:
        lines.append(_row([in_latex(cell) for cell in row]))
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _columns(found: Comparison) -> tuple[list[str], str, list[list[str]]]:
    """Return titles, alignment and rows; numbers of methods are in one column, so that there are at most seven."""
    configurations = found.rows.configurations
    has_options = any(_options(one) for one in configurations)
    has_cells = bool(found.rows.conditions)
    has_control = found.rows.rules.control is not None
    head, alignment = ["method"], "l"
    if has_options:
        head.append("numbers")
        alignment += "l"
    if has_cells:
        head.append(" and ".join(found.rows.conditions))
        alignment += "l"
    head.append(found.columns[SCORE][0])
    alignment += "r"
    if has_control:
        head.append(f"minus {title_of(str(found.rows.rules.control))}")
        alignment += "r"
    head += ["verdict", "MB"]
    alignment += "lr"
    digits = _digits(found)
    rows = []
    for one in configurations:
        row = [title_of(one.method)]
        if has_options:
            row.append(_options(one))
        if has_cells:
            row.append(", ".join(str(value) for value in one.conditions.values()))
        row.append(_mean(one, SCORE, 1, digits))
        if has_control:
            row.append(_difference(found, one))
        row += [found.judgement.verdict_of(one), _mean(one, "bytes", 1e-6, None)]
        rows.append(row)
    return head, alignment, rows


def _options(one: Configuration) -> str:
    """Return the numbers of a method in one cell."""
    texts = []
    for name, value in one.options.items():
        if isinstance(value, float):
            texts.append(f"{name}={value:g}")
        elif value is not None:
            texts.append(f"{name}={value}")
    return ", ".join(texts)


def _digits(found: Comparison) -> int:
    """Return with how many decimals all scores are written."""
    row = found.rows.rules.row
    if row:
        return 3
    return found.digits


def _mean(one: Configuration, key: str, factor: float, digits: int | None) -> str:
    """Return a mean with its standard deviation, with so many decimals; without these, with three digits."""
    values = [factor * value for value in one.values(key)]
    if not values:
        return "–"
    mean, std = mean_and_std(values)
    if digits is None:
        return f"{mean:.3g}"
    if std is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


def _difference(found: Comparison, one: Configuration) -> str:
    """Return the difference to the control with its interval, in the digits of the scores."""
    contrast = found.judgement.contrast_of(one)
    if contrast is None or contrast.mean is None:
        return "–"
    digits = max(_digits(found), found.digits)
    mean = f"{contrast.mean:+z.{digits}f}"
    if contrast.interval is None:
        return mean.replace("-", "−")
    low, high = contrast.interval
    return f"{mean} ({low:+z.{digits}f} to {high:+z.{digits}f})".replace("-", "−")


def _caption(found: Comparison) -> str:
    """Return data, skew, blocks, goal, zone and test in a few sentences."""
    runs = found.rows.runs
    first = runs.runs[0].summary
    where = f"{name_of(first['data'])}, {first['clients']} clients"
    if "skew" not in found.rows.conditions:
        where += f", {first['skew']}"
    blocks = sorted(len(one.values(SCORE)) for one in found.judgement.competing)
    counted = f"{blocks[-1]} blocks"
    if blocks[0] < blocks[-1]:
        counted = f"{blocks[0]} to {blocks[-1]} blocks"
    elif blocks[-1] == 1:
        counted = "1 block"
    sentences = [
        f"{where}.",
        found.judgement.goal_said,
        f"Mean ± standard deviation over {counted} (seeds).",
        found.judgement.how_judged(),
        *found.judgement.shared_rows(),
        *found.references(),
    ]
    return " ".join(sentences)


def in_latex(text: str) -> str:
    r"""Return a text so that LaTeX prints it as it is.

    >>> in_latex("$x_$")
    '\\$x\\_\\$'
    """
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))
