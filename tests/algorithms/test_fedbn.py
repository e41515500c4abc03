"""FedBN, MFedBN and the policy ``silo`` against a calculation in NumPy, and equivalent settings."""

import numpy as np
import pytest
import torch

from fedskew.algorithms.bounds import Local
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
STATISTICS = tuple(
    f"features.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
)
BATCH_NORM = ("features.1.weight", "features.1.bias", *STATISTICS)


@ENGINES
@pytest.mark.parametrize(
    ("spec", "norm", "kept", "eta"),
    [
        ("fedbn", "aggregate", BATCH_NORM, 1.0),
        ("fedavg", "local", BATCH_NORM, 1.0),
        ("mfedbn:eta=0.25", "aggregate", BATCH_NORM, 0.25),
        ("mfedbn:eta=0.25", "silo", BATCH_NORM, 0.25),
        ("fedavg", "silo", STATISTICS, 1.0),
    ],
)
def test_by_hand(norm_net, engine, spec: str, norm: str, kept: tuple[str, ...], eta: float):
    training = norm_net.training(spec, engine, norm=norm)
    shared, own = norm_net.federate(kept, eta)
    start = norm_net.start()
    # Local parts keep their initial values in the global model
    for key, value in training.state.model().items():
        np.testing.assert_allclose(value.numpy(), {**start, **shared}[key], rtol=0, atol=1e-10)
    for client, mine in enumerate(own):
        found = training.client_model(client)
        assert found.keys() == start.keys()
        for key, value in {**shared, **mine}.items():
            np.testing.assert_allclose(found[key].numpy(), value, rtol=0, atol=1e-10)
    means = [training.client_model(client)["features.1.running_mean"] for client in range(4)]
    assert min(float((means[0] - mean).abs().max()) for mean in means[1:]) > 0.01


def section_4(net, eta: float, rounds: int) -> tuple[dict, list[dict]]:
    """Return the result of section 4 to the letter: clients start from the global model, and all but BatchNorm moves.

    The result is the global model after all rounds, and the clients' models right after the last local training.
    """
    w = net.start()
    for round in range(rounds):
        ended = [net.descend(w, round, client) for client in range(4)]
        moves = [name for name in w if name not in BATCH_NORM]
        w = {**w, **{name: w[name] + eta * (net.mean(ended, name) - w[name]) for name in moves}}
    return w, ended


@ENGINES
# The method determines the BatchNorm policy
@pytest.mark.parametrize("norm", ["aggregate", "local", "silo"])
def test_section_4_by_hand(norm_net, engine, norm: str):
    training = norm_net.training("mfedbn:eta=0.25,norm=global", engine, norm=norm)
    wanted, _ = section_4(norm_net, 0.25, 3)
    start = norm_net.start()
    for key, value in training.state.model().items():
        np.testing.assert_allclose(value.numpy(), wanted[key], rtol=0, atol=1e-12)
        moved = np.abs(value.numpy() - start[key]).max()
        # Which BatchNorm takes off again
        assert (moved == 0) == (key in BATCH_NORM) or key == "features.0.bias"
    for client in range(4):
        assert all(
            value.equal(training.state.model()[key])
            for key, value in training.client_model(client).items()
        )
    assert not training.personalised
    other = norm_net.training("mfedbn:eta=0.25", engine)
    assert (
        float(
            (training.state.params["head.weight"] - other.state.params["head.weight"]).abs().max()
        )
        > 1e-4
    )


@ENGINES
def test_section_4_scores_clients_with_the_statistics_of_their_training(norm_net, engine):
    """Check the loss of a client's model after training, on its own rows with its current running statistics."""
    training = norm_net.training("mfedbn:eta=0.25,norm=global", engine, test_trained=True)
    _, ended = section_4(norm_net, 0.25, 3)
    for client, w in enumerate(ended):
        rows = norm_net.held[client]
        sums = norm_net.x[rows].astype(np.float64) @ w["features.0.weight"].T + w["features.0.bias"]
        unit = (sums - w["features.1.running_mean"]) / np.sqrt(w["features.1.running_var"] + 1e-5)
        logits = (
            np.tanh(unit * w["features.1.weight"] + w["features.1.bias"]) @ w["head.weight"].T
            + w["head.bias"]
        )
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), norm_net.y[rows]]
        assert training.results[-1].clients[client]["trained_loss"] == pytest.approx(
            losses.mean(), abs=1e-10
        )


