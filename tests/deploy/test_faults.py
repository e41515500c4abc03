"""Nodes that fail, are late or answer something else: the others go on without them, or the run stops with a reason."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deploy.conftest import CLIENTS, Pair

from fedskew.algorithms.contract import Report
from fedskew.core.errors import FedskewError
from fedskew.deploy.checks import checked_update
from fedskew.deploy.flower_grid import nodes_of
from fedskew.deploy.remote_clients import REFUSED, Patience
from fedskew.deploy.requests import Refusal, Scored, Waiting, from_bytes, to_bytes
from fedskew.engine.job import Updates
from fedskew.tasks.classification import Classification

BAD = 2  # the client that fails


def answering(kind: type[Any], change: Callable[[Any], Any]) -> Callable[[int, bytes], bytes]:
    """Return how one client's answers of a kind are changed on their way."""

    def changed(client: int, content: bytes) -> bytes:
        answer = from_bytes(content)
        return to_bytes(change(answer)) if client == BAD and isinstance(answer, kind) else content

    return changed


def payload(update: Updates, change: Callable[[torch.Tensor], torch.Tensor]) -> Updates:
    """Return an update with another first tensor."""
    name, value = next(iter(update.payload["delta"].items()))
    return replace(
        update,
        payload={**update.payload, "delta": {**update.payload["delta"], name: change(value)}},
    )


def renamed(update: Updates) -> Updates:
    tensors = {f"{name}x": value for name, value in update.payload["delta"].items()}
    return replace(update, payload={**update.payload, "delta": tensors})


@contextmanager
def left_out(reason: str) -> Iterator[Any]:
    with pytest.warns(
        UserWarning, match=rf"1 of {CLIENTS} clients are left out: client {BAD}: {reason}"
    ) as warned:
        yield warned


def column(result: Any, name: str) -> list[Any]:
    return [row[name] for row in result.clients]


def same_state(one: Pair, other: Pair) -> None:
    for name, value in one.remote.state.model().items():
        assert torch.equal(value, other.remote.state.model()[name]), name


def test_a_client_that_never_answers_is_dropped_and_the_others_go_on(pair: Callable[..., Pair]):
    both = pair("scaffold")
    both.remote.advance()
    both.transport.silent = {BAD}
    with left_out("no answer in time"):
        result = both.remote.advance()
    assert (result.round["dropped"], result.round["excluded"]) == (1, 0)
    assert column(result, "dropped") == [int(client == BAD) for client in range(CLIENTS)]
    weights = column(result, "weight")
    assert weights[BAD] == 0
    assert sum(weights) == pytest.approx(1)
    both.transport.silent = set()
    assert both.remote.advance().round["dropped"] == 0
    assert len(both.remote.final_clients().table) == CLIENTS


def test_a_silent_client_costs_a_round_one_timeout(pair: Callable[..., Pair]):
    """In the same round it is asked again, and not waited for; in the next one it is."""
    both = pair("scaffold", eval_every=1)
    waited: list[tuple[str, bool]] = []
    answered = both.transport.ask

    def ask(requests: Any, about: Any, patience: Patience) -> dict[int, bytes]:
        asked = type(from_bytes(requests[BAD])).__name__ if BAD in requests else ""
        waited.append((asked, BAD not in patience.not_for))
        return answered(requests, about)

    both.transport.ask = ask  # type: ignore[method-assign, assignment]
    both.transport.silent = {BAD}
    with left_out("no answer in time"):
        both.remote.advance()
    with left_out("no answer in time"):
        both.remote.advance()
    of_bad = [each for each in waited if each[0]]
    assert of_bad == 2 * [("Train", True), ("Evaluate", False)]


@pytest.mark.parametrize("method", ["scaffold", "fedbn", "ditto", "fedbuff:buffer=2"])
def test_a_late_answer_changes_nothing(pair: Callable[..., Pair], method: str, tmp_path):
    """A client whose work nobody waited for goes on from what it had before."""
    late, silent = pair(method), pair(method, folder=tmp_path / "silent")
    for both, who in ((late, "late"), (silent, "silent")):
        both.remote.advance()
        setattr(both.transport, who, {BAD})
        with pytest.warns(UserWarning, match=f"client {BAD}: no answer in time"):
            both.remote.advance()
        setattr(both.transport, who, set())
        both.remote.advance()
    same_state(late, silent)
    assert late.remote.final_clients().table == silent.remote.final_clients().table


