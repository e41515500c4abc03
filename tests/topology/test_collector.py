"""The weighted mean: weights by hand, invalid clients excluded, chunks or all at once, and methods' own rules."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedskew.aggregation.mean import Aggregator
from fedskew.algorithms.contract import Algorithm, Report, resolve
from fedskew.algorithms.fedavg import FedAvg
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tree, rows_of
from fedskew.engine.job import Updates
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.topology.collector import UpdateCollector


def updates(values: list[float], sizes: list[int]) -> Updates:
    """Return one number from every client, in the payload, in a buffer and in what it keeps."""
    count, sent = len(values), torch.tensor(values, dtype=torch.float64)
    ones, numbers = np.ones(count), {"noise": 10 * np.arange(count)}
    report = Report(
        np.arange(count), np.array(sizes), np.ones(count, np.int64), ones, ones, numbers
    )
    matrix, column, kept = (
        sent[:, None, None].expand(count, 2, 3).clone(),
        sent[:, None].clone(),
        sent[:, None].clone(),
    )
    return Updates(
        report,
        {"delta": {"w": matrix}, "extra": {"n": sent}},
        {"b": column},
        {"local": {"k": kept}},
    )


def some(whole: Updates, index: list[int]) -> Updates:
    arrays = {
        name: value[index]
        for name, value in vars(whole.report).items()
        if name not in ("numbers", "weights")
    }
    report = Report(
        **arrays, numbers={name: value[index] for name, value in whole.report.numbers.items()}
    )
    trees = [
        rows_of(tree, torch.tensor(index))
        for tree in (whole.payload, {"": whole.buffers}, whole.kept)
    ]
    return Updates(report, trees[0], trees[1][""], trees[2])


@pytest.mark.parametrize(
    ("weights", "mean"), [("size", (30 * 1 + 10 * 2 + 20 * 6) / 60), ("uniform", 3.0)]
)
def test_weights_by_hand(weights: str, mean: float):
    total = UpdateCollector(FedAvg(), weights)
    total.add(updates([1.0, 2.0, 6.0], [30, 10, 20]))
    result = total.result()
    assert result.weights.tolist() == ([30, 10, 20] if weights == "size" else [1, 1, 1])
    assert result.shares.tolist() == pytest.approx(
        [1 / 2, 1 / 6, 1 / 3] if weights == "size" else [1 / 3] * 3
    )
    torch.testing.assert_close(
        result.payload["delta"]["w"], torch.full((2, 3), mean, dtype=torch.float64)
    )
    assert result.payload["extra"]["n"].item() == pytest.approx(mean, abs=1e-14)
    # No client sent "other", so it does not change
    like = {"b": torch.zeros(1), "other": torch.tensor([7.0])}
    merged = result.merged_buffers(like)
    assert merged["b"].dtype == torch.float32
    assert merged["b"].item() == pytest.approx(mean)
    assert merged["other"].item() == 7


@pytest.mark.parametrize(
    "chunks", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[3], [1, 0], [2]], [[0], [1], [2], [3]]]
)
def test_chunks_add_up_to_the_whole(chunks: list[list[int]]):
    whole = updates([1.0, -2.0, 0.3, 6.0], [30, 10, 20, 7])
    at_once, streamed = UpdateCollector(FedAvg(), "size"), UpdateCollector(FedAvg(), "size")
    at_once.add(whole)
    for index in chunks:
        streamed.add(some(whole, index))
    assert streamed.total == at_once.total == 67
    left, right = streamed.result(), at_once.result()
    assert left.clients.tolist() == [0, 1, 2, 3]
    assert left.weights.tolist() == right.weights.tolist() == [30, 10, 20, 7]
    torch.testing.assert_close(left.payload, right.payload, rtol=0, atol=1e-15)
    torch.testing.assert_close(
        whole.payload["extra"]["n"], torch.tensor([1.0, -2.0, 0.3, 6.0], dtype=torch.float64)
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["delta", "extra", "buffers", "own"])
def test_a_broken_client_is_left_out(bad: float, where: str):
    sent = updates([1.0, 2.0, 6.0], [30, 10, 20])
    tensors = {"delta": sent.payload["delta"]["w"][1, 0], "extra": sent.payload["extra"]["n"][1:2]}
    tensors |= {"buffers": sent.buffers["b"][1], "own": sent.kept["local"]["k"][1]}
    tensors[where][0] = bad
    method = Listens()
    total = UpdateCollector(method, "size")
    arrived = total.add(sent)
    assert arrived.report.clients.tolist() == [0, 1, 2]
    assert arrived.valid.tolist() == [0, 2]
    assert arrived.kept["local"]["k"].flatten().tolist() == [1, 6]
    (heard,) = vars(method)["reports"]
    assert heard.clients.tolist() == [0, 2]
    assert heard.sizes.tolist() == [30, 20]
    assert {name: values.tolist() for name, values in heard.numbers.items()} == {"noise": [0, 20]}
    assert len(total) == 2
    assert total.result().weights.tolist() == [30, 20]
    assert total.result().payload["extra"]["n"].item() == pytest.approx((30 + 120) / 50)


@dataclass(frozen=True)
class Listens(FedAvg):
    """Records which clients it weighs."""

    def weight(self, report: Report) -> np.ndarray:
        vars(self).setdefault("reports", []).append(report)
        return super().weight(report)


def test_nobody_weighs_nothing():
    assert len(UpdateCollector(FedAvg(), "size")) == 0
    assert UpdateCollector(FedAvg(), "size").total == 0


class Largest(Aggregator):
    """Records its arguments, and returns the largest of everything with the first client's share as 1."""

    needs_all = True

    def __init__(self) -> None:
        vars(self)["calls"] = []

    def combine(self, payloads: Tree, weights: torch.Tensor) -> tuple[Tree, torch.Tensor]:
        vars(self)["calls"].append((payloads, weights))
        shares = torch.zeros_like(weights)
        shares[0] = 1.0
        largest = {
            part: {name: value.amax(0) for name, value in tensors.items()}
            for part, tensors in payloads.items()
        }
        return largest, shares


