"""The section of a run's page about classes: how well each is recognised, and which are taken for which."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedskew.core.streams import Ints
from fedskew.report import charts
from fedskew.report.html_page import Page, grid
from fedskew.report.markup import Markup, table
from fedskew.report.readable import in_words, shows
from fedskew.study.run_data import RunData
from fedskew.tasks.scores import class_table


def add_classes(page: Page, run: RunData) -> None:
    """Add the scores of the classes and their confusion matrix, where a run has one."""
    if run.confusion is None:
        return
    names, counts = run.confusion
    matrix = np.array(counts, np.int64)
    figures = []
    if len(names) <= charts.MOST_CLASSES:
        figures.append(_confusion(page, names, matrix))
    page.section("classes", "Classes", grid(*figures, _by_class(names, matrix)))


def _by_class(names: Sequence[str], matrix: Ints) -> Markup:
    """Return the scores of each class, or of the worst ones where they are many."""
    columns = {"rows": matrix.sum(1), "predicted": matrix.sum(0), **class_table(matrix)}
    caption = "Classes on the test rows"
    order = list(range(len(names)))
    if len(names) > charts.MOST_CLASSES:
        order = np.argsort(columns["f1"], kind="stable")[: charts.MOST_CLASSES].tolist()
        caption += f": the worst {len(order)} of {len(names)}"
    lines = []
    for k in order:
        line: list[Any] = [names[k]]
        for name, values in columns.items():
            line.append(shows(name)(values[k].item()))
        lines.append(line)
    return table(caption, ["class", *map(in_words, columns)], lines)


def _confusion(page: Page, names: Sequence[str], matrix: Ints) -> Markup:
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    option = charts.heat_map(names, names, shares, matrix, "true class", "predicted class")
    says = f"{np.trace(matrix):,} of {matrix.sum():,} test rows are on the diagonal."
    rows = []
    for name, row in zip(names, matrix.tolist(), strict=True):
        rows.append([name, *row])
    numbers = table("True classes down, predicted ones across", ["", *names], rows)
    tall = min(max(320, 24 * len(names) + 110), 640)
    return page.chart("confusion", "Confusion matrix", option, says, numbers, tall)
