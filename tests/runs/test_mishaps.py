"""Runs that finish in spite of signals, failing figures, closed pipes, divergence and requeued jobs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedskew as fs
from fedskew.core.errors import Interrupted
from fedskew.data.dataset import Dataset, Rows
from fedskew.runs import runner
from fedskew.runs.folder import CLIENTS, FINAL_CLIENTS, MODEL, ROUNDS, SUMMARY, RunFolder
from fedskew.runs.runner import CheckpointInterval
from fedskew.server.server import Server
from fedskew.study import study_folder
from fedskew.study.member import Member
from fedskew.study.study_folder import Study
from fedskew.study.study_plan import Plan, members_of
from fedskew.study.study_runs import FAILED, Execution, execute

BITS = (ROUNDS, CLIENTS, FINAL_CLIENTS, MODEL)


def bits(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in BITS}


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_makes_a_checkpoint_and_says_how_to_go_on(tmp_path: Path, name: str, code: int):
    options = ["--model", "logreg", "--clients", "4", "--checkpoint-every", "1000"]
    command = [
        sys.executable,
        "-m",
        "fedskew",
        "run",
        "--rounds",
        "3000",
        *options,
        "--folder",
        "run",
    ]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "run" / ROUNDS).exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(getattr(signal, name))
        _, err = process.communicate()
    assert process.returncode == code
    told = err.splitlines()[-1]
    assert told.startswith("fedskew: interrupted after round ")
    assert told.endswith(" of 3000; resume with: fedskew resume run")
    (stopped, *_) = RunFolder(tmp_path / "run").checkpoints.rounds()
    assert f"after round {stopped} of" in told  # nothing was lost, though no checkpoint was due


def signalled_in(monkeypatch: pytest.MonkeyPatch, round: int) -> list[int]:
    """Send SIGTERM to this process in the middle of a round, and return a list to which trained rounds are added."""
    advance, seen = Server.advance, list[int]()

    def stop(training: Server) -> Any:
        seen.append(training.round + 1)
        if training.round + 1 == round:
            os.kill(os.getpid(), signal.SIGTERM)
        return advance(training)

    monkeypatch.setattr(Server, "advance", stop)
    return seen


def test_a_signal_in_the_last_round_is_a_stop_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fed = fs.split(fs.load("digits"), "iid", clients=3)
    expected = fs.train(fed, "logreg", rounds=2, folder=tmp_path / "expected")
    with monkeypatch.context() as patched:
        signalled_in(patched, 2)
        with pytest.raises(
            Interrupted, match="interrupted after round 2 of 2; resume with"
        ) as stopped:
            fs.train(fed, "logreg", rounds=2, folder=tmp_path / "run")
    assert stopped.value.code == 143
    assert not RunFolder(tmp_path / "run").finished
    fs.resume(tmp_path / "run")
    assert bits(tmp_path / "run") == bits(tmp_path / "expected")
    assert expected.folder


def test_a_signal_in_the_round_in_which_a_callback_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fed = fs.split(fs.load("digits"), "iid", clients=3)
    signalled_in(monkeypatch, 2)
    ends = [lambda result, rounds: result.round["round"] == 2]
    with pytest.raises(Interrupted, match="interrupted after round 2 of 9"):
        fs.train(fed, "logreg", rounds=9, folder=tmp_path / "run", callbacks=ends)
    assert RunFolder(tmp_path / "run").checkpoints.rounds() == [2]


def test_after_a_signal_no_other_run_of_a_comparison_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = signalled_in(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        fs.compare(
            algorithm=["fedavg", "scaffold"],
            rounds=1,
            model="logreg",
            engine="loop",
            out=tmp_path / "group",
        )
    assert seen == [1]


def test_a_long_round_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    advance = Server.advance
    ended = []

    def linger(training: Server) -> Any:
        result = advance(training)
        if training.round == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        ended.append(training.round)
        return result

    monkeypatch.setattr(Server, "advance", linger)
    monkeypatch.setattr(runner, "GRACE", 0.2)
    fed = fs.split(fs.load("digits"), "iid", clients=3)
    with pytest.raises(Interrupted, match="resume with") as stopped:
        fs.train(fed, "logreg", rounds=3, folder=tmp_path / "run", checkpoint_every=1)
    assert ended == [1]
    assert stopped.value.code == 143
    assert RunFolder(tmp_path / "run").checkpoints.rounds() == [1]
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_an_alarm_of_the_user_rings(monkeypatch: pytest.MonkeyPatch):
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with runner.stopping():
            while not rung:
                time.sleep(0.01)
        assert rung == [True]
        signal.setitimer(signal.ITIMER_REAL, 1000)
        with pytest.raises(KeyboardInterrupt), runner.stopping():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_second_signal_gives_no_more_grace(monkeypatch: pytest.MonkeyPatch):
    sent = []

    def insist() -> None:
        for number in range(100):
            sent.append(number)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)

    monkeypatch.setattr(runner, "GRACE", 1.0)
    with pytest.raises(KeyboardInterrupt), runner.stopping():
        insist()
    assert len(sent) < 100  # each of them would have begun the second anew


def test_a_signal_that_nobody_looked_at_is_raised_in_the_end():
    with pytest.raises(KeyboardInterrupt) as stopped, runner.stopping():
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.code == 143


def test_ctrl_c_after_the_last_round_says_how_to_go_on_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    fed = fs.split(fs.load("digits"), "iid", clients=3)
    with monkeypatch.context() as patched:
        patched.setattr("fedskew.server.server.Server.final_clients", stop)
        with pytest.raises(
            KeyboardInterrupt, match="interrupted after round 2 of 2; resume with: fedskew resume "
        ):
            fs.train(fed, "logreg", rounds=2, folder=tmp_path / "run")
    assert fs.resume(tmp_path / "run").summary["rounds"] == 2


def test_a_page_that_fails_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*args: object) -> bytes:
        raise ValueError("Expected end of text, found '$'\n  (at char 0)")

    monkeypatch.setattr("fedskew.report.page._page_of_run", fail)
    fed = fs.split(fs.load("digits"), "iid", clients=3)
    with pytest.warns(
        UserWarning,
        match=r"report\.html could not be made \(ValueError: Expected end of text.*the run itself is whole",
    ):
        run = fs.train(fed, "logreg", rounds=2, folder=tmp_path / "run")
    assert run.folder
    assert RunFolder(run.folder).finished
    assert fs.open_run(run.folder).summary == run.summary
    assert fs.resume(run.folder).summary == run.summary


@pytest.mark.parametrize("name", ["price in $ and $", "x" * 300, "\n\t", "[/red]"])
def test_odd_names_of_classes_do_not_keep_a_run_from_its_end(tmp_path: Path, name: str):
    draw = np.random.default_rng(0)
    rows = Rows(draw.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2)
    fed = fs.split(Dataset("odd", rows, rows, (name, "other")), "iid", clients=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fs.train(fed, "logreg", rounds=1, folder=tmp_path / "run")
    assert run.folder
    assert fs.open_run(run.folder).summary["rounds"] == 1


def test_a_closed_pipe_does_not_stop_training(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "fedskew",
        "run",
        "--rounds",
        "20",
        "--model",
        "logreg",
        "--folder",
        "run",
    ]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(command, cwd=tmp_path, stdout=writes, stderr=writes, check=False)
    finally:
        os.close(writes)
    assert done.returncode == 0
    assert fs.open_run(tmp_path / "run").summary["rounds"] == 20


# -- several runs, of which one diverges -------------------------------------------------------------------------------

DIVERGES = {"rounds": "4", "model": "mlp:hidden=8", "clients": "3", "lr": "0.1"}
METHODS = ["fedavg", "fedavgm:server_lr=9e18", "fedprox"]


def test_a_diverging_run_is_recorded_and_the_others_go_on(tmp_path: Path):
    wanted = members_of(DIVERGES, METHODS, [0])
    plan = Plan(wanted)
    study_folder.create(tmp_path / "group", plan)
    study = Study(tmp_path / "group", plan)
    found = execute(study, Execution()).summaries
    assert [("failed" in row) for row in found] == [False, True, False]
    assert found[1]["failed"].startswith("fedavgm-server-lr-9e18-s0: round ")
    assert "NaN or infinite" in found[1]["failed"]
    stored = json.loads((tmp_path / "group" / SUMMARY).read_text())
    assert stored["runs"][1] == found[1]
    assert list(stored["means"]) == ["fedavg", "fedprox"]
    failed = tmp_path / "group" / wanted[1].name / FAILED
    written = failed.stat().st_mtime_ns
    assert execute(study, Execution()).summaries == found
    assert failed.stat().st_mtime_ns == written  # it was not tried again
    tried: list[str] = []

    def callbacks(member: Member) -> list[Any]:
        tried.append(member.name)
        return []

    execute(study, Execution(callbacks, retry=True))
    assert tried == [wanted[1].name]
    assert failed.exists()


def test_the_table_names_what_failed(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
):
    options = "--rounds 4 --model mlp:hidden=8 --clients 3 --out group"
    assert fedskew(f"compare {options} --algorithm fedavg --algorithm fedavgm:server_lr=9e18") == 1
    out = capsys.readouterr().out
    assert re.search(r"failed: fedavgm-server-lr-9e.*18-s0: round \d", out)
    assert fedskew("resume group --retry") == 1
    assert (
        fedskew(
            "compare --rounds 4 --model mlp:hidden=8 --clients 3 --algorithm fedavgm:server_lr=9e18 --seeds 0-1 --out "
            "all"
        )
        == 1
    )
    assert capsys.readouterr().out.count("failed: ") == 3


# -- jobs that are started again ---------------------------------------------------------------------------------------


def test_or_resume_runs_goes_on_and_tells(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
):
    line = "run --rounds 4 --model logreg --clients 3 --algorithm fedavgm --checkpoint-every 1 --folder job --or-resume"
    assert fedskew(line) == 0
    done = bits(Path("job"))
    (Path("job") / SUMMARY).unlink()
    last = Path("job") / "checkpoints" / "00000004.json"
    last.unlink()  # as if it had been stopped after round 3
    assert fedskew(line) == 0
    assert bits(Path("job")) == done
    assert fedskew(line) == 0  # finished: reported again
    capsys.readouterr()
    assert fedskew(line.replace("--rounds 4", "--rounds 5")) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        "fedskew: job holds another run, its rounds is 4 and not 5: choose another folder, or resume"
    )
    assert fedskew("run --rounds 2 --or-resume") == 2
    assert "--or-resume needs --folder" in capsys.readouterr().err


def test_or_resume_of_several(fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]):
    line = (
        "compare --rounds 2 --model logreg --clients 3 --algorithm fedavg --algorithm fedprox "
        "--out group --or-resume"
    )
    assert fedskew(line) == 0
    assert fedskew(line) == 0
    capsys.readouterr()
    assert fedskew(line + " --seeds 0-1") == 2
    assert "holds other runs than these" in capsys.readouterr().err


# -- when a checkpoint is due ------------------------------------------------------------------------------------------


def test_checkpoints_take_about_one_percent_of_the_time():
    now = [0.0]
    pace, saved = CheckpointInterval(None, 1000, lambda: now[0]), []
    for round in range(1, 1001):
        now[0] += 0.1
        if pace.due(round):
            with pace.saving():
                now[0] += 0.05
            saved.append(round)
    # Two seconds, then what the last one costs a hundred times over
    assert saved[:3] == [20, 70, 120]
    assert saved[-1] == 1000
    assert 0.05 * len(saved) / now[0] < 0.0115


def test_checkpoints_every_so_many_rounds_and_at_the_end():
    pace = CheckpointInterval(3, 8)
    assert [round for round in range(1, 9) if pace.due(round)] == [3, 6, 8]


# -- what was changed --------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """An exception that no code catches."""


def begun(
    folder: Path, model: Any = "logreg", algorithm: Any = "fedprox", **more: Any
) -> tuple[fs.Federation, Path]:
    fed = fs.split(fs.load("digits"), "iid", clients=3)

    def watch(result: Any, rounds: int) -> None:
        if result.round["round"] == 2:
            raise Crash

    with pytest.raises(Crash):
        fs.train(
            fed,
            model,
            algorithm,
            rounds=4,
            folder=folder,
            callbacks=watch,
            checkpoint_every=1,
            **more,
        )
    return fed, folder


def test_another_model_or_method_is_refused_unless_forced(tmp_path: Path):
    def net(*layers: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *layers, nn.Linear(8, 10))

    torch.manual_seed(0)
    first = net(nn.ReLU())
    fed, folder = begun(tmp_path / "run", first)
    other = net(nn.Tanh())
    other.load_state_dict(first.state_dict())  # the same weights, another path through them
    with pytest.raises(
        fs.FedskewError,
        match=r"the model is not the one that the run began with \(it answers fixed rows otherwise\)",
    ):
        fs.resume(folder, fed=fed, model=other)
    with pytest.raises(
        fs.FedskewError,
        match=r"the algorithm is not the one .*\(options was .* and is .*model=..., force=True\)",
    ):
        fs.resume(folder, fed=fed, model=first, algorithm=fs.FedProx(mu=0.5))
    with pytest.raises(
        fs.FedskewError,
        match=r"the algorithm is not the one .*\(class was .*FedProx and is .*FedAvg",
    ):
        fs.resume(folder, fed=fed, model=first, algorithm=fs.FedAvg())
    assert fs.resume(folder, fed=fed, model=other, force=True).summary["rounds"] == 4


def test_other_frozen_weights_are_refused_unless_forced(tmp_path: Path):
    torch.manual_seed(0)
    vectors = nn.Embedding(20, 4)
    vectors.weight.requires_grad_(False)
    model = nn.Sequential(vectors, nn.Flatten(), nn.Linear(8, 2))
    x = np.random.default_rng(0).integers(0, 20, (40, 2))
    fed = fs.split((x, x[:, 0] % 2), "iid", clients=2)

    def watch(result: Any, rounds: int) -> None:
        raise Crash

    folder = tmp_path / "run"
    with pytest.raises(Crash):
        fs.train(
            fed, model, rounds=3, folder=folder, callbacks=watch, checkpoint_every=1, device="cpu"
        )
    with torch.no_grad():
        vectors.weight[13] += 0.1  # the two fixed rows have other tokens
    with pytest.raises(fs.FedskewError, match="weights that are not trained are others than those"):
        fs.resume(folder, fed=fed, model=model)
    assert fs.resume(folder, fed=fed, model=model, force=True).summary["rounds"] == 3


def test_an_interrupted_run_of_python_objects_says_how_it_goes_on(tmp_path: Path):
    fed = fs.split(fs.load("digits"), "iid", clients=3)

    def stop(result: Any, rounds: int) -> None:
        raise KeyboardInterrupt

    settings = {"rounds": 3, "callbacks": stop, "device": "cpu"}
    with pytest.raises(
        Interrupted, match=r"resume with: fedskew.resume\('.*own', model=...\) in Pyt"
    ):
        fs.train(
            fed, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), folder=tmp_path / "own", **settings
        )
    with pytest.raises(Interrupted, match=r"resume with: fedskew resume .*named"):
        fs.train(fed, "logreg", folder=tmp_path / "named", **settings)


def test_what_changed_around_a_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, folder = begun(tmp_path / "run")
    monkeypatch.setattr(np, "__version__", "9.9.9")
    with pytest.warns(
        UserWarning, match=r"numpy was .* and is 9\.9\.9: the bits may differ from here on"
    ):
        fs.resume(folder)


# -- reading back ------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_read_back(tmp_path: Path):
    fed = fs.split(fs.load("digits"), "iid", clients=3)
    run = fs.train(fed, "logreg", "scaffold", rounds=3, folder=tmp_path / "run")
    again = fs.open_run(tmp_path / "run")
    assert again.summary == run.summary
    assert again.format == 3
    assert again.config["rounds"] == 3
    assert again.rounds.equals(run.rounds)
    assert again.clients.equals(run.clients)
    assert again.final_clients.equals(run.final_clients)
    for name, value in again.weights.items():
        assert value.equal(run.model.cpu().state_dict()[name])


def test_runs_of_other_formats_are_read_or_named(tmp_path: Path):
    _, folder = begun(tmp_path / "run")
    with pytest.raises(fs.FedskewError, match=r"is not finished: resume it \(fedskew resume"):
        fs.open_run(folder)
    run = fs.resume(folder)
    environment = folder / "environment.json"
    stored = json.loads(environment.read_text())
    del stored["format"]  # as the first format was
    environment.write_text(json.dumps(stored))
    (folder / "final.json").unlink()
    (folder / "start.json").unlink()
    assert fs.open_run(folder).summary == run.summary
    with pytest.raises(
        fs.FedskewError,
        match="has the format 1, and this version of fedskew resumes runs of format 3 only",
    ):
        fs.resume(folder)
    environment.write_text(json.dumps({**stored, "format": 7}))
    with pytest.raises(
        fs.FedskewError,
        match="has the format 7, and this version of fedskew reads 1 to 3: use a newer one",
    ):
        fs.open_run(folder)


def test_lines_about_clients_stay_on_the_disk(tmp_path: Path):
    fed = fs.split(fs.load("digits"), "iid", clients=20)
    run = fs.train(fed, "logreg", rounds=3, folder=tmp_path / "run")
    assert "clients" not in run.tables
    assert len(run.clients) == 60
    assert run.summary["gini_of_client_weights"] == pytest.approx(
        fs.train(fed, "logreg", rounds=3, folder=False).summary["gini_of_client_weights"]
    )
