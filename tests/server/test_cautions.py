"""What a method comes to with a model or with settings is said before training, and is true."""

import warnings
from typing import Any

import numpy as np
import pytest

import fedskew as fs
from fedskew.algorithms.contract import Cohort


@pytest.fixture(autouse=True)
def nothing_was_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedskew.runs.execute._warned", set())


def federation(rows: int = 90) -> fs.Federation:
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 3)).astype(np.float32)
    return fs.split((x, (x[:, 0] > 0).astype(np.int64)), "quantity:alpha=1,min_size=8", clients=3)


def said(algorithm: Any, model: str = "mlp:hidden=4", **settings: Any) -> tuple[fs.Run, list[str]]:
    """Return a run, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = fs.train(
            federation(),
            model,
            algorithm,
            rounds=2,
            folder=False,
            threads=1,
            device="cpu",
            **settings,
        )
    return run, [str(one.message) for one in caught]


def weights_of(run: fs.Run) -> dict[str, Any]:
    return {name: value.numpy() for name, value in run.model.state_dict().items()}


def test_fedbn_without_batchnorm_is_fedavg_and_says_so():
    run, heard = said("fedbn")
    (line,) = heard
    assert line.startswith(
        "fedbn keeps BatchNorm with each client, and the model has none: here it is fedavg;"
    )
    plain, nothing = said("fedavg")
    assert nothing == []
    for name, value in weights_of(plain).items():
        np.testing.assert_array_equal(weights_of(run)[name], value)


class SlowServer(fs.FedAvg):
    """FedAvg that moves a quarter of the way."""

    def server_update(self, weights: Any, server_state: Any, mean: Any, cohort: Cohort) -> Any:
        moved = {name: value + 0.25 * mean["delta"][name] for name, value in weights.items()}
        return moved, server_state


@pytest.mark.parametrize("norm", ["local", "global"])
def test_mfedbn_without_batchnorm_is_fedavg_with_a_server_rate_and_says_so(norm: str):
    run, (line,) = said(f"mfedbn:eta=0.25,norm={norm}")
    assert "here it is fedavg with a learning rate of 0.25 on the server;" in line
    slow, nothing = said(SlowServer())
    assert nothing == []
    for name, value in weights_of(slow).items():
        np.testing.assert_array_equal(weights_of(run)[name], value)


@pytest.mark.parametrize("method", ["fedbn", "mfedbn", "fedbn + topk:share=0.5"])
def test_nothing_is_said_where_there_is_batchnorm(method: str):
    assert said(method, "tabular:hidden=4")[1] == []


def test_a_composed_fedbn_says_it_and_a_class_derived_from_it_does_not():
    (line,) = said("fedbn + topk:share=0.5")[1]
    assert "here it is fedavg" in line

    class Mine(fs.FedBN):
        """A method of one's own may do more than FedBN."""

    assert said(Mine())[1] == []


def test_fedrep_with_one_epoch_is_fedper_and_says_so():
    run, (line,) = said("fedrep", epochs=1)
    assert line.endswith(
        "with epochs=1 head and other layers together: here it is fedper; use epochs=2 or more"
    )
    fedper, nothing = said("fedper", epochs=1)
    assert nothing == []
    for client in range(3):
        found = run.model_of(client).state_dict()
        for name, value in fedper.model_of(client).state_dict().items():
            np.testing.assert_array_equal(found[name].numpy(), value.numpy())
    assert said("fedrep", epochs=2)[1] == []


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        ("fedavg + dp", {}, True),
        ("fedavg:weights=size + dp", {"weights": "uniform"}, True),
        ("fedavg + dp", {"weights": "uniform"}, False),
        ("fedavg:weights=uniform + dp", {}, False),
        ("fedavg", {}, False),
    ],
)
def test_clients_of_dp_count_alike_whatever_their_rows(
    method: str, settings: dict[str, Any], told: bool
):
    if "dp" in method:
        pytest.importorskip("dp_accounting")
    sizes = federation().partition.sizes
    heard = said(method, **settings)[1]
    line = (
        f"dp counts every client equally: weights=size does not apply, though clients hold {sizes.min()} to "
        f"{sizes.max()} rows; weights=uniform says what is done"
    )
    assert heard == [line] * told


def test_a_warning_is_given_once_a_process():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(2):
            fs.train(federation(), "logreg", "fedbn", rounds=1, folder=False, seed=seed)
    assert len(caught) == 1
