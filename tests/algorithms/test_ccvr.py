"""CCVR by hand: the sums against NumPy's moments of the pooled rows, the draws, and the resulting head."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedskew as fs
from fedskew.algorithms.ccvr import CCVR, class_gaussian
from fedskew.algorithms.contract import algorithms, resolve
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream

CLASSES, WIDTH = 4, 5


def rows_by_client(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return clients, one with a single class, one with a single row; class 2 has one row in all, class 3 none."""
    draw = np.random.default_rng(seed)
    labels = [[0, 1, 0, 1, 1, 0, 0], [1, 1, 1], [2], [0, 1, 1, 0]]
    # Far from 0, so that a covariance from sums must not lose its digits.
    return [
        (
            torch.from_numpy(100 + 3 * draw.normal(size=(len(mine), WIDTH))).float(),
            torch.tensor(mine),
        )
        for mine in labels
    ]


def added(pieces: list[tuple[Tensor, Tensor]], method: CCVR) -> dict[str, dict[str, Tensor]]:
    tallies = [
        method.calibrator.class_statistics(features, labels, CLASSES)["ccvr"]
        for features, labels in pieces
    ]
    return {
        "ccvr": {name: sum(tally[name] for tally in tallies) for name in ("count", "sum", "outer")}
    }


def linear(head: dict[str, Tensor], features: Tensor) -> Tensor:
    return features @ head["w"].T + head["b"]