def test_a_client_that_joins_late_takes_part_from_then_on(pair: Callable[..., Pair]):
    both = pair("scaffold")
    both.transport.silent = {BAD}
    with left_out("no answer in time"):
        both.remote.advance()
    both.transport.silent = set()
    result = both.remote.advance()
    assert (result.round["clients"], result.round["dropped"]) == (CLIENTS, 0)
    assert column(result, "weight")[BAD] > 0


def test_a_run_waits_for_its_last_node():
    class Grid:
        seen = 0

        def get_node_ids(self) -> list[int]:
            self.seen += 1
            return [7, 3] if self.seen < 3 else [7, 3, 5]

    assert nodes_of(Grid(), 3, timeout=10) == [3, 5, 7]
    with pytest.raises(FedskewError, match=r"3 of 4 nodes are there after 0.2 s: start the others"):
        nodes_of(Grid(), 4, timeout=0.2)


def test_nobody_answers(pair: Callable[..., Pair]):
    both = pair("fedavg")
    both.transport.silent = set(range(CLIENTS))
    with pytest.raises(FedskewError, match=f"none of {CLIENTS} clients answered in time"):
        both.remote.advance()


def test_nan_is_left_out_of_the_mean(pair: Callable[..., Pair]):
    both = pair("scaffold")
    both.transport.changed = answering(
        Updates, lambda update: payload(update, lambda value: value * float("nan"))
    )
    result = both.remote.advance()
    assert (result.round["excluded"], result.round["dropped"]) == (1, 0)
    assert column(result, "weight")[BAD] == 0
    assert all(bool(value.isfinite().all()) for value in both.remote.state.model().values())


def test_a_client_that_measures_nothing_does_not_train(pair: Callable[..., Pair]):
    both = pair("fedbs")
    both.remote.advance()
    both.transport.silent = {BAD}
    with left_out("no answer in time"):
        result = both.remote.advance()
    assert (result.round["late"], result.round["excluded"], result.round["dropped"]) == (1, 0, 0)
    assert [row["client"] for row in result.clients if row["weight"] > 0] == [
        c for c in range(CLIENTS) if c != BAD
    ]


def test_one_is_too_late_to_measure_and_another_does_not_answer(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
):
    both = pair("fedbs")
    measure = both.remote.participation._measure

    def first_is_late(plan: Any, traffic: Any) -> Any:
        measured, waited = measure(plan, traffic)
        return replace(measured, late=plan.clients == 0), waited

    monkeypatch.setattr(both.remote.participation, "_measure", first_is_late)
    both.transport.silent = {BAD}
    with pytest.warns(UserWarning, match=f"client {BAD}: no answer in time"):
        result = both.remote.advance()
    late = {row["client"]: bool(row["late"]) for row in result.clients}
    assert late == {client: client in (0, BAD) for client in range(CLIENTS)}
    assert {row["client"] for row in result.clients if row["weight"] > 0} == {1, 3, 4}


def test_a_client_that_measures_nan_trains(pair: Callable[..., Pair]):
    both = pair("fedbs")
    both.transport.changed = answering(
        dict, lambda measured: {name: value * np.nan for name, value in measured.items()}
    )
    result = both.remote.advance()
    assert (result.round["late"], result.round["excluded"], result.round["dropped"]) == (0, 0, 0)
    assert [row["client"] for row in result.clients] == list(range(CLIENTS))


