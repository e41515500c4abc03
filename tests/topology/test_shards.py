"""Shards: how clients are dealt, and that the number of processes that train them does not change a bit."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from fedskew.algorithms.contract import resolve
from fedskew.core.config import SHARDS, Settings
from fedskew.core.errors import FedskewError
from fedskew.models.build import build
from fedskew.server.server import Server
from fedskew.server.worker import Inputs, Numbers
from fedskew.topology.shards import Sharded, ShardTrainer, Work, deal
from fedskew.transport.messages import packed, unpacked

METHODS = [
    "fedavg", "scaffold", "moon", "fedprox:mu=0.1 + krum:attackers=1", "fedavg + median", "ditto", "fedbn",
    "mfedbn", "fedrep", "feddyn", "fedga", "fednova", "q-fedavg", "fedbuff:buffer=3", "fedpbs", "fedbs",
    "afl-cp", "ccvr", "scaffold + hierarchical:edges=3,every=2",
    "fedavg + median + hierarchical:edges=3,every=2 + clip:norm=0.1",
]  # fmt: skip


class Rehearsal:
    """A group whose workers are in this process; everything still goes through messages."""

    def __init__(self, server, size):
        self.size = size
        self.trainers = [
            Inputs.of(server).trainer(unpacked(packed(Numbers.of(server)))) for _ in range(1, size)
        ]

    def ask(self, questions, meanwhile):
        answers = [
            unpacked(packed(trainer.perform(unpacked(packed(question)))))
            for trainer, question in zip(self.trainers, questions, strict=True)
        ]
        return meanwhile(), answers


def trained(lab, processes, algorithm, rounds=3, model="tabular:hidden=6+5", **settings):
    """Return a training after some rounds, with so many processes; 0 for one without workers."""
    fed = lab.federation((9, 5, 4, 7, 3, 12, 6, 8, 4, 5, 11))
    fixed = {
        "per_round": 9,
        "rounds": 10,
        "batch_size": 4,
        "device": "cpu",
        "threads": 1,
        "workers": processes or None,
    }
    network = build(model, fed.data.shape, lab.classes, seed=0)
    server = Server(fed, network, resolve(algorithm), Settings(**{**fixed, **settings}))
    if processes > 1:
        server.engine.group = Rehearsal(server, processes)
    server.results = [server.advance() for _ in range(rounds)]
    return server


def everything(server):
    tables = [line for result in server.results for line in (result.round, *result.clients)]
    return server.checkpoint(), repr([tables, server.last_scores(), server.final_clients().table])


def assert_same_bits(one, other):
    (left, left_tables), (right, right_tables) = everything(one), everything(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
    assert left_tables == right_tables


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("algorithm", METHODS)
def test_any_number_of_processes_gives_the_same_bits(lab, algorithm, engine):
    alone = trained(lab, 1, algorithm, engine=engine)
    assert isinstance(alone.engine, Sharded)
    assert_same_bits(alone, trained(lab, 2, algorithm, engine=engine))
    if engine == "stacked":
        assert_same_bits(alone, trained(lab, 5, algorithm, engine=engine))


@pytest.mark.parametrize("algorithm", METHODS)
def test_shards_change_nothing_but_rounding(lab, algorithm):
    plain, sharded = (trained(lab, processes, algorithm, dtype="float64") for processes in (0, 2))
    assert not isinstance(plain.engine, Sharded)
    assert lab.gap(plain, sharded) < 1e-9


def test_models_after_training_are_evaluated_in_any_process(lab):
    one, two = (trained(lab, processes, "fedavg", test_trained=True) for processes in (1, 2))
    assert one.results[0].round["trained_test_accuracy"] is not None
    assert_same_bits(one, two)


def test_dropout_draws_the_same_in_any_process(lab):
    one, two = (trained(lab, n, "fedavg", model="mlp:hidden=8,dropout=0.5") for n in (1, 3))
    assert_same_bits(one, two)


def test_a_client_that_diverges_is_excluded_wherever_it_trains(lab):
    found = []
    for processes in (1, 2):
        fed = lab.federation((9, 5, 4, 7, 3))
        fed.data.train.x[fed.partition.of(2)] = np.nan
        server = lab.training(fed, "scaffold", workers=processes)
        if processes > 1:
            server.engine.group = Rehearsal(server, processes)
        server.results = [server.advance() for _ in range(2)]
        assert [result.round["excluded"] for result in server.results] == [1, 1]
        found.append(server)
    assert torch.equal(*(server.state.params[next(iter(server.state.params))] for server in found))


def test_a_state_goes_on_with_another_number_of_processes(lab):
    whole, part = trained(lab, 4, "scaffold", rounds=4), trained(lab, 2, "scaffold", rounds=2)
    rest = trained(lab, 1, "scaffold", rounds=0)
    rest.restore(part.checkpoint())
    rest.advance(), rest.advance()
    left, right = whole.checkpoint(), rest.checkpoint()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def test_a_shard_is_trained_in_one_thread(monkeypatch):
    monkeypatch.setattr(ShardTrainer, "_result", lambda *args: torch.get_num_threads())
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert ShardTrainer(None, [], "size").perform(Work("add", 0, None, [None, None])) == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_costs_are_dealt_evenly_and_every_one_once():
    costs = np.random.default_rng(0).integers(1, 1000, 200).tolist()
    hands = deal(costs, SHARDS)
    assert sorted(np.concatenate(hands).tolist()) == list(range(200))
    loads = [sum(costs[i] for i in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(costs) / 20
    assert all(a < b for hand in hands for a, b in pairwise(hand.tolist()))


def test_fewer_clients_than_hands_leave_hands_empty():
    assert [hand.tolist() for hand in deal([3, 5], 4)] == [[1], [0], [], []]


@pytest.mark.parametrize(
    ("algorithm", "model", "part"),
    [
        ("sfl", "mlp", "trains one model"),
        ("stratify-batch", "mlp", "trains one model"),
        ("fedtan", "tabular", "share statistics"),
    ],
)
def test_what_cannot_be_divided_is_refused(lab, algorithm, model, part):
    with pytest.raises(FedskewError, match=part):
        lab.training(None, algorithm, model, workers=2)


def test_more_workers_than_shards_are_refused(lab):
    with pytest.raises(FedskewError, match="workers"):
        lab.training(workers=SHARDS + 1)
