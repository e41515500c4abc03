"""Runs that are killed, interrupted or out of disk space, and resumed: the same bits as without interruption."""

import errno
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fedskew as fs
from fedskew.cli import app as cli
from fedskew.runs.folder import (
    CHECKPOINTS,
    CLIENTS,
    FINAL_CLIENTS,
    JOURNAL,
    MODEL,
    PAGE,
    ROUNDS,
    SUMMARY,
    CheckpointFiles,
    RunFolder,
)

BITS = (ROUNDS, CLIENTS, FINAL_CLIENTS, MODEL)  # what must not depend on how often a run was killed

# State of every sort: what clients keep (BatchNorm), what the server keeps (Adam), what an optimiser keeps (local).
KEPT_BY_CLIENTS = (
    "--model tabular:hidden=16+8 --norm local --momentum 0.9 "
    "--skew dirichlet:alpha=0.5,min_size=4 --per-round 4"
)
KEPT_BY_CLIENTS += " --checkpoint-every 1"
KEPT_BY_SERVER = (
    "--model mlp:hidden=16 --algorithm fedadam --checkpoint-every 3 --validation 0.1 "
    "--eval-every 2 --per-round 6"
)
KEPT_BY_OPTIMIZER = (
    "--model mlp:hidden=8 --algorithm local --momentum 0.5 --clients 4 --checkpoint-every 2"
)
METHODS = {"norm=local": KEPT_BY_CLIENTS, "fedadam": KEPT_BY_SERVER, "local": KEPT_BY_OPTIMIZER}

# A process that has imported everything and forks a child for every command: a start costs milliseconds.
# delay: SIGKILL so many seconds after the table has that many lines (0: after the start). kill_at: SIGKILL at that
# system call that opens, renames, makes or removes something in the run's folder.
SERVER = """
import contextlib, json, os, signal, sys, time
import fedskew.study.compare, sklearn.datasets, torch
from fedskew.cli import app as cli

torch.func.grad(torch.sum)(torch.zeros(2))  # its first call imports half of PyTorch

def child(job):
    os.chdir(job["cwd"])
    sys.argv = ["fedskew", *job["argv"]]
    calls = 0
    def audit(event, args):
        nonlocal calls
        if event in ("open", "os.rename", "os.mkdir", "os.remove") and isinstance(args[0], str) and "killed" in args[0]:
            calls += 1
            if calls == job["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(audit)
    with open(job["log"], "w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
    with open(job["log"] + ".calls", "w") as file:
        file.write(str(calls))
    os._exit(code)

def lines_of(table):
    try:
        with open(table, "rb") as file:
            return file.read().count(b"\\n")
    except FileNotFoundError:
        return 0

for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        child(job)
    ended, deadline = (0, 0), None
    while not ended[0]:
        if job["delay"] is not None and deadline is None and lines_of(job["table"]) >= job["lines"]:
            deadline = time.monotonic() + job["delay"]
        if deadline and time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        ended = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)
    print(os.waitstatus_to_exitcode(ended[1]), flush=True)
"""


