"""Fine-tuning before use and FedBABU against calculations in NumPy, their identities, and where they are refused."""

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.engine.loop import Loop
from fedskew.engine.plan import Plan
from fedskew.engine.stacked import Stacked

ENGINES = pytest.mark.parametrize(
    "engine", [Loop(), Stacked(mode="stack")], ids=["loop", "stacked"]
)
LR, BATCH = 0.3, 4


def tuning_rows(net, round: int, client: int, epochs: int) -> list[np.ndarray]:
    """Return the rows of every step that a client takes before it uses a model."""
    one = np.array([client])
    least = 2 if net.norm else 1
    batch = np.minimum(BATCH, net.sizes[one])
    plan = Plan(0, round, one, net.sizes[one], batch, np.array([epochs]), least, purpose="adapt")
    positions, counts = plan.table()
    return [net.held[client][positions[step, 0, :count]] for step, count in enumerate(counts[:, 0])]


def tuned(net, w: dict, batches: list[np.ndarray], lr: float, names: str = "") -> dict:
    """Return the weights after plain SGD with the tensors whose names begin so; running statistics move too."""
    w = dict(w)
    for rows in batches:
        x = net.x[rows].astype(np.float64)
        if net.norm:
            sums = x @ w["features.0.weight"].T + w["features.0.bias"]
            for name, value in (("mean", sums.mean(0)), ("var", sums.var(0, ddof=1))):
                key = f"features.1.running_{name}"
                w[key] = 0.9 * w[key] + 0.1 * value
            w["features.1.num_batches_tracked"] = w["features.1.num_batches_tracked"] + 1
        for name, grad in net.gradient(w, x, net.y[rows]).items():
            if name.startswith(names):
                w[name] = w[name] - lr * grad
    return w


def same_model(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value.numpy(), wanted[name], rtol=0, atol=1e-12)


@ENGINES
@pytest.mark.parametrize("name", ["plain_net", "norm_net"])
@pytest.mark.parametrize(
    ("options", "epochs", "steps", "lr", "part"),
    [
        ("tune_epochs=2", 2, None, LR, ""),
        ("tune_steps=3,tune_lr=0.1", 3, 3, 0.1, ""),
        ("tune=head", 1, None, LR, "head"),
        ("tune=body", 1, None, LR, "features"),
    ],
)
def test_by_hand(request, engine, name: str, options: str, epochs: int, steps, lr: float, part):
    net = request.getfixturevalue(name)
    server = net.training(f"fedavg + finetune:{options}", engine, per_round=3)
    plain = net.training("fedavg", engine, per_round=3)
    for key, value in server.state.model().items():
        assert torch.equal(value, plain.state.model()[key])  # training never sees it
    shared = {key: value.numpy() for key, value in server.state.model().items()}
    for client in range(4):
        batches = tuning_rows(net, net.rounds, client, epochs)[:steps]
        wanted = tuned(net, shared, batches, lr, part)
        same_model(server.client_model(client), wanted)
        moved = {key for key, value in wanted.items() if not np.array_equal(value, shared[key])}
        assert {key.partition(".")[0] for key in moved if not key.startswith("features.1.")} == {
            "": {"features", "head"},
            "head": {"head"},
            "features": {"features"},
        }[part]


@ENGINES
def test_own_parts_of_clients_are_tuned_too(plain_net, engine):
    server = plain_net.training("fedper + finetune", engine)
    plain = plain_net.training("fedper", engine)
    for client in range(4):
        before = {key: value.numpy() for key, value in plain.client_model(client).items()}
        batches = tuning_rows(plain_net, plain_net.rounds, client, 1)
        same_model(server.client_model(client), tuned(plain_net, before, batches, LR))


@ENGINES
@pytest.mark.parametrize("options", ["tune_epochs=0", "tune_steps=0"])
def test_nothing_to_do_is_the_method(plain_net, engine, options: str):
    one = plain_net.training(f"fedavg + finetune:{options}", engine)
    other = plain_net.training("fedavg", engine)
    assert not one.personalised
    for mine, theirs in zip(one.results, other.results, strict=True):
        assert mine.round == theirs.round