@dataclass(frozen=True)
class Gathers(Algorithm):
    @property
    def aggregator(self) -> Largest:
        return vars(self).setdefault("rule", Largest())


@pytest.mark.parametrize("chunks", [[[0, 1, 2, 3]], [[3], [1, 0], [2]]])
def test_an_own_combine_sees_all_sound_clients_at_once(chunks: list[list[int]]):
    whole = updates([1.0, -2.0, 0.3, 6.0], [30, 10, 20, 7])
    whole.payload["extra"]["n"][1] = float("nan")
    total = UpdateCollector(Gathers(), "size")
    for index in chunks:
        total.add(some(whole, index))
    assert total.total == 57
    result = total.result()
    assert result.payload["delta"]["w"].tolist() == [[6.0] * 3] * 2
    assert result.payload.keys() == {"delta", "extra"}
    assert (result.clients.tolist(), result.shares.tolist(), result.counted.tolist()) == (
        [0, 2, 3],
        [1, 0, 0],
        [0],
    )
    like = {"b": torch.zeros(1), "other": torch.tensor([7.0])}
    assert {name: value.tolist() for name, value in result.merged_buffers(like).items()} == {
        "b": [6.0],
        "other": [7.0],
    }
    ((payloads, weights),) = vars(total.aggregator)["calls"]
    # In the order of their numbers, not of arrival
    assert payloads["extra"]["n"].tolist() == [1.0, 0.3, 6.0]
    assert payloads["delta"]["w"].shape == (3, 2, 3)
    assert payloads["buffers"]["b"].flatten().tolist() == [1.0, 0.3, 6.0]
    assert weights.dtype == torch.float64
    np.testing.assert_allclose(weights.numpy(), np.array([30, 20, 7]) / 57, rtol=0, atol=1e-16)


