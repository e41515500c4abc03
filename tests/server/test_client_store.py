"""The store of client states, and a run that is stopped and resumed."""

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from fedskew.algorithms.contract import algorithms, resolve
from fedskew.algorithms.topologies import Scheduled
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.models.build import build
from fedskew.server.client_store import ClientStore, home_of


def fresh() -> dict:
    return {
        "local": {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(0)},
        "state.a": {"c": torch.zeros(1, 2)},
    }


def trees(*values: int) -> dict:
    column = torch.tensor(values)
    matrix = column.float()[:, None].expand(-1, 2).clone()
    return {"local": {"w": matrix, "n": column}, "state.a": {"c": matrix[:, None]}}


def test_a_new_client_has_the_fresh_tree_and_an_old_one_its_own():
    store = ClientStore(fresh())
    store.put(np.array([1_000_000, 3]), trees(7, 8))
    found = store.get(np.array([3, 5, 1_000_000]))
    assert found["local"]["w"].tolist() == [[8, 8], [1, 2], [7, 7]]
    assert found["local"]["n"].tolist() == [8, 0, 7]
    assert found["state.a"]["c"].shape == (3, 1, 2)
    assert found["local"]["n"].dtype == torch.int64
    found["local"]["w"].zero_()  # what was given out is a copy
    assert store.get(np.array([3, 5]))["local"]["w"].tolist() == [[8, 8], [1, 2]]


def test_it_grows_and_replaces():
    store, truth = ClientStore(fresh()), {}
    draw = np.random.default_rng(0)
    for step in range(30):
        clients = draw.choice(60, size=4, replace=False)
        values = [100 * step + int(client) for client in clients]
        store.put(clients, trees(*values))
        truth |= dict(zip(clients.tolist(), values, strict=True))
    all_clients = np.arange(60)
    assert store.get(all_clients)["local"]["n"].tolist() == [
        truth.get(client, 0) for client in range(60)
    ]
    assert sorted(store.clients) == sorted(truth)


def test_nothing_to_put():
    store = ClientStore(fresh())
    store.put(np.array([], dtype=np.int64), trees())
    assert store.clients == []
    assert store.state() == {}
    assert store.get(np.array([], dtype=np.int64))["local"]["w"].shape == (0, 2)
    nothing = ClientStore({})
    nothing.put(np.array([1]), {})
    assert not nothing
    assert nothing.get(np.array([1])) == {}


def test_restore_is_the_inverse_and_neither_side_is_shared():
    store = ClientStore(fresh())
    store.put(np.array([9, 4]), trees(7, 8))
    saved = store.state()
    other = ClientStore(fresh())
    other.restore(saved)
    store.put(np.array([4, 2]), trees(-1, -1))
    other.put(np.array([9]), trees(-2))
    assert saved["local/n"].tolist() == [7, 8]
    again = ClientStore(fresh())
    again.restore(saved)
    assert again.get(np.array([4, 9, 2]))["local"]["n"].tolist() == [8, 7, 0]
    again.put(np.array([2]), trees(5))  # it still grows
    assert again.get(np.array([4, 9, 2]))["local"]["n"].tolist() == [8, 7, 5]
    assert again.clients == [9, 4, 2]


def test_restoring_nothing_forgets_everybody():
    store = ClientStore(fresh())
    store.put(np.array([9, 4]), trees(7, 8))
    store.restore({})
    assert store.clients == store.changed == []
    assert store.get(np.array([9]))["local"]["n"].tolist() == [0]


def test_who_changed_is_known_until_it_is_saved():
    store = ClientStore(fresh())
    assert store.changed == []
    store.put(np.array([9, 4]), trees(7, 8))
    store.put(np.array([2, 9]), trees(1, 3))
    assert store.changed == [9, 4, 2]  # in order of arrival, no client twice
    store.mark_saved()
    assert store.changed == []
    store.put(np.array([2, 4]), trees(5, 6))
    assert store.changed == [4, 2]
    rows = store.rows(store.changed)
    assert {name: value.tolist() for name, value in rows.items()} == {
        "clients": [4, 2],
        "local/w": [[6, 6], [5, 5]],
        "local/n": [6, 5],
        "state.a/c": [[[6, 6]], [[5, 5]]],
    }
    assert sum(value.numpy().nbytes for value in rows.values()) == 2 * store.row_bytes
    assert store.all_bytes == 3 * store.row_bytes
    other = ClientStore(fresh())
    other.put(np.array([8, 2]), trees(0, 0))
    other.mark_saved()
    other.add(rows)
    assert other.clients == [8, 2, 4]
    assert other.changed == [2, 4]
    assert other.get(np.array([4, 2, 8]))["local"]["n"].tolist() == [6, 5, 0]


