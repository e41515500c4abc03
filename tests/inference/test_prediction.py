"""A trained model in use: the bits of the evaluation, own models of clients, named columns, and what is refused."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.core.manifest import manifest
from fedskew.inference.exported_model import export_model
from fedskew.inference.prediction import decide, features, outputs_of, predict_file, probabilities
from fedskew.runs.folder import FORMAT, RunFolder
from fedskew.tasks.binary import Binary
from fedskew.tasks.classification import Classification
from fedskew.tasks.thresholds import Threshold

Frames = dict[str, pd.DataFrame]
pytestmark = pytest.mark.filterwarnings("ignore:hospital_|only hospital_")


@pytest.fixture
def data(tmp_path: Path, hospitals: Frames) -> fs.Dataset:
    """Return the hospitals with the first 40 rows of each as its own test rows."""
    (tmp_path / "files").mkdir()
    for name, frame in hospitals.items():
        frame.iloc[40:].to_csv(tmp_path / "files" / f"{name}.csv", index=False)
        frame.iloc[:40].to_csv(tmp_path / "files" / f"{name}-test.csv", index=False)
    return fs.load(f"{tmp_path}/files:label=outcome")


def evaluated(run: fs.Run, state: dict[str, Tensor]) -> Tensor:
    """Return the outputs for the test rows as the evaluation of the run computes them."""
    evaluator = run.server.evaluator
    with torch.inference_mode():
        return evaluator._parts["test"].found(state).kept.clone()


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("mlp", {}),
        ("tabular", {"batch_size": 16}),
        ("logreg", {"dtype": "float64"}),
        ("mlp", {"engine": "loop"}),
    ],
)
def test_predictions_have_the_bits_of_the_evaluation(
    data: fs.Dataset, hospitals: Frames, tmp_path: Path, model: str, settings: Any
) -> None:
    run = fs.train(
        fs.split(data), model, rounds=3, folder=tmp_path / "run", device="cpu", **settings
    )
    new = pd.concat([frame.iloc[:40] for frame in hospitals.values()], ignore_index=True)
    wanted = evaluated(run, run.server.state.model())
    opened = fs.open_run(tmp_path / "run")
    for used in (run, opened):
        x = features(used.pipeline, "new", new)
        np.testing.assert_array_equal(x, data.test.x)
        assert torch.equal(outputs_of(used.model_in_use(None), x, used.threads), wanted)
    found = opened.predict(new, proba=True)
    pd.testing.assert_frame_equal(found, run.predict(new, proba=True))
    assert list(found) == ["prediction", "p(died)", "p(discharged)", "p(transferred)"]
    assert (found["prediction"] == new["outcome"]).mean() == run.summary["test_accuracy_last"]
    np.testing.assert_allclose(
        found.iloc[:, 1:].to_numpy(), wanted.double().softmax(1).numpy(), rtol=1e-12
    )
    assert found.index.equals(new.index)


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedper", "ditto", "local", "central"])
def test_the_model_of_a_client(
    data: fs.Dataset, hospitals: Frames, tmp_path: Path, method: str
) -> None:
    fed = fs.split(data)
    run = fs.train(
        fed,
        "tabular",
        method,
        rounds=2,
        batch_size=16,
        per_round=2,
        folder=tmp_path / "run",
        device="cpu",
    )
    opened = fs.open_run(tmp_path / "run")
    new = pd.concat([frame.iloc[:40] for frame in hospitals.values()], ignore_index=True)
    differ = []
    for number, name in enumerate(hospitals):
        state = run.server.client_model(number)
        wanted = evaluated(run, state)
        for used in (run, opened):
            model = used.model_of(name)
            assert not model.training
            assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
            assert torch.equal(outputs_of(model, data.test.x, used.threads), wanted)
        pd.testing.assert_frame_equal(
            opened.predict(new, client=name), run.predict(new, client=number)
        )
        differ.append(not torch.equal(wanted, evaluated(run, run.server.state.model())))
    assert any(differ) == (method not in ("fedavg", "central"))
    if method in ("fedbn", "fedper", "local"):
        for used in (run, opened):
            with pytest.raises(
                FedskewError,
                match="share no whole one: say whose to use, client= one of hospital_A, ",
            ):
                used.predict(new)
    else:
        assert len(opened.predict(new)) == len(new)
    with pytest.raises(
        FedskewError, match=r"unknown client of .* 'hospital_E': did you mean 'hospital_"
    ):
        opened.model_of("hospital_E")


def test_a_client_may_lack_what_clients_lacked_in_training(
    data: fs.Dataset, hospitals: Frames
) -> None:
    run = fs.train(fs.split(data), "logreg", rounds=1, folder=False)
    assert len(run.predict(hospitals["hospital_C"])) == len(hospitals["hospital_C"])
    for change, message in [
        (lambda frame: frame.drop(columns="age"), "the data lacks column 'age'"),
        (
            lambda frame: frame.rename(columns={"bmi": "BMI"}),
            "lacks column 'bmi', .* is 'BMI' the same column",
        ),
        (
            lambda frame: pd.concat([frame, frame[["age"]]], axis=1),
            "the data: column 'age' is there twice",
        ),
        (
            lambda frame: frame.assign(age=pd.Timestamp("2020-01-01")),
            r"the data: column 'age' holds .*2020-01-01",
        ),
        (
            lambda frame: frame.assign(age=pd.Timedelta("1D")),
            r"the data: column 'age' holds text \('1 days",
        ),
        (
            lambda frame: frame.assign(sex=[["f"]] * len(frame)),
            "column 'sex' holds lists or the like",
        ),
        (lambda frame: frame.assign(age="old"), r"the data: column 'age' holds text \('old'\)"),
        (lambda frame: frame.assign(sex=1), r"the data: column 'sex' holds numbers \('1'\)"),
        (lambda frame: frame.assign(age=1e300), "column 'age' holds numbers too large"),
        (lambda frame: frame.iloc[:0], "there are no rows to predict"),
        (lambda frame: frame.to_numpy(), "trained on a table: give a data frame, got ndarray"),
    ]:
        with pytest.raises(FedskewError, match=message):
            run.predict(change(hospitals["hospital_A"]))


def test_a_table_without_any_known_column_is_no_table_of_gaps(hospitals: Frames) -> None:
    renamed = hospitals["hospital_B"].rename(
        columns=lambda title: title if title == "outcome" else f"{title} 2"
    )
    hospitals = {"hospital_A": hospitals["hospital_A"], "hospital_B": renamed}
    run = fs.train(fs.split(fs.load(hospitals, label="outcome")), "logreg", rounds=1, folder=False)
    assert len(run.predict(hospitals["hospital_A"])) == len(hospitals["hospital_A"])
    with pytest.raises(
        FedskewError, match=r"the data lacks column 'age', on which .* trained; it has height"
    ):
        run.predict(pd.DataFrame({"height": [1.8]}))


def test_columns_unlike_those_of_the_training_rows_are_warned_of(
    data: fs.Dataset, hospitals: Frames, tmp_path: Path
) -> None:
    run = fs.train(fs.split(data), "logreg", rounds=1, folder=False)
    usual, path = hospitals["hospital_A"], tmp_path / "new.csv"
    usual.to_csv(path, index=False)
    predict_file(run, path)  # without any warning
    usual.assign(age=365 * usual["age"], sex=usual["sex"].str.upper()).to_csv(path, index=False)
    with pytest.warns(UserWarning, match=r"column '(age|sex)'") as told:
        predict_file(run, path)
    age, sex = (str(one.message) for one in told)
    assert (
        f"new.csv: column 'age' has the median {365 * usual['age'].median():.4g}, and the training rows"
        in age
    )
    assert "column 'sex' has categories that no training row has" in sex
    assert f"in {len(usual)} rows, which count as none of the known ones ('f', 'm')" in sex


WEIGHED = "the loss weighed classes unequally .* not calibrated"


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("classification:class_weights=balanced", True),
        ("classification:class_weights=1+5+1", True),
        ("classification:class_weights=2+2+2", False),
        ("classification", False),
    ],
)
def test_probabilities_after_class_weights_are_warned_of(
    data: fs.Dataset, hospitals: Frames, tmp_path: Path, task: str, told: bool
) -> None:
    run = fs.train(fs.split(data), "logreg", rounds=1, task=task, folder=tmp_path / "run")
    new = hospitals["hospital_A"]
    for used in (run, fs.open_run(tmp_path / "run")):
        used.predict(new)  # without probabilities, without any warning
        if not told:
            used.predict(new, proba=True)
            continue
        with pytest.warns(UserWarning, match=WEIGHED) as heard:
            used.predict(new, proba=True)
        assert len(heard) == 1
        assert heard[0].filename == __file__
        with pytest.warns(UserWarning, match=WEIGHED):
            export_model(used, tmp_path / f"{id(used)}.pt2", "torch")


def test_weights_of_labels_leave_probabilities_as_they_are() -> None:
    frame = pd.DataFrame({"a": np.arange(20.0), "b": np.arange(20) % 2, "c": np.arange(20) // 10})
    fed = fs.split(fs.load(frame, label="b+c", target="labels"), "iid", clients=2)
    run = fs.train(fed, "logreg", rounds=1, folder=False, task="multilabel:class_weights=1+9")
    assert "p(c)" in run.predict(frame, proba=True)


def test_new_rows_may_be_written_in_another_way(
    data: fs.Dataset, hospitals: Frames, tmp_path: Path
) -> None:
    run = fs.train(fs.split(data), "logreg", rounds=1, folder=False)
    frame, path = hospitals["hospital_A"], tmp_path / "new.csv"
    frame.to_csv(path, index=False)
    expected = predict_file(run, path)
    frame.to_csv(path, index=False, sep=";", decimal=",", encoding="utf-16")
    with pytest.warns(UserWarning, match=r"new\.csv: semicolons.*utf-16.*decimal commas in"):
        assert predict_file(run, path) == expected
    said = Path(f"{path}:separator=semicolon:decimal=comma:encoding=utf-16")
    with pytest.warns(UserWarning, match="decimal commas in"):
        assert predict_file(run, said) == expected


def test_dates_of_new_rows_become_days(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    days = pd.Series(pd.date_range("2024-01-01", periods=40)).dt.strftime("%Y-%m-%d")
    frame = pd.DataFrame({"a": draw.normal(size=40), "seen": days, "y": np.arange(40) // 20})
    fed = fs.split(fs.load(frame, label="y", dates="days"), "iid", clients=2)
    run = fs.train(fed, "logreg", rounds=1, folder=False)
    german = pd.to_datetime(days).dt.strftime("%d.%m.%Y")
    found, expected = run.predict(frame.assign(seen=german)), run.predict(frame)
    pd.testing.assert_frame_equal(found, expected)
    with pytest.raises(FedskewError, match="column 'seen' holds a value that is not a date"):
        run.predict(frame.assign(seen="soon"))


def test_a_label_may_be_called_row(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": np.arange(20.0), "row": np.arange(20) % 2, "sick": np.arange(20) // 10}
    )
    frame.to_csv(tmp_path / "new.csv", index=False)
    fed = fs.split(fs.load(frame, label="row+sick", target="labels"), "iid", clients=2)
    run = fs.train(fed, "logreg", rounds=1, folder=False)
    first, second = predict_file(run, tmp_path / "new.csv").splitlines()[:2]
    assert first == "row,row,sick"
    assert second.startswith("0,")


def test_no_text_is_a_formula_in_a_safe_file(tmp_path: Path) -> None:
    classes = np.array(["=cmd|' /C calc'!A0", "+1", "-1", "@x", "\tx", "fine"])
    frame = pd.DataFrame({"a": np.linspace(0, 1, 60), "kind": classes[np.arange(60) % 6]})
    frame.to_csv(tmp_path / "new.csv", index=False)
    run = fs.train(
        fs.split(fs.load(frame, label="kind"), "iid", clients=2), "logreg", rounds=1, folder=False
    )
    plain = pd.read_csv(io.StringIO(predict_file(run, tmp_path / "new.csv", proba=True)))
    safe = pd.read_csv(io.StringIO(predict_file(run, tmp_path / "new.csv", proba=True, safe=True)))
    assert list(safe.columns) == list(plain.columns)  # p(=cmd…) begins no formula
    for before, after in zip(plain["prediction"], safe["prediction"], strict=True):
        assert after == (before if before == "fine" else f"'{before}")
    pd.testing.assert_frame_equal(safe.drop(columns="prediction"), plain.drop(columns="prediction"))


def test_images_are_normalised_as_in_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (120, 1, 8, 8), dtype=np.uint8), rng.choice(["cat", "dog"], 120)
    np.savez(tmp_path / "i.npz", x=x[:80], y=y[:80], x_test=x[80:], y_test=y[80:])
    fed = fs.split(fs.load(f"{tmp_path}/i.npz"), "iid", clients=2)
    run = fs.train(fed, "cnn", rounds=1, folder=tmp_path / "run", device="cpu")
    opened = fs.open_run(tmp_path / "run")
    found = opened.predict(x[80:], proba=True)
    assert set(found["prediction"]) <= {"cat", "dog"}
    assert (found["prediction"] == y[80:]).mean() == run.summary["test_accuracy_last"]
    assert torch.equal(outputs_of(opened.model, features(opened.pipeline, "x", x[80:]), opened.threads),
                       evaluated(run, run.server.state.model()))  # fmt: skip
    with pytest.raises(
        FedskewError, match=r"x of shape \(3, 8, 8\) and type uint8, and the model was trained on"
    ):
        opened.predict(x[:3, 0])
    with pytest.raises(FedskewError, match="x holds NaN or infinity"):
        opened.predict(np.full((1, 1, 8, 8), np.nan))
    with pytest.raises(FedskewError, match="x holds numbers too large for single precision"):
        opened.predict(np.full((1, 1, 8, 8), 1e300))


def test_a_frame_of_numbers_is_read_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"]).assign(
        y=np.arange(60) % 2
    )
    run = fs.train(
        fs.split(frame, "iid", clients=2, label="y"), "logreg", rounds=1, folder=tmp_path / "run"
    )
    wanted = run.predict(frame[["a", "b", "c"]].to_numpy(), proba=True)
    opened = fs.open_run(tmp_path / "run")
    np.testing.assert_array_equal(
        opened.predict(frame[["c", "y", "a", "b"]], proba=True).to_numpy(), wanted.to_numpy()
    )
    with pytest.raises(
        FedskewError, match="the data lacks column 'b', on which the model was trained"
    ):
        opened.predict(frame.drop(columns="b"))
    images = fs.train(
        fs.split(fs.load("digits"), "iid", clients=2), "logreg", rounds=1, folder=False
    )
    with pytest.raises(
        FedskewError, match=r"the data is a table of columns; give an array of shape"
    ):
        images.predict(frame)


def test_numbers_and_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=80), "b": rng.normal(size=80)})
    frame["u"], frame["v"] = (frame["a"] > 0).astype(int), (frame["b"] > 0).astype(int)
    number = fs.train(
        fs.split(fs.load(frame, label="a", target="number"), "iid", clients=2),
        "logreg",
        rounds=1,
        folder=False,
    )
    assert number.predict(frame)["prediction"].dtype.kind == "f"
    with pytest.raises(
        FedskewError, match="probabilities: task regression predicts numbers, and has none"
    ):
        number.predict(frame, proba=True)
    labels = fs.load(frame, label="u+v", target="labels")
    run = fs.train(fs.split(labels, "iid", clients=2), "logreg", rounds=5, folder=False, lr=1.0)
    found = run.predict(frame, proba=True)
    assert list(found) == ["u", "v", "p(u)", "p(v)"]
    assert ((found["p(u)"] > 0.5) == (found["u"] == 1)).all()


def test_windows_of_a_series(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=300), "y": np.arange(300) // 30 % 2})
    data = fs.load(frame, label="y", window=10)
    run = fs.train(fs.split(data, "iid", clients=2), "mlp", rounds=1, folder=False)
    new = frame.iloc[240:]  # the test part: the end of the series
    assert len(run.predict(new)) == len(data.test)
    np.testing.assert_array_equal(features(run.pipeline, "new", new), data.test.x)


class Mine(nn.Module):
    """A model that no folder can build."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)  # type: ignore[no-any-return]


