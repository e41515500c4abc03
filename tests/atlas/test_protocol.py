"""The protocol: what is in it, what is refused, and that the one of this version is frozen."""

from pathlib import Path

import pytest

from fedskew.algorithms.contract import resolve
from fedskew.atlas.protocol import OWN_PROTOCOL, read_protocol
from fedskew.core.errors import FedskewError
from fedskew.data import choose
from fedskew.skew.skews import skews


def test_the_protocol_is_the_one_that_was_run():
    """Whoever changes it has to run the atlas again, and to give the protocol a new version."""
    protocol = read_protocol()
    assert protocol.version == "1"
    assert protocol.digest == "48e0814d9428dff24a7d6afe3a5bcdddca6da6fcb188d6b69eb8c59216ce5556"


def test_cells_and_methods_exist():
    protocol = read_protocol()
    assert len(protocol.cells) == 28
    assert sum(cell.natural for cell in protocol.cells) == 9
    for entry in protocol.methods:
        resolve(entry.algorithm)
    for cell in protocol.cells:
        choose(cell.settings["data"])
        for part in cell.settings["skew"].split(" + ")[:1]:
            skews.choose(part)


def test_a_study_has_the_methods_that_its_cell_allows():
    protocol = read_protocol()
    studies = {study.name: study for study in protocol.studies}
    names = [entry.algorithm for entry in studies["heart-disease-own"].methods]
    assert "fedrep" not in names, "logistic regression has no layers before its head"
    names = [entry.algorithm for entry in studies["har-subjects-own"].methods]
    assert "fedbn" in names
    assert "ifca:models=2,start=updates" not in names, "it refuses BatchNorm"
    given = studies["digits-deadline-shared"].given()
    assert given["fleet"] == "mixed:deadline=3.5"
    assert given["metric"] == "balanced_accuracy"
    assert given["grid"] == {"lr": [0.03, 0.1, 0.3, 1.0, 3.0]}
    assert "central" not in given["algorithm"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("version =", "versoin =", "unknown name in about of .* 'versoin'"),
        ('version = "1"\n', "", "about needs version"),
        ("[goal.own]", "[goal.owned]", "unknown goal in .* 'owned'"),
        ('needs = ["two epochs"]', 'needs = ["epochs"]', "unknown need in .* 'epochs'"),
        ('name = "iid"', 'name = "skewed"', "there are two cells skewed"),
        ('title = "digits, IID"\n', "", "a cell needs title"),
        ('goals = ["shared", "own"]', 'goals = ["shared"]', "goal own need the control, fedavg"),
        ("[about]", "[about", "is not TOML"),
        ("lr = [0.1, 0.5]", 'lr = "x"', "lr='x' is not a list of learning rates"),
        ("lr = [0.1, 0.5]", "lr = []", "is not a list of learning rates"),
        ("lr = [0.1, 0.5]", "lr = [0.1, -1]", "lr=-1 is not a learning rate"),
        ('name = "iid"', 'name = "../iid"', "'../iid' cannot name files"),
        ('title = "digits, IID"', "title = 7", "title=7 of a cell is not text"),
    ],
)
def test_mistakes_are_named(protocol: Path, before: str, after: str, message: str):
    text = protocol.read_text()
    assert before in text
    protocol.write_text(text.replace(before, after, 1))
    with pytest.raises(FedskewError, match=message):
        read_protocol(protocol)


def test_a_cell_is_found_by_its_name():
    protocol = read_protocol(OWN_PROTOCOL)
    assert protocol.cell("vader").family == "vader"
    with pytest.raises(FedskewError, match="did you mean 'vader'"):
        protocol.cell("vadr")
