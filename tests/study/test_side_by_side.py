"""Runs side by side: the grid of numbers, runs that end early, signals, and resuming all of them."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedskew as fs
from fedskew.engine.stacked import Stacked
from fedskew.engine.together import Together
from fedskew.runs.checkpoint import Checkpoints
from fedskew.runs.experiment import run_experiment
from fedskew.runs.folder import RunFolder
from fedskew.server.server import Server
from fedskew.study.member import read_members
from fedskew.study.side_by_side import can_share_a_stack
from fedskew.study.study_plan import members_of
from fedskew.study.study_runs import _groups

TABLES = ("rounds.csv", "clients.csv", "clients_final.csv", "model.safetensors")


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every round adds the number of runs that were trained together."""
    counts: list[int] = []
    train = Together.train

    def counted(self: Together, asked: Any) -> Any:
        found = train(self, asked)
        counts.append(len(found))
        return found

    monkeypatch.setattr(Together, "train", counted)
    return counts


def same_files(one: Path, other: Path) -> None:
    names = sorted(path.name for path in one.iterdir() if path.is_dir())
    assert names == sorted(path.name for path in other.iterdir() if path.is_dir())
    for name in names:
        for table in TABLES:
            assert (one / name / table).read_bytes() == (other / name / table).read_bytes(), (
                name,
                table,
            )


GRID = (
    "compare --rounds 3 --model logreg --clients 4 --algorithm fedprox --seeds 0-1 "
    "--grid mu=0,0.5 --grid lr=0.1,0.05 --choose none"
)