WRONG: dict[str, tuple[Callable[[Updates], Any], str]] = {
    "shape": (lambda u: payload(u, lambda v: v[..., :1]), r"update/payload/delta/.* is float64 of shape .*, expected"),
    "dtype": (lambda u: payload(u, torch.Tensor.float), r"update/payload/delta/.* is float32 of shape"),
    "names": (renamed, "update/payload/delta has other names than expected"),
    "no tensor": (lambda u: payload(u, lambda v: "weights"), "update/payload/delta/.* is a str, expected a Tensor"),  # type: ignore[arg-type, return-value]
    "less": (lambda u: replace(u, payload={}), "update/payload has other names than expected: delta"),
    "buffers": (lambda u: replace(u, buffers={**u.buffers, "more": torch.zeros(1)}), "update/buffers has other names"),
    "report": (lambda u: replace(u, report=None), "update/report is a NoneType, expected a Report"),
    "losses": (lambda u: replace(u, report=replace(u.report, loss=np.zeros(3))), "update/report/loss is float64 of"),
    "kind": (lambda u: {"delta": 1}, "it answered with a dict"),
    "nothing": (lambda u: Updates(None, None, None, None), "update/report is a NoneType"),  # type: ignore[arg-type]
    "waiting": (lambda u: Waiting(torch.zeros(1)), "it answered with a Waiting"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_an_update_of_another_form_is_left_out(pair: Callable[..., Pair], wrong: str, tmp_path):
    change, reason = WRONG[wrong]
    both, without = pair("fedavg"), pair("fedavg", folder=tmp_path / "silent")
    both.transport.changed = answering(Updates, change)
    with left_out(reason):
        result = both.remote.advance()
    assert column(result, "dropped")[BAD] == 1
    without.transport.silent = {BAD}
    with left_out("no answer in time"):
        without.remote.advance()
    same_state(both, without)


def scaled(factor: float) -> Callable[[int, bytes], bytes]:
    return answering(
        Updates, lambda update: payload(update, lambda value: torch.full_like(value, factor))
    )


@pytest.mark.parametrize("factor", [1e30, 1e200, 1e3])
def test_an_update_that_is_far_from_the_others_is_told(pair: Callable[..., Pair], factor: float):
    both = pair("fedavg")
    both.transport.changed = scaled(factor)
    with pytest.warns(
        UserWarning, match=rf"client {BAD}: its update has a norm.*--max-update-norm"
    ):
        both.remote.advance()


def test_honest_updates_are_not_told(pair: Callable[..., Pair]):
    """Clients of this federation differ in rows and labels, and so do their updates."""
    both = pair("scaffold", rounds=3)
    for _ in range(3):
        both.remote.advance()  # a warning is an error


def test_an_update_beyond_the_limit_is_left_out(pair: Callable[..., Pair], tmp_path: Path):
    both, without = pair("fedavg"), pair("fedavg", folder=tmp_path / "silent")
    both.remote.clients.nodes.max_norm = 1000.0
    both.transport.changed = scaled(1e30)
    with left_out("an update with the norm .*e.31, above --max-update-norm 1000"):
        both.remote.advance()
    without.transport.silent = {BAD}
    with left_out("no answer in time"):
        without.remote.advance()
    same_state(both, without)


def test_an_answer_of_10_times_the_size_is_not_unpacked(
    pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
):
    both, unpacked = pair("fedavg", "tabular:hidden=400"), list[int]()

    def counted(content: bytes) -> Any:
        unpacked.append(len(content))
        return from_bytes(content)

    monkeypatch.setattr("fedskew.deploy.remote_clients.from_bytes", counted)
    both.transport.changed = answering(
        Updates, lambda update: payload(update, lambda value: value.repeat(1, 10, 1))
    )
    with left_out(r"an answer of [\d,]+ bytes"):
        both.remote.advance()
    assert 200_000 < max(unpacked) < 300_000


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 8, b"x" * 1000, to_bytes({"a": 1})[:-1], to_bytes({"a": 1})[:-3]],
    ids=len,
)
def test_bytes_that_are_no_message(pair: Callable[..., Pair], content: bytes):
    both = pair("fedavg")
    both.transport.changed = lambda client, found: content if client == BAD else found
    with left_out(r"(a message of \d+ bytes is not one of fedskew's|it answered with a dict)"):
        both.remote.advance()


