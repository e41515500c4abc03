"""shakespeare from a made-up file in the layout of the etext, and from the etext where it is there."""

import os
from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.data.sources.shakespeare import LETTERS, speeches

HEAD = "The collection\nby William Shakespeare\n" + "\n" * 5
SPEECH = (
    "  MARY. The first line of a speech is here,\n" + "    and it goes on for long enough.\n" * 6
)
PLAY = (
    "1\n\nA PLAY OF TWO\n\nby William Shakespeare\n\nACT I\n"
    + SPEECH
    + "                  Enter ROB\n"
    + "  Rob. What?\n    Nothing,   at  all.\n    No.\n    Well, I say it again and again.\n"
    + "  Messenger. One line.\n"
    + SPEECH
)
POEM = "2\n\nSONNETS\n\nby William Shakespeare\n\n  From fairest creatures we desire increase,\n"
FLUSH = (
    "3\n\nTHE COMEDY OF ERRORS\n\nby William Shakespeare\n\nACT I. SCENE 1\n"
    "ANNA. Not indented\nat all,\nby far.\n<<COPYRIGHT of the edition>>\nnobody says this\n"
    "ACT II. Hall\nnor this\nBERT. But he\nsays\nthis.\n"
)


def write(root: Path, text: str = HEAD + PLAY + POEM + FLUSH) -> None:
    (root / "shakespeare").mkdir()
    (root / "shakespeare" / "t8.shakespeare.txt").write_text(text)


def test_roles():
    found = speeches(HEAD + PLAY + POEM + FLUSH)
    assert set(found) == {
        "A_PLAY_OF_TWO_MARY",
        "A_PLAY_OF_TWO_ROB",
        "THE_COMEDY_OF_ERRORS_ANNA",
        "THE_COMEDY_OF_ERRORS_BERT",
    }
    assert (
        found["A_PLAY_OF_TWO_ROB"] == "What? Nothing, at all. No. Well, I say it again and again."
    )
    assert found["THE_COMEDY_OF_ERRORS_ANNA"] == "Not indented at all, by far."
    assert found["THE_COMEDY_OF_ERRORS_BERT"] == "But he says this."
    assert found["A_PLAY_OF_TWO_MARY"].count("goes on") == 12


@pytest.mark.parametrize("stride", [1, 3, 11])
def test_windows(data_root: Path, stride: int):
    write(data_root)
    data = fs.load("shakespeare", window=10, stride=stride, test=0.25)
    texts = speeches(HEAD + PLAY + POEM + FLUSH)
    assert data.groups == tuple(sorted(texts))
    assert len(data.classes) == len(LETTERS) == 80
    for number, role in enumerate(data.groups):
        text = texts[role]
        cut = len(text) - int(0.25 * len(text))
        if len(text) - cut <= 10:
            cut = len(text)
        for part, rows in ((text[:cut], data.train), (text[cut:], data.test)):
            expected = []
            for start in range(0, len(part) - 10, stride):
                expected.append((part[start : start + 10], part[start + 10]))
            mine = np.flatnonzero(rows.group == number)
            found = []
            for row in mine:
                letters = "".join(LETTERS[int(token)] for token in rows.x[row])
                found.append((letters, LETTERS[rows.y[row]]))
            assert found == expected, role
    assert (data.train.series is None) == (stride > 10)


@pytest.mark.parametrize("stride", [1, 15])
def test_sequence_targets_are_the_rows_shifted_by_one(data_root: Path, stride: int):
    write(data_root)
    options = {"window": 10, "stride": stride, "test": 0.25}
    following = fs.load("shakespeare", **options)
    shifted = fs.load("shakespeare", targets="sequence", **options)
    for one, other in ((following.train, shifted.train), (following.test, shifted.test)):
        assert np.array_equal(one.x, other.x)
        assert np.array_equal(other.y[:, :-1], one.x[:, 1:])
        assert np.array_equal(other.y[:, -1], one.y)
    assert fs.split(shifted, "natural").client_names == shifted.groups


def test_clients_are_roles_and_train(data_root: Path):
    write(data_root)
    data = fs.load("shakespeare", window=10, stride=1)
    fed = fs.split(data, "natural")
    assert fed.client_names == data.groups
    run = fs.train(
        fed, "char-lstm:embedding=3,hidden=4,layers=1", rounds=1, folder=False, device="cpu"
    )
    assert run.weights["features.embed.weight"].shape == (80, 3)
    largest = fs.load("shakespeare", window=10, roles=1)
    assert largest.groups == ("A_PLAY_OF_TWO_MARY",)


def test_engines_agree_on_the_lstm(data_root: Path):
    write(data_root)
    fed = fs.split(fs.load("shakespeare", window=10, stride=2), "natural")
    found = []
    for engine in ("loop", "stacked"):
        run = fs.train(
            fed, "char-lstm:embedding=3,hidden=4", "fedprox", rounds=2, engine=engine,
            folder=False, device="cpu", dtype="float64",
        )  # fmt: skip
        found.append(run.weights)
    for name, value in found[0].items():
        assert float((value - found[1][name]).abs().max()) < 1e-8


def test_refusals(data_root: Path):
    with pytest.raises(
        FedskewError, match=r"t8.shakespeare.txt is not there; get Project Gutenberg"
    ):
        fs.load("shakespeare")
    write(data_root, "nothing")
    with pytest.raises(FedskewError, match="no role has more than window=80 characters"):
        fs.load("shakespeare")


@pytest.mark.skipif(
    not Path(os.environ.get("FEDSKEW_DATA", ""), "shakespeare").is_dir(),
    reason="needs the file of shakespeare in FEDSKEW_DATA",
)
def test_the_etext_has_the_roles_of_leaf():
    """LEAF's paper counts 1,129 roles and 4,226,158 rows, in another copy of the text."""
    path = Path(os.environ["FEDSKEW_DATA"], "shakespeare", "t8.shakespeare.txt")
    found = speeches(path.read_text(encoding="ascii", errors="replace"))
    lengths = np.array([len(text) for text in found.values()])
    assert (len(found), (lengths > 80).sum()) == (1145, 1130)
    assert np.maximum(lengths - 80, 0).sum() == 4_225_130
