"""Options of methods that were settings in the version before: both spellings give the same run, also a resumed one."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedskew as fs
from fedskew.core.config import read_file, to_toml
from fedskew.core.manifest import Digest, manifest
from fedskew.runs.folder import (
    CLIENTS,
    CONFIG,
    ENVIRONMENT,
    FINAL_CLIENTS,
    FORMAT,
    MODEL,
    ROUNDS,
    START,
    RunFolder,
)
from fedskew.runs.former_settings import as_options
from fedskew.study.setting import Setting

BITS = (ROUNDS, CLIENTS, FINAL_CLIENTS, MODEL)
FORMER = {"secure": True, "round_totals": 50}
OPTIONS = "secure=true,round_totals=50"
SETTINGS = {"model": "logreg", "rounds": 3, "batch_size": 64, "device": "cpu", "threads": 1}


class KilledError(Exception):
    pass


def killed(result: Any, rounds: int) -> None:
    if result.round["round"] == 2:
        raise KilledError


def bits(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in BITS]


def as_written_before(folder: Path) -> None:
    """Turn a run that has begun into what the version before wrote, where the options were settings."""
    config = read_file(folder / CONFIG)
    environment = json.loads((folder / ENVIRONMENT).read_text())
    for name in FORMER:
        config[name] = config["algorithm"].pop(name)
        del environment["algorithm"]["options"][name]
    written = {
        CONFIG: to_toml(config).encode(),
        ENVIRONMENT: json.dumps(environment).encode(),
    }
    files = RunFolder(folder).manifest(START)["files"]
    for name, content in written.items():
        (folder / name).write_bytes(content)
        files[name] = Digest.of(content)
    (folder / START).write_bytes(manifest(files, FORMAT))


@pytest.fixture
def fed() -> fs.Federation:
    return fs.split(fs.load("digits"), "classes:k=2", clients=5)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("method", ["stratify-batch", "stratify-single:per_label=5"])
def test_both_spellings_give_the_same_run(fed, tmp_path: Path, method: str, engine: str):
    pytest.importorskip("tenseal")
    options = f"{method}:{OPTIONS}"
    if ":" in method:
        options = f"{method},{OPTIONS}"
    settings = {**SETTINGS, "engine": engine}
    now = fs.train(fed, algorithm=options, folder=tmp_path / "now", **settings)
    with pytest.warns(FutureWarning, match="an option of Stratify methods") as told:
        before = fs.train(fed, algorithm=method, folder=tmp_path / "before", **FORMER, **settings)
    assert f'write algorithm="{options}"' in str(told[0].message)
    assert bits(tmp_path / "now") == bits(tmp_path / "before")
    assert now.summary["label_protocol_bytes"] == before.summary["label_protocol_bytes"] > 0
    assert now.summary["algorithm"] == before.summary["algorithm"] == options
    for folder in ("now", "before"):
        config = read_file(tmp_path / folder / CONFIG)
        assert not FORMER.keys() & config.keys()
        assert FORMER.items() <= config["algorithm"].items()


@pytest.mark.parametrize("secure", [True, False])
def test_a_run_of_the_version_before_is_resumed_to_the_same_bits(fed, tmp_path: Path, secure: bool):
    method = "stratify-batch"
    if secure:
        pytest.importorskip("tenseal")
        method = f"stratify-batch:{OPTIONS}"
    settings = {**SETTINGS, "algorithm": method, "checkpoint_every": 1}
    fs.train(fed, folder=tmp_path / "whole", **settings)
    with pytest.raises(KilledError):
        fs.train(fed, folder=tmp_path / "killed", callbacks=killed, **settings)
    as_written_before(tmp_path / "killed")
    assert f"secure = {str(secure).lower()}\n" in (tmp_path / "killed" / CONFIG).read_text()
    resumed = fs.resume(tmp_path / "killed")
    assert resumed.server.job.secure == secure
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")


def test_the_same_command_goes_on_with_a_run_of_the_version_before(
    fedskew: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("tenseal")
    run = "run --algorithm stratify-batch --skew classes:k=2 --clients 5 --model logreg --threads 1"
    run += " --device cpu --batch-size 64 --checkpoint-every 1 --rounds 2 --folder"
    secret = f"{run} part --or-resume --secure --round-totals 50"
    with pytest.warns(FutureWarning):
        assert fedskew(f"{run} whole --secure --round-totals 50") == 0
    with pytest.warns(FutureWarning):
        assert fedskew(secret) == 0
    (tmp_path / "part" / "summary.json").unlink()  # as if it had not ended
    as_written_before(tmp_path / "part")
    with pytest.warns(FutureWarning, match="round_totals=50"):
        assert fedskew(secret) == 0
    assert bits(tmp_path / "part") == bits(tmp_path / "whole")
    again = run.replace("stratify-batch", f"stratify-batch:{OPTIONS}")
    assert fedskew(f"{again} part --or-resume") == 0
    assert fedskew(f"{run} part --or-resume") == 2
    assert "holds another run, its algorithm is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("fedavg", {"secure": True}, "hides labels from .* and fedavg does not: use a Stratify"),
        ("sfl", {"secure": True}, "hides labels from .* and sfl does not: use a Stratify method"),
        ("fedavg", {"round_totals": 5}, "round_totals=5 rounds what secure=true tells of labels"),
        ("stratify-batch", {"round_totals": 5}, "round_totals=5 rounds what secure=true tells"),
        (f"stratify-batch:{OPTIONS}", {"round_totals": 5}, "round_totals=5 clashes with algo"),
        (f"stratify-batch:{OPTIONS}", {"secure": False}, "secure=false clashes with algorithm="),
    ],
)
def test_refused(fed, method: str, given: dict[str, Any], words: str):
    with pytest.raises(fs.FedskewError, match=words):
        fs.train(fed, algorithm=method, folder=False, **given, **SETTINGS)
    with pytest.raises(fs.FedskewError, match=words):
        fs.compare(algorithm=[method], **given)


@pytest.mark.parametrize("method", [fs.StratifyBatch(), fs.StratifyHybrid(secure=True)])
def test_a_value_that_the_method_has_already_stays(method: fs.Algorithm):
    made, settings = as_options(method, fs.Settings(secure=True, rounds=7))
    assert made.options() == {**method.options(), "secure": True}
    assert settings == fs.Settings(rounds=7)


def test_what_changes_nothing_is_to_be_left_out(fed):
    with pytest.warns(FutureWarning, match=r"secure=false, round_totals=1: .*: leave it out$"):
        run = fs.train(fed, folder=False, secure=False, round_totals=1, **{**SETTINGS, "rounds": 1})
    assert run.summary["algorithm"] == "fedavg"


def test_a_comparison_in_the_former_spelling(tmp_path: Path):
    pytest.importorskip("tenseal")
    settings = {**SETTINGS, "rounds": 1, "skew": "classes:k=2", "clients": 5}
    with pytest.warns(FutureWarning):
        table = fs.compare(
            algorithm=["stratify-batch", "stratify-single:per_label=5"],
            out=tmp_path / "study",
            secure=True,
            **settings,
        )
    assert len(table) == 2
    for place in (tmp_path / "study").glob("stratify-*"):
        assert read_file(place / CONFIG)["algorithm"]["secure"] is True


def test_runs_of_both_versions_have_the_same_conditions():
    now = {"rounds": 2, "algorithm": {"name": "fedavg"}}
    before = {**now, "secure": False, "round_totals": 1}
    assert Setting.of_config(before).values == Setting.of_config(now).values


def test_the_command_line_says_it_in_one_line(tmp_path: Path):
    (tmp_path / "old.toml").write_text('algorithm = "stratify-batch"\nsecure = false\nrounds = 1\n')
    words = [sys.executable, "-m", "fedskew", "run", "old.toml", "--model", "logreg"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    told = re.findall("^fedskew: warning: .*", done.stderr, re.MULTILINE)
    assert told == [
        "fedskew: warning: secure=false: from the next version on only an option of Stratify methods: leave it out"
    ]
