"""The tables of the papers: every cell is a valid experiment, and what is named exists."""

from pathlib import Path

import pytest

from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.papers.cell_settings import values_of
from fedskew.papers.measurements import MEASUREMENTS
from fedskew.papers.paper_tables import PaperTable, _table, choose, papers, tables_of
from fedskew.papers.rerun import _here
from fedskew.runs.experiment import check_choices
from fedskew.study.grid import parse_seeds

TABLES = [table for paper in papers() for table in tables_of(paper)]


@pytest.mark.parametrize(
    "table", [*TABLES, *(table.reduced() for table in TABLES)], ids=lambda table: table.label
)
def test_every_cell_can_be_measured(table: PaperTable):
    assert table.cases
    assert table.methods
    assert table.values
    assert parse_seeds(table.seeds)
    for case in table.cases:
        for method in table.methods_of(case):
            values = _here(values_of(table, case, method))
            if table.kind == "training":
                check_choices(Experiment(**values))
            else:
                assert set(values) < set(MEASUREMENTS[table.kind].__code__.co_varnames)


def test_the_five_papers_and_our_own():
    found = papers()
    assert set(found) == {"fedpbs", "layers", "stratify", "afl-cp", "mfedbn", "ours"}
    assert found["stratify"].title.startswith("Stratify: Rethinking Federated Learning")


def test_comparisons_have_at_least_three_seeds():
    for table in TABLES:
        compared = [claim for claim in table.claims if claim.kind == "better"]
        if compared and table.label != "stratify-figure4":  # its note says two
            assert len(parse_seeds(table.seeds)) >= 3, table.label


def test_every_quick_version_says_how_long_it_takes():
    for table in TABLES:
        assert 0 < table.quick.seconds <= 300, table.label


def test_tuning_has_seeds_of_its_own():
    tuned = [table for table in TABLES if table.name.startswith("tuning")]
    assert tuned
    for table in tuned:
        assert min(parse_seeds(table.seeds)) >= 100
        assert all("validation_" in value.measure for value in table.values)
    for table in TABLES:
        assert table in tuned or max(parse_seeds(table.seeds)) < 100


def test_no_hidden_numbering_of_papers():
    for path in Path(choose.__code__.co_filename).parent.rglob("*.toml"):
        text = path.read_text(encoding="utf-8")
        assert not any(number in text for number in ("paper 00", "seeds/", "shared/"))


def test_a_number_chooses_all_files_of_a_table():
    assert {table.name for table in choose("mfedbn", "2")} == {"table2"}
    names = {table.name for table in choose("stratify", "2")}
    assert {"table2-cifar10", "table2-covtype"} <= names
    assert all(name.startswith("table2-") for name in names)
    assert [table.name for table in choose("layers", "figure1")] == ["figure1"]
    assert len(choose("layers")) == len(tables_of("layers"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tables_of("stratfy"), "unknown paper 'stratfy'.*stratify"),
        (lambda: choose("layers", "9"), "unknown table of layers '9'"),
    ],
)
def test_unknown_names(call, message: str):
    with pytest.raises(FedskewError, match=message):
        call()


CONTENT = {
    "printed": "Table 1",
    "title": "t",
    "case": [{"name": "a", "lr": 0.1}],
    "method": [{"name": "m", "algorithm": "fedavg"}],
    "value": [{"name": "v", "measure": "test_accuracy_last"}],
}


def test_settings_of_a_cell_go_from_general_to_special():
    content = {
        **CONTENT,
        "settings": {"lr": 1.0, "rounds": 2},
        "method": [{"name": "m", "rounds": 3}],
    }
    table = _table("made", "table1", content)
    assert values_of(table, table.cases[0], table.methods[0]) == {"lr": 0.1, "rounds": 3}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tittle": "x"}, "PaperTable has no tittle"),
        (
            {"value": [{"name": "v", "measure": "x", "paper": {"other": {"a": 1.0}}}]},
            "'other' is none of m",
        ),
        (
            {"value": [{"name": "v", "measure": "x", "paper": {"m": {"z": 1.0}}}]},
            "'z' is none of a",
        ),
        (
            {"claim": [{"text": "c", "kind": "above", "value": "w", "method": "m"}]},
            "'w' is none of v",
        ),
        ({"quick": {"cases": ["b"]}}, "'b' is none of a"),
        ({"notes": ["{rounds} rounds"]}, "a note names the setting 'rounds'"),
        ({"method": [{"name": "m", "only": ["b"]}]}, "'b' is none of a"),
    ],
)
def test_what_occurs_nowhere_is_refused(more: dict, message: str):
    with pytest.raises(FedskewError, match=message):
        _table("made", "table1", {**CONTENT, **more})


WHOLE = {"text": "c", "kind": "better", "value": "v", "method": "m", "others": ["n"]}


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({**WHOLE}, "say the place in the paper"),
        ({**WHOLE, "ours": True, "place": "Table 1"}, "has no place in the paper"),
        ({**WHOLE, "ours": True, "kind": "above"}, "a question of ours is one of better"),
        ({**WHOLE, "place": "Table 1", "others": []}, "'better' needs others"),
        ({**WHOLE, "place": "Table 1", "value": "w"}, "'better' needs others, and a value that"),
        ({**WHOLE, "place": "Table 1", "kind": "near"}, "'near' needs a tolerance"),
        ({**WHOLE, "place": "Table 1", "kind": "gap"}, "'gap' needs the cases"),
        (
            {**WHOLE, "place": "Table 1", "kind": "trend", "cases": ["a"], "at": [1]},
            "'trend' needs",
        ),
        ({"text": "c", "kind": "untestable", "place": "Table 1"}, "say because of what"),
    ],
)
def test_a_claim_lacks_what_its_kind_needs(claim: dict, message: str):
    content = {
        **CONTENT,
        "method": [{"name": "m"}, {"name": "n"}],
        "value": [*CONTENT["value"], {"name": "w", "measure": "x", "better": ""}],
        "claim": [claim],
    }
    with pytest.raises(FedskewError, match=message):
        _table("made", "table1", content)


def test_every_claim_is_of_a_place_in_the_paper_or_ours():
    for table in TABLES:
        for claim in table.claims:
            if table.paper == "ours" or claim.kind == "chosen":
                assert not claim.place, claim.text
            else:
                assert bool(claim.place) != claim.ours, claim.text
