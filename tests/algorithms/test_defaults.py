"""What a method does when nothing is said: the values of its options, and what a training row costs."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor

import fedskew.algorithms
from fedskew.algorithms import Calibrator, FedAvg, Sequential, Stream, Tree
from fedskew.algorithms.composition import composed
from fedskew.algorithms.contract import algorithms, resolve

STRATIFY = {
    "selection": "uniform",
    "frequency": "uniform",
    "per_label": None,
    "cap": None,
    "reuse": False,
    "secure": False,
    "round_totals": 1,
}
PASSED_ON = {**STRATIFY, "chunk": 5, "retain": "all"}
ADAPTIVE = {"weights": None, "server_lr": 0.01, "beta1": 0.9, "tau": 0.001, "beta2": 0.99}
GRAPH = {"graph": "ring", "degree": 4, "graph_seed": 0}
LORA = {"rank": 8, "alpha": 16.0, "target": ("all",), "head": True}
DEFAULTS: dict[str, dict[str, Any]] = {
    "afl-cp": {
        "entropy": 1.0,
        "reliability": 1.0,
        "speed": 1.0,
        "consistency": 0.0,
        "consistency_of": "direction",
        "floor": 0.1,
        "epsilon": None,
        "refresh": None,
        "tellings": None,
        "longest": None,
        "candidates": None,
        "normalise": "extremes",
        "score": "fixed",
    },
    "attack": {
        "kind": "sign-flip",
        "share": 0.2,
        "strength": 1.0,
        "target": "0",
        "poisoned": 0.5,
    },
    "ccvr": {
        "features": 500,
        "head_epochs": 10,
        "head_lr": 0.01,
        "head_batch": 64,
        "every": None,
    },
    "central": {},
    "clip": {"norm": 10.0},
    "ditto": {"weights": None, "lam": 1.0},
    "dp": {"noise": 1.0, "clip": 1.0, "delta": 1e-5},
    "fedadagrad": {"weights": None, "server_lr": 0.01, "beta1": 0.0, "tau": 0.001},
    "fedadam": ADAPTIVE,
    "fedasync": {
        "mu": 0.005,
        "alpha": 0.6,
        "staleness": "polynomial",
        "power": 0.5,
        "wait": 4,
    },
    "fedavg": {"weights": None},
    "fedavgm": {"weights": None, "server_lr": 1.0, "beta": 0.9},
    "fedbn": {"weights": None},
    "fedbs": {"tau": None, "importance": "equal", "rows": "batch"},
    "fedbuff": {"buffer": 10, "server_lr": 1.0},
    "feddyn": {"weights": None, "alpha": 0.01},
    "fedga": {},
    "fedlc": {"weights": None, "tau": 1.0},
    "fednova": {"weights": None},
    "fedntd": {"weights": None, "beta": 1.0, "tau": 1.0},
    "fedpbs": {
        "mu": 0.01,
        "variant": "algorithm4",
        "mu_rule": "constant",
        "mu_cap": 10.0,
        "variance": None,
        "v_th": None,
        "v_quantile": 0.5,
        "b_th": None,
        "b_quantile": None,
        "b_min": 2,
        "work": "epochs",
        "weights": None,
        "tau": None,
        "importance": "equal",
    },
    "fedper": {"weights": None},
    "fedprox": {"weights": None, "mu": 0.01},
    "fedprox-layers": {"weights": None, "mu": 0.01, "adapt": 0.5, "group": "tensor"},
    "fedrep": {"weights": None},
    "fedsam": {"weights": None, "rho": 0.05},
    "fedtan": {"weights": None, "steps": "first"},
    "fedyogi": ADAPTIVE,
    "krum": {"attackers": 1, "keep": 1},
    "lg-fedavg": {"weights": None},
    "local": {},
    "median": {},
    "mfedbn": {"weights": None, "eta": 0.1, "norm": "local"},
    "moon": {"weights": None, "mu": 1.0, "tau": 0.5},
    "fedala": {"weights": None, "ala_steps": 5, "ala_lr": 1.0, "part": "head"},
    "fedrod": {"weights": None},
    "per-fedavg": {"weights": None, "inner_lr": 0.01, "version": "fo", "delta": 1e-3},
    "pfedme": {"weights": None, "lam": 15.0, "inner_steps": 5, "inner_lr": 0.05, "beta": 1.0},
    "fedamp": {
        "lam": 1.0,
        "alpha": 1.0,
        "sigma": 1.0,
        "similarity": "distance",
        "own_share": 0.5,
    },
    "fedfomo": {"offers": 5, "explore": 0.3, "mixing": "loss"},
    "fedpac": {"weights": None, "lam": 1.0},
    "hierarchical": {
        "edges": 2,
        "every": 5,
        "by": "order",
        "nearer": 10.0,
        "mbit": 100.0,
        "latency": 0.05,
    },
    "ifca": {"weights": None, "models": 2, "part": "all", "start": "random"},
    "cfl": {"weights": None, "eps1": 0.4, "eps2": 0.6, "wait": 5},
    "d-psgd": GRAPH,
    "gossip": GRAPH,
    "fedproto": {"weights": None, "lam": 1.0},
    "apfl": {"weights": None, "mixture": 0.5, "adaptive": True},
    "fedbabu": {"weights": None, "tune_epochs": 5, "tune_lr": None, "tune": "all"},
    "finetune": {"tune_epochs": 1, "tune_steps": None, "tune_lr": None, "tune": "all"},
    "fedexp": {"weights": None, "epsilon": 1e-3},
    "fedrs": {"weights": None, "alpha": 0.5},
    "power-of-choice": {"candidates": 2.0, "rows": "all"},
    "norm-test": {"bound": 0.5, "fewest": 4},
    "q-fedavg": {"weights": None, "q": 1.0},
    "lora": LORA,
    "ffa-lora": LORA,
    "flora": {**LORA, "ranks": None},
    "fedex-lora": LORA,
    "fedsa-lora": LORA,
    "fed-sb": {**LORA, "rank": 16, "alpha": None},
    "quantize": {"bits": 8},
    "scaffold": {"weights": None, "option": "II", "server_lr": 1.0},
    "sfl": {},
    "stratify-batch": STRATIFY,
    "stratify-hybrid": {**PASSED_ON, "batch_rounds": 5, "single_lr": None},
    "stratify-rounds": {**STRATIFY, "share": 0.25, "until": None},
    "stratify-single": PASSED_ON,
    "topk": {"share": 0.1},
    "trimmed-mean": {"trim": 0.1},
}
COSTS = {
    "apfl": 2.0,
    "fedntd": 4 / 3,
    "fedsam": 2.0,
    "moon": 5 / 3,
    "per-fedavg": 2.0,
    "pfedme": 5.0,
}  # other models look at a row, or gradients


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_options_that_nobody_gives(name: str) -> None:
    method = resolve(name)
    found = {field.name: getattr(method, field.name) for field in fields(method)}
    assert found == DEFAULTS[name]
    assert method.cost_per_row == pytest.approx(COSTS.get(name, 1.0))


def test_every_built_in_method_is_here() -> None:
    built_in = set()
    for name, method in algorithms.loaded().items():
        if method.__module__.startswith("fedskew."):
            built_in.add(name)
    assert built_in == DEFAULTS.keys()


def test_the_model_of_dittos_clients_is_pulled_as_strongly_as_ditto_says() -> None:
    personal = resolve("ditto").personal_method
    assert personal is not None
    assert personal.lam == 1.0  # type: ignore[attr-defined]
    assert type(personal)().lam == 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "round", "scale"),
    [
        ("stratify-single", 1, 1.0),
        ("stratify-hybrid:batch_rounds=2", 9, None),
        ("stratify-hybrid:batch_rounds=2,single_lr=0.5", 9, 0.5),
    ],
)
def test_the_learning_rate_of_single_samples(spec: str, round: int, scale: float | None) -> None:
    assert resolve(spec).topology(round).lr_scale == scale  # type: ignore[union-attr]


def test_a_schedule_is_plain_unless_its_method_says_otherwise() -> None:
    plain = Sequential(lambda holdings, pool, stream: None)  # type: ignore[arg-type, return-value]
    assert (plain.label_access, plain.counts_labels, plain.secure) == ("none", False, False)
    assert (plain.lr_scale, plain.round_totals, plain.single_samples) == (1.0, 1, False)
    assert resolve("sfl").topology(1).single_samples is False  # type: ignore[union-attr]
    assert resolve("stratify-single").topology(1).single_samples is True  # type: ignore[union-attr]


class Counts(Calibrator):
    """Counts rows and sums features."""

    def class_statistics(self, features: Tensor, labels: Tensor, classes: int) -> Tree:
        return {
            "of rows": {"count": torch.bincount(labels, minlength=classes)},
            "of features": {"sum": features.sum(0), "largest label": labels.max().clone()},
        }


def test_statistics_of_rows_add_up() -> None:
    total: Tree = {}
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    Counts().add_statistics(total, features[:2], torch.tensor([0, 2]), 3)
    Counts().add_statistics(total, features[2:], torch.tensor([2]), 3)
    assert total["of rows"]["count"].tolist() == [1, 0, 2]
    assert total["of features"]["sum"].tolist() == [9.0, 12.0]
    assert total["of features"]["largest label"].item() == 4  # a sum like the others


def test_a_calibrator_says_what_it_lacks() -> None:
    nothing = torch.zeros(0)
    with pytest.raises(NotImplementedError):
        Calibrator().class_statistics(nothing, nothing, 2)
    with pytest.raises(NotImplementedError):
        Calibrator().calibrate({}, {}, lambda *_: nothing, Stream(0, "head"))
    assert Calibrator().every is None


def test_one_part_is_no_composition() -> None:
    assert composed((FedAvg,)) is FedAvg


def test_what_methods_are_made_of_can_be_imported_from_one_place() -> None:
    for name in dir(fedskew.algorithms):
        assert getattr(fedskew.algorithms, name) is not None
    for name, module in fedskew.algorithms._CONTRACT.items():
        assert len(name) > 1
        assert module.startswith("fedskew.")
    with pytest.raises(AttributeError, match="has no attribute 'FedNothing'"):
        _ = fedskew.algorithms.FedNothing