@ENGINES
@pytest.mark.parametrize("tune", ["all", "head"])
def test_fedbabu_by_hand(plain_net, engine, tune: str):
    net = plain_net
    server = net.training(f"fedbabu:tune_epochs=2,tune={tune}", engine)
    start = net.start()
    shared = dict(start)
    for round in range(net.rounds):
        ended = []
        for client in range(4):
            one = np.array([client])
            batch = np.minimum(BATCH, net.sizes[one])
            positions, counts = Plan(0, round, one, net.sizes[one], batch, np.array([2])).table()
            batches = [
                net.held[client][positions[step, 0, :count]]
                for step, count in enumerate(counts[:, 0])
            ]
            ended.append(tuned(net, shared, batches, LR, "features"))
        shared = {key: net.mean(ended, key) for key in shared}
    for key in ("head.weight", "head.bias"):
        np.testing.assert_allclose(server.state.params[key].numpy(), start[key], rtol=0, atol=0)
    same_model(server.state.model(), shared)
    part = "head" if tune == "head" else ""
    for client in range(4):
        wanted = tuned(net, shared, tuning_rows(net, net.rounds, client, 2), LR, part)
        same_model(server.client_model(client), wanted)


def test_tables_score_the_model_in_use(plain_net):
    """Check that clients are scored by the tuned model in the last round, and the shared model beside it."""
    server = plain_net.training("fedavg + finetune:tune_epochs=3", per_round=2)
    for line in server.results[-1].clients:
        client = line["client"]
        rows = plain_net.held[client]
        for column, model in (
            ("loss", server.client_model(client)),
            ("global_loss", server.state.model()),
        ):
            w = {key: value.numpy() for key, value in model.items()}
            z, _, _ = plain_net.represent(w, plain_net.x[rows].astype(np.float64))
            logits = z @ w["head.weight"].T + w["head.bias"]
            log_chance = logits - np.log(np.exp(logits).sum(1, keepdims=True))
            loss = -log_chance[np.arange(len(rows)), plain_net.y[rows]].mean()
            assert line[column] == pytest.approx(loss, abs=1e-12)
    final = server.final_clients().table
    assert len(final) == 4
    assert all(row["loss"] < row["global_loss"] for row in final)


def test_the_cost_of_a_use(plain_net):
    """Check the seconds of the slowest client: 9 rows twice in batches of 4 are 6 steps."""
    server = plain_net.training("fedavg + finetune:tune_epochs=2", rounds=1)
    machines = server.participation.fleet.machines(np.arange(4))
    slowest = 18 / machines.rows_per_second[0] + 6 * machines.seconds_per_step[0]
    cost = server.adaptation_cost()
    assert cost == {"adaptation_simulated_seconds": pytest.approx(slowest)}
    assert plain_net.training("fedavg", rounds=1).adaptation_cost() == {}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("central + finetune", "all rows are in one place"),
        ("fedbabu + finetune", "both have an option"),
    ],
)
def test_refused(plain_net, spec: str, says: str):
    with pytest.raises(FedskewError, match=says):
        plain_net.training(spec)


def test_a_part_that_the_model_does_not_have_is_refused(desk):
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(5, 3))

        def forward(self, x):
            return x @ self.w

    for spec in ("fedbabu", "fedbabu:tune=head", "fedavg + finetune:tune=head"):
        with pytest.raises(FedskewError, match="name its last layer 'head'"):
            desk.training(spec, model=Bare())


def test_predictions_and_folders(tmp_path):
    """Check that a run predicts with tuned models, also after it is resumed, and that a folder alone refuses to."""
    fed = fs.split(fs.load("digits"), "classes:k=3", 4, client_test=0.3)
    settings = {"rounds": 2, "lr": 0.1, "device": "cpu", "threads": 1}
    method = "fedavg + finetune:tune_epochs=3"
    run = fs.train(fed, "logreg", method, folder=tmp_path / "a", **settings)
    tuned_model = run.model_of(1).state_dict()
    assert not torch.equal(tuned_model["head.weight"], run.model.state_dict()["head.weight"])
    assert run.summary["client_model"] == "adapted on the client's rows"
    assert run.summary["adaptation_simulated_seconds"] > 0
    mean = "client_accuracy_mean"
    assert run.summary[mean] > run.summary["client_accuracy_of_global_model_mean"] + 0.05
    opened = fs.open_run(tmp_path / "a")
    assert opened.personalised
    with pytest.raises(FedskewError, match="the folder has no rows"):
        opened.model_of(1)
    again = fs.resume(tmp_path / "a")
    for name, value in again.model_of(1).state_dict().items():
        assert torch.equal(value, tuned_model[name])