@dataclass
class Warm:
    """A process that has imported everything and runs commands."""

    process: "subprocess.Popen[str]"
    folder: Path

    def call(self, command: str, **kill: Any) -> int:
        """Run a command in the folder; returns its exit code, minus the signal if it was killed."""
        assert self.process.stdin
        assert self.process.stdout
        job = {
            "cwd": str(self.folder),
            "argv": command.split(),
            "log": str(self.folder / "log"),
            "kill_at": 0,
            "delay": None,
        }
        print(json.dumps(job | kill), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    @property
    def log(self) -> str:
        """Return the output of the last command."""
        return (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    here = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # a process that has seen a GPU must not fork
    with subprocess.Popen([sys.executable, "-c", SERVER], text=True, env=here, **pipes) as process:  # type: ignore[call-overload]
        yield Warm(process, tmp_path_factory.mktemp("runs"))


def bits(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in BITS}


def whole(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rounds_done(folder: Path) -> int:
    """Return the number of rounds in the checkpoint."""
    return max(RunFolder(folder).checkpoints.rounds(), default=0)


@dataclass(frozen=True)
class Reference:
    """A run that was never killed."""

    command: str
    calls: int
    bits: dict[str, bytes]


@pytest.fixture(scope="module")
def reference(warm: Warm) -> Callable[[str, int], Reference]:
    known: dict[tuple[str, int], Reference] = {}

    def run(method: str, rounds: int) -> Reference:
        key = method, rounds
        if key not in known:
            command = f"run {METHODS[method]} --rounds {rounds} --folder "
            shutil.rmtree(warm.folder / "killed-never", ignore_errors=True)
            assert warm.call(command + "killed-never") == 0, warm.log
            calls = int((warm.folder / "log.calls").read_text())
            known[key] = Reference(command, calls, bits(warm.folder / "killed-never"))
        return known[key]

    return run


def finish(warm: Warm, folder: Path, again: str) -> None:
    """Resume until the run is done; a run that was killed before its folder existed is started again."""
    code = warm.call(f"resume {folder.name}" if folder.exists() else again + folder.name)
    assert code == 0, warm.log


def test_killed_at_ten_random_moments(
    warm: Warm, reference: Callable[[str, int], Reference]
) -> None:
    draw, rounds, hit_in_the_middle = random.Random(1), 12, 0
    for kill in range(10):
        expected = reference(list(METHODS)[kill % 2], rounds)
        folder = warm.folder / f"killed-by-clock-{kill}"
        # Twice while it starts, then in some round
        lines = 0 if kill < 2 else draw.randint(2, rounds + 1)
        delay = draw.uniform(0, 0.2 if kill < 2 else 0.02)
        moment = {"table": str(folder / ROUNDS), "lines": lines, "delay": delay}
        assert warm.call(expected.command + folder.name, **moment) in (-signal.SIGKILL, 0), warm.log
        if folder.exists():
            hit_in_the_middle += 0 < rounds_done(folder) < rounds
        finish(warm, folder, expected.command)
        assert bits(folder) == expected.bits
    assert hit_in_the_middle >= 3


@pytest.mark.parametrize("method", METHODS)
def test_killed_at_every_sort_of_file_operation(
    method: str, warm: Warm, reference: Callable[[str, int], Reference]
) -> None:
    expected = reference(method, 4)
    draw = random.Random(method)
    for kill in sorted(draw.sample(range(1, expected.calls + 1), 4)):
        folder = warm.folder / f"killed-at-{kill}-{method}"
        assert warm.call(expected.command + folder.name, kill_at=kill) == -signal.SIGKILL
        # The resumed run is killed as well, early on, where tables are cut back
        if folder.exists() and kill % 2:
            warm.call(f"resume {folder.name}", kill_at=draw.randint(5, 15))
        finish(warm, folder, expected.command)
        assert bits(folder) == expected.bits


def test_killed_again_and_again(warm: Warm, reference: Callable[[str, int], Reference]) -> None:
    expected = reference("fedadam", 4)
    folder, kills = warm.folder / "killed-often", 0
    assert warm.call(expected.command + folder.name, kill_at=expected.calls // 2) == -signal.SIGKILL
    assert folder.exists()
    while warm.call(f"resume {folder.name}", kill_at=10 + 4 * kills) == -signal.SIGKILL:
        kills += 1
    assert kills >= 4
    assert bits(folder) == expected.bits


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fedskew",
        "run",
        "--rounds",
        "100000",
        "--folder",
        "my run",
        "--model",
        "logreg",
    ]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    # Tests in the background inherit that it is ignored
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=tmp_path, text=True, preexec_fn=heard, **pipes) as process:
        while not (tmp_path / "my run" / CHECKPOINTS).exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("fedskew: interrupted after round ")
    assert last.endswith(" of 100000; resume with: fedskew resume 'my run'")


# -- in this process: what a crash leaves behind -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def fed() -> fs.Federation:
    return fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=6, seed=1)


def train(fed: fs.Federation, folder: Path, **more: Any) -> fs.Run:
    more = {"checkpoint_every": 1, **more}
    return fs.train(fed, "logreg", "fedavgm", rounds=5, per_round=3, seed=1, folder=folder, **more)


class Crash(BaseException):
    """An exception that no code catches."""


def crash_after(rounds: int) -> Any:
    def watch(result: Any, of: int) -> None:
        if result.round["round"] == rounds:
            raise Crash

    return watch


def crashed(fed: fs.Federation, folder: Path, rounds: int = 3, **more: Any) -> Path:
    with pytest.raises(Crash):
        train(fed, folder, callbacks=crash_after(rounds), **more)
    return folder


@pytest.fixture(scope="module")
def expected(fed: fs.Federation, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("expected") / "whole"
    train(fed, folder)
    return bits(folder)


@pytest.mark.parametrize("name", [ROUNDS, CLIENTS, "timing.csv"])
@pytest.mark.parametrize("torn", ["4,3", "4,3,0,0.1,2.2\n4,3,0", "\n"[:0]])
def test_a_torn_last_line(
    name: str, torn: str, fed: fs.Federation, expected: dict[str, bytes], tmp_path: Path
) -> None:
    folder = crashed(fed, tmp_path / "run")
    with (folder / name).open("a") as table:
        table.write(torn)
    fs.resume(folder)
    assert bits(folder) == expected


def test_a_torn_header(fed: fs.Federation, expected: dict[str, bytes], tmp_path: Path) -> None:
    folder = crashed(fed, tmp_path / "run", rounds=1, checkpoint_every=2)
    assert not (folder / CHECKPOINTS).exists()
    (folder / ROUNDS).write_text("round,clie")
    fs.resume(folder)
    assert bits(folder) == expected


def test_a_part_file_left_over(
    fed: fs.Federation, expected: dict[str, bytes], tmp_path: Path
) -> None:
    folder = crashed(fed, tmp_path / "run")
    for name in (
        "00000004.json.part",
        "00000004.safetensors",
        "00000004.safetensors.part",
    ):  # no manifest, no checkpoint
        (folder / CHECKPOINTS / name).write_bytes(b"half a checkpoint")
    fs.resume(folder)
    assert bits(folder) == expected
    assert not list(folder.rglob("*.part"))


def test_a_missing_checkpoint_begins_again(
    fed: fs.Federation, expected: dict[str, bytes], tmp_path: Path
) -> None:
    folder = crashed(fed, tmp_path / "run")
    shutil.rmtree(folder / CHECKPOINTS)
    fs.resume(folder)
    assert bits(folder) == expected


class Tripwire:
    """Raises at the n-th time a file in a folder is opened, renamed or removed; a permanent audit hook."""

    def __init__(self) -> None:
        self.folder, self.left = "", 0
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (
            self.left
            and event in ("open", "os.rename", "os.remove", "os.mkdir")
            and self.folder in str(arguments[0])
        ):
            self.left -= 1
            if self.left == 0:
                raise Crash


@pytest.fixture(scope="module")
def tripwire() -> Tripwire:
    return Tripwire()


def test_a_crash_at_every_single_file_operation_of_a_resume(
    fed: fs.Federation, expected: dict[str, bytes], tmp_path: Path, tripwire: Tripwire
) -> None:
    crashed(
        fed, tmp_path / "begun", checkpoint_every=2
    )  # tables of three rounds and a checkpoint of two: they are cut back
    for operation in range(1, 200):
        folder = tmp_path / f"crashed-at-{operation}"
        shutil.copytree(tmp_path / "begun", folder)
        tripwire.folder, tripwire.left = folder.name, operation
        try:
            fs.resume(folder, fed=fed)
            break
        except Crash:
            fs.resume(folder, fed=fed)
            assert bits(folder) == expected
    assert operation > 30
    assert tripwire.left > 0


def start_scaffold(fed: fs.Federation, folder: Path) -> fs.Run:
    return fs.train(
        fed, "logreg", "scaffold", rounds=4, per_round=3, seed=1, folder=folder, checkpoint_every=1
    )


def journal(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / JOURNAL).iterdir()}


def test_a_crash_at_every_single_file_operation_where_clients_keep_something(
    fed: fs.Federation, tmp_path: Path, tripwire: Tripwire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check several files per round, and a journal that is rewritten."""
    monkeypatch.setattr("fedskew.runs.checkpoint.LEAST", 0)
    monkeypatch.setattr("fedskew.runs.checkpoint.PIECE", 6000)
    start_scaffold(fed, tmp_path / "whole")
    save = CheckpointFiles.write

    def crash_at_the_third(files: CheckpointFiles, path: Path, content: bytes) -> None:
        if path.name == "00000003.json":
            raise Crash
        save(files, path, content)

    monkeypatch.setattr(CheckpointFiles, "write", crash_at_the_third)
    with pytest.raises(Crash):
        # The journal of three rounds and a checkpoint of two
        start_scaffold(fed, tmp_path / "begun")
    monkeypatch.setattr(CheckpointFiles, "write", save)
    for operation in range(1, 200):
        folder = tmp_path / f"crashed-at-{operation}"
        shutil.copytree(tmp_path / "begun", folder)
        tripwire.folder, tripwire.left = folder.name, operation
        try:
            fs.resume(folder, fed=fed)
            break
        except Crash:
            fs.resume(folder, fed=fed)
            assert bits(folder) == bits(tmp_path / "whole")
            assert journal(folder) == journal(tmp_path / "whole")
    assert operation > 30
    assert tripwire.left > 0


def test_models_of_their_own_survive(fed: fs.Federation, tmp_path: Path) -> None:
    """Check Ditto's personal models, and with norm=local also the local parts of the global model."""

    def start(folder: Path, **more: Any) -> fs.Run:
        settings = {"rounds": 4, "per_round": 3, "norm": "local", "checkpoint_every": 1}
        return fs.train(fed, "tabular:hidden=8", "ditto", folder=folder, **settings, **more)

    whole = start(tmp_path / "whole")
    with pytest.raises(Crash):
        start(tmp_path / "run", callbacks=crash_after(2))
    again = fs.resume(tmp_path / "run", fed=fed)
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")
    assert journal(tmp_path / "run") == journal(tmp_path / "whole")
    for client in range(fed.clients):
        for name, value in whole.server.client_model(client).items():
            assert value.equal(again.server.client_model(client)[name])


def test_a_lost_file_of_the_journal(fed: fs.Federation, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start_scaffold(fed, folder)
    shutil.copytree(folder, tmp_path / "whole")
    (folder / SUMMARY).unlink()
    file = sorted((folder / JOURNAL).iterdir())[-1]
    file.unlink()
    whole = "put it back, or resume from the checkpoint of round 3, which is intact: fedskew resume .* --force"
    offered = rf"{file} is gone: {whole}"
    with pytest.raises(fs.FedskewError, match=offered):
        fs.resume(folder, fed=fed)
    fs.resume(folder, fed=fed, force=True)
    assert bits(folder) == bits(tmp_path / "whole")
    assert journal(folder) == journal(tmp_path / "whole")


def test_what_was_finished_is_only_told_again(
    fed: fs.Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    first = train(fed, folder)
    before, written = whole(folder), {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    monkeypatch.setattr(sys, "argv", ["fedskew", "resume", str(folder), "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert ended.value.code == 0
    told = json.loads(out.splitlines()[-1])
    assert told.pop("folder") == str(folder)
    assert told == first.summary
    assert "is finished already" in err
    again = fs.resume(folder)
    assert again.summary == first.summary
    assert again.rounds.equals(first.rounds)
    assert again.clients.equals(first.clients)
    assert again.final_clients.equals(first.final_clients)
    for mine, theirs in zip(again.model.parameters(), first.model.parameters(), strict=True):
        assert mine.equal(theirs)
    assert whole(folder) == before
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == written


def test_a_finished_run_without_its_checkpoint_still_tells(
    fed: fs.Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    train(fed, folder)
    shutil.rmtree(folder / CHECKPOINTS)
    with pytest.raises(
        fs.FedskewError, match=r"checkpoints is gone; .* summary.json and model.safetensors"
    ):
        fs.resume(folder)
    monkeypatch.setattr(sys, "argv", ["fedskew", "resume", str(folder)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "fedavgm" in capsys.readouterr().out


def test_a_crash_between_the_last_round_and_the_end(
    fed: fs.Federation, expected: dict[str, bytes], tmp_path: Path
) -> None:
    folder = crashed(fed, tmp_path / "run", rounds=5)
    assert not (folder / SUMMARY).exists()
    (folder / FINAL_CLIENTS).write_text("client,rows\n0,")
    run = fs.resume(folder)
    assert bits(folder) == expected
    assert (folder / PAGE).exists()
    assert run.summary["rounds"] == 5


def test_threads_of_the_first_start_are_kept(fed: fs.Federation, tmp_path: Path) -> None:
    """Check that another machine keeps the number of threads, on which the bits of sums depend."""
    folder = crashed(fed, tmp_path / "run")
    used = json.loads((folder / "environment.json").read_text())["threads"]
    config = (folder / "config.toml").read_text()
    assert f"threads = {used}\n" in config
    (folder / "config.toml").write_text(
        config.replace(f"threads = {used}\n", f"threads = {used + 1}\n")
    )
    with pytest.raises(
        fs.FedskewError, match=r"config\.toml is damaged: its content is not what was written"
    ):
        fs.resume(folder)
    assert fs.resume(folder, force=True).server.threads == used + 1  # for those who know


# -- a disk that fills up ----------------------------------------------------------------------------------------------


class FullOfBytes(io.FileIO):
    """A file on a disk with space for a few more bytes."""

    def write(self, content: Any) -> int:
        super().write(bytes(content)[:20])
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "name", [ROUNDS, CLIENTS, "timing.csv", "00000003.safetensors.part", "00000003.json.part"]
)
def test_a_full_disk_stops_the_run_and_loses_nothing(
    name: str,
    fed: fs.Federation,
    expected: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, opened, count = tmp_path / "run", Path.open, 0

    def open_on_full_disk(path: Path, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += path.name == name and args[:1] in (("ab",), ("wb",))
        if path.name != name or count < (1 if name.endswith(".part") else 3):
            return opened(path, *args, **kwargs)
        return FullOfBytes(path, "w" if name.endswith(".part") else "a")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_on_full_disk)
        with pytest.raises(
            fs.FedskewError, match=r"cannot write .*run/.*the disk is full: free some space"
        ) as caught:
            train(fed, folder)
    assert str(caught.value).endswith(f", then resume with: fedskew resume {folder}")
    assert not list(folder.rglob("*.part"))
    assert (
        (folder / ROUNDS)
        .read_bytes()
        .startswith(expected[ROUNDS][: expected[ROUNDS].index(b"\n3,")])
    )
    fs.resume(folder)
    assert bits(folder) == expected


def test_a_disk_that_is_full_for_what_clients_keep(
    fed: fs.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = tmp_path / "run", Path.open
    start_scaffold(fed, tmp_path / "whole")

    def open_on_full_disk(path: Path, *args: Any, **kwargs: Any) -> Any:
        full = path.name == "00000003.safetensors.part"
        return FullOfBytes(path, "w") if full else opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_on_full_disk)
    with pytest.raises(
        fs.FedskewError,
        match=r"cannot write .*clients/00000003.safetensors: the disk is full: free some space",
    ):
        start_scaffold(fed, folder)
    monkeypatch.setattr(Path, "open", opened)
    assert len(journal(folder)) == 2
    fs.resume(folder, fed=fed)
    assert bits(folder) == bits(tmp_path / "whole")
    assert journal(folder) == journal(tmp_path / "whole")


class KilledError(Exception):
    pass


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize(
    "method",
    [
        "stratify-batch:secure=true",
        "stratify-single:selection=weighted,per_label=3,secure=true",
        "stratify-hybrid:secure=true",
    ],
)
def test_a_run_with_secret_labels_repeats_and_goes_on_with_what_its_parties_agreed_on(
    monkeypatch, tmp_path, method, engine
):
    pytest.importorskip("tenseal")
    from fedskew.server import label_holders as holders

    def killed_in_round(number: int):
        def watch(result, rounds: int) -> None:
            if result.round["round"] == number:
                raise KilledError

        return watch

    played, agree = [], holders.agree
    monkeypatch.setattr(
        holders, "agree", lambda *args, **more: played.append(1) or agree(*args, **more)
    )
    settings = {
        "rounds": 4,
        "batch_size": 8,
        "per_round": 3,
        "engine": engine,
        "threads": 1,
    }
    settings |= {
        "fleet": "mixed:slow=5,dropout=0.2",
        "algorithm": method,
        "model": "logreg",
        "checkpoint_every": 2,
    }
    draw = fs.load("digits")
    data = (draw.train.x[:120].reshape(120, -1), draw.train.y[:120] % 4)
    fed = fs.split(data, "classes:k=2", clients=4, seed=0)
    whole = fs.train(fed, folder=tmp_path / "whole", **settings)
    again = fs.train(fed, folder=tmp_path / "again", **settings)
    assert len(played) == 2
    for number in (3, 4):
        with pytest.raises(KilledError):
            fs.train(
                fed,
                folder=tmp_path / f"killed {number}",
                callbacks=killed_in_round(number),
                **settings,
            )
        told = len(played)
        resumed = fs.resume(tmp_path / f"killed {number}", fed=fed)
        assert len(played) == told  # from the checkpoint
        assert set(resumed.summary["label_protocol_seconds"]) == {
            "keys",
            "mapping",
            "unique list",
            "counts",
        }
        assert _facts(tmp_path / f"killed {number}", resumed) == _facts(tmp_path / "whole", whole)
    assert _facts(tmp_path / "again", again) == _facts(tmp_path / "whole", whole)


def _facts(folder: Path, run: fs.Run) -> tuple[list[bytes], dict[str, Any]]:
    """Return the bits of a run, and its summary without measured times."""
    measured = ("seconds", "label_protocol_seconds")
    return [(folder / name).read_bytes() for name in BITS], {
        n: v for n, v in run.summary.items() if n not in measured
    }


def test_a_run_whose_settings_name_no_threads_has_as_many_as_before(tmp_path: Path):
    def stop(result: object, rounds: int) -> None:
        raise KeyboardInterrupt

    fed = fs.split(fs.load("digits"), "iid", clients=4)
    with pytest.raises(KeyboardInterrupt):
        fs.train(
            fed,
            "logreg",
            rounds=2,
            threads=3,
            checkpoint_every=1,
            folder=tmp_path / "run",
            callbacks=stop,
        )
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("threads = 3\n", ""))
    assert fs.resume(tmp_path / "run", force=True).server.threads == 3
