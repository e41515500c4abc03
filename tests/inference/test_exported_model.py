"""Exported programs: equal to the model on rows it never saw, usable without fedskew, and without a pickle."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import fedskew as fs
from fedskew.core.errors import FedskewError
from fedskew.inference import exported_model
from fedskew.inference.exported_model import ENDINGS, TOLERANCE, export_model

Frames = dict[str, pd.DataFrame]
pytestmark = pytest.mark.filterwarnings(
    "ignore:hospital_|only hospital_",
    "ignore:The given buffer is not writable",  # PyTorch 2.11 warns of what its own loader does
)


def formats() -> list[Any]:
    onnx = all(
        __import__("importlib.util").util.find_spec(name)
        for name in ("onnx", "onnxruntime", "onnxscript")
    )
    return [
        "torch",
        pytest.param("onnx", marks=pytest.mark.skipif(not onnx, reason="onnx is not installed")),
    ]


def call(
    path: Path, format: str, inputs: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Run a program as its users do, and return its output and its description."""
    if format == "torch":
        extra = {"pipeline.json": ""}
        program = torch.export.load(path, extra_files=extra).module()
        with torch.no_grad():
            found = program(*(torch.from_numpy(values) for values in inputs.values())).numpy()
        return found, json.loads(extra["pipeline.json"])
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    described = json.loads(session.get_modelmeta().custom_metadata_map["pipeline.json"])
    return session.run(None, inputs)[0], described