def test_python_objects_predict_in_memory_alone(
    data: fs.Dataset, hospitals: Frames, tmp_path: Path
) -> None:
    run = fs.train(fs.split(data), Mine(), rounds=1, folder=tmp_path / "run")
    assert len(run.predict(hospitals["hospital_A"])) == 240
    with pytest.raises(FedskewError, match="its model cannot be built from the folder alone"):
        fs.open_run(tmp_path / "run").predict(hospitals["hospital_A"])


def test_the_pipeline_is_a_file_of_the_run(data: fs.Dataset, tmp_path: Path) -> None:
    run = fs.train(fs.split(data), "logreg", rounds=1, folder=tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "pipeline.json").read_text())
    assert stored["clients"] == list(data.groups)
    assert stored["label"]["classes"] == list(data.classes)
    assert fs.open_run(tmp_path / "run").pipeline == run.pipeline == data.schema
    stored["columns"][0]["mean"] += 1
    (tmp_path / "run" / "pipeline.json").write_text(json.dumps(stored))
    with pytest.raises(FedskewError, match=r"pipeline\.json is damaged"):
        fs.open_run(tmp_path / "run")


def test_a_threshold_moves_the_decision() -> None:
    outputs, lower = (
        torch.tensor([[0.0, -0.5], [0.0, -1.5], [0.0, 0.5]]),
        Threshold("accuracy", -1.0),
    )
    assert decide(Classification(), outputs).tolist() == [0, 0, 1]
    assert decide(Classification(), outputs, lower).tolist() == [1, 0, 1]
    assert decide(Binary(), outputs[:, 1:], lower).tolist() == [1, 0, 1]
    np.testing.assert_allclose(
        probabilities(Binary(), outputs[:, 1:]), probabilities(Classification(), outputs)
    )


