"""What a comparison scores is what predictions are made with: every registered method, with and without BatchNorm."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedskew as fs
from fedskew.algorithms.contract import algorithms
from fedskew.core.errors import FedskewError
from fedskew.core.trees import Tensors
from fedskew.engine.inference import Inference

WITH_BATCHNORM, WITHOUT = "tabular:hidden=8", "mlp:hidden=8"
SINGLE = "trains on one sample at a time, and BatchNorm has no spread"
REFUSED = {  # methods that take no model with BatchNorm, and why
    "stratify-single": SINGLE,
    "stratify-hybrid": SINGLE,
    "dp": "to which neither clipping nor noise applies",
}
SEVERAL = ("ifca", "cfl", "fedamp", "fedfomo", "d-psgd", "gossip")  # models, not one
REFUSED |= dict.fromkeys(SEVERAL, "between different models: use norm=local")
# With any model
IN_PARTS = {"fedper", "fedsa-lora", "fedproto", "fedrep", "lg-fedavg", "local", "fedpac", *SEVERAL}
IN_PARTS_WITH_BATCHNORM = {*IN_PARTS, "fedbn", "mfedbn"}
VARIANTS = {  # method, model and setting: whether clients share a whole model
    ("fedavg", WITH_BATCHNORM, "norm=local"): False,
    ("fedavg", WITH_BATCHNORM, "norm=silo"): False,
    ("fedavg", WITHOUT, "norm=local"): True,
    ("ditto", WITH_BATCHNORM, "norm=local"): False,
    ("mfedbn:norm=global", WITH_BATCHNORM, "norm=aggregate"): True,
    ("fedbn + ccvr:every=1", WITH_BATCHNORM, "norm=aggregate"): False,
    ("fedavg + ccvr:every=2", WITHOUT, "norm=aggregate"): True,
}


@pytest.fixture(scope="module")
def frames() -> dict[str, pd.DataFrame]:
    """Return the tables of six clients, whose first 20 rows are to be their test rows."""
    draw, result = np.random.default_rng(0), {}
    for place, name in enumerate("ABCDEF"):
        rows = 60 + 10 * place
        x = draw.normal(place / 10, 1, size=(rows, 4))
        score = x @ [1.0, -1.0, 0.5, 0.0] + draw.normal(0, 0.7, rows) + 0.3 * place
        label = np.select([score < -0.7, score < 0.9], ["low", "middle"], "high")
        result[f"clinic_{name}"] = pd.DataFrame(x, columns=["a", "b", "c", "d"]).assign(level=label)
    return result


@pytest.fixture(scope="module")
def fed(frames: dict[str, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> fs.Federation:
    folder = tmp_path_factory.mktemp("clinics")
    for name, frame in frames.items():
        frame.iloc[20:].to_csv(folder / f"{name}.csv", index=False)
        frame.iloc[:20].to_csv(folder / f"{name}-test.csv", index=False)
    return fs.split(fs.load(f"{folder}:label=level"))


def rate(found: pd.DataFrame, rows: pd.DataFrame) -> float:
    """Return how many of the predictions are right."""
    return float((found["prediction"].to_numpy() == rows["level"].to_numpy()).mean())


def with_own_models(run: fs.Run, opened: fs.Run) -> fs.Run:
    """Return the run that predicts with the models of clients: that of the folder, unless they adapt them on rows."""
    rows_needed = ("adapted on the client's rows", "chosen by its loss on the client's rows")
    if run.summary.get("client_model") not in rows_needed:
        return opened
    with pytest.raises(FedskewError, match="the folder has no rows"):
        opened.model_of(0)
    return run


def check(
    fed: fs.Federation,
    frames: dict[str, pd.DataFrame],
    place: Path,
    spec: str,
    model: str,
    **more: Any,
) -> bool:
    """Train, and compare every score with the predictions that a user gets; return whether there is a shared score."""
    settings = {
        "rounds": 2,
        "batch_size": 16,
        "lr": 0.05,
        "folder": place / "run",
        "device": "cpu",
        **more,
    }
    run = fs.train(fed, model, spec, **settings)
    opened, table = fs.open_run(place / "run"), fs.compare(place / "run")
    tested = {name: frame.iloc[:20] for name, frame in frames.items()}
    everything = pd.concat(tested.values(), ignore_index=True)
    shared = table.attrs["goal"] == "shared"
    assert shared == run.server.has_common_model
    if shared:
        score = table["score"][0]
        for used in (run, opened):
            assert rate(used.predict(everything), everything) == pytest.approx(score, abs=1e-12)
    else:
        assert table["score"][0] == run.summary["client_accuracy_mean"]
        known = [name for name, value in run.summary.items() if value is not None]
        counted = {"train_majority_rate", "test_majority_rate", "test_rows"}
        for name in {*known, *run.rounds, *table} - counted:
            assert not name.startswith(("train_", "test_", "calibrated_", "backdoor_"))
        for used in (run, opened):
            why = "share no whole one"
            if run.server.algorithm.no_shared_model:
                why = run.server.algorithm.no_shared_model
            with pytest.raises(
                FedskewError, match=f"{why}: say whose to use, client= one of clinic_A"
            ):
                used.predict(everything)
    own = run.final_clients.set_index("name")["accuracy"]
    used = with_own_models(run, opened)
    for name, rows in tested.items():
        assert rate(used.predict(rows, client=name), rows) == pytest.approx(own[name], abs=1e-12)
    assert run.summary["client_accuracy_mean"] == pytest.approx(own.mean(), abs=1e-12)
    return shared


@pytest.mark.parametrize("model", [WITH_BATCHNORM, WITHOUT], ids=["BatchNorm", "no BatchNorm"])
@pytest.mark.parametrize("method", list(algorithms))
@pytest.mark.filterwarnings("ignore:.*here it is fed")
def test_what_is_scored_is_what_predicts(
    fed: fs.Federation, frames: dict[str, pd.DataFrame], tmp_path: Path, method: str, model: str
) -> None:
    if method == "dp":
        pytest.importorskip("dp_accounting")
    if model == WITH_BATCHNORM and method in REFUSED:
        with pytest.raises(FedskewError, match=REFUSED[method]):
            check(fed, frames, tmp_path, method, model)
        return
    in_parts = IN_PARTS_WITH_BATCHNORM if model == WITH_BATCHNORM else IN_PARTS
    assert check(fed, frames, tmp_path, method, model) == (method not in in_parts)


@pytest.mark.parametrize(("spec", "model", "norm"), VARIANTS)
def test_norms_and_compositions(
    fed: fs.Federation,
    frames: dict[str, pd.DataFrame],
    tmp_path: Path,
    spec: str,
    model: str,
    norm: str,
) -> None:
    found = check(fed, frames, tmp_path, spec, model, norm=norm.removeprefix("norm="))
    assert found == VARIANTS[spec, model, norm]


# -- row by row, of both goals, in both engines ------------------------------------------------------------------------


class Scored:
    """Notes what the evaluation of a run makes of rows: the prediction for every row, of whichever model is scored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[tuple[torch.Tensor, torch.Tensor]] = []
        plain, stacked = Inference.outputs, Inference.stacked_outputs

        def noted(
            inference: Inference, tensors: Tensors, x: torch.Tensor, rows: torch.Tensor
        ) -> Iterator[Any]:
            for outputs, some in plain(inference, tensors, x, rows):
                self._note(x[some], outputs)
                yield outputs, some

        def noted_stack(
            inference: Inference, stack: Tensors, x: torch.Tensor, pieces: Any
        ) -> Iterator[Any]:
            for outputs, rows, real in stacked(inference, stack, x, pieces):
                for model in range(len(rows)):
                    mine = real[model]
                    self._note(x[rows[model][mine]], outputs[model][mine])
                yield outputs, rows, real

        monkeypatch.setattr(Inference, "outputs", noted)
        monkeypatch.setattr(Inference, "stacked_outputs", noted_stack)

    def _note(self, x: torch.Tensor, outputs: torch.Tensor) -> None:
        self.outputs.append((x.clone(), outputs.clone()))

    def predictions(self, features: np.ndarray) -> list[np.ndarray]:
        """Return, for each time that all of these rows were scored one after the other, what was predicted for them."""
        found = []
        wanted = torch.from_numpy(features)
        for x, outputs in self.outputs:
            for first in range(len(x) - len(wanted) + 1):
                if torch.equal(x[first : first + len(wanted)], wanted):
                    found.append(outputs[first : first + len(wanted)].argmax(1).numpy())
        return found