def inputs_of(frame: pd.DataFrame, described: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return a table's rows as the description of a program says."""
    result = {}
    for entry in described["inputs"]:
        if entry["name"] == "numbers":
            result["numbers"] = frame.reindex(columns=entry["columns"]).to_numpy(
                dtype=np.float64, copy=True
            )
            continue
        places = []
        for column in entry["columns"]:
            known = {text: place for place, text in enumerate(column["categories"])}
            cells = frame.get(column["name"], pd.Series([None] * len(frame)))
            places.append(
                [column["missing"] if pd.isna(v) else known.get(v, column["other"]) for v in cells]
            )
        result["categories"] = np.array(places, dtype=np.int64).T.copy()
    return result


@pytest.fixture
def new(hospitals: Frames) -> pd.DataFrame:
    frame = hospitals["hospital_B"].sample(50, random_state=1).reset_index(drop=True)
    frame.loc[:5, "ward"] = "tent"  # never seen
    return frame


@pytest.mark.parametrize("format", formats())
@pytest.mark.parametrize("model", ["logreg", "mlp", "tabular", "tabular-cnn"])
def test_a_mixed_table(
    hospitals: Frames, new: pd.DataFrame, tmp_path: Path, format: Any, model: str
) -> None:
    run = fs.train(
        fs.split(fs.load(hospitals, label="outcome")), model, rounds=2, batch_size=16, folder=False
    )
    done = export_model(run, tmp_path / f"m{ENDINGS[format]}", format)
    assert done.difference <= TOLERANCE
    assert [entry["name"] for entry in done.described["inputs"]] == ["numbers", "categories"]
    wanted = run.predict(new, proba=True).iloc[:, 1:].to_numpy()
    found, described = call(
        tmp_path / f"m{ENDINGS[format]}", format, inputs_of(new, dict(done.described))
    )
    assert described == json.loads(json.dumps(done.described))
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE)
    single, _ = call(tmp_path / f"m{ENDINGS[format]}", format, inputs_of(new.iloc[:1], described))
    np.testing.assert_allclose(single, wanted[:1], atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore:.*training rows equal an earlier one")
@pytest.mark.parametrize("format", formats())
def test_other_kinds_of_data(tmp_path: Path, format: Any) -> None:
    rng = np.random.default_rng(0)
    images = fs.split(fs.load("digits"), "iid", clients=2)
    run = fs.train(images, "cnn", rounds=1, folder=False)
    export_model(run, tmp_path / f"images{ENDINGS[format]}", format)
    x = rng.integers(0, 17, (5, 1, 8, 8)).astype(np.float32)
    found, _ = call(tmp_path / f"images{ENDINGS[format]}", format, {"x": x})
    np.testing.assert_allclose(
        found, run.predict(x, proba=True).iloc[:, 1:].to_numpy(), atol=TOLERANCE
    )
    frame = pd.DataFrame(
        {"a": rng.normal(50, 9, 80), "b": rng.normal(size=80), "y": rng.normal(size=80)}
    )
    numbers = fs.split(fs.load(frame, label="y", target="number"), "iid", clients=2)
    run = fs.train(numbers, "logreg", rounds=1, folder=False, dtype="float64")
    done = export_model(run, tmp_path / f"numbers{ENDINGS[format]}", format)
    assert done.described["output"] == "outputs"
    found, _ = call(
        tmp_path / f"numbers{ENDINGS[format]}",
        format,
        {"numbers": frame[["a", "b"]].to_numpy(copy=True)},
    )
    np.testing.assert_allclose(found[:, 0], run.predict(frame)["prediction"], atol=TOLERANCE)
    texts = pd.DataFrame({"a": rng.choice(list("xyz"), 80), "y": rng.integers(0, 2, 80)})
    run = fs.train(
        fs.split(fs.load(texts, label="y"), "iid", clients=2),
        "logreg",
        task="binary",
        rounds=1,
        folder=False,
    )
    done = export_model(run, tmp_path / f"texts{ENDINGS[format]}", format)
    found, _ = call(
        tmp_path / f"texts{ENDINGS[format]}", format, inputs_of(texts, dict(done.described))
    )
    np.testing.assert_allclose(
        found, run.predict(texts, proba=True).iloc[:, 1:].to_numpy(), atol=TOLERANCE
    )
    series = pd.DataFrame({"a": rng.normal(size=200), "y": np.arange(200) // 20 % 2})
    run = fs.train(
        fs.split(fs.load(series, label="y", window=10), "iid", clients=2),
        "mlp",
        rounds=1,
        folder=False,
    )
    assert export_model(run, tmp_path / f"windows{ENDINGS[format]}", format).described["inputs"][0][
        "shape"
    ] == [
        "rows",
        1,
        10,
    ]


def test_a_program_has_its_checksum_beside_it(hospitals: Frames, tmp_path: Path) -> None:
    fed = fs.split(fs.load(hospitals, label="outcome"), "natural")
    run = fs.train(fed, "logreg", rounds=1, folder=False)
    export_model(run, tmp_path / "model.pt2", "torch")
    checked = ["sha256sum", "-c", "model.pt2.sha256"]
    assert subprocess.run(checked, cwd=tmp_path, capture_output=True).returncode == 0
    content = bytearray((tmp_path / "model.pt2").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "model.pt2").write_bytes(content)
    assert subprocess.run(checked, cwd=tmp_path, capture_output=True).returncode == 1


def test_no_pickle_and_no_fedskew(hospitals: Frames, new: pd.DataFrame, tmp_path: Path) -> None:
    run = fs.train(
        fs.split(fs.load(hospitals, label="outcome")),
        "tabular",
        "fedbn",
        rounds=2,
        batch_size=16,
        folder=False,
    )
    done = export_model(run, tmp_path / "own.pt2", "torch", client="hospital_B")
    with zipfile.ZipFile(tmp_path / "own.pt2") as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        stored = [
            json.loads(archive.read(name))["config"]
            for name in sizes
            if name.endswith("_config.json")
        ]
    assert sizes["archive/data/sample_inputs/model.pt"] == 0
    assert len(stored) == 2
    assert not any(entry["use_pickle"] for config in stored for entry in config.values())
    wanted = run.predict(new, client="hospital_B", proba=True).iloc[:, 1:].to_numpy()
    given = inputs_of(new, dict(done.described))
    np.savez(tmp_path / "given.npz", **given)
    code = (
        "import sys, numpy as np, torch\n"
        f"given = np.load({str(tmp_path / 'given.npz')!r})\n"
        f"program = torch.export.load({str(tmp_path / 'own.pt2')!r}).module()\n"
        "found = program(torch.from_numpy(given['numbers']), torch.from_numpy(given['categories']))\n"
        f"np.save({str(tmp_path / 'found.npy')!r}, found.detach().numpy())\n"
        "assert 'fedskew' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), wanted, atol=TOLERANCE)


class Stubborn(nn.Module):
    """A model that reads a value on the host, which no exporter follows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out if float(x.sum()) > 0 else 2 * out


def test_what_cannot_be_exported(
    hospitals: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = fs.split(fs.load(hospitals, label="outcome"))
    stubborn = fs.train(fed, Stubborn(), rounds=1, folder=False, engine="loop")
    with pytest.raises(FedskewError, match="Stubborn cannot be exported to torch: "):
        export_model(stubborn, tmp_path / "m.pt2", "torch")
    run = fs.train(fed, "logreg", rounds=1, folder=False)
    (tmp_path / "there.pt2").touch()
    with pytest.raises(FedskewError, match=r"there\.pt2 exists already"):
        export_model(run, tmp_path / "there.pt2", "torch")
    with pytest.raises(FedskewError, match=r"model\.pt: a file of format torch ends in \.pt2"):
        export_model(run, tmp_path / "model.pt", "torch")
    monkeypatch.setattr(
        exported_model._TableProgram, "scaled", lambda self, numbers: 2 * numbers.float()
    )
    with pytest.raises(
        FedskewError, match=r"the torch program differs from the model by .*: nothing was written"
    ):
        export_model(run, tmp_path / "m.pt2", "torch")
    assert not (tmp_path / "m.pt2").exists()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        FedskewError, match=r"ONNX needs further packages: pip install 'fedskew\[onnx\]'"
    ):
        export_model(run, tmp_path / "m.onnx", "onnx")


def test_a_chosen_threshold_is_stored_with_the_program(hospitals: Frames, tmp_path: Path) -> None:
    for frame in hospitals.values():
        frame["outcome"] = frame["outcome"].replace("transferred", "discharged")
    fed = fs.split(fs.load(hospitals, label="outcome", validation=0.3))
    for algorithm, client, stored in (
        ("fedavg", "hospital_A", True),
        ("ditto", "hospital_A", False),
    ):
        run = fs.train(
            fed, "logreg", algorithm, rounds=2, folder=None, thresholds="balanced_accuracy"
        )
        assert run.threshold is not None
        described = export_model(run, tmp_path / f"{algorithm}.pt2", "torch", client).described
        due = {"class": "discharged", "probability": run.threshold.probability}
        assert described.get("threshold") == (due if stored else None)
