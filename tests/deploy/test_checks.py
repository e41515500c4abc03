"""Answers with the right form and numbers that cannot be: the node and the field are named, the others go on."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.deploy.conftest import CLIENTS, Pair
from tests.deploy.silos import SETTINGS, SilosInProcess, write_silos
from tests.deploy.test_faults import BAD, answering, column, left_out, sums

import fedskew as fs
from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.deploy.checks import checked_sums, finite
from fedskew.deploy.deployment import run_on_nodes
from fedskew.deploy.remote_clients import Nodes
from fedskew.deploy.requests import Scored, Waiting, from_bytes, in_tensor, out_of_tensor, to_bytes
from fedskew.engine.job import ScheduleResult, Updates
from fedskew.runs import folder as on_disk
from fedskew.tasks.additive import sums_over
from fedskew.tasks.multilabel import Multilabel
from fedskew.tasks.next_token import NextToken
from fedskew.transport.frames import Frame, Kind, unpack

Change = Callable[[Any], Any]
HUGE = 10**4000  # more than any float


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 3, 7])
def test_one_number_that_is_not_finite_is_enough(odd: float, place: int):
    value = torch.zeros(8)
    finite({"a": {"x": value, "y": torch.ones(2)}}, "statistics")
    value[place] = odd
    with pytest.raises(FedskewError, match="statistics has NaN or infinite numbers"):
        finite({"a": {"y": torch.ones(2), "x": value}}, "statistics")


def labelled() -> dict[str, Any]:
    outputs, targets = (
        torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]),
        torch.tensor([[1, 0], [0, 1], [1, 1]]),
    )
    losses = Multilabel().losses(outputs, targets, "none")
    return sums_over(Multilabel(), outputs, losses, targets, 2)


LABELS: dict[str, tuple[dict[str, Any], str]] = {
    "more hits than rows": (
        {"hits": np.array([0.0, 4.0])},
        "sums count something else than 3 rows",
    ),
    "more missing than rows": (
        {"missing": np.array([9.0, 0.0])},
        "sums count something else than 3 rows",
    ),
    "more exact than rows": ({"exact": np.array(4.0)}, "sums count something else than 3 rows"),
    "parts of rows": ({"exact": np.array(0.5)}, "sums count something else than 3 rows"),
    "below 0": ({"extra": np.array([-1.0, 0.0])}, "sums count something else than 3 rows"),
    "labels twice": (
        {"extra": np.array([3.0, 3.0])},
        "sums count a label of a row twice: hits, missing, extra",
    ),
    "a loss below 0": (
        {"loss": np.array(-1.0)},
        "sums/loss of a row: told -0.333.*, expected a finite number from 0",
    ),
    "half a row": ({"rows": np.array(2.5)}, "sums are over 2.5 rows, expected at most 3"),
}


@pytest.mark.parametrize("case", LABELS)
def test_sums_of_labels_count_rows_once(case: str):
    lie, message = LABELS[case]
    honest = labelled()
    assert checked_sums(honest, 0, 3, Multilabel(), "sums") is honest
    with pytest.raises(FedskewError, match=message):
        checked_sums({**honest, **lie}, 0, 3, Multilabel(), "sums")


TOKENS: dict[str, tuple[dict[str, Any], str]] = {
    "fewer tokens than rows": ({"tokens": 2.0}, "sums are over 2 tokens, expected 3 to 12"),
    "more tokens than places": ({"tokens": 13.0}, "sums are over 13 tokens, expected 3 to 12"),
    "half a token": ({"tokens": 7.5}, "sums are over 7.5 tokens"),
    "more right than tokens": ({"right": 12.0}, "sums have 12 tokens that are predicted, of 11"),
    "right below 0": ({"right": -1.0}, "sums have -1 tokens that are predicted"),
    "a surprise below 0": ({"surprise": -1.0}, "sums/surprise: told -1.0"),
}


@pytest.mark.parametrize("case", TOKENS)
def test_sums_of_tokens_count_tokens_once(case: str):
    lie, message = TOKENS[case]
    targets = torch.tensor([[1, 2, 0, 0], [1, 1, -1, 2], [0, 1, 2, 0]])
    outputs = F.one_hot(targets.clamp(0), 3).double()
    outputs[0, 0] = torch.tensor([1.0, 0.0, 0.0])
    task = NextToken()
    losses = task.losses(outputs, targets, "none")
    honest = sums_over(task, task.kept(outputs, targets), losses, targets, 3)
    assert (honest["tokens"], honest["right"]) == (11, 10)
    assert checked_sums(honest, 3, 3, task, "sums", places=4) is honest
    changed = {name: np.array(value) for name, value in lie.items()}
    with pytest.raises(FedskewError, match=message):
        checked_sums({**honest, **changed}, 3, 3, task, "sums", places=4)


def test_all_rows_of_a_client_are_summed_up():
    honest = labelled()
    assert checked_sums(honest, 3, 3, Multilabel(), "sums") is honest
    with pytest.raises(FedskewError, match="sums are over 3 rows, expected 4"):
        checked_sums(honest, 4, 4, Multilabel(), "sums")


# -- training ----------------------------------------------------------------------------------------------------------


def report(**parts: float) -> Change:
    """Return a lie of an update about its losses or its accuracy."""

    def change(update: Updates) -> Updates:
        told = {name: np.array([value]) for name, value in parts.items()}
        names = ("loss_before", "loss_after", "chosen_model")
        numbers = {name: told.pop(name) for name in names if name in told}
        known = update.report.numbers
        return replace(update, report=replace(update.report, **told, numbers={**known, **numbers}))

    return change


def buffer(name: str, value: float) -> Change:
    def change(update: Updates) -> Updates:
        found = {
            n: torch.full_like(v, value) if n.endswith(name) else v
            for n, v in update.buffers.items()
        }
        return replace(update, buffers=found)

    return change


TRAINED: dict[str, tuple[str, Change, str]] = {
    "accuracy 5": (
        "fedavg",
        report(accuracy=5.0),
        "update/report/accuracy: told 5.0, expected a finite number from 0",
    ),
    "accuracy below 0": ("fedavg", report(accuracy=-0.1), "update/report/accuracy: told -0.1"),
    "accuracy NaN": ("fedavg", report(accuracy=math.nan), "update/report/accuracy: told nan"),
    "a loss below 0": (
        "fedavg",
        report(loss=-1e9),
        "update/report/loss: told -1000000000.0, expected a finite number",
    ),
    "a loss of NaN": (
        "fedavg",
        report(loss=math.nan),
        "update/report/loss: told nan, expected a finite number from 0",
    ),
    "an infinite loss": ("fedavg", report(loss=math.inf), "update/report/loss: told inf"),
    "loss before": ("fedga", report(loss_before=-1.0), "update/report/loss_before: told -1.0"),
    "loss after": ("fedga", report(loss_after=math.nan), "update/report/loss_after: told nan"),
    "a model that was not sent": (
        "ifca:part=head",
        report(chosen_model=2.0),
        "update/report/chosen_model is 2, and models have the numbers 0 to 1",
    ),
    "half a model": (
        "ifca:part=head",
        report(chosen_model=0.5),
        "update/report/chosen_model is 0.5",
    ),
    "a model of NaN": (
        "ifca:part=head",
        report(chosen_model=math.nan),
        "update/report/chosen_model is nan",
    ),
    "variance": (
        "fedavg",
        buffer("running_var", -1.0),
        "update/buffers/.*running_var has numbers below 0",
    ),
    "steps": (
        "fedavg",
        buffer("num_batches_tracked", -5),
        "update/buffers/.*num_batches_tracked has numbers below 0",
    ),
}


@pytest.mark.parametrize("case", TRAINED)
def test_a_lie_about_training(pair: Callable[..., Pair], case: str):
    method, change, message = TRAINED[case]
    both = pair(method)
    both.transport.changed = answering(Updates, change)
    with left_out(message):
        result = both.remote.advance()
    assert column(result, "dropped") == [int(client == BAD) for client in range(CLIENTS)]
    assert math.isfinite(result.round["local_loss"])


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_client_that_has_diverged_is_left_out_of_the_mean_as_in_simulation(
    pair: Callable[..., Pair], loss: float
):
    """Its weights and its loss are NaN; that is no lie."""
    both = pair("fedavg")

    def diverged(update: Updates) -> Updates:
        broken = {name: value * math.nan for name, value in update.payload["delta"].items()}
        return report(loss=loss)(replace(update, payload={"delta": broken}))

    both.transport.changed = answering(Updates, diverged)
    result = both.remote.advance()
    assert (result.round["excluded"], result.round["dropped"]) == (1, 0)
    both.transport.changed = answering(
        Updates, lambda update: report(accuracy=5.0)(diverged(update))
    )
    with left_out("update/report/accuracy: told 5.0"):
        both.remote.advance()


@pytest.mark.parametrize("method", ["fedbs", "fedpbs"])
def test_a_variance_below_0(pair: Callable[..., Pair], method: str):
    both = pair(method)
    both.transport.changed = answering(
        dict, lambda told: {name: -1 - value for name, value in told.items()}
    )
    with left_out(
        r"measurement/(gradient|loss)_variance: told -\d.*, expected a finite number from 0"
    ):
        result = both.remote.advance()
    assert column(result, "late")[BAD] == 1


def test_statistics_of_batchnorm_below_0_do_not_end_the_round(pair: Callable[..., Pair]):
    """Clients exchange the variance of a layer; the mean of all of them is no variance if one tells -1e9."""
    both, told = pair("fedtan", rounds=1), list[int]()

    def changed(client: int, content: bytes) -> bytes:
        answer = from_bytes(content)
        if client == BAD and isinstance(answer, Waiting):
            told.append(client)
            if len(told) == 2:
                return to_bytes(Waiting(torch.full_like(answer.sent, -1e9)))
        return content

    both.transport.changed = changed
    result = both.remote.advance()
    assert len(told) > 2
    assert result.round["excluded"] == 0
    assert all(bool(value.isfinite().all()) for value in both.remote.state.model().values())


VISITS: dict[str, tuple[Change, str]] = {
    "NaN": (
        lambda r: replace(r, params={n: v * math.nan for n, v in r.params.items()}),
        "model has NaN or infinite",
    ),
    "one infinity": (
        lambda r: replace(
            r, params={n: v.index_fill(0, torch.tensor([0]), math.inf) for n, v in r.params.items()}
        ),
        "model has NaN or infinite numbers",
    ),
    "losses": (lambda r: replace(r, losses=r.losses - 100), "model/losses: told -"),
    "scores": (
        lambda r: replace(r, scores=r.scores + 6),
        "model/scores: told [67].0, expected .* from 0 to 1",
    ),
    "variance": (
        lambda r: replace(r, buffers={n: v - 100 for n, v in r.buffers.items()}),
        "model/buffers/.* has numbers below 0",
    ),
    "squares": (
        lambda r: replace(
            r,
            optimizer={
                **r.optimizer,
                "square": {n: v - 1 for n, v in r.optimizer["square"].items()},
            },
        ),
        "model/optimizer/square has numbers below 0",
    ),
}


@pytest.mark.parametrize("case", VISITS)
def test_a_model_on_its_way_that_no_client_can_use(pair: Callable[..., Pair], case: str):
    """The round cannot go on without the client, and the error says which one, and why."""
    change, message = VISITS[case]
    both = pair("sfl", optimizer="adam")
    both.transport.changed = answering(ScheduleResult, change)
    with pytest.raises(FedskewError, match=rf"none of 1 clients answered: client {BAD}: {message}"):
        both.remote.advance()
    both.transport.changed = lambda client, content: content
    again = both.make_remote()
    assert again.advance().round["round"] == 1


def frames(change: Callable[[Frame], Frame], kind: Kind) -> Callable[[int, bytes], bytes]:
    """Return how one client changes its frames of a kind."""

    def changed(client: int, content: bytes) -> bytes:
        answer = from_bytes(content)
        if client != BAD or not isinstance(answer, (Waiting, torch.Tensor)):
            return content
        found = unpack(out_of_tensor(answer.sent if isinstance(answer, Waiting) else answer))
        message = in_tensor(
            b"".join((change(one) if one.kind == kind else one).pack() for one in found)
        )
        return to_bytes(Waiting(message) if isinstance(answer, Waiting) else message)

    return changed


STEPS: dict[str, tuple[Kind, Callable[[Frame], Frame], str]] = {
    "NaN": (
        Kind.GRADIENT,
        lambda f: replace(f, values=f.values * math.nan),
        "its gradient 0 has NaN or infinite",
    ),
    "rows": (
        Kind.GRADIENT,
        lambda f: replace(f, count=2**60),
        r"its gradient 0 is over [\d,]+ values, expected those",
    ),
    "none": (
        Kind.SUM,
        lambda f: replace(f, count=0),
        "its sum 0 is over 0 values, expected those of",
    ),
    "more": (
        Kind.SUM,
        lambda f: replace(f, count=f.count * 7 + 1),
        r"its sum 0 is over [\d,]+ values",
    ),
    "squares": (
        Kind.SPREAD,
        lambda f: replace(f, values=-1 - f.values),
        "its spread 0 has sums of squares below 0",
    ),
    "loss": (Kind.SCORE, lambda f: replace(f, values=f.values - 1e6), "its loss of a row: told -"),
    "score": (Kind.SCORE, lambda f: replace(f, values=f.values + 1e6), "its score of a row: told"),
}


@pytest.mark.filterwarnings("ignore:.*clients are left out")
@pytest.mark.parametrize("case", STEPS)
def test_a_part_of_a_step_that_cannot_be(pair: Callable[..., Pair], case: str):
    kind, change, message = STEPS[case]
    both = pair("stratify-batch")
    both.transport.changed = frames(change, kind)
    with (
        pytest.warns(UserWarning, match=f"client {BAD}: {message}"),
        pytest.raises(FedskewError, match="do not answer"),
    ):
        both.remote.advance()


# -- scores ------------------------------------------------------------------------------------------------------------


def own(**scores: Any) -> Change:
    return lambda scored: replace(scored, own={**scored.own, **scores})


def own_test(**scores: Any) -> Change:
    return lambda scored: replace(scored, own_test={**scored.own_test, **scores})


def loss(value: float) -> Change:
    return sums("train", lambda found: {"loss": np.array(value)})


def without(part: str) -> Change:
    return lambda scored: replace(
        scored, parts={name: each for name, each in scored.parts.items() if name != part}
    )


SCORED: dict[str, tuple[str, Change, str]] = {
    "no parts": (
        "fedavg",
        lambda s: replace(s, parts={}),
        "sums has other names than expected: test, train",
    ),
    "no test rows": ("fedavg", without("test"), "sums has other names than expected: test"),
    "no training rows": ("fedavg", without("train"), "sums has other names than expected: train"),
    "a loss below 0": (
        "fedavg",
        loss(-1e9),
        "sums/train/loss of a row: told -.*, expected a finite number from 0",
    ),
    "a loss of NaN": ("fedavg", loss(math.nan), "sums/train/loss of a row: told nan"),
    "an infinite loss": ("fedavg", loss(math.inf), "sums/train/loss of a row: told inf"),
    "fewer rows": (
        "fedavg",
        sums("train", lambda s: {n: np.zeros_like(v) for n, v in s.items()}),
        "sums/train are over 0 rows",
    ),
    "an accuracy of 7": (
        "fedavg",
        own(accuracy=7.0),
        "scores/accuracy: told 7.0, expected a finite number from 0 to 1",
    ),
    "an accuracy of NaN": ("fedavg", own(accuracy=math.nan), "scores/accuracy: told nan"),
    "a loss of its own": ("fedavg", own(loss=-1.0), "scores/loss: told -1.0"),
    "a huge loss": ("fedavg", own(loss=HUGE), "scores/loss is a int, expected a float"),
    "one score less": (
        "fedavg",
        lambda s: replace(s, own={"loss": 1.0}),
        "scores has other names .*: accuracy",
    ),
    "a formula": ("fedavg", own(**{"=1+1": 1.0}), "scores has other names than expected: =1.1"),
    "of its model": ("ditto", own(global_accuracy=7.0), "scores/global_accuracy: told 7.0"),
    "on test rows": (
        "fedbn",
        own_test(balanced_accuracy=7.0),
        "scores on test rows/balanced_accuracy: told 7.0",
    ),
    "none on test rows": (
        "fedbn",
        lambda s: replace(s, own_test=None),
        "scores on test rows is a NoneType",
    ),
    "test rows of a model that is not its own": (
        "fedavg",
        lambda s: replace(s, own_test={"loss": 1.0}),
        "scores on test rows is a dict, expected a NoneType",
    ),
    "a row too early": (
        "fedavg",
        lambda s: replace(s, row={"loss": 1.0}),
        "last row is a dict, expected a NoneType",
    ),
    "a matrix too early": (
        "fedavg",
        lambda s: replace(s, confusion=np.zeros((10, 10), np.int64)),
        "confusion matrix is a ndarray, expected a NoneType",
    ),
}


@pytest.mark.parametrize("case", SCORED)
def test_a_lie_about_scores(pair: Callable[..., Pair], case: str, tmp_path: Path):
    method, change, message = SCORED[case]
    both, without_one = pair(method, rounds=1), pair(method, rounds=1, folder=tmp_path / "silent")
    both.transport.changed = answering(Scored, change)
    with left_out(message):
        found = both.remote.advance().round
    without_one.transport.changed = lambda client, content: (
        b"" if client == BAD and isinstance(from_bytes(content), Scored) else content
    )
    with left_out("a message of 0 bytes"):
        expected = without_one.remote.advance().round
    assert found == expected


def test_a_model_that_has_diverged_stops_the_run_with_the_reasons(pair: Callable[..., Pair]):
    """Its loss is NaN at all clients, which is no lie of one of them."""
    both = pair("fedavg", rounds=1)

    def diverged(client: int, content: bytes) -> bytes:
        answer = from_bytes(content)
        return to_bytes(loss(math.nan)(answer)) if isinstance(answer, Scored) else content

    both.transport.changed = diverged
    with pytest.raises(
        FedskewError,
        match="none of 5 clients answered: client 0: sums/train/loss of a row: told nan",
    ):
        both.remote.advance()


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (
            {"squared": np.array(-1.0)},
            "sums/test/squared: told -1.0, expected a finite number from 0",
        ),
        ({"absolute": np.array(math.inf)}, "sums/test/absolute: told inf"),
        ({"targets": np.array(math.nan)}, "sums/test/targets: told nan, expected a finite number"),
        ({"squared_targets": np.array(-5.0)}, "sums/test/squared_targets: told -5.0"),
    ],
)
def test_a_lie_about_errors_of_numbers(
    pair: Callable[..., Pair], lie: dict[str, Any], message: str
):
    fed = fs.split(fs.load("diabetes"), "iid", clients=CLIENTS, seed=0)
    both = pair("fedavg", "logreg", fed, rounds=1)
    both.transport.changed = answering(Scored, sums("test", lambda found: lie))
    with left_out(message):
        assert math.isfinite(both.remote.advance().round["test_r2"])


def row(**values: Any) -> Change:
    return lambda scored: replace(scored, row={**scored.row, **values})


def less(name: str) -> Change:
    return lambda scored: replace(
        scored, row={key: value for key, value in scored.row.items() if key != name}
    )


def one_below_0(scored: Scored) -> Scored:
    """Return a confusion matrix with the same sum, and -1 in a cell."""
    assert scored.confusion is not None
    matrix = scored.confusion.copy()
    matrix[0, 0] += matrix[0, 1] + 1
    matrix[0, 1] = -1
    assert matrix.sum() == scored.confusion.sum() >= matrix.max()
    return replace(scored, confusion=matrix)


def wrapped(scored: Scored) -> Scored:
    """Return a confusion matrix with the same sum, as 64 bits have it."""
    assert scored.confusion is not None
    matrix = scored.confusion.copy()
    matrix[:2, :2] += 2**62
    assert matrix.sum() == scored.confusion.sum()
    return replace(scored, confusion=matrix)


MATRIX = r"confusion matrix: told [\d,]+ rows, expected [\d,]+, and none below 0"
FINAL: dict[str, tuple[str, Change, str]] = {
    "a number beyond floats": (
        "fedavg",
        row(accuracy=HUGE),
        "last row/accuracy is a int, expected a float",
    ),
    "an accuracy of 5": (
        "fedavg",
        row(accuracy=5.0),
        "last row/accuracy: told 5.0, expected a finite number from 0 to",
    ),
    "a rate": ("fedavg", row(majority_rate=-0.5), "last row/majority_rate: told -0.5"),
    "another rate": ("fedavg", row(one_class_rate=math.nan), "last row/one_class_rate: told nan"),
    "an infinite loss": ("fedavg", row(loss=math.inf), "last row/loss: told inf"),
    "an auc of 2": ("fedavg", row(auc=2.0), "last row/auc: told 2.0"),
    "a formula as a header": (
        "fedavg",
        row(**{'=HYPERLINK("http://x","y")': 1.0}),
        "last row has other names than expected: =HYPERLINK",
    ),
    "a column more": ("fedavg", row(more=1.0), "last row has other names than expected: more"),
    "a column less": (
        "fedavg",
        less("balanced_accuracy"),
        "last row has other names than expected: balanced_accuracy",
    ),
    "no row": ("fedavg", lambda s: replace(s, row=None), "last row is a NoneType, expected a dict"),
    "text": ("fedavg", row(loss="low"), "last row/loss is a str, expected a float"),
    "a score that is told earlier": (
        "fedavg",
        own(loss=1.0),
        "scores has other names than expected: loss",
    ),
    "its own model": ("fedbn", row(own_test_accuracy=7.0), "last row/own_test_accuracy: told 7.0"),
    "the global one": ("ditto", row(global_auc=-7.0), "last row/global_auc: told -7.0"),
    "no matrix": (
        "fedbn",
        lambda s: replace(s, confusion=None),
        "confusion matrix is a NoneType, expected a ndarray",
    ),
    "a matrix over more rows": (
        "fedbn",
        lambda s: replace(s, confusion=s.confusion * 2),
        MATRIX,
    ),
    "a matrix below 0": ("fedbn", one_below_0, MATRIX),
    "a matrix that wraps around": ("fedbn", wrapped, MATRIX),
}


@pytest.mark.parametrize("case", FINAL)
def test_a_lie_in_the_last_table(pair: Callable[..., Pair], case: str):
    method, change, message = FINAL[case]
    both = pair(method, rounds=1)
    both.remote.advance()
    both.transport.changed = answering(Scored, change)
    with left_out(message):
        table = both.remote.final_clients().table
    assert [entry["client"] for entry in table] == [
        client for client in range(CLIENTS) if client != BAD
    ]


def test_a_client_of_one_class_has_no_auc(pair: Callable[..., Pair]):
    """What is not defined is NaN, in simulation as on nodes, and that is no lie."""
    fed = fs.split(fs.load("digits"), "classes:k=1", clients=10, seed=0)
    both = pair("fedavg", fed=fed, rounds=1)
    both.remote.advance()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = both.remote.final_clients().table
    assert len(table) == 10
    assert all(math.isnan(entry["auc"]) for entry in table)


# -- statistics of classes ---------------------------------------------------------------------------------------------


def statistics(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    return lambda told: {"ccvr": {**told["ccvr"], **change(told["ccvr"])}}


CLASSES: dict[str, tuple[Change, str]] = {
    "negative": (
        lambda told: {"ccvr": {name: -value for name, value in told["ccvr"].items()}},
        "statistics/ccvr/count",
    ),
    "outer products below 0": (
        statistics(lambda s: {"outer": -s["outer"]}),
        "statistics/ccvr/outer: told no covariance",
    ),
    "sums too large for them": (
        statistics(lambda s: {"sum": 1e6 * (1 + s["sum"].abs())}),
        "statistics/ccvr",
    ),
    "more rows": (
        statistics(lambda s: {"count": s["count"] + 1e9}),
        "statistics/ccvr/count: told other numbers",
    ),
    "parts of rows": (
        statistics(lambda s: {"count": s["count"] / 3}),
        "statistics/ccvr/count: told other numbers",
    ),
    "rows of no class": (
        statistics(lambda s: {"count": s["count"] * 0}),
        "statistics/ccvr: told sums over class",
    ),
    "one NaN": (
        statistics(lambda s: {"sum": s["sum"].index_fill(0, torch.tensor([0]), math.nan)}),
        "statistics has NaN or infinite numbers",
    ),
}


@pytest.mark.parametrize("case", CLASSES)
def test_statistics_that_are_none(pair: Callable[..., Pair], case: str):
    change, message = CLASSES[case]
    both = pair("fedavg + ccvr", rounds=1)
    both.remote.advance()
    both.transport.changed = answering(dict, change)
    with left_out(message):
        both.remote.calibrate()
    assert all(bool(value.isfinite().all()) for value in both.remote.state.model().values())


def test_a_head_that_is_nan_is_not_taken(pair: Callable[..., Pair]):
    """Features of 1e150 are possible by themselves, and no head can be trained on them."""
    both = pair("fedavg + ccvr", rounds=1, dtype="float32")
    both.remote.advance()

    def far(told: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        count = told["count"][:, None]
        total = 1e150 * count.expand_as(told["sum"])
        return {
            "sum": total,
            "outer": total[:, :, None] * total[:, None, :] / count[:, :, None].clamp_min(1),
        }

    both.transport.changed = answering(dict, statistics(far))
    before = both.remote.state.model()
    with pytest.raises(FedskewError, match="the new head is NaN or infinite"):
        both.remote.calibrate()
    assert all(
        torch.equal(value, before[name]) for name, value in both.remote.state.model().items()
    )


# -- anything else -----------------------------------------------------------------------------------------------------


def test_an_answer_that_no_check_expects_is_a_refusal(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
):
    both = pair("fedavg", rounds=1)

    def fails(found: Any, like: Any, task: Any) -> Any:
        if int(found.report.clients[0]) == BAD:
            raise ZeroDivisionError("what it said")
        return found

    monkeypatch.setattr("fedskew.deploy.remote_engine.checked_update", fails)
    with left_out(r"an answer that cannot be checked \(ZeroDivisionError\)"):
        both.remote.advance()


# -- whole runs --------------------------------------------------------------------------------------------------------


@dataclass
class Ending(SilosInProcess):
    """Silos that change their answers of a kind, some of them or all; only after so many rounds of training."""

    kind: type[Any] = Scored
    change: Change = lambda told: told
    liars: tuple[int, ...] = (1,)
    after: int = 3

    def ask(
        self, requests: Mapping[int, bytes], about: Mapping[str, Any], *patience: Any
    ) -> dict[int, bytes]:
        answers = super().ask(requests, about, *patience)
        if self.rounds.count("Train") < self.after:
            return answers
        told = {client: from_bytes(content) for client, content in answers.items()}
        lies = {
            c: to_bytes(self.change(t))
            for c, t in told.items()
            if c in self.liars and isinstance(t, self.kind)
        }
        return answers | lies


def experiment(**more: Any) -> Experiment:
    return Experiment(data="silos:label=outcome", model="logreg", **{**SETTINGS, **more})


def final(change: Change) -> Change:
    return lambda scored: change(scored) if scored.row is not None else scored


@pytest.mark.parametrize("value", [HUGE, 5.0, math.inf, "high"], ids=lambda value: repr(value)[:5])
def test_one_node_does_not_end_a_run_after_its_last_round(tmp_path: Path, value: Any):
    silos = Ending(write_silos(tmp_path), tmp_path / "state", change=final(row(accuracy=value)))
    with pytest.warns(UserWarning, match="client hospital_B: last row/accuracy"):
        run = run_on_nodes(Nodes(silos), 3, experiment(), tmp_path / "run")
    assert list(run.final_clients["name"]) == ["hospital_A", "hospital_C"]
    assert 0 <= run.summary["client_accuracy_mean"] <= 1


def test_one_node_does_not_end_a_run_with_ccvr(tmp_path: Path):
    def negative(told: dict[str, Any]) -> dict[str, Any]:
        return {
            part: {name: -value for name, value in tensors.items()}
            for part, tensors in told.items()
        }

    silos = Ending(write_silos(tmp_path), tmp_path / "state", kind=dict, change=negative)
    with pytest.warns(UserWarning, match="client hospital_B: statistics/ccvr/count"):
        run = run_on_nodes(Nodes(silos), 3, experiment(algorithm="fedavg + ccvr"), tmp_path / "run")
    assert run.summary["rounds"] == 3


def refusing(told: Any) -> Any:
    return None


@pytest.mark.parametrize("when", ["the last scores", "the last round's"])
def test_the_model_is_on_disk_if_nobody_scores_it(tmp_path: Path, when: str):
    change = final(refusing) if when == "the last scores" else refusing
    folder, paths = tmp_path / "run", write_silos(tmp_path)
    silos = Ending(list(paths), tmp_path / "state", change=change, liars=(0, 1, 2))
    with pytest.raises(
        FedskewError,
        match="none of 3 clients answered: client hospital_A: it answered with a NoneType",
    ):
        run_on_nodes(Nodes(silos), 3, experiment(checkpoint_every=1), folder)
    assert not (folder / on_disk.SUMMARY).exists()
    kept = (folder / on_disk.MODEL).read_bytes()
    whole = run_on_nodes(
        Nodes(SilosInProcess(list(paths), tmp_path / "state")), 3, experiment(), folder
    )
    assert (folder / on_disk.MODEL).read_bytes() == kept
    assert len(whole.rounds) == 3


def test_the_model_is_on_disk_before_the_last_scores_are_asked_for(tmp_path: Path):
    folder, found = tmp_path / "run", list[bool]()

    class Watching(SilosInProcess):
        def ask(
            self, requests: Mapping[int, bytes], about: Mapping[str, Any], *patience: Any
        ) -> dict[int, bytes]:
            if getattr(from_bytes(requests[0]), "final", False):
                found.append((folder / on_disk.MODEL).exists())
            return super().ask(requests, about, *patience)

    run_on_nodes(
        Nodes(Watching(write_silos(tmp_path), tmp_path / "state")), 3, experiment(), folder
    )
    assert found == [True]