@pytest.fixture(scope="module")
def arrays() -> fs.Federation:
    """Return clients of arrays, whose numbers are the features: they hold rows out, and there are common test rows."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(400, 4)).astype(np.float32)
    score = x @ [1.0, -1.0, 0.5, 0.0] + draw.normal(0, 0.7, len(x))
    y = np.select([score < -0.7, score < 0.9], ["low", "middle"], "high")
    return fs.split((x, y), "dirichlet:alpha=0.5", 5, client_test=0.3)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", list(algorithms))
def test_row_by_row(
    arrays: fs.Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    engine: str,
) -> None:
    """Compare the predictions that both goals are scored by with those that a user gets from the run's folder."""
    if method == "dp":
        pytest.importorskip("dp_accounting")
    run = fs.train(
        arrays, WITHOUT, method, rounds=2, batch_size=16, lr=0.05, engine=engine, device="cpu",
        folder=tmp_path / "run",
    )  # fmt: skip
    opened = fs.open_run(tmp_path / "run")
    names = np.array(arrays.data.classes, dtype=object)
    scorer = run.server.scorer
    with monkeypatch.context() as watched:
        scored = Scored(watched)
        scorer.evaluator.client_scores(scorer.common(), scorer.own(np.arange(arrays.clients)))
    accuracy = run.final_clients["accuracy"]
    used = with_own_models(run, opened)
    for client in range(arrays.clients):
        mine = arrays.train.take(arrays.held_out.of(client))
        predicted = used.predict(mine.x, client=client)["prediction"].to_numpy()
        (seen,) = scored.predictions(mine.x)
        assert (names[seen] == predicted).all()
        assert accuracy[client] == pytest.approx((predicted == names[mine.y]).mean(), abs=1e-12)
    assert run.summary["client_accuracy_mean"] == accuracy.mean()
    if not run.server.has_common_model:
        return
    with monkeypatch.context() as watched:
        scored = Scored(watched)
        score = scorer.all_scores()["test"]["accuracy"]
    predicted = opened.predict(arrays.test.x)["prediction"].to_numpy()
    (seen,) = scored.predictions(arrays.test.x)
    assert (names[seen] == predicted).all()
    assert score == pytest.approx((predicted == names[arrays.test.y]).mean(), abs=1e-12)