def loss(head: dict[str, Tensor], features: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(linear(head, features), labels)


# -- what clients send -------------------------------------------------------------------------------------------------


def test_added_up_the_moments_are_those_of_the_pooled_rows():
    pieces = rows_by_client()
    sums = added(pieces, CCVR())["ccvr"]
    pooled = torch.cat([features for features, _ in pieces]).double().numpy()
    labels = torch.cat([labels for _, labels in pieces]).numpy()
    assert sums["count"].tolist() == [6.0, 8.0, 1.0, 0.0]
    assert {value.dtype for value in sums.values()} == {torch.float64}
    for label in (0, 1):
        mean, covariance = class_gaussian(
            float(sums["count"][label]), sums["sum"][label], sums["outer"][label]
        )
        np.testing.assert_allclose(mean, pooled[labels == label].mean(0), rtol=0, atol=1e-10)
        np.testing.assert_allclose(
            covariance, np.cov(pooled[labels == label], rowvar=False), rtol=0, atol=1e-10
        )


def test_it_does_not_matter_how_rows_are_cut_into_clients():
    pieces = rows_by_client()
    whole = [
        (
            torch.cat([features for features, _ in pieces]),
            torch.cat([labels for _, labels in pieces]),
        )
    ]
    for name, value in added(whole, CCVR())["ccvr"].items():
        torch.testing.assert_close(value, added(pieces, CCVR())["ccvr"][name], rtol=1e-12, atol=0)


def test_sums_grow_in_place():
    """Sums of outer products are the largest thing of a run: no second copy of them is ever made."""
    pieces, method, total = rows_by_client(), CCVR(), {}
    places = set()
    for features, labels in pieces:
        method.calibrator.add_statistics(total, features, labels, CLASSES)
        places.add(total["ccvr"]["outer"].data_ptr())
    assert len(places) == 1
    for name, value in added(pieces, method)["ccvr"].items():
        torch.testing.assert_close(total["ccvr"][name], value, rtol=1e-12, atol=0)


def test_the_paper_writes_the_same_covariance_out_of_the_clients_own():
    pieces = [(features.double().numpy(), labels.numpy()) for features, labels in rows_by_client()]
    own = [features[labels == 1] for features, labels in pieces if (labels == 1).sum() > 1]
    sizes, total = np.array([len(mine) for mine in own]), sum(len(mine) for mine in own)
    means = np.array([mine.mean(0) for mine in own])
    mean = sizes @ means / total
    within = sum((len(mine) - 1) * np.cov(mine, rowvar=False) for mine in own) / (total - 1)
    between = np.einsum("k,ki,kj->ij", sizes, means, means) / (total - 1) - total / (
        total - 1
    ) * np.outer(mean, mean)
    sums = added(rows_by_client(), CCVR())["ccvr"]
    found = class_gaussian(8.0, sums["sum"][1], sums["outer"][1])
    np.testing.assert_allclose(found[0], mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found[1], within + between, rtol=0, atol=1e-10)


# -- what the server draws ---------------------------------------------------------------------------------------------


def virtual(method: CCVR, pieces: list[tuple[Tensor, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the virtual features that the head is trained on, recorded by a classifier with constant output."""
    shown: list[Tensor] = []

    def noting(head: dict[str, Tensor], features: Tensor, labels: Tensor) -> Tensor:
        shown.append(features)
        return loss(head, features, labels)

    head = {
        "w": torch.zeros(CLASSES, WIDTH, dtype=torch.float64),
        "b": torch.zeros(CLASSES, dtype=torch.float64),
    }
    method.calibrator.calibrate(head, added(pieces, method), noting, Stream(0, "finish"))
    features = torch.cat(shown).numpy()
    return features, np.array([len(batch) for batch in shown])


def test_virtual_features_have_the_moments_of_their_class():
    features = np.random.default_rng(1).multivariate_normal(
        [1, -2, 0, 3, 0.5], np.diag([1, 4, 0.25, 9, 1]) + 0.2, 5000
    )
    features[:, 4] = features[:, 3] - 2  # a direction without any spread of its own
    piece = (torch.from_numpy(features), torch.full((5000,), 1))
    drawn, batches = virtual(CCVR(features=20_000, head_epochs=1, head_batch=1000), [piece])
    assert batches.tolist() == [1000] * 20
    np.testing.assert_allclose(drawn.mean(0), features.mean(0), atol=0.1)
    np.testing.assert_allclose(
        np.cov(drawn, rowvar=False), np.cov(features, rowvar=False), rtol=0.05, atol=0.1
    )
    assert np.abs(drawn[:, 4] - drawn[:, 3] + 2).max() < 0.01


def test_a_class_of_one_row_is_drawn_at_that_row_and_a_class_of_nobody_not_at_all():
    pieces = rows_by_client()
    drawn, _ = virtual(CCVR(features=50, head_epochs=1), pieces)
    assert len(drawn) == 3 * 50
    near = np.abs(drawn - pieces[2][0].numpy()).max(1) < 0.1  # the ridge is 1e-4 of 100 wide
    assert near.sum() == 50


def test_features_that_are_all_zero_do_no_harm():
    head = {"w": torch.ones(CLASSES, WIDTH), "b": torch.zeros(CLASSES)}
    piece = (torch.zeros(6, WIDTH), torch.tensor([0, 0, 0, 1, 1, 2]))
    new = CCVR(features=10).calibrator.calibrate(
        head, added([piece], CCVR()), loss, Stream(0, "finish")
    )
    assert all(torch.isfinite(value).all() for value in new.values())
    assert new["b"][3] < new["b"][0]


def test_features_that_are_not_finite_are_refused():
    piece = (torch.full((2, WIDTH), float("nan")), torch.tensor([0, 1]))
    with pytest.raises(
        FedskewError, match="the features of the last model are NaN or infinite: lower lr"
    ):
        CCVR().calibrator.calibrate(
            {"w": torch.ones(CLASSES, WIDTH)}, added([piece], CCVR()), loss, Stream(0, "finish")
        )


# -- the head ----------------------------------------------------------------------------------------------------------


def test_sgd_by_hand():
    """Check the steps for one class of one row, where every virtual feature is that row to 1e-4 of its size."""
    row = np.array([1.0, -2.0, 0.5, 0.0, 1.0])
    piece = (torch.from_numpy(row)[None], torch.tensor([2]))
    draw = np.random.default_rng(0)
    w, b = draw.normal(size=(CLASSES, WIDTH)), draw.normal(size=CLASSES)
    head = {"w": torch.from_numpy(w), "b": torch.from_numpy(b)}
    method = CCVR(features=12, head_epochs=3, head_lr=0.2, head_batch=5)
    new = method.calibrator.calibrate(head, added([piece], method), loss, Stream(0, "finish"))
    for _ in range(3 * 3):  # batches of 5, 5 and 2
        chance = np.exp(w @ row + b)
        gradient = chance / chance.sum() - np.eye(CLASSES)[2]
        w, b = w - 0.2 * np.outer(gradient, row), b - 0.2 * gradient
    np.testing.assert_allclose(new["w"].numpy(), w, rtol=0, atol=1e-3)
    np.testing.assert_allclose(new["b"].numpy(), b, rtol=0, atol=1e-3)
    assert torch.equal(
        head["b"],
        torch.from_numpy(
            np.random.default_rng(0).normal(size=CLASSES * WIDTH + CLASSES)[-CLASSES:]
        ),
    )


def separable(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, CLASSES, count)
    centres = 4 * np.eye(CLASSES, WIDTH)
    return torch.from_numpy(centres[labels] + draw.normal(size=(count, WIDTH))), torch.from_numpy(
        labels
    )


def test_a_biased_head_is_put_right():
    features, labels = separable(400, seed=0)
    unseen, right = separable(1000, seed=1)
    head = {
        "w": torch.eye(CLASSES, WIDTH).double(),
        "b": torch.tensor([15.0, 0.0, 0.0, -15.0]).double(),
    }
    # One class each
    clients = [(features[labels == c], labels[labels == c]) for c in range(CLASSES)]
    method = CCVR(head_lr=0.1, head_epochs=20)
    new = method.calibrator.calibrate(head, added(clients, method), loss, Stream(0, "finish"))
    before, after = (
        (linear(one, unseen).argmax(1) == right).double().mean().item() for one in (head, new)
    )
    assert before < 0.3
    assert after > 0.97
    assert F.cross_entropy(linear(new, unseen), right) < 0.2


def test_the_stream_alone_decides():
    method, head = CCVR(features=20), {"w": torch.ones(CLASSES, WIDTH), "b": torch.zeros(CLASSES)}
    total, state = added([separable(50, 0)], method), torch.get_rng_state()
    one, same, other = (
        method.calibrator.calibrate(head, total, loss, Stream(seed, "finish")) for seed in (0, 0, 1)
    )
    assert torch.equal(one["w"], same["w"])
    assert not torch.equal(one["w"], other["w"])
    assert torch.equal(torch.get_rng_state(), state)
    assert one["w"].dtype == torch.float32
    assert not one["w"].requires_grad


def test_no_epochs_leave_the_head_as_it_is():
    head = {"w": torch.ones(CLASSES, WIDTH), "b": torch.zeros(CLASSES)}
    new = CCVR(head_epochs=0).calibrator.calibrate(
        head, added(rows_by_client(), CCVR()), loss, Stream(0, "finish")
    )
    assert all(torch.equal(new[name], value) for name, value in head.items())


def test_every_so_often_a_calibrated_copy_is_scored_and_training_goes_on_without_it():
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.1", clients=6)
    settings = {
        "rounds": 7,
        "folder": False,
        "threads": 1,
        "device": "cpu",
        "fleet": "uniform:latency=1,seconds_per_step=0.01",
    }
    plain = fs.train(fed, "mlp:hidden=16", "fedavg", **settings)
    end, often = (
        fs.train(fed, "mlp:hidden=16", f"fedavg + ccvr{spec}", **settings)
        for spec in ("", ":every=3")
    )
    curve = often.rounds["calibrated_test_accuracy"]
    assert [number + 1 for number in range(7) if not np.isnan(curve[number])] == [3, 6, 7]
    for name in ("test_accuracy", "test_loss", "local_loss"):
        # The curve without it is FedAvg's
        assert often.rounds[name].tolist() == plain.rounds[name].tolist()
    assert (
        curve.iloc[-1]
        == often.summary["calibrated_test_accuracy"]
        == end.summary["calibrated_test_accuracy"]
    )
    assert curve[2] > plain.rounds["test_accuracy"][2] + 0.05  # and with it another
    for name, value in end.server.state.params.items():
        assert torch.equal(often.server.state.params[name], value)
    # Three calibrations in place of one, each of them the model down, sums up, and a look at all rows.
    model = 4 * plain.summary["parameters"]
    sums = 8 * 10 * (1 + 16 + 16 * 16)
    once = {"down": 6 * model, "up": 6 * sums}
    for way, count in once.items():
        extra = often.rounds[f"bytes_{way}"] - plain.rounds[f"bytes_{way}"]
        assert extra.tolist() == [0, 0, count, 0, 0, count, count]
        assert end.summary[f"bytes_{way}"] - plain.summary[f"bytes_{way}"] == count
        assert often.summary[f"bytes_{way}"] - plain.summary[f"bytes_{way}"] == 3 * count
    sizes = fed.partition.sizes
    seconds = (2 + sizes / 3 / 1000 + 0.01 * np.ceil(sizes / 32) + 8e-6 * (model + sums) / 20).max()
    took = often.rounds["simulated_seconds"] - plain.rounds["simulated_seconds"]
    assert took.tolist() == pytest.approx([0, 0, seconds, 0, 0, seconds, seconds], abs=1e-9)
    assert often.rounds["clock"].tolist() == pytest.approx(
        np.cumsum(often.rounds["simulated_seconds"]).tolist()
    )
    assert end.summary["simulated_seconds"] - plain.summary["simulated_seconds"] == pytest.approx(
        seconds
    )
    assert often.summary["rounds_to_90_percent_of_best_calibrated_test_accuracy"] in (3, 6)


def test_a_broken_client_does_not_break_the_head_for_all():
    report = fs.check("ccvr:every=1")
    assert report["nan"].outcome == "passed"


# -- what it is added to -----------------------------------------------------------------------------------------------


def test_it_is_an_addition_to_any_method():
    both = resolve("fedprox:mu=0.5 + ccvr:features=7")
    assert both.options() == {
        "weights": None,
        "mu": 0.5,
        "features": 7,
        "head_epochs": 10,
        "head_lr": 0.01,
        "head_batch": 64,
        "every": None,
    }
    assert isinstance(both, CCVR)
    for name in algorithms:
        if not algorithms.get(name).addition:
            assert resolve(f"{name} + ccvr").features == 500


@pytest.mark.parametrize("option", ["features=0", "head_epochs=-1", "head_lr=0", "head_batch=0"])
def test_values_out_of_range_are_refused(option: str):
    with pytest.raises(FedskewError, match=f"{option} is out of range"):
        resolve(f"ccvr:{option}")