def test_a_client_cannot_say_that_it_has_more_rows_or_is_another(
    pair: Callable[..., Pair], tmp_path
):
    lies, honest = pair("fedavg"), pair("fedavg", folder=tmp_path / "honest")

    def lie(update: Updates) -> Updates:
        report = update.report
        return replace(
            update, report=replace(report, sizes=report.sizes * 1000, clients=report.clients - 1)
        )

    lies.transport.changed = answering(Updates, lie)
    assert column(lies.remote.advance(), "weight") == column(honest.remote.advance(), "weight")
    same_state(lies, honest)


def test_what_the_server_has_sent_is_not_taken_from_an_answer():
    sent, one = {"rate": np.ones(1), "loss_before": np.zeros(1)}, np.ones(1, dtype=np.int64)
    asked = Updates(Report(2 * one, 10 * one, 3 * one, np.zeros(1), np.zeros(1), sent), {}, {}, {})
    numbers = {"rate": np.full(1, 9.0), "loss_before": np.full(1, 0.5)}
    told = replace(
        asked, report=Report(one, 99 * one, 4 * one, np.full(1, 0.7), np.full(1, 0.8), numbers)
    )
    found = checked_update(told, asked, Classification()).report
    assert [found.clients[0], found.sizes[0], found.steps[0], found.numbers["rate"][0]] == [
        2,
        10,
        3,
        1.0,
    ]
    assert [found.loss[0], found.accuracy[0], found.numbers["loss_before"][0]] == [0.7, 0.8, 0.5]


def test_scores_of_another_form_are_left_out(pair: Callable[..., Pair]):
    matrix = {"confusion": np.ones((2, 2))}
    wrong = {
        "sums/train/confusion": lambda s: replace(
            s, parts={**s.parts, "train": {**s.parts["train"], **matrix}}
        ),
        "sums/train has other names": lambda s: replace(s, parts={**s.parts, "train": {}}),
        "scores has other names": lambda s: replace(s, own={}),
        "sums has other names than expected: elsewhere": lambda s: replace(
            s, parts={**s.parts, "elsewhere": {}}
        ),
        "sums is a NoneType, expected a dict": lambda s: replace(s, parts=None),
        "scores is a NoneType": lambda s: replace(s, own=None),
        "scores on test rows is a dict": lambda s: replace(s, own_test={"loss": 1.0}),
        "last row is a dict": lambda s: replace(s, row={"loss": "low"}),
        "confusion matrix is ": lambda s: replace(s, confusion=np.zeros((2, 2), np.int64)),
    }
    for reason, change in wrong.items():
        both = pair("fedavg", rounds=1)
        both.transport.changed = answering(Scored, change)
        with left_out(reason):
            result = both.remote.advance()
        assert np.isfinite(result.round["test_accuracy"])


