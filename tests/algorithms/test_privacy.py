"""Client-level differential privacy by hand: the noisy sum, the sampling, epsilon, and what is refused."""

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedskew as fs
from fedskew.algorithms.contract import resolve
from fedskew.algorithms.selection import ClientPool, PoissonSelection, Selection
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.engine.job import Engine
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked

ENGINES = [Loop(), Stacked(mode="stack")]


@pytest.fixture
def accounting() -> Any:
    return pytest.importorskip("dp_accounting")


def noisy_rounds(desk: Any, noise: float, clip: float, per_round: int) -> np.ndarray:
    """Return the weights after three rounds, calculated with one vector a client."""
    w = desk.start()
    for round in range(3):
        there = np.flatnonzero(Stream(0, "select", round).uniform(5) < per_round / 5)
        total = np.zeros_like(w)
        for client in there:
            delta = desk.descend(w, round, client) - w
            total += delta / max(1.0, np.linalg.norm(delta) / clip)
        bias = Stream(0, "server", round, 0).generator().standard_normal(3)
        layer = Stream(0, "server", round, 1).generator().standard_normal((3, 5))
        w = w + (total + noise * clip * np.hstack([layer, bias[:, None]])) / per_round
    return w


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "stack"])
@pytest.mark.parametrize(
    ("noise", "clip", "per_round"), [(0.7, 0.3, 5), (1.5, 0.1, 2), (0.0, 0.2, 3), (0.4, 50.0, 1)]
)
def test_the_noisy_sum_by_hand(
    desk: Any, engine: Engine, noise: float, clip: float, per_round: int
):
    found, results = desk.train(
        f"fedavg + dp:noise={noise},clip={clip}", engine, per_round=per_round
    )
    np.testing.assert_allclose(
        found, noisy_rounds(desk, noise, clip, per_round), rtol=0, atol=1e-10
    )
    sampled = [Stream(0, "select", round).uniform(5) < per_round / 5 for round in range(3)]
    assert [result.round["clients"] for result in results] == [
        int(there.sum()) for there in sampled
    ]


