"""How data, federations and runs show themselves: one line, and a table in which every name is text."""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs

NASTY = "<script>alert(1)</script>"


class Cells(HTMLParser):
    """The elements of a table, and the rows of its cells."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.kinds: set[str] = set()
        self.rows: list[list[str]] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.kinds.add(tag)
        assert not attrs  # no style: a notebook's theme decides
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits", validation=0.1), "dirichlet:alpha=0.2", clients=12)


def test_one_line_says_what_a_person_wants_to_know(fed: fs.Federation, tmp_path: Path) -> None:
    sizes = fed.partition.sizes
    each = f"{sizes.min()} to {sizes.max()} each"
    assert (
        repr(fed.data)
        == "<Dataset digits: 1,295 training, 143 validation, 359 test rows, 1 x 8 x 8 features, 10 classes>"
    )
    assert repr(fed.partition) == f"<Partition 1,295 rows at 12 clients, {each}>"
    assert repr(fed) == f"<Federation digits, dirichlet: 1,295 training rows at 12 clients, {each}>"
    run = fs.train(fed, "logreg", "fedprox:mu=0.5", rounds=2, folder=tmp_path / "run")
    last = run.summary["test_accuracy_last"]
    found = f"2 rounds, test_accuracy_last {last:.4g}"
    said = f"fedprox:mu=0.5 on digits, dirichlet:alpha=0.2,min_size=10: {found}"
    assert repr(run) == f"<Run {said}; {tmp_path / 'run'}>"
    assert repr(fs.open_run(tmp_path / "run")) == f"<Run {said}; {tmp_path / 'run'}>"
    facts = dict(Cells(run._repr_html_()).rows)
    assert facts["algorithm"] == "fedprox:mu=0.5"
    assert facts["test_accuracy_last"] == f"{last:.4g}"
    assert Cells(fs.open_run(tmp_path / "run")._repr_html_()).rows == Cells(run._repr_html_()).rows


def test_a_method_without_a_global_model_has_a_line_too(fed: fs.Federation) -> None:
    assert "own_test_accuracy_last 0." in repr(
        fs.train(fed, "logreg", "local", rounds=1, folder=False)
    )


def test_a_federation_is_a_table_of_some_clients(fed: fs.Federation) -> None:
    head, *rows, more = Cells(fed._repr_html_()).rows
    assert head == ["client", "rows", *map(str, range(10))]
    counts = fed.partition.counts(fed.train.y, 10)
    assert rows == [
        [str(k), f"{counts[k].sum():,}", *(f"{count:,}" for count in counts[k].tolist())]
        for k in range(10)
    ]
    assert more == ["… and 2 more"]


def test_names_are_text() -> None:
    labels = [[NASTY, "$x_$", "a\nb"][k % 3] for k in range(60)]
    fed = fs.split((np.random.default_rng(0).normal(size=(60, 2)), labels), "iid", clients=3)
    for shown in (fed.data, fed, fed.partition):
        assert "\n" not in repr(shown)
        cells = Cells(shown._repr_html_())
        assert cells.kinds <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert NASTY in Cells(fed._repr_html_()).rows[0]


def test_numbers_as_targets() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 2)), np.linspace(0, 1, 60)
    fed = fs.split(rows, "iid", clients=3, task="regression")
    assert repr(fed.data).endswith("2 features, numbers>")
    assert "bin of the target" in fed._repr_html_()


def test_one_is_not_many() -> None:
    frame = pd.DataFrame({"age": range(20), "y": [0, 1] * 10})
    fed = fs.split(fs.load(frame, label="y", test=0.2), "iid", clients=2)
    assert repr(fed.partition) == "<Partition 16 rows at 2 clients, 8 each>"
    assert ", 1 column, " in repr(fed.data)