def sums(
    part: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[[Scored], Scored]:
    """Return a lie about the sums of one part of the data."""
    return lambda s: replace(s, parts={**s.parts, part: {**s.parts[part], **change(s.parts[part])}})


def off_diagonal(found: dict[str, Any]) -> dict[str, Any]:
    matrix = found["confusion"].copy()
    matrix[0, 1] += 2 * found["rows"]
    matrix[1, 0] -= 2 * found["rows"]
    return {"confusion": matrix}


LIES = {
    r"sums/train are over .* rows, expected \d+": sums(
        "train", lambda s: {"rows": np.array(s["rows"] * 1000)}
    ),
    "sums/test are over .* rows, expected at most": sums(
        "test", lambda s: {"rows": np.array(s["rows"] + 1e6)}
    ),
    "sums/test are over nan rows": sums("test", lambda s: {"rows": np.array(np.nan)}),
    "sums/test are over -": sums("test", lambda s: {"rows": np.array(-s["rows"])}),
    r"sums/test/confusion has .* rows, expected": sums(
        "test", lambda s: {"confusion": s["confusion"] * 0}
    ),
    "sums/test count something else than .* rows": sums("test", off_diagonal),
    "sums/train count something else": sums(
        "train", lambda s: {"confusion": s["confusion"] * np.nan}
    ),
}


@pytest.mark.parametrize("reason", LIES)
def test_scores_over_other_rows_than_a_client_has_are_left_out(
    pair: Callable[..., Pair], reason: str, tmp_path
):
    both, without = pair("fedavg", rounds=1), pair("fedavg", rounds=1, folder=tmp_path / "silent")
    both.transport.changed = answering(Scored, LIES[reason])
    with left_out(reason):
        found = both.remote.advance().round

    def silent(client: int, content: bytes) -> bytes:
        return b"" if client == BAD and isinstance(from_bytes(content), Scored) else content

    without.transport.changed = silent
    with left_out("a message of 0 bytes"):
        assert found["test_accuracy"] == without.remote.advance().round["test_accuracy"]


def test_the_last_table_has_the_rows_that_the_server_knows(pair: Callable[..., Pair]):
    both = pair("fedavg", rounds=1)
    both.remote.advance()
    both.transport.changed = answering(
        Scored, lambda s: replace(s, row={**s.row, "rows": 10**9, "client": 77})
    )
    table = both.remote.final_clients().table
    assert [(row["client"], row["rows"]) for row in table] == list(
        enumerate(both.plain.fed.partition.sizes)
    )
    for row in ({3: 1.0}, {"a\nb": 1.0}, [1.0], 3):
        both.transport.changed = answering(Scored, lambda s, row=row: replace(s, row=row))
        with left_out("last row (has other names than expected|is a (list|int), expected a dict)"):
            assert len(both.remote.final_clients().table) == CLIENTS - 1


REFUSALS = [
    Refusal("\x1b[2J\n" + "x" * 30_000),
    Refusal(5),
    Refusal(None),
    Refusal("", of_flower=np.zeros(2)),
]  # type: ignore[arg-type]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["long", "number", "nothing", "array"])
def test_whatever_a_node_refuses_with_is_one_line(pair: Callable[..., Pair], refusal: Refusal):
    both, noted = pair("fedavg"), list[str]()
    both.remote.clients.nodes.record.unanswered = lambda asked, reasons: noted.extend(
        reasons.values()
    )
    both.transport.changed = lambda client, found: to_bytes(refusal) if client == BAD else found
    with left_out("") as warned:
        both.remote.advance()
    assert all(
        len(told) < 2000 and told.isprintable()
        for told in map(str, (one.message for one in warned))
    )
    assert noted == [REFUSED] * 2  # to train, and to evaluate: in the log it has no words


def test_a_client_that_does_not_measure_does_not_train(pair: Callable[..., Pair]):
    both = pair("fedpbs")
    both.transport.silent = {BAD}
    with left_out("no answer in time"):
        result = both.remote.advance()
    assert (result.round["late"], result.round["measured"]) == (1, CLIENTS)
    assert column(result, "late")[BAD] == 1
    assert column(result, "steps")[BAD] == 0
    assert both.remote.round == 1


@pytest.mark.filterwarnings(f"ignore:.*client {BAD}. no answer in time:UserWarning")
def test_clients_still_training_survive_a_checkpoint_when_one_is_gone(pair: Callable[..., Pair]):
    both = pair("fedbuff:buffer=2", rounds=5, fleet="mixed:slow=10")
    both.transport.silent = {BAD}
    both.remote.advance()
    saved = both.remote.checkpoint()
    rows = [both.remote.advance().round for _ in range(3)]
    again = both.make_remote()
    again.restore(saved)
    assert [again.advance().round for _ in range(3)] == rows
    assert sum(row["dropped"] for row in rows) > 0
    for name, value in both.remote.state.model().items():
        assert torch.equal(value, again.state.model()[name])


def test_clients_that_exchange_statistics_go_on_without_one(pair: Callable[..., Pair]):
    """One has other statistics than the others, one has none, another leaves in the middle of the exchange."""
    both, asked = pair("fedtan", rounds=1), list[int]()

    def changed(client: int, content: bytes) -> bytes:
        answer = from_bytes(content)
        if client == BAD and isinstance(answer, Waiting):
            return to_bytes(Waiting(answer.sent[..., :1]))
        if client == 4 and isinstance(answer, Waiting):
            return to_bytes(Waiting(None))
        if client == 0 and isinstance(answer, Waiting):
            asked.append(client)
            both.transport.silent = {0} if len(asked) == 3 else set()
        return content

    both.transport.changed = changed
    with pytest.warns(UserWarning, match="left out") as warned:
        result = both.remote.advance()
    told = [str(one.message) for one in warned]
    assert any(
        f"clients [{BAD}] are left out: they exchange statistics of another shape" in one
        for one in told
    )
    assert any("client 0: no answer in time" in one for one in told)
    assert any("client 4: it exchanges a NoneType, expected a tensor" in one for one in told)
    assert column(result, "dropped") == [1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (None, "it still waits for an exchange"),
        (
            torch.zeros(3, dtype=torch.uint16),
            r"it exchanges torch.uint16 of shape \(3,\), expected statistics",
        ),
        (torch.tensor(1.0), r"it exchanges torch.float32 of shape \(\), expected statistics"),
    ],
    ids=["for ever", "whole numbers", "one number"],
)
def test_a_client_that_goes_on_to_wait_is_left_out(
    pair: Callable[..., Pair], sent: Any, reason: str
):
    """The others have ended by then, and the round goes on with them."""
    both, honest = pair("fedtan", rounds=1), list[torch.Tensor]()

    def changed(client: int, content: bytes) -> bytes:
        answer = from_bytes(content)
        if client == BAD and isinstance(answer, Waiting):
            honest.append(answer.sent)
        waits = client == BAD and isinstance(answer, Updates)
        return to_bytes(Waiting(honest[0] if sent is None else sent)) if waits else content

    both.transport.changed = changed
    with pytest.warns(UserWarning, match=f"client {BAD}: {reason}"):
        result = both.remote.advance()
    assert column(result, "dropped") == [int(client == BAD) for client in range(CLIENTS)]