@pytest.mark.usefixtures("accounting")
def test_a_round_without_clients_still_adds_noise(desk: Any):
    rounds = [Stream(0, "select", round).uniform(5) for round in range(3)]
    empty = [round for round, drawn in enumerate(rounds) if (drawn >= 0.2).all()]
    assert empty, "one of three rounds must be empty for this test"
    training = desk.training("dp:noise=0.4", per_round=1)
    for round in range(3):
        before = desk.flat(training.state.params)
        row = training.advance().round
        moved = desk.flat(training.state.params) - before
        assert (row["clients"] == 0) == (round in empty)
        assert np.abs(moved).min() > 0
        assert row["dp_epsilon"] > 0


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize("engine", ENGINES, ids=["loop", "stack"])
def test_without_noise_and_with_a_wide_clip_it_is_fedavg_with_equal_weights(
    desk: Any, engine: Engine
):
    plain, _ = desk.train("fedavg", engine, weights="uniform")
    private, results = desk.train("fedavg + dp:noise=0,clip=1e6", engine, weights="size")
    np.testing.assert_allclose(private, plain, rtol=0, atol=1e-12)
    assert [result.round["dp_epsilon"] for result in results] == [math.inf] * 3
    assert desk.column(results, "weight") == [[0.2] * 5] * 3


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize("spec", ["feddyn", "fedadam", "fedprox-layers"])
def test_a_method_sees_neither_the_mean_without_noise_nor_the_number_of_clients(
    desk: Any, spec: str
):
    seen = []

    def watch(weights: Any, state: Any, mean: Any, cohort: Any) -> Any:
        seen.append((mean, cohort))
        return original(weights, state, mean, cohort)

    kind = type(resolve(spec))
    original = kind.server_update.__get__(resolve(spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "server_update", lambda self, *given: watch(*given))
        desk.train(f"{spec} + dp:noise=2", per_round=3)
    assert len(seen) == 3
    for mean, cohort in seen:
        assert cohort.mean is mean
        assert cohort.weights.tolist() == [1.0] * 3


def test_each_client_is_sampled_independently_of_the_others():
    pool, select = ClientPool(0, np.ones(10, dtype=np.int64)), PoissonSelection(Selection()).select
    there = np.array(
        [np.isin(np.arange(10), select(pool, 3, Stream(0, "select", i))) for i in range(4000)]
    )
    assert np.abs(there.mean(0) - 0.3).max() < 0.03
    assert abs(there.sum(1).var() - 10 * 0.3 * 0.7) < 0.2  # a fixed number of clients has none
    assert np.abs(np.corrcoef(there.T) - np.eye(10)).max() < 0.06


@pytest.mark.usefixtures("accounting")
def test_a_delta_that_allows_to_publish_a_client_is_refused(desk: Any):
    says = r"delta=0.3 with 5 clients: .*; choose delta below 1 / clients = 0.2"
    with pytest.raises(FedskewError, match=says):
        desk.train("fedavg + dp:delta=0.3")
    with pytest.raises(FedskewError, match=r"delta=0.2 with 5 clients"):
        desk.train("fedavg + dp:delta=0.2")
    _, results = desk.train("fedavg + dp:delta=0.199")
    assert results[-1].round["dp_epsilon"] > 0


# -- epsilon -----------------------------------------------------------------------------------------------------------

ROWS, BATCH = 60_000, 256
# The settings that TensorFlow Privacy publishes for MNIST (tutorials/README.md), delta = 1e-5: noise, epochs, epsilon.
PUBLISHED = [(1.12, 60, 2.92), (0.6, 30, 9.74), (1.2, 10, 1.20)]


def renyi(order: int, chance: float, noise: float) -> float:
    """Return the Rényi divergence of the sampled Gaussian mechanism for a whole order (Mironov et al. 2019, eq. 6)."""
    terms = [
        math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        + k * math.log(chance) + (order - k) * math.log1p(-chance) + (k * k - k) / (2 * noise**2)
        for k in range(order + 1)
    ]  # fmt: skip
    return float(np.logaddexp.reduce(terms)) / (order - 1)


@pytest.mark.parametrize(("noise", "epochs", "published"), PUBLISHED)
def test_epsilon_of_published_settings(
    accounting: Any, noise: float, epochs: int, published: float
):
    from fedskew.algorithms.privacy import epsilon

    chance, rounds = BATCH / ROWS, epochs * ROWS // BATCH
    event = accounting.PoissonSampledDpEvent(chance, accounting.GaussianDpEvent(noise))
    whole = accounting.SelfComposedDpEvent(event, rounds)
    found = epsilon(noise, chance, rounds, 1e-5)
    assert found == accounting.rdp.RdpAccountant().compose(whole).get_epsilon(1e-5)
    divergences = {order: rounds * renyi(order, chance, noise) for order in range(2, 64)}
    first = min(value - math.log(1e-5) / (order - 1) for order, value in divergences.items())
    assert first == pytest.approx(published, rel=0.02)  # by the conversion of that time
    sharper = min(
        value + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)
        for order, value in divergences.items()
    )  # that of Canonne, Kamath and Steinke 2020, which dp-accounting uses
    assert found == pytest.approx(sharper, rel=0.02)
    assert found < published


@pytest.mark.usefixtures("accounting")
def test_the_table_in_the_docs():
    from fedskew.algorithms.privacy import epsilon

    page = (Path(__file__).parents[2] / "docs/training-privacy.md").read_text()
    page = page.partition("\n## Label entropy")[0]
    lines = [
        line.strip("| ").split(" | ")
        for line in page.splitlines()
        if re.match(r"[|] [01.]+ [|] [0-9.]+ [|]", line)
    ]
    assert len(lines) == 9
    for chance, noise, *found in lines:
        assert [
            f"{epsilon(float(noise), float(chance), rounds, 1e-5):.2f}"
            for rounds in (10, 100, 1000)
        ] == found


def test_epsilon_is_in_every_round(desk: Any, accounting: Any):
    _, results = desk.train("fedavg + dp:noise=1.3,delta=1e-3", per_round=2)
    event = accounting.PoissonSampledDpEvent(0.4, accounting.GaussianDpEvent(1.3))
    for done, result in enumerate(results, 1):
        due = accounting.rdp.RdpAccountant().compose(event, done).get_epsilon(1e-3)
        assert result.round["dp_epsilon"] == due