def test_an_own_combine_sees_moments_and_no_part_for_buffers_that_are_not_there():
    mean, variance = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.5], [0.25]])
    sent = updates([1.0, 2.0], [1, 1])
    bare, normed = UpdateCollector(Gathers(), "size"), UpdateCollector(Gathers(), "size")
    bare.add(Updates(sent.report, sent.payload, {}, {}))
    result = bare.result()
    assert result.payload.keys() == {"delta", "extra"}
    assert result.merged_buffers({"b": torch.ones(1)}) == {"b": torch.ones(1)}
    assert vars(bare.aggregator)["calls"][0][0].keys() == {"delta", "extra"}
    normed.add(
        Updates(sent.report, sent.payload, {"n.running_mean": mean, "n.running_var": variance}, {})
    )
    merged = normed.result().merged_buffers(
        {"n.running_mean": mean[0], "n.running_var": variance[0]}
    )
    assert vars(normed.aggregator)["calls"][0][0]["buffers"]["n.running_var"].tolist() == [
        [1.5],
        [9.25],
    ]
    assert {name: value.tolist() for name, value in merged.items()} == {
        "n.running_mean": [3.0],
        "n.running_var": [0.25],
    }


@pytest.mark.parametrize("spec", ["clip:norm=1e9", "krum:attackers=1,keep=6"])
def test_combined_and_added_up_are_the_same(spec: str):
    whole = updates([1.0, -2.0, 0.3, 6.0, 2.0, 0.1], [5] * 6)
    added_up, combined = UpdateCollector(FedAvg(), "size"), UpdateCollector(resolve(spec), "size")
    for total in (added_up, combined):
        total.add(whole)
    left, right = combined.result(), added_up.result()
    torch.testing.assert_close(left.payload, right.payload, rtol=0, atol=1e-15)
    np.testing.assert_allclose(left.shares, right.shares, rtol=0, atol=1e-15)
    like = {"b": torch.zeros(1, dtype=torch.float64)}
    torch.testing.assert_close(
        left.merged_buffers(like), right.merged_buffers(like), rtol=0, atol=1e-15
    )


ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)


def poison(training, client: int) -> None:
    training.job.x[training.trained_on.of(client)] = float("nan")  # the data set itself refuses NaN


@ENGINES
@pytest.mark.parametrize("norm", ["aggregate", "local"])
def test_training_goes_on_without_a_broken_client(lab, engine, norm: str):
    training = lab.training(None, "fedavg", "tabular:hidden=5", engine, norm=norm)
    training.advance()
    before = training.client_model(1)
    twin = lab.training(None, "fedavg", "tabular:hidden=5", engine, norm=norm)
    twin.restore({name: value.clone() for name, value in training.checkpoint().items()})
    poison(training, 1)
    result = training.advance()
    assert result.round["excluded"] == 1
    assert result.round["clients"] == 5
    weights = [line["weight"] for line in result.clients]
    sizes = [9, 0, 4, 7, 2]
    assert weights == pytest.approx([size / 22 for size in sizes])
    assert np.isfinite(result.round["local_loss"])
    # The same round with only the others: what the server makes of it, by hand.
    plan, mean = lab.plan(twin, [0, 2, 3, 4]), UpdateCollector(twin.algorithm, "size")
    for update in engine.train(twin.job, lab.start(twin, plan), plan):
        mean.add(update)
    for name, value in mean.result().payload["delta"].items():
        torch.testing.assert_close(
            training.state.params[name], twin.state.params[name] + value, rtol=0, atol=1e-12
        )
    for name in training.job.local_names:
        assert torch.equal(training.client_model(1)[name], before[name])  # it keeps what it had
        assert not torch.equal(training.client_model(0)[name], twin.client_model(0)[name])


@ENGINES
@pytest.mark.parametrize("norm", ["aggregate", "local"])
def test_when_all_are_broken_the_error_names_round_and_rate(lab, engine, norm: str):
    training = lab.training(None, "fedavg", "tabular:hidden=5", engine, norm=norm, lr=0.25)
    training.advance()
    before = training.checkpoint()
    for client in range(5):
        poison(training, client)
    with pytest.raises(
        FedskewError,
        match=r"round 2: all 5 clients sent NaN or infinite updates; lower lr \(now 0.25\)",
    ):
        training.advance()
    after = training.checkpoint()  # nothing was half done
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
