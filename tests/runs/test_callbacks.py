"""Callbacks: what they get, how they stop a run, and early stopping, also across an interruption."""

from pathlib import Path

import pytest

import fedskew as fs


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits", validation=0.2), "iid", clients=3)


def test_functions_and_callbacks_see_every_round_and_the_end(fed: fs.Federation):
    seen: list = []

    class Notes(fs.Callback):
        def on_round_end(self, result, rounds):
            seen.append((result.round["round"], rounds))

        def on_run_end(self, run):
            seen.append(run.summary["rounds"])

    fs.train(
        fed,
        "logreg",
        rounds=2,
        folder=False,
        callbacks=[Notes(), lambda result, rounds: seen.append("f")],
    )
    assert seen == [(1, 2), "f", (2, 2), "f", 2]


def test_a_callback_stops_the_run_which_is_then_finished(fed: fs.Federation, tmp_path: Path):
    called = []
    run = fs.train(
        fed, "logreg", rounds=9, folder=tmp_path / "run", checkpoint_every=5,
        callbacks=[lambda result, rounds: result.round["round"] == 3, lambda result, rounds: called.append(1)],
    )  # fmt: skip
    assert run.summary["rounds"] == len(called) == 3
    assert fs.open_run(tmp_path / "run").rounds["round"].tolist() == [1, 2, 3]
    assert fs.resume(tmp_path / "run").summary == run.summary


def test_early_stopping_by_hand(fed: fs.Federation):
    usual = (
        fs.train(fed, "logreg", rounds=12, lr=2.0, folder=False)
        .rounds["validation_accuracy"]
        .tolist()
    )
    best, since, stops = -1.0, 0, None
    for number, value in enumerate(usual, 1):
        best, since = (value, number) if value > best else (best, since)
        if stops is None and number - since >= 2:
            stops = number
    assert stops is not None
    assert stops < 12
    run = fs.train(fed, "logreg", rounds=12, lr=2.0, stop_after=2, folder=False)
    assert run.rounds["validation_accuracy"].tolist() == usual[:stops]


def test_a_run_that_is_interrupted_stops_where_it_would_have(fed: fs.Federation, tmp_path: Path):
    settings = {"rounds": 12, "lr": 2.0, "stop_after": 2}
    whole = fs.train(fed, "logreg", folder=False, **settings)

    def crash(result, rounds):
        # After the decision to stop, before anything is summed up
        if result.round["round"] == whole.summary["rounds"]:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fs.train(
            fed, "logreg", folder=tmp_path / "run", checkpoint_every=1, callbacks=crash, **settings
        )
    assert (
        fs.resume(tmp_path / "run").rounds["local_loss"].tolist()
        == whole.rounds["local_loss"].tolist()
    )


@pytest.mark.parametrize(
    ("method", "validation", "says"),
    [
        ("fedavg", 0.0, "stop_after=2 needs validation rows.*add validation=0.2"),
        (
            "local",
            0.2,
            r"needs a global model, and every client keeps a part of the model \(features",
        ),
        (
            "fedbn",
            0.2,
            r"needs a global model, and every client keeps a part of the model \(features",
        ),
        (
            "fedper",
            0.2,
            r"needs a global model, and every client keeps a part of the model \(head\.bias, head\.",
        ),
    ],
)
def test_what_cannot_be_watched_is_refused_before_training(
    tmp_path: Path, method: str, validation: float, says: str
):
    fed = fs.split(fs.load("digits", validation=validation), "iid", clients=3)
    with pytest.raises(fs.FedskewError, match=says):
        fs.train(fed, "tabular:hidden=8", method, rounds=3, stop_after=2, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_no_callback_is_refused(fed: fs.Federation):
    with pytest.raises(
        fs.FedskewError, match=r"a callback is a fedskew.Callback or a function.*got str"
    ):
        fs.train(fed, "logreg", rounds=1, folder=False, callbacks=["loud"])