@pytest.mark.filterwarnings(f"ignore:.*client {BAD}. no answer in time:UserWarning")
@pytest.mark.parametrize("method", ["stratify-batch", "sfl"])
def test_one_model_for_all_stops_with_the_reason_and_nothing_is_lost(
    pair: Callable[..., Pair], method: str
):
    both = pair(method)
    both.remote.advance()
    saved = both.remote.checkpoint()
    both.transport.silent = {BAD}
    with pytest.raises(
        FedskewError,
        match=r"(none of 1 clients answered in time|clients \[2\] do not answer in a step)",
    ):
        both.remote.advance()
    both.transport.silent = set()
    again = both.make_remote()
    again.restore(saved)
    for _ in range(2):
        again.advance()
    for _ in range(3):
        both.plain.advance()
    for name, value in both.plain.state.model().items():
        np.testing.assert_allclose(
            again.state.model()[name].numpy(), value.numpy(), rtol=1e-9, atol=1e-12
        )


def test_a_step_of_all_is_not_made_of_other_things(pair: Callable[..., Pair]):
    for change in (
        lambda w: Waiting(None),
        lambda w: Waiting(torch.zeros(3)),
        lambda w: torch.zeros(3),
    ):
        both = pair("stratify-batch")
        both.transport.changed = answering(Waiting, change)
        with (
            left_out("(it exchanges a NoneType|its part of the step is not a message)"),
            pytest.raises(FedskewError),
        ):
            both.remote.advance()


def test_statistics_with_nan_do_not_reach_the_head(pair: Callable[..., Pair]):
    both = pair("fedavg + ccvr", rounds=1)
    both.remote.advance()

    def broken(answer: dict[str, Any]) -> dict[str, Any]:
        return {
            part: {name: value * float("nan") for name, value in ts.items()}
            for part, ts in answer.items()
        }

    both.transport.changed = answering(dict, broken)
    with left_out("statistics has NaN or infinite numbers"):
        both.remote.calibrate()
    assert all(bool(value.isfinite().all()) for value in both.remote.state.model().values())
