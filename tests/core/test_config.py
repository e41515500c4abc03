"""Settings: types and bounds, conflicts, and round trips through TOML files."""

from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest

from fedskew.core.config import CHOICES, Experiment, Settings, read_file, to_toml
from fedskew.core.errors import FedskewError
from fedskew.core.registry import options_of


@pytest.mark.parametrize("kind", [Settings, Experiment])
def test_every_setting_is_explained_and_its_default_allowed(kind: type):
    assert kind() == kind(**asdict(kind()))
    for option in options_of(kind).values():
        assert option.help, option.name
        assert not option.required


def test_values_are_converted():
    settings = Settings(
        lr="0.5", rounds=3.0, per_round="none", nesterov="true", momentum="0.9", threads="2"
    )
    assert (settings.lr, settings.rounds, settings.per_round, settings.nesterov) == (
        0.5,
        3,
        None,
        True,
    )
    assert (settings.momentum, settings.threads) == (0.9, 2)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rounds": 0}, "rounds=0 is out of range, it must be >= 1"),
        ({"per_round": 0}, "per_round=0 is out of range"),
        ({"lr": 0}, "lr=0 is out of range, it must be > 0"),
        ({"momentum": 1}, "momentum=1 is out of range, it must be >= 0 and < 1"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1 is out of range"),
        ({"batch_size": "many"}, "batch_size=many is not a whole number"),
        ({"optimizer": "rmsprop"}, "optimizer=rmsprop is not one of sgd, adam"),
        ({"dtype": "float16"}, "dtype=float16 is not one of float32, float64"),
        ({"norm": "none"}, "norm=none is not one of aggregate, local"),
        ({"memory": 0}, "memory=0 is out of range"),
        ({"seed": -1}, "seed=-1 is out of range"),
        ({"lr": {"name": "x"}}, "lr={'name': 'x'} is not a number"),
        ({"nesterov": True}, "nesterov=true needs optimizer=sgd and a momentum above 0"),
        ({"nesterov": True, "optimizer": "adam"}, "nesterov=true needs"),
        ({"momentum": 0.9, "optimizer": "adam"}, "momentum=0.9 clashes with optimizer=adam"),
    ],
)
def test_what_settings_refuse(values: dict, says: str):
    for kind in (Settings, Experiment):
        with pytest.raises(FedskewError, match=says):
            kind(**values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"clients": 0}, "clients=0 is out of range"),
        ({"validation": 1}, "validation=1 is out of range, it must be >= 0 and < 1"),
        ({"client_test": -1}, "client_test=-1 is out of range"),
        ({"model": [1]}, r"model=\[1\] is not text or a table"),
    ],
)
def test_what_an_experiment_refuses(values: dict, says: str):
    with pytest.raises(FedskewError, match=says):
        Experiment(**values)


def test_an_experiment_holds_its_settings():
    experiment = Experiment(lr=0.3, epochs=2, clients=4, schedule="cosine")
    settings = experiment.settings()
    assert type(settings) is Settings
    assert settings == Settings(lr=0.3, epochs=2, schedule="cosine")
    assert set(CHOICES) <= {field.name for field in fields(Experiment)}


@pytest.mark.parametrize(
    "experiment",
    [
        Experiment(),
        Experiment(
            lr=1e-7, memory=1e5, per_round=3, eval_rows=None, tensorboard=True, seed=2**63 - 1
        ),
        Experiment(
            data={
                "name": "csv",
                "path": 'C:\\a "b"\n\t\r\x07\x7fü…',
                "header": True,
                "columns": [1, 2],
            }
        ),
        Experiment(
            model={"name": "mlp", "hidden": (5, 3)},
            skew={"name": "iid", "a": np.float64(0.1)},
            algorithm="fedprox:mu=0.1",
        ),
    ],
)
def test_there_and_back(experiment: Experiment, tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_text(to_toml(asdict(experiment)), encoding="utf-8")
    again = Experiment(**read_file(path))
    lists = {
        name: [list(v) if isinstance(v, tuple) else v for v in value.values()]
        if isinstance(value, dict)
        else value
        for name, value in asdict(experiment).items()
    }
    found = {
        name: list(value.values()) if isinstance(value, dict) else value
        for name, value in asdict(again).items()
    }
    assert found == lists  # TOML has lists only


def test_a_file_may_use_dashes_and_tables(tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_text('batch-size = 16\nskew = "iid"\n[algorithm]\nname = "fedprox"\nmu = 0.1\n')
    assert read_file(path) == {
        "batch_size": 16,
        "skew": "iid",
        "algorithm": {"name": "fedprox", "mu": 0.1},
    }


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("round = 3", "unknown setting in .*run.toml 'round': did you mean 'rounds'"),
        ("lr = 1\n[lr2]\nx = 1", "unknown setting in .*run.toml 'lr2'"),
        ("[lr]\nvalue = 1", "run.toml: lr takes a single value, not a table"),
        ("lr = ", "run.toml is not a TOML file"),
        ("lr = 1\nlr = 2", "run.toml is not a TOML file"),
        ("batch-size = 1\nbatch_size = 2", "run.toml: batch_size is given twice"),
        (b"\xff\xfe", "run.toml is not a TOML file"),
        (
            f"rounds = 0x{'f' * 100_000}",
            "run.toml: rounds is a whole number of 400000 bits, and TOML has 63",
        ),
        (f"rounds = {'9' * 100_000}", "run.toml is not a TOML file"),
        (
            f"[skew]\nname = 'classes'\nk = [1, 0b{'1' * 5000}]",
            "run.toml: skew.k is a whole number of 5000 bits",
        ),
        (f"rounds = {'[' * 100_000}", "run.toml cannot be read"),
        (f"{'a.' * 50_000}a = 1", r"run.toml: line 1 has a key of 50,001 parts.* 100"),
        (f"lr = 1\n[{'a.' * 50_000}a]\nx = 1", r"run.toml: line 2 has a key of 50,001 parts"),
        (f"{'a . ' * 500}a = 1", r"run.toml: line 1 has a key of 501 parts"),
    ],
)
def test_bad_files_are_refused(content: str | bytes, says: str, tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FedskewError, match=says) as caught:
        read_file(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(FedskewError, match=r"there is no experiment file .*run.toml"):
        read_file(tmp_path / "run.toml")
    with pytest.raises(
        FedskewError, match="is a folder, not an experiment file; to resume a run: fedskew resume"
    ):
        read_file(tmp_path)