def test_a_grid_has_a_run_for_every_combination(
    fedskew: Callable[[str], Any],
    together: list[int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert fedskew(GRID + " --out group --json") == 0
    assert together == [8, 8, 8]
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [(run["algorithm"], run["seed"]) for run in told["runs"]] == [
        (method, seed)
        for seed in (0, 1)
        for method in ("fedprox:mu=0.0",) * 2 + ("fedprox:mu=0.5",) * 2
    ]
    assert list(told["means"]) == [
        f"fedprox mu={mu} lr={lr}" for mu in ("0", "0.5") for lr in ("0.1", "0.05")
    ]
    table = [line.split() for line in err.splitlines() if line.startswith(("method", "fedprox "))]
    assert [line[:3] for line in table] == [
        ["method", "mu", "lr"], ["fedprox", "0", "0.1"], ["fedprox", "0", "0.05"], ["fedprox", "0.5", "0.1"],
        ["fedprox", "0.5", "0.05"],
    ]  # fmt: skip
    assert {path.name for path in Path("group").iterdir() if path.is_dir()} == {
        f"fedprox-mu-{mu}-lr-{lr}-s{seed}"
        for mu in ("0", "0.5")
        for lr in ("0.1", "0.05")
        for seed in (0, 1)
    }


@pytest.mark.parametrize("which", [("0", "0.1", 1), ("0.5", "0.05", 0)])
def test_a_run_of_a_grid_has_the_numbers_of_a_run_on_its_own(
    which: tuple[str, str, int], fedskew: Callable[[str], Any]
) -> None:
    mu, lr, seed = which
    assert fedskew(GRID + " --out group") == 0
    single = f"run --rounds 3 --model logreg --clients 4 --algorithm fedprox:mu={mu} --lr {lr} --seed {seed}"
    assert fedskew(single + " --folder alone") == 0
    member = Path(f"group/fedprox-mu-{mu}-lr-{lr}-s{seed}")
    assert (member / "config.toml").read_bytes() == Path("alone/config.toml").read_bytes()
    for table in TABLES[:3]:
        for left, right in zip(
            RunFolder(Path("alone")).table(table), RunFolder(member).table(table), strict=True
        ):
            assert left == pytest.approx(right, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (
            "--algorithm fedprox --grid mu",
            "grid 'mu' is not a name with numbers, such as mu=0,0.01,0.1",
        ),
        ("--algorithm fedprox --grid mu=1,x", "grid 'mu=1,x': 'x' is not a number"),
        ("--algorithm fedprox --grid mu=", "grid 'mu=': '' is not a number"),
        (
            "--algorithm fedprox --grid nu=1",
            "unknown number of fedprox or of its training in grid 'nu'",
        ),
        (
            "--algorithm fedprox --algorithm fedavg --grid nu=1",
            "unknown number of fedprox or fedavg or of its",
        ),
        (
            "--algorithm fedprox --grid weights=1",
            "unknown number of fedprox or of its training in grid 'weights'",
        ),
        (
            "--algorithm fedprox --grid rounds=1,2",
            "unknown number of fedprox or of its training in grid 'rounds'",
        ),
        ("--algorithm fedprox --grid mu=1 --grid mu=2", "grid: mu is given twice"),
        ("--algorithm fedprox --grid mu=1,1.0", "fedprox-mu-1-s0 is given twice"),
        (
            "--algorithm fedprox:mu=1 --grid mu=1",
            "mu is given twice: in grid, and as fedprox:mu=1.0",
        ),
        ("--lr 0.1 --grid lr=1,2", "lr is given twice: in grid, and as a setting"),
        ("--algorithm fedprox --grid mu=1,-1", "mu=-1 is out of range, it must be >= 0"),
        ("--grid lr=0", "lr=0 is out of range, it must be > 0"),
    ],
)
def test_bad_grids(
    command: str, problem: str, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew(f"compare {command}") == 2
    assert problem in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()


def test_a_grid_of_a_composition_and_whole_numbers() -> None:
    grid = {"mu": [0.5], "attackers": [1.0, 2.0]}
    found = members_of({}, ["fedprox + krum"], [0], grid)
    assert [member.values["algorithm"] for member in found] == [
        "fedprox:mu=0.5 + krum:attackers=1",
        "fedprox:mu=0.5 + krum:attackers=2",
    ]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
@pytest.mark.parametrize(
    "settings",
    [
        {"skew": "iid", "validation": 0.1},
        {"skew": ["iid", "classes:k=3", "iid + noise:sigma=0.5"]},
        {"skew": ["iid + relabel", "dirichlet:alpha=0.5"]},
    ],
    ids=["validation", "noise", "relabel"],
)
def test_runs_with_other_rows_share_a_stack(
    method: str, settings: dict[str, Any], tmp_path: Path, together: list[int]
) -> None:
    common: dict[str, Any] = {"algorithm": method, "model": "logreg", "clients": 4, "rounds": 2}
    fs.compare(seeds=range(2), out=tmp_path / "group", **common, **settings)
    members = read_members(tmp_path / "group")
    assert together == [len(members)] * 2
    for member in members:
        place = tmp_path / f"alone-{member.name}"
        run_experiment(member.experiment(), folder=place)
        alone, group = RunFolder(place), RunFolder(tmp_path / "group" / member.name)
        for name in ("rounds.csv", "clients.csv", "clients_final.csv"):
            for one, other in zip(alone.table(name), group.table(name), strict=True):
                assert one == pytest.approx(other, rel=1e-4, abs=1e-5), member.name


@pytest.mark.parametrize(
    "settings",
    [
        "--engine loop",
        "--algorithm fedbuff",
        "--algorithm stratify-batch",
        "--model mlp:dropout=0.5",
    ],
)
def test_what_cannot_be_stacked_runs_one_by_one(
    settings: str, fedskew: Callable[[str], Any], together: list[int]
) -> None:
    few = f"compare --rounds 2 --clients 4 --seeds 0-1 {settings}"
    assert fedskew(few + " --out group") == 0
    assert not any(together)
    for seed in (0, 1):
        assert (
            fedskew(
                few.replace("compare", "run").replace("--seeds 0-1", f"--seed {seed}")
                + f" --folder alone{seed}"
            )
            == 0
        )
        member = next(path for path in Path("group").iterdir() if path.name.endswith(f"-s{seed}"))
        for table in TABLES:
            assert (member / table).read_bytes() == Path(f"alone{seed}", table).read_bytes()


class Crash(BaseException):
    """An exception that no code catches."""


FIVE = "compare --rounds 5 --model logreg --clients 4 --algorithm scaffold --seeds 0-2"
FIVE += " --grid server_lr=0.5,1 --choose none"


@pytest.mark.parametrize(
    ("every", "call"), [(1, 1), (1, 8), (1, 15), (1, 26), (1, 30), (2, 8), (2, 26)]
)
def test_a_killed_group_continues_with_the_same_bits(
    every: int,
    call: int,
    fedskew: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    together: list[int],
) -> None:
    assert fedskew(FIVE + f" --checkpoint-every {every} --out expected") == 0
    assert together == [6] * 5
    complete, calls = Server.complete, 0

    def crash(training: Server, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Crash
        return complete(training, *args)

    monkeypatch.setattr(Server, "complete", crash)
    with pytest.raises(Crash):
        fedskew(FIVE + f" --checkpoint-every {every} --out group")
    assert fedskew("resume group") == 0
    same_files(Path("expected"), Path("group"))


@pytest.mark.parametrize("call", [8, 15])
def test_runs_go_on_from_the_last_round_that_all_have_saved(
    call: int, fedskew: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, together: list[int]
) -> None:
    assert fedskew(FIVE + " --checkpoint-every 1 --out expected") == 0
    save, calls = Checkpoints.save, 0

    def crash(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Crash
        return save(*args)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", crash)
        with pytest.raises(Crash):
            fedskew(FIVE + " --checkpoint-every 1 --out group")
    places = [path for path in Path("group").iterdir() if path.is_dir()]
    last = [max(RunFolder(place).checkpoints.rounds()) for place in places]
    assert max(last) == min(last) + 1
    together.clear()
    assert fedskew("resume group") == 0
    assert together == [6] * (5 - min(last))
    same_files(Path("expected"), Path("group"))


def test_a_signal_ends_the_round_of_all_and_they_continue(
    fedskew: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fedskew(FIVE + " --out expected") == 0
    complete, calls = Server.complete, 0

    def stop(training: Server, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        return complete(training, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Server, "complete", stop)
        assert fedskew(FIVE + " --out group --checkpoint-every 100") == 143
    assert "resume with: fedskew resume group" in capsys.readouterr().err
    places = [path for path in Path("group").iterdir() if path.is_dir()]
    assert [RunFolder(place).checkpoints.rounds() for place in places] == [[2]] * 6
    assert fedskew("resume group") == 0
    same_files(Path("expected"), Path("group"))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_run_that_diverges_ends_and_the_others_go_on(
    fedskew: Callable[[str], Any], together: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    few = "compare --rounds 4 --model mlp:hidden=8 --clients 3 --algorithm fedavgm --grid server_lr=1,9e18,0.5"
    few += " --choose none"
    assert fedskew(few + " --out group") == 1
    assert together[0] == 3
    assert together[-1] == 2
    assert "failed: fedavgm-server-lr-9e+18-s0: round" in capsys.readouterr().out
    rows = json.loads(Path("group/summary.json").read_text())["runs"]
    assert ["failed" in row for row in rows] == [False, True, False]
    assert json.loads(Path("group/fedavgm-server-lr-9e+18-s0/failed.json").read_text()) == rows[1]


def test_runs_that_stop_early_end_alone(fedskew: Callable[[str], Any], together: list[int]) -> None:
    few = "compare --rounds 30 --model logreg --clients 4 --seeds 0-2 --split-seed 1 --validation 0.2 --stop-after 1"
    assert fedskew(few + " --out group") == 0
    rounds = sorted(
        len(RunFolder(Path(f"group/fedavg-s{seed}")).table("rounds.csv")) for seed in range(3)
    )
    assert together == [3] * rounds[0] + [2] * (rounds[1] - rounds[0]) + [0] * (
        rounds[2] - rounds[1]
    )


def test_no_more_runs_at_once_than_memory_has_room_for(
    fedskew: Callable[[str], Any], together: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = "compare --rounds 2 --model logreg --clients 4 --seeds 0-4 --algorithm scaffold"
    assert fedskew(few + " --out expected") == 0
    # Of scaffold: the weights and four controls of clients
    states = (5 * 64 * 10 + 5 * 10 + 10) * 4 + 5 * 8
    monkeypatch.setattr("fedskew.study.side_by_side._MEMORY", 2 * states + states // 2)
    together.clear()
    assert fedskew(few + " --out group") == 0
    assert together == [2, 2, 2, 2, 0, 0]
    assert sorted(path.name for path in Path("group").iterdir()) == sorted(
        p.name for p in Path("expected").iterdir()
    )


def test_checkpoints_are_due_for_all_or_none() -> None:
    from fedskew.runs.runner import CheckpointInterval

    now = 0.0
    interval = CheckpointInterval(None, 100, lambda: now)
    now = 1.0
    assert not any(interval.due(1) for _ in range(3))
    now = 3.0
    for _ in range(3):
        assert interval.due(2)
        with interval.saving():
            now += 1
    now += 200  # three took 3 seconds: 297 until the next
    assert not interval.due(3)
    now += 100
    assert interval.due(4)


@pytest.mark.parametrize(
    ("method", "model", "fit"),
    [
        ("fedprox", "tabular:hidden=5", True),
        ("moon", "tabular:hidden=5", False),  # needs features
        ("fedper", "tabular:hidden=5", False),  # keeps some weights
        ("fedtan", "tabular:hidden=5", False),  # shares statistics
        ("fedprox", "mlp:hidden=5", False),  # takes batches of one row
    ],
)
def test_only_runs_of_one_kind_fit_in_one_stack(
    lab: Any, method: str, model: str, fit: bool
) -> None:
    fed, engine = lab.federation(), Stacked(mode="stack")
    first = lab.training(fed, "fedavg", "tabular:hidden=5", engine)
    assert can_share_a_stack(lab.training(fed, method, model, engine), first) is fit


def test_groups_differ_in_numbers_only() -> None:
    algorithms = ["fedprox", "fedprox:mu=1", "fedprox:weights=uniform", "fedavg", "fedrep"]
    groups = _groups(members_of({}, algorithms, [0, 1]))
    assert sorted(len(group) for group in groups) == [2, 2, 2, 4]
    several_skews = members_of({}, ["fedavg"], [0, 1], skews=["iid", "classes:k=2"])
    assert [len(group) for group in _groups(several_skews)] == [4]
    many = members_of({}, ["fedavg"], range(40))
    assert [len(group) for group in _groups(many)] == [16, 16, 8]


def test_a_list_without_numbers_is_read_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    entry = {"name": "fedavg-s0", "algorithm": "fedavg", "values": {}}
    (tmp_path / "group.json").write_text(json.dumps([entry]))
    assert read_members(tmp_path)[0].label == "fedavg"
    (tmp_path / "group.json").write_text(json.dumps([{**entry, "varied": {"mu": "x"}}]))
    with pytest.raises(fs.FedskewError, match="is damaged"):
        read_members(tmp_path)
