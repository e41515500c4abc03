"""The contract: spellings, bounds and errors, and what every registered method must have."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from fedskew.algorithms.bounds import Central, Local
from fedskew.algorithms.contract import Algorithm, algorithms, resolve
from fedskew.algorithms.fedprox import FedProx
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.registry import Choice
from fedskew.data.partition import Partition
from fedskew.models.build import build
from fedskew.models.layout import layout
from fedskew.server.refusals import check_choices


@pytest.mark.parametrize("name", list(algorithms))
def test_every_method(name: str):
    algorithm = resolve(name)
    assert algorithm.label() == name
    assert resolve(str(algorithm)) == algorithm  # what is written down can be read back
    assert resolve({"name": name, **algorithm.options()}) == algorithm
    for option in algorithms.options(name).values():
        assert option.help, f"{name} does not explain {option.name}"
        with pytest.raises(FrozenInstanceError):
            setattr(algorithm, option.name, option.default)


def test_all_spellings_agree():
    wanted = FedProx(mu=0.5, weights="uniform")
    for spec in (
        wanted,
        "fedprox:mu=0.5,weights=uniform",
        {"name": "fedprox", "mu": 0.5, "weights": "uniform"},
        Choice("fedprox", {"mu": "0.5", "weights": "uniform"}),
    ):
        assert resolve(spec) == wanted
    assert resolve(FedProx) == FedProx()
    assert FedProx(mu="0.5").mu == 0.5


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fedprx", "unknown algorithm 'fedprx': did you mean 'fedprox'"),
        ("fedprox:mu=-1", "algorithm fedprox: mu=-1 is out of range, it must be >= 0"),
        ("fedprox:mu=big", "mu=big is not a number"),
        (
            "fedprox:weight=1",
            "unknown option of algorithm fedprox 'weight': did you mean 'weights'",
        ),
        ("fedavgm:beta=1", "beta=1 is out of range, it must be >= 0 and < 1"),
        ("fedavg:weights=rows", "weights=rows is not one of size, uniform"),
        ("central:x=1", "algorithm central takes no options, got 'x'"),
        (int, "int is not an algorithm"),
        (7, "algorithm 7: write it as text, .* or as a table with a name"),
    ],
)
def test_bad_spellings_are_refused(spec, says: str):
    with pytest.raises(FedskewError, match=says):
        resolve(spec)


def test_a_bad_value_is_refused_in_python_too():
    with pytest.raises(FedskewError, match="algorithm fedprox: mu=-1 is out of range"):
        FedProx(mu=-1)


def test_an_own_class_needs_no_registration():
    class Mine(Algorithm):
        """A method that changes nothing."""

    assert Mine.label() == "Mine"
    assert isinstance(resolve(Mine), Mine)


def test_methods_of_local_sgd_refuse_adam_and_nobody_else_does():
    for name in algorithms:
        check_choices(resolve(name), Settings(optimizer="sgd"))
        if name in ("fednova", "per-fedavg", "pfedme", "scaffold"):
            with pytest.raises(
                FedskewError,
                match=f"{name} .* local SGD, got optimizer=adam: use optimizer=sgd, other options",
            ):
                check_choices(resolve(name), Settings(optimizer="adam"))
        else:
            check_choices(resolve(name), Settings(optimizer="adam"))


def test_the_two_bounds():
    split = Partition(np.array([4, 1, 3, 0, 2]), np.array([0, 2, 5]))
    assert split.pooled().of(0).tolist() == [0, 1, 2, 3, 4]
    assert "pooled_rows" in Central().requires
    assert "pooled_rows" not in Local().requires
    names = layout(build("tabular:hidden=4", (3,), 2, seed=0))
    assert Local().local_names(names) == names.parameters | names.buffers
    assert Central().local_names(names) == frozenset()
