"""Compressed updates by hand: the largest entries with error feedback, random rounding, and the bytes of both."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.algorithms.compression import rounded
from fedskew.algorithms.contract import resolve
from fedskew.core.device_streams import hashed, normal, uniform
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream, bits, longer
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = [Loop(), Stacked(mode="stack")]
ENTRIES = 18  # of the regression: 3 x 5 weights and 3 biases


def chosen(round: int, per_round: int) -> np.ndarray:
    return np.sort(Stream(0, "select", round).sample(5, per_round))


@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "stack"])
@pytest.mark.parametrize(("share", "count", "per_round"), [(0.1, 2, 5), (0.5, 9, 3), (0.01, 1, 2)])
def test_the_largest_entries_with_error_feedback(
    desk: Any, engine: Engine, share: float, count: int, per_round: int
):
    w, error = desk.start(), np.zeros((5, 3, 6))
    for round in range(3):
        there = chosen(round, per_round)
        moved = np.zeros_like(w)
        for client in there:
            due = desk.descend(w, round, client) - w + error[client]
            kept = np.where(np.abs(due) >= np.sort(np.abs(due).ravel())[-count], due, 0.0)
            assert np.count_nonzero(kept) == count
            error[client] = due - kept
            moved += desk.sizes[client] / desk.sizes[there].sum() * kept
        w = w + moved
    training = desk.training(f"fedavg + topk:share={share}", engine, per_round=per_round)
    for _ in range(3):
        training.advance()
    np.testing.assert_allclose(desk.flat(training.state.params), w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        desk.flat(training.clients.store.get(np.arange(5))["state.error"]),
        error,
        rtol=0,
        atol=1e-10,
    )


def draws(key: int, tensor: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the numbers by which a client rounds, with the streams of NumPy."""
    words = longer(longer(np.array([key], dtype=np.uint64), tensor), np.arange(math.prod(shape)))
    return (((words >> np.uint64(40)).astype(np.float64) + 0.5) / 2**24).reshape(shape)


@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "stack"])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_random_rounding_by_hand(desk: Any, engine: Engine, width: int):
    levels, w = 2 ** (width - 1) - 1, desk.start()
    for round in range(3):
        keys = bits(0, "rounding", round, np.arange(5)) >> np.uint64(40)
        moved = np.zeros_like(w)
        for client in range(5):
            delta = desk.descend(w, round, client) - w
            for tensor, part in enumerate((np.s_[:, 5], np.s_[:, :5])):  # biases, weights
                v = delta[part]
                scale = np.abs(v).max()
                place = np.abs(v) / scale * levels
                level = np.floor(place) + (
                    draws(int(keys[client]), tensor, v.shape) < place - np.floor(place)
                )
                moved[part] += desk.sizes[client] / 25 * scale * np.sign(v) * level / levels
        w = w + moved
    found, results = desk.train(f"fedavg + quantize:bits={width}", engine)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-10)
    assert desk.column(results, "rounding")[2] == [float(key) for key in keys]


def test_rounding_has_no_bias_and_few_levels():
    value = torch.tensor([0.013, -0.2, 0.77, -1.0, 0.0, 0.5], dtype=torch.float64)
    many = torch.stack(
        [rounded(value, 3, uniform(torch.tensor(key), 0, value)) for key in range(20_000)]
    )
    assert (many.mean(0) - value).abs().max() < 0.008  # four standard errors of a step of 1/3
    assert many.std(0)[0] > 0.03
    assert {round(3 * level, 9) for level in many.unique().tolist()} <= {-3, -2, -1, 0, 1, 2, 3}
    assert rounded(torch.zeros(3), 8, torch.full((3,), 0.5)).tolist() == [0, 0, 0]


def test_the_streams_of_tensors_are_those_of_numpy():
    key = torch.tensor(12345)
    assert hashed(key, torch.arange(4)).numpy().view(np.uint64).tolist() == (
        longer(np.array([12345], dtype=np.uint64), np.arange(4)).tolist()
    )
    np.testing.assert_array_equal(
        uniform(key, 7, torch.zeros(2, 3).double()), draws(12345, 7, (2, 3))
    )
    many = normal(key, 0, torch.zeros(40_000, dtype=torch.float64))
    assert abs(float(many.mean())) < 0.02
    assert abs(float(many.std()) - 1) < 0.02
    assert float((many.abs() < 1.96).double().mean()) == pytest.approx(0.95, abs=0.005)
    for other in (normal(key + 1, 0, many), normal(key, 1, many)):
        assert abs(float(torch.corrcoef(torch.stack([many, other]))[0, 1])) < 0.02


