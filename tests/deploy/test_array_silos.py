"""Runs on silos' own NPZ files: the numbers of a simulation, few messages, and the errors of files that do not fit."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.deploy.silos import NAMES, SETTINGS, SilosInProcess, assert_same_run, forms

import fedskew as fs
from fedskew.core.config import Experiment
from fedskew.core.errors import FedskewError
from fedskew.data.schema import Scaling
from fedskew.deploy.deployment import run_on_nodes
from fedskew.deploy.flower_processes import node_process
from fedskew.deploy.remote_clients import Nodes
from fedskew.runs.run import Run

Arrays = dict[str, np.ndarray[Any, Any]]
Start = Callable[..., Run]


def arrays(number: int, shape: tuple[int, ...] = (4,), kind: str = "class") -> Arrays:
    """Return the rows of a silo."""
    rng = np.random.default_rng(number)
    x = rng.normal(3 + number, 2, (40 + 10 * number, *shape))
    score = x.reshape(len(x), -1)[:, :2]
    y = {
        "class": np.array(["low", "middle", "high"])[np.digitize(score[:, 0], [2.0, 5.0])],
        "number": score.sum(axis=1),
        "labels": (score > 3).astype(int),
    }[kind]
    return {"x": x, "y": y}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., list[Path]]:
    """Return a function that writes the files of all silos."""

    def write(*silos: Arrays) -> list[Path]:
        paths = [tmp_path / f"{name}.npz" for name in NAMES[: len(silos)]]
        for path, content in zip(paths, silos, strict=True):
            np.savez(path, **content)
        return paths

    return write


@pytest.fixture
def started(tmp_path: Path) -> Start:
    """Return a function that runs FedAvg on nodes with these files."""

    def start(
        paths: list[Path], options: str = "", asked: list[str] | None = None, **settings: Any
    ) -> Run:
        chosen = {"model": "logreg", **SETTINGS, **settings}
        silos = SilosInProcess(
            list(paths), tmp_path / "state", rounds=[] if asked is None else asked
        )
        experiment = Experiment(data=f"silos:label=y{options}", **chosen)
        return run_on_nodes(Nodes(silos), len(paths), experiment, tmp_path / "run")

    return start


def in_one_place(
    paths: list[Path], options: dict[str, Any], validation: float = 0.0, **settings: Any
) -> Run:
    data = fs.load(
        {"name": "silos", "paths": tuple(map(str, paths)), **options}, validation=validation
    )
    chosen = {"engine": "loop", "folder": False, **SETTINGS, **settings}
    return fs.train(fs.split(data, "natural"), chosen.pop("model", "logreg"), "fedavg", **chosen)


CASES: dict[str, tuple[tuple[int, ...], str, dict[str, Any], dict[str, Any]]] = {
    "table": ((4,), "class", {}, {}),
    "images": ((2, 6, 6), "class", {}, {"validation": 0.2}),
    "as they are": ((4,), "class", {"standardize": False}, {}),
    "numbers": ((4,), "number", {"target": "number"}, {}),
    "labels": ((4,), "labels", {"target": "labels", "test": 0.5}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_that_of_all_rows_in_one_place(
    written: Callable[..., list[Path]], started: Start, case: str
):
    shape, kind, options, settings = CASES[case]
    paths = written(*(arrays(number, shape, kind) for number in range(3)))
    told = "".join(f",{name}={str(value).lower()}" for name, value in options.items())
    asked: list[str] = []
    found, expected = (
        started(paths, told, asked, **settings),
        in_one_place(paths, options, **settings),
    )
    columns = [
        name for name in ("train_loss", "test_loss", "validation_loss") if name in expected.rounds
    ]
    for name, value in expected.model.state_dict().items():
        np.testing.assert_allclose(
            found.model.state_dict()[name].numpy(), value.numpy(), rtol=1e-9, atol=1e-12
        )
    np.testing.assert_allclose(
        found.rounds[columns].astype(float), expected.rounds[columns].astype(float), rtol=1e-9
    )
    assert len(columns) == (3 if "validation" in settings else 2)
    moments = 0 if options.get("standardize") is False else 1
    assert asked[: 3 + moments] == ["Question"] * (1 + moments) + ["CountRows", "Train"]


def test_own_test_rows_one_class_and_predictions(
    written: Callable[..., list[Path]], started: Start
):
    """Classes are numbers here and the same as text there; a silo of one class takes part, and the others name it."""
    silos = [arrays(number) for number in range(3)]
    for number, silo in enumerate(silos):
        x, y = silo["x"], np.arange(len(silo["x"])) % 3
        silo |= {"x": x[10:], "y": y[10:], "x_test": x[:10], "y_test": y[:10]}
        if number == 1:
            silo |= {"y": np.full(len(x) - 10, "2"), "y_test": np.full(10, "2")}
    paths = written(*silos)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = started(paths), in_one_place(paths, {})
    assert_same_run(found, expected)
    assert (len(found.server.fed.test), found.clients["rows"][:3].tolist()) == (30, [30, 40, 50])
    assert (
        "hospital_B has no row of class '0', '1' (column 'y')" in found.server.fed.data.differences
    )
    assert found.server.fed.data.differences == expected.server.fed.data.differences
    new = silos[0]["x_test"]
    pd.testing.assert_frame_equal(fs.open_run(found.folder).predict(new), expected.predict(new))


@pytest.mark.parametrize("shape", [(4,), (1, 2, 2)])
def test_no_value_of_a_row_is_in_any_message(
    written: Callable[..., list[Path]], tmp_path: Path, shape: tuple[int, ...]
):
    """A planted value, as in the file and as the model gets it; quartiles and ends of columns are told by design."""
    silos, planted = [arrays(number, shape) for number in range(3)], 4.4242
    silos[1]["x"].flat[0] = planted
    assert planted not in np.quantile(silos[1]["x"], [0, 0.25, 0.5, 0.75, 1], axis=0)
    transport = SilosInProcess(written(*silos), tmp_path / "state")
    experiment = Experiment(data="silos:label=y", model="logreg", **{**SETTINGS, "rounds": 1})
    scaling = run_on_nodes(Nodes(transport), 3, experiment, tmp_path / "run").server.fed.data.schema
    assert isinstance(scaling, Scaling)
    everything, inside = b"".join(transport.sent), (planted - scaling.offset[0]) * scaling.factor[0]
    assert any(form in everything for form in forms(scaling.offset[0]))
    for value in (planted, inside, float(np.float32(inside))):
        assert not any(form in everything for form in forms(value))


def with_nan() -> Arrays:
    silo = arrays(1)
    silo["x"][7, 2] = np.nan
    return silo


BROKEN: dict[str, tuple[Arrays, str]] = {
    "another shape": (
        arrays(1, (5,)),
        r"hospital_B has rows of shape \(5,\), and hospital_A has rows of shape \(4,\): give files of one kind",
    ),
    "NaN": (with_nan(), r"client 1: hospital_B: .*row \d+ holds NaN or infinity; fill or drop it"),
    "lengths": (
        {"x": np.zeros((9, 4)), "y": np.arange(8)},
        "hospital_B.npz: 9 rows of features but 8 labels",
    ),
    "no y": ({"x": np.zeros((9, 4))}, "hospital_B.npz has no array 'y', it holds x"),
    "text": ({"x": np.full((9, 4), "a"), "y": np.arange(9)}, "x holds <U1 values, not numbers"),
    "fractions": (
        {"x": np.zeros((9, 4)), "y": np.arange(9) / 2},
        "y holds '…', labels must be whole numbers or text",
    ),
    "objects": (
        {"x": np.zeros((9, 4)), "y": np.array([{}] * 9)},
        "it holds Python objects .* never unpickled",
    ),
    "windows": (
        {**arrays(1), "series": np.zeros(50, int)},
        "hospital_B.npz holds windows that overlap",
    ),
    "test rows": (
        {**arrays(1), "x_test": np.zeros((3, 5)), "y_test": np.arange(3)},
        r"hospital_B: test rows of shape \(5,\), training rows of shape \(4,\)",
    ),
    "too far apart": (
        {"x": np.full((50, 4), 2.0**660), "y": arrays(1)["y"]},
        "x holds numbers too large to add up",
    ),
    "too large": (
        {"x": np.full((50, 4), 1e300), "y": arrays(1)["y"]},
        "client hospital_B: moments of column '0': squares: told inf, expected a finite number",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_does_not_fit_is_named_before_round_1(
    written: Callable[..., list[Path]], started: Start, tmp_path: Path, case: str
):
    content, message = BROKEN[case]
    with pytest.raises(FedskewError, match=message):
        started(written(arrays(0), content, arrays(2)))
    assert not (tmp_path / "run").exists()


def test_labels_of_other_width_and_a_wrong_name_of_the_label(
    written: Callable[..., list[Path]], started: Start
):
    paths = written(arrays(0, kind="labels"), {"x": arrays(1)["x"], "y": np.ones((50, 3), int)})
    with pytest.raises(FedskewError, match="hospital_B has 3 labels per row, and hospital_A has 2"):
        started(paths, ",target=labels,test=0.5")
    tested = {"x_test": arrays(1)["x"], "y_test": np.ones((50, 3), int)}
    with pytest.raises(FedskewError, match="hospital_A: y and y_test have other numbers of labels"):
        started(written(arrays(0, kind="labels") | tested), ",target=labels")
    experiment = Experiment(data="silos:label=outcome", model="logreg")
    nodes = Nodes(SilosInProcess(list(paths), paths[0].parent))
    with pytest.raises(FedskewError, match="holds arrays, with the targets in y: say label=y"):
        run_on_nodes(nodes, 2, experiment, paths[0].parent / "run")


@pytest.mark.parametrize("table", [0, 2])
def test_arrays_and_tables_do_not_go_together(
    written: Callable[..., list[Path]], started: Start, table: int
):
    paths = written(*(arrays(number) for number in range(3)))
    frame = pd.DataFrame({"a": np.arange(30.0), "y": np.arange(30) % 2})
    paths[table] = paths[table].with_suffix(".csv")
    frame.to_csv(paths[table], index=False)
    with pytest.raises(
        FedskewError, match=rf"holds arrays, and {NAMES[table]} a table: give files of one kind"
    ):
        started(paths)


def test_a_node_reads_its_file_before_anything_connects(
    written: Callable[..., list[Path]], tmp_path: Path
):
    pytest.importorskip("flwr", reason="needs fedskew[flower]")
    good, bad = written(arrays(0), {"x": np.zeros((9, 4))})
    with pytest.raises(FedskewError, match="has no array 'y'"):
        node_process(bad, "127.0.0.1:8000", tmp_path / "state", None, None, None)
    made = node_process(good, "127.0.0.1:8000", tmp_path / "state", None, None, None)
    assert f"data='{good}'" in " ".join(made.arguments)