def test_the_chosen_threshold_is_that_of_the_global_model(
    hospitals: Frames, tmp_path: Path
) -> None:
    for frame in hospitals.values():
        frame["outcome"] = frame["outcome"].replace("transferred", "discharged")
    fed = fs.split(fs.load(hospitals, label="outcome", validation=0.3))
    run = fs.train(fed, "logreg", rounds=3, folder=tmp_path / "run", thresholds="balanced_accuracy")
    opened, new = fs.open_run(tmp_path / "run"), pd.concat(hospitals.values(), ignore_index=True)
    assert run.threshold is not None
    assert opened.threshold == run.threshold
    for used in (run, opened):
        found = used.predict(new, proba=True)
        above = found["p(discharged)"] > run.threshold.probability
        assert (found["prediction"] == np.where(above, "discharged", "died")).mean() > 0.999
        assert (
            found["prediction"] != np.where(found["p(discharged)"] > 0.5, "discharged", "died")
        ).any()
        # The same model
        pd.testing.assert_frame_equal(used.predict(new, client="hospital_A", proba=True), found)
    own = fs.train(
        fed, "logreg", "ditto", rounds=3, folder=tmp_path / "own", thresholds="balanced_accuracy"
    )
    for used in (own, fs.open_run(tmp_path / "own")):
        plain = used.predict(new, client="hospital_A", proba=True)
        assert (
            plain["prediction"] == np.where(plain["p(discharged)"] > 0.5, "discharged", "died")
        ).all()