def test_trees_of_the_host_stay_there():
    assert home_of(fresh(), 10).type == "cpu"
    assert home_of({}, 10).type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_trees_of_a_gpu_stay_there_if_it_has_room():
    tree = {
        part: {name: value.cuda() for name, value in tensors.items()}
        for part, tensors in fresh().items()
    }
    assert home_of(tree, 10).type == "cuda"
    assert home_of(tree, 10**12).type == "cpu"
    for home in (home_of(tree, 10), torch.device("cpu")):
        store = ClientStore(tree, home)
        store.put(np.array([5, 3]), trees(7, 8))
        store.put(
            np.array([3, 4]),
            {part: {n: v.cuda() for n, v in ts.items()} for part, ts in trees(1, 2).items()},
        )
        found = store.get(np.array([4, 9, 5]))
        assert found["local"]["n"].device.type == "cuda"
        assert found["local"]["n"].tolist() == [2, 0, 7]
        again = ClientStore(tree, home)
        again.restore(store.state())
        assert again.get(np.array([3, 5]))["local"]["w"].tolist() == [[1, 1], [7, 7]]


SEVERAL_MODELS = ("ifca", "cfl", "fedamp", "fedfomo", "d-psgd", "gossip")


@pytest.mark.parametrize("norm", ["aggregate", "local"])
@pytest.mark.parametrize(
    "name", [name for name in algorithms if not isinstance(resolve(name).topology(0), Scheduled)]
)
def test_going_on_gives_the_bits_of_never_stopping(lab, name: str, norm: str):
    some = 5 if name == "krum" else 3  # fewer are too few for it
    if name == "dp":
        pytest.skip("refuses statistics of BatchNorm")  # tests/algorithms/test_privacy.py
    if norm == "aggregate" and name in SEVERAL_MODELS:
        pytest.skip("several models share no statistics of BatchNorm")

    def make():
        return lab.training(
            None,
            name,
            "tabular:hidden=5",
            Stacked(mode="stack"),
            norm=norm,
            momentum=0.9,
            per_round=some,
        )

    whole, first, second = make(), make(), make()
    for _ in range(5):
        whole.advance()
    for _ in range(2):
        first.advance()
    second.restore(load(save(first.checkpoint())))
    assert second.round == 2
    for _ in range(3):
        second.advance()
    want, found = whole.checkpoint(), second.checkpoint()
    assert want.keys() == found.keys()
    for key, value in want.items():
        assert torch.equal(value, found[key]), key
    for client in range(whole.trained_on.clients):
        for key, value in whole.client_model(client).items():
            assert torch.equal(value, second.client_model(client)[key])


@pytest.mark.parametrize("engine", [Loop(), Stacked(mode="loop"), Stacked(mode="stack")])
@pytest.mark.parametrize("name", ["local", "fedavg"])
def test_checkpoints_of_images_can_be_written(lab, engine, name: str):
    # The loop lays convolutions out in another memory format, and so may the user; a file cannot hold that.
    model = build("cnn:width=2", (2, 8, 8), 3, seed=0).to(memory_format=torch.channels_last)
    training = lab.run(1, lab.federation(shape=(2, 8, 8)), name, model, engine, momentum=0.5)
    back = load(save(training.checkpoint()))
    assert back.keys() == training.checkpoint().keys()
    assert all(torch.equal(value, back[name]) for name, value in training.checkpoint().items())


def test_a_checkpoint_does_not_change_when_training_goes_on(lab):
    training = lab.run(1, None, "local", "tabular:hidden=5", momentum=0.9)
    held = training.checkpoint()
    copies = {name: value.clone() for name, value in held.items()}
    training.advance()
    assert all(torch.equal(value, copies[name]) for name, value in held.items())
    training.restore(held)  # and restoring does not hand the caller's tensors to training
    training.advance()
    assert all(torch.equal(value, copies[name]) for name, value in held.items())
