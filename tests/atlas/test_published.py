"""The published results: what the documentation prints of them, and that they are read as they were written."""

import gzip
from pathlib import Path

import pytest

from fedskew.atlas.atlas_chapter import chapter
from fedskew.atlas.atlas_files import regrets_of
from fedskew.atlas.atlas_runs import Atlas
from fedskew.atlas.published import (
    PUBLISHED,
    places_of,
    published_map,
    read_published,
    write_published,
)
from fedskew.core.errors import FedskewError

PAGE = Path(__file__).parents[2] / "docs" / "atlas.md"


def test_the_page_of_the_documentation_has_the_published_tables():
    found = published_map()
    assert chapter(found, regrets_of(found)) in PAGE.read_text(encoding="utf-8")


def test_results_are_written_with_seven_digits(small: Atlas, tmp_path: Path):
    path = tmp_path / "published.json.gz"
    write_published(path, small.protocol, small.results)
    again = read_published(path)
    assert again.keys() == small.results.keys()
    for name, result in small.results.items():
        assert again[name].chosen == result.chosen
        assert again[name].measured == result.measured
        for row, written in zip(result.rows, again[name].rows, strict=True):
            assert (row.method, row.fate, row.seed) == (written.method, written.fate, written.seed)
            assert row.score is not None
            assert written.score is not None
            assert abs(row.score - written.score) < 1e-6
    first = path.read_bytes()
    write_published(path, small.protocol, small.results)
    assert path.read_bytes() == first, "no time is written"


def test_the_atlas_has_natural_cells_and_both_goals():
    found = published_map()
    places = places_of(found)
    assert {place.goal for place in places} == {"shared", "own"}
    natural = {cell.name for cell in found.cells("shared") if cell.natural}
    assert len(natural) >= 5
    assert PUBLISHED.is_file()


HALF_A_DOCUMENT = gzip.compress(b"{", mtime=0)


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", HALF_A_DOCUMENT[:12], HALF_A_DOCUMENT],
    ids=["empty", "no gzip", "cut off", "half a document"],
)
def test_a_damaged_file_says_what_to_do(tmp_path: Path, content: bytes):
    path = tmp_path / "published.json.gz"
    path.write_bytes(content)
    with pytest.raises(FedskewError, match="install fedskew again"):
        read_published(path)