@pytest.mark.parametrize("lost", ["manifest", "changed"])
def test_no_older_model_stands_in_for_the_last_one(tmp_path: Path, lost: str) -> None:
    fed = fs.split(fs.load("digits"), "classes:k=2", clients=5)
    folder = tmp_path / "run"
    run = fs.train(fed, "logreg", "ditto", rounds=3, checkpoint_every=1, folder=folder)
    rows = np.random.default_rng(0).integers(0, 17, (20, *fed.data.shape))
    assert fs.open_run(folder).predict(rows, client=0).equals(run.predict(rows, client=0))
    last, before = (folder / "checkpoints" / f"{round:08d}.json" for round in (3, 2))
    if lost == "manifest":
        last.unlink()
    else:
        last.write_bytes(before.read_bytes())
    says = rf"{last.name} is (gone|damaged).*: it names the models of clients after the last round, put it back"
    with pytest.raises(FedskewError, match=says):
        fs.open_run(folder).predict(rows, client=0)
    with pytest.raises(FedskewError, match=says):
        export_model(fs.open_run(folder), tmp_path / "model.pt2", "torch", client=0)
    with pytest.raises(FedskewError, match=says):
        fs.resume(folder)


def test_a_folder_that_does_not_name_its_last_checkpoint_is_read(tmp_path: Path) -> None:
    fed = fs.split(fs.load("digits"), "classes:k=2", clients=5)
    run = fs.train(fed, "logreg", "ditto", rounds=2, checkpoint_every=1, folder=tmp_path / "run")
    path = tmp_path / "run" / "final.json"
    path.write_bytes(
        manifest(RunFolder(path.parent).manifest(path.name)["files"], FORMAT)
    )  # as 0.2.0 wrote it
    rows = np.random.default_rng(0).integers(0, 17, (20, *fed.data.shape))
    assert fs.open_run(tmp_path / "run").predict(rows, client=0).equals(run.predict(rows, client=0))
    (tmp_path / "run" / "checkpoints" / "00000002.json").unlink()
    with pytest.raises(FedskewError, match="lacks the checkpoint of the last round: put it back"):
        fs.open_run(tmp_path / "run").predict(rows, client=0)