def test_without_dp_accounting_the_error_says_what_to_install(
    desk: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(
        FedskewError, match=r"dp needs dp-accounting for epsilon: pip install 'fedskew\[dp\]'"
    ):
        desk.training("fedavg + dp")


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_stopped_run_goes_on_with_the_same_bits(desk: Any, tmp_path: Path, engine: str):
    usual = {
        "rounds": 4, "per_round": 3, "engine": engine, "checkpoint_every": 1, "device": "cpu", "weights": "uniform",
    }  # fmt: skip
    whole = fs.train(
        desk.federation(), "logreg", "fedavg + dp:noise=0.5", folder=tmp_path / "whole", **usual
    )

    def stop(result: Any, rounds: int) -> None:
        if result.round["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fs.train(
            desk.federation(),
            "logreg",
            "fedavg + dp:noise=0.5",
            folder=tmp_path / "cut",
            callbacks=[stop],
            **usual,
        )
    rest = fs.resume(tmp_path / "cut", fed=desk.federation())
    for name, value in whole.model.state_dict().items():
        assert np.array_equal(value.numpy(), rest.model.state_dict()[name].numpy())
    assert whole.rounds["dp_epsilon"].tolist() == rest.rounds["dp_epsilon"].tolist()


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("fedavg + median + dp", "a rule other than the sum combines the updates"),
        ("fedavg + dp + krum", "a rule other than the sum combines the updates"),
        ("fedavg + ccvr + dp", "clients send class statistics after the last round"),
        ("afl-cp + dp", "clients are selected by what they report or have done"),
        ("q-fedavg + dp", "clients report loss_before beside their updates"),
        ("fedga + dp", "clients have weights of the method's own"),
        ("fedbuff + dp", "the rounds are not those of clients that are sampled anew"),
        ("stratify-batch + dp", "the rounds are not those of clients that are sampled anew"),
        ("fedtan + dp", "clients share statistics of BatchNorm"),
        ("central + dp", "all rows are in one place"),
    ],
)
def test_methods_outside_the_guarantee_are_refused(spec: str, reason: str):
    with pytest.raises(FedskewError, match=f"{reason}.*, which dp does not cover"):
        resolve(spec)


@pytest.mark.usefixtures("accounting")
@pytest.mark.parametrize(
    ("spec", "settings", "reason"),
    [
        ("scaffold + dp", {}, "clients send control beside their update"),
        ("fednova + dp", {}, "clients send normaliser beside their update"),
        ("local + dp", {}, "clients send nothing"),
        (
            "fedavg + dp",
            {"sampling": "size", "per_round": 2},
            "epsilon is that of clients with equal chances",
        ),
        (
            "fedavg + dp",
            {"fleet": "phones"},
            "a slow client decides at what time the next round begins",
        ),
    ],
)
def test_settings_outside_the_guarantee_are_refused(
    desk: Any, spec: str, settings: dict[str, Any], reason: str
):
    with pytest.raises(FedskewError, match=reason):
        desk.training(spec, **settings)


@pytest.mark.usefixtures("accounting")
def test_statistics_of_batchnorm_may_stay_but_not_be_sent(norm_net: Any):
    with pytest.raises(
        FedskewError,
        match=r"clients send features.1.running_mean, to which neither clipping nor noise",
    ):
        norm_net.training("fedavg + dp", norm="aggregate")
    trained = norm_net.training("fedavg + dp", norm="local")
    assert trained.results[-1].round["dp_epsilon"] > 0


@pytest.mark.usefixtures("accounting")
def test_clients_that_drop_out_count_as_zeros(desk: Any):
    """The divisor and the noise are those of all expected clients, so nobody's absence shows in them."""
    training = desk.training("fedavg + dp:noise=0,clip=0.01", fleet="mixed:slow=8,dropout=0.9")
    before = desk.flat(training.state.params)
    row = training.advance().round
    assert 0 < row["dropped"] <= 5
    arrived = 5 - row["dropped"]
    assert np.linalg.norm(desk.flat(training.state.params) - before) <= arrived * 0.01 / 5 + 1e-12