@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "stack"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn"])
def test_a_share_of_one_is_the_method_itself(desk: Any, engine: Engine, method: str):
    plain, without = desk.train(method, engine, per_round=3)
    whole, results = desk.train(f"{method} + topk:share=1", engine, per_round=3)
    assert np.array_equal(whole, plain)
    assert desk.column(results, "bytes_up") == desk.column(without, "bytes_up")
    assert desk.column(results, "seconds") == desk.column(without, "seconds")


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_many_bits_come_near(desk: Any, method: str):
    plain, _ = desk.train(method)
    gaps = [
        np.abs(desk.train(f"{method} + quantize:bits={width}")[0] - plain).max()
        for width in (4, 8, 16)
    ]
    assert gaps[0] > 10 * gaps[1] > 100 * gaps[2] > 0
    assert gaps[2] < 1e-4


@pytest.mark.parametrize(
    ("spec", "dtype", "due"),
    [
        ("fedavg", "float64", 8 * ENTRIES),
        ("fedavg + topk:share=0.1", "float64", 2 * (4 + 8)),
        ("fedavg + topk:share=0.1", "float32", 2 * (4 + 4)),
        ("fedavg + topk:share=0.9", "float32", 4 * ENTRIES),  # 17 places and values are longer
        ("fedavg + quantize:bits=8", "float32", 15 + 4 + 3 + 4),
        ("fedavg + quantize:bits=3", "float32", 6 + 4 + 2 + 4),  # 45 and 9 bits
        # The control is sent whole
        ("scaffold + topk:share=0.1", "float64", 2 * (4 + 8) + 8 * ENTRIES),
    ],
)
def test_bytes_up_are_those_of_what_would_be_sent(desk: Any, spec: str, dtype: str, due: int):
    _, results = desk.train(spec, rounds=1, dtype=dtype)
    assert desk.column(results, "bytes_up") == [[due] * 5]


def test_a_shorter_message_takes_less_time(desk: Any):
    (plain,), (short,) = (
        desk.column(desk.train(spec, rounds=1, fleet="phones")[1], "seconds")
        for spec in ("fedavg", "topk:share=0.1")
    )
    assert all(left > right for left, right in zip(plain, short, strict=True))


def test_buffers_are_sent_whole(norm_net: Any):
    plain, short = (
        norm_net.training(spec, rounds=1) for spec in ("fedavg", "fedavg + topk:share=0.1")
    )
    entries = sum(value.numel() for value in plain.state.params.values())
    saved = 8 * entries - math.ceil(entries / 10) * 12
    for left, right in zip(plain.results[0].clients, short.results[0].clients, strict=True):
        assert left["bytes_up"] - right["bytes_up"] == saved


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("spec", ["fedavg + topk:share=0.2", "fedavg + quantize:bits=4"])
def test_a_stopped_run_goes_on_with_the_same_bits(
    desk: Any, tmp_path: Path, engine: str, spec: str
):
    usual = {"rounds": 4, "per_round": 3, "engine": engine, "checkpoint_every": 1, "device": "cpu"}
    whole = fs.train(desk.federation(), "logreg", spec, folder=tmp_path / "whole", **usual)

    def stop(result: Any, rounds: int) -> None:
        if result.round["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fs.train(
            desk.federation(), "logreg", spec, folder=tmp_path / "cut", callbacks=[stop], **usual
        )
    rest = fs.resume(tmp_path / "cut", fed=desk.federation())
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name])


def test_two_compressions_are_refused():
    with pytest.raises(
        FedskewError, match=r"fedavg . topk . quantize: both compress the update: keep one"
    ):
        resolve("fedavg + topk + quantize")


def test_robust_rules_see_what_was_sent(desk: Any):
    """With one entry sent a client, most clients send zero at every entry, and so the median is zero."""
    found, _ = desk.train("fedavg + topk:share=0.01 + median", rounds=1)
    assert np.count_nonzero(found - desk.start()) <= 1