def test_arrays_in_npy_and_parquet_files_are_predicted_batch_by_batch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=np.arange(60) % 2)
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=10)
    data = fs.load(f"{tmp_path}/t.parquet:label=y,lazy=true,test=0.5")
    run = fs.train(fs.split(data, "iid", 2), "logreg", rounds=1, folder=tmp_path / "run")
    wanted = run.predict(x, proba=True)
    frame[["c", "a", "b"]].to_parquet(tmp_path / "new.parquet", row_group_size=10)
    (tmp_path / "new").mkdir()
    np.save(tmp_path / "new" / "x.npy", x)
    opened = fs.open_run(tmp_path / "run")
    for place in ("new.parquet", "new", "new/x.npy"):
        found = pd.read_csv(io.StringIO(predict_file(opened, tmp_path / place, proba=True)))
        np.testing.assert_allclose(found["p(1)"], wanted["p(1)"], rtol=0, atol=1e-7)
        assert len(found) == 60
    mapped = np.load(tmp_path / "new" / "x.npy", mmap_mode="r")
    pd.testing.assert_frame_equal(opened.predict(mapped, proba=True), wanted)
    with pytest.raises(FedskewError, match=r"x of shape \(60, 2\) and type float32"):
        opened.predict(mapped[:, :2])
    frame[["a", "b"]].to_parquet(tmp_path / "new.parquet")
    with pytest.raises(FedskewError, match=r"column of .*new.parquet.*'c'"):
        predict_file(opened, tmp_path / "new.parquet")
    with pytest.raises(FedskewError, match=r"has no x.npy: give an NPZ file with x, or a folder"):
        predict_file(opened, tmp_path / "run")
    x[7, 1] = np.nan
    np.save(tmp_path / "new" / "x.npy", x)
    with pytest.raises(FedskewError, match="row 7 holds NaN"):
        predict_file(opened, tmp_path / "new")


def test_lists_in_a_parquet_file_are_predicted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (40, 4))
    frame = pd.DataFrame({"x": list(x), "y": np.arange(40) % 2})
    frame.to_parquet(tmp_path / "t.parquet")
    data = fs.load(f"{tmp_path}/t.parquet:label=y,lazy=true")
    run = fs.train(fs.split(data, "iid", 2), "logreg", rounds=1, folder=tmp_path / "run")
    found = pd.read_csv(io.StringIO(predict_file(run, tmp_path / "t.parquet")))
    assert found["prediction"].astype(str).tolist() == run.predict(x)["prediction"].tolist()
    frame.assign(z=frame.x).to_parquet(tmp_path / "two.parquet")
    with pytest.raises(FedskewError, match="has 2 columns of lists of numbers"):
        predict_file(run, tmp_path / "two.parquet")
