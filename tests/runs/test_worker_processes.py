"""Runs by several processes: the same bits for any number of them, one folder, and no process left behind."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import fedskew as fs
from fedskew.algorithms import FedAvg
from fedskew.algorithms.contract import resolve
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.runs.execute import prepare, server_of
from fedskew.runs.folder import RunFolder
from fedskew.server.worker import Recipe

SETTINGS = {"rounds": 4, "per_round": 6, "threads": 1, "device": "cpu", "checkpoint_every": 1}
RUN = (
    "--data digits --skew dirichlet:alpha=0.3 --clients 10 --model mlp --rounds 4 --per-round 6 --threads 1 "
    "--device cpu --checkpoint-every 1"
)
TIMED = {
    ".lock",
    "timing.csv",
    "summary.json",
    "final.json",
    "config.toml",
    "start.json",
    "report.html",
}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers import the classes of this file, however the tests were started."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


@pytest.fixture(scope="module")
def fed():
    return fs.split(fs.load("digits"), "dirichlet:alpha=0.3", clients=10)


def content(folder):
    """Return all files but those with times or the number of workers in them, and the summary without its time."""
    files = {
        str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()
    }
    found = {
        name: path.read_bytes()
        for name, path in files.items()
        if path.name not in TIMED
        and not (name.startswith("checkpoints/") and path.suffix == ".json")
    }
    summary = RunFolder(folder).read_json("summary.json")
    return (
        sorted(files),
        found,
        {name: value for name, value in summary.items() if name != "seconds"},
    )


def train(fed, place, workers, algorithm="scaffold", **more):
    return fs.train(fed, "mlp", algorithm, folder=place, workers=workers, **{**SETTINGS, **more})


def test_one_two_and_four_processes_write_the_same_folder(fed, tmp_path):
    for workers in (1, 2, 4):
        train(fed, tmp_path / str(workers), workers)
    assert content(tmp_path / "1") == content(tmp_path / "2") == content(tmp_path / "4")
    assert multiprocessing.active_children() == []


def test_a_server_whose_workers_are_gone_goes_on_alone(fed):
    one, two = (train(fed, False, workers).server for workers in (1, 2))
    assert one.advance().round == two.advance().round
    assert all(
        torch.equal(value, two.state.params[name]) for name, value in one.state.params.items()
    )


@pytest.mark.parametrize("algorithm", ["fedbuff:buffer=3", "ditto", "fedbs"])
def test_what_needs_more_than_sums_has_the_same_bits(fed, tmp_path, algorithm):
    for workers in (1, 2):
        train(fed, tmp_path / str(workers), workers, algorithm, rounds=2)
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_a_killed_worker_ends_the_run_which_then_goes_on_with_any_number_of_them(fed, tmp_path):
    train(fed, tmp_path / "whole", 1)

    def kill(result, rounds):
        if result.round["round"] == 2:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    with pytest.raises(
        FedskewError, match=r"worker 1 is gone.*round 2 of 4; resume with: fedskew resume"
    ):
        train(fed, tmp_path / "killed", 2, callbacks=kill)
    assert multiprocessing.active_children() == []
    fs.resume(tmp_path / "killed", workers=1)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_workers_end_when_the_leader_is_killed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, os, signal\n"
        "import fedskew as fs\n"
        "def die(result, rounds):\n"
        "    print(multiprocessing.active_children()[0].pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n"
        "    fed = fs.split(fs.load('digits'), 'iid', clients=4)\n"
        "    fs.train(fed, 'logreg', rounds=2, folder=False, workers=2, callbacks=die)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    worker = Path(f"/proc/{int(done.stdout)}")
    while worker.exists() and worker.joinpath("stat").read_text().split()[2] != "Z":
        time.sleep(0.05)  # it ends, or the test does not


def test_ctrl_c_ends_all_processes(fed, tmp_path):
    def interrupt(result, rounds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="interrupted after round 1 of 4; resume with"):
        train(fed, tmp_path / "run", 2, callbacks=interrupt)
    assert multiprocessing.active_children() == []


class OnlyInTheLeader(nn.Module):
    """A model that cannot be trained in another process."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        if multiprocessing.parent_process() and torch.is_grad_enabled():
            raise RuntimeError("not here")
        return self.head(x.flatten(1))