def test_section_4_sends_batch_norm_down_and_not_up(norm_net):
    rest, batch_norm = 5 * 4 + 4 + 4 * 3 + 3, 4 * 4 + 1
    line = norm_net.training("mfedbn:norm=global").results[-1].round
    assert (line["bytes_down"], line["bytes_up"]) == (4 * 8 * (rest + batch_norm), 4 * 8 * rest)


@ENGINES
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("mfedbn:eta=1", "fedbn"),
        ("mfedbn:eta=1,norm=local", "fedbn"),
        ("mfedbn:eta=1,weights=uniform", "fedbn:weights=uniform"),
    ],
)
def test_eta_1_is_fedbn(norm_net, engine, left: str, right: str):
    mine, theirs = (
        norm_net.training(spec, engine, momentum=0.9, per_round=3) for spec in (left, right)
    )
    for key, value in mine.state.model().items():
        torch.testing.assert_close(value, theirs.state.model()[key], rtol=0, atol=1e-12)
    for client in range(4):
        for key, value in mine.client_model(client).items():
            torch.testing.assert_close(value, theirs.client_model(client)[key], rtol=0, atol=1e-12)


@ENGINES
@pytest.mark.parametrize(
    ("spec", "norm"),
    [
        ("fedbn", "aggregate"),
        ("mfedbn:eta=1", "aggregate"),
        ("mfedbn:eta=1,norm=global", "aggregate"),
        ("fedavg", "silo"),
    ],
)
def test_without_batch_norm_it_is_fedavg(plain_net, engine, spec: str, norm: str):
    mine, theirs = (
        plain_net.training(name, engine, norm=n)
        for name, n in ((spec, norm), ("fedavg", "aggregate"))
    )
    for key, value in mine.state.model().items():
        torch.testing.assert_close(value, theirs.state.model()[key], rtol=0, atol=1e-12)
    assert [line.round for line in mine.results] == [
        pytest.approx(line.round, abs=1e-12) for line in theirs.results
    ]
    assert not mine.personalised


@pytest.mark.parametrize(
    ("spec", "norm", "numbers"),
    [
        ("fedavg", "aggregate", 4 * 4 + 1),
        ("fedavg", "silo", 2 * 4),
        ("fedbn", "aggregate", 0),
        ("mfedbn", "silo", 0),
    ],
)
def test_what_is_kept_is_not_sent(norm_net, spec: str, norm: str, numbers: int):
    rest = 5 * 4 + 4 + 4 * 3 + 3
    line = norm_net.training(spec, norm=norm).results[-1].round
    # Four clients, eight bytes
    assert line["bytes_up"] == line["bytes_down"] == 4 * 8 * (rest + numbers)


def test_a_tiny_eta_hardly_moves_the_global_model_and_clients_use_it(norm_net):
    """Check what MFedBN's paper leaves open: such a client model is the global one with the client's own BatchNorm."""
    training = norm_net.training("mfedbn:eta=0.00001")
    start = norm_net.start()
    assert (
        max(
            np.abs(training.client_model(0)[key].numpy() - start[key]).max()
            for key in ("head.weight", "head.bias")
        )
        < 1e-4
    )
    assert np.abs(training.client_model(0)["features.1.running_mean"].numpy()).max() > 0.01


@pytest.mark.parametrize("spec", ["fedbn", "mfedbn"])
def test_a_client_with_one_row_is_refused_before_training(norm_net, spec: str, monkeypatch):
    monkeypatch.setattr(norm_net, "held", [np.arange(5), np.array([7])])
    with pytest.raises(
        FedskewError,
        match=r"client 1 has 1 row, BatchNorm needs 2; use min_size=2 .* or norm=group",
    ):
        norm_net.training(spec)


@ENGINES
@pytest.mark.parametrize("norm", ["aggregate", "local", "silo"])
def test_the_policy_does_not_matter_where_nothing_is_shared(norm_net, engine, norm: str):
    one, other = (norm_net.training(Local(), engine, norm=policy) for policy in (norm, "aggregate"))
    for client in range(4):
        for key, value in one.client_model(client).items():
            assert torch.equal(value, other.client_model(client)[key])