class Peculiar(nn.Module):
    """A model with a layer in two places, frozen weights, a buffer that is not saved, and a tensor that is neither."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.head = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.again = self.middle
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.middle.weight
        self.first.bias.requires_grad_(False)
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)
        self.shift = torch.linspace(0, 1, 8)

    def forward(self, x):
        hidden = torch.relu(self.first(x.flatten(1))) * self.scale + self.shift
        return self.head(self.tied(self.again(self.middle(hidden))))


def test_a_peculiar_model_is_the_same_in_workers(fed, tmp_path):
    for workers in (1, 3):
        fs.train(
            fed,
            Peculiar(),
            folder=tmp_path / str(workers),
            workers=workers,
            engine="loop",
            **SETTINGS,
        )
    assert content(tmp_path / "1") == content(tmp_path / "3")


def test_an_error_in_a_worker_is_told_once(fed, capfd):
    with pytest.raises(FedskewError, match="worker 1: RuntimeError: not here"):
        fs.train(fed, OnlyInTheLeader(), folder=False, workers=2, engine="loop", **SETTINGS)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("what", ["model", "algorithm"])
def test_what_cannot_be_sent_is_refused_before_anything_is_written(fed, tmp_path, what):
    @dataclass(frozen=True)
    class Local(FedAvg):
        """A method that no other process can find."""

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    if what == "model":
        model.hidden = lambda x: x
    algorithm = Local() if what == "algorithm" else FedAvg()
    with pytest.raises(FedskewError, match=f"the {what} cannot be sent to workers"):
        fs.train(fed, model, algorithm, folder=tmp_path / "run", workers=2, **SETTINGS)
    assert not (tmp_path / "run").exists()
    assert multiprocessing.active_children() == []


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "fedskew"]


def test_torchrun_starts_the_same_run(tmp_path):
    words = ["run", *RUN.split(), "--algorithm", "fedprox", "--folder"]
    done = subprocess.run(
        [*TORCHRUN, *words, str(tmp_path / "two")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run folder:") == 1
    one = subprocess.run(
        [sys.executable, "-m", "fedskew", *words, str(tmp_path / "one"), "--workers", "1"],
        capture_output=True,
    )
    assert one.returncode == 0
    assert content(tmp_path / "two") == content(tmp_path / "one")


def test_torchrun_compares_methods_and_resumes_what_is_not_finished(tmp_path, fedskew):
    words = ["compare", *RUN.split(), "--algorithm", "fedavg", "--algorithm", "scaffold", "--out"]
    two, one = tmp_path / "two", tmp_path / "one"
    done = subprocess.run(
        [*TORCHRUN, *words, str(two)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    shutil.rmtree(two / "scaffold-s0")
    done = subprocess.run(
        [*TORCHRUN, "resume", str(two)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert fedskew(" ".join([*words, str(one), "--workers", "1"])) == 0
    for name in ("fedavg-s0", "scaffold-s0"):
        assert content(two / name) == content(one / name)


def test_a_worker_of_torchrun_with_other_rows_is_refused(fed):
    server, config = prepare(fed, "logreg", resolve("fedavg"), Settings(workers=2, **SETTINGS))
    assert Recipe(config, fed.fingerprint, []).trainer(server_of).jobs[0].x.equal(server.job.x)
    with pytest.raises(FedskewError, match=r"other rows of digits.* than the machine of process 0"):
        Recipe({**config, "split_seed": 7}, fed.fingerprint, []).trainer(server_of)
    with pytest.raises(
        FedskewError, match="other code in what --import names than the machine of process 0"
    ):
        Recipe(config, fed.fingerprint, ["0" * 64]).trainer(server_of)


@pytest.mark.parametrize("more", [0, 300_000], ids=["small", "larger than a pipe"])
def test_a_script_without_a_guard_is_told(tmp_path, more):
    script = tmp_path / "script.py"
    script.write_text(
        "import fedskew as fs\n"
        "from torch import nn\n"
        "fed = fs.split(fs.load('digits'), 'iid', clients=4)\n"
        "model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
        f"model.more = list(range({more}))\n"
        "fs.train(fed, model, rounds=1, folder=False, workers=2)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert 'must be under if __name__ == "__main__":' in done.stderr


def test_a_run_without_workers_is_resumed_without(fed, tmp_path):
    def stop(result, rounds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(fed, tmp_path / "run", None, callbacks=stop)
    with pytest.raises(FedskewError, match="the run began without workers"):
        fs.resume(tmp_path / "run", workers=2)


def test_several_seeds_have_workers_one_run_after_the_other(fedskew):
    assert fedskew(f"compare {RUN} --seeds 0-1 --workers 2 --out both") == 0
    assert fedskew(f"run {RUN} --seed 1 --workers 1 --folder one") == 0
    Path("one/report.html").unlink()  # a run of a comparison has none
    assert content(Path("both/fedavg-s1")) == content(Path("one"))
    assert fedskew("resume both --workers 1") == 0


def test_or_resume_takes_any_number_of_workers(fedskew, capfd):
    assert fedskew(f"run {RUN} --workers 2 --folder run") == 0
    assert fedskew(f"run {RUN} --workers 1 --folder run --or-resume") == 0
    assert fedskew(f"run {RUN} --folder run --or-resume") == 2
    assert "its workers is 2 and not none" in capfd.readouterr().err
    assert not list(Path().glob("runs/*"))
