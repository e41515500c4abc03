"""The journal of client states: its size, crashes at every step, damage, and memory."""

import os
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedskew.core.errors import FedskewError
from fedskew.runs import checkpoint
from fedskew.runs.checkpoint import Checkpoints, OwnPart, own_part
from fedskew.runs.folder import CHECKPOINTS, JOURNAL, RunFolder
from fedskew.runs.runner import finished_files
from fedskew.server.client_store import ClientStore

FLOATS = 256
ROW = 8 + 4 * FLOATS  # bytes of a client: its number and its floats


class Trained:
    """The part of a training that a checkpoint needs: in every round some clients get new rows."""

    def __init__(self, *names: str, floats: int = FLOATS) -> None:
        self.round, self.held = (
            0,
            {name: ClientStore({"local": {"w": torch.zeros(floats)}}) for name in names},
        )

    def advance(self, clients: Any) -> None:
        """Set a client's row to its number and, in the other columns, the round; the second store has the negative."""
        self.round += 1
        for sign, store in zip((1, -1), self.held.values(), strict=False):
            rows = torch.full((len(clients), *store.fresh["local"]["w"].shape), float(self.round))
            rows[:, 0] = torch.as_tensor(clients)
            store.put(np.asarray(clients), {"local": {"w": sign * rows}})

    def checkpoint_without_stores(self) -> dict[str, torch.Tensor]:
        return {"params/w": torch.tensor([float(self.round)]), "round": torch.tensor(self.round)}

    def stores(self) -> dict[str, ClientStore]:
        return self.held

    def restore(self, flat: dict[str, torch.Tensor]) -> None:
        self.round = int(flat["round"])
        for store in self.held.values():
            store.restore({})

    def rounds(self, name: str = "own") -> dict[int, float]:
        """Return the last round of each client."""
        store = self.held[name]
        rows = store.get(np.array(store.clients, dtype=np.int64))["local"]["w"].abs()
        assert rows[:, 0].tolist() == store.clients
        assert (rows[:, 1:] == rows[:, 1:2]).all()
        return dict(zip(store.clients, rows[:, 1].tolist(), strict=True))


def chosen(round: int, of: int = 7, count: int = 3) -> list[int]:
    return np.random.default_rng(round).choice(of, size=count, replace=False).tolist()


def oracle(rounds: int) -> dict[int, float]:
    return {client: float(round) for round in range(1, rounds + 1) for client in chosen(round)}


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in (folder / JOURNAL).iterdir())


def journal(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / JOURNAL).iterdir()}


def state(folder: Path) -> Path:
    """Return the file of the last checkpoint."""
    checkpoints = RunFolder(folder).checkpoints
    return checkpoints.state(checkpoints.rounds()[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable syncing, since no test here cuts the power."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit files to two clients and the journal to twice the size of what clients keep."""
    monkeypatch.setattr(checkpoint, "PIECE", 2 * ROW)
    monkeypatch.setattr(checkpoint, "LEAST", 0)


def restored(folder: Path, *names: str) -> Trained:
    training = Trained(*names)
    Checkpoints(RunFolder(folder)).restore(training)  # type: ignore[arg-type]
    return training


def run(training: Any, folder: Path, rounds: int) -> None:
    """Continue from the checkpoint to some round, with a checkpoint in each."""
    checkpoints = Checkpoints(RunFolder(folder))
    checkpoints.restore(training)
    while training.round < rounds:
        training.advance(chosen(training.round + 1))
        checkpoints.save(training)


# -- what is written ---------------------------------------------------------------------------------------------------


def test_a_round_of_ten_among_fifty_thousand_writes_ten_rows(folder: Path) -> None:
    training, checkpoints = Trained("own"), Checkpoints(RunFolder(folder))
    training.advance(np.arange(50_000))
    checkpoints.save(training)  # type: ignore[arg-type]
    before = journal(folder)
    assert sum(map(len, before.values())) > 50_000 * ROW
    training.advance(np.arange(7, 50_000, 5_000))
    checkpoints.save(training)  # type: ignore[arg-type]
    (new,) = {
        name: content for name, content in journal(folder).items() if name not in before
    }.values()
    assert 10 * ROW < len(new) < 10 * ROW + 300
    assert state(folder).stat().st_size < 500
    assert {name: content for name, content in journal(folder).items() if name in before} == before
    again = restored(folder, "own").rounds()
    assert len(again) == 50_000
    assert {client for client, round in again.items() if round == 2} == set(range(7, 50_000, 5_000))


def test_who_keeps_nothing_has_no_folder(folder: Path) -> None:
    run(Trained(), folder, 3)
    assert [path.name for path in folder.iterdir()] == [CHECKPOINTS]
    assert sorted(path.name for path in (folder / CHECKPOINTS).iterdir()) == [
        "00000002.json", "00000002.safetensors", "00000003.json", "00000003.safetensors",
    ]  # fmt: skip
    assert restored(folder).round == 3


def test_a_round_in_which_nobody_came_back_writes_no_rows(folder: Path) -> None:
    training, checkpoints = Trained("own"), Checkpoints(RunFolder(folder))
    for clients in ([], [3, 4], [], [3]):
        training.advance(clients)
        checkpoints.save(training)  # type: ignore[arg-type]
        assert restored(folder, "own").rounds() == training.rounds()
    assert numbers(folder) == [1, 2]
    assert load_file(folder / JOURNAL / "00000002.safetensors")["own/clients"].tolist() == [3]


@pytest.mark.usefixtures("small")
def test_the_journal_stays_short_and_gives_back_every_row(folder: Path) -> None:
    training, checkpoints = Trained("own", "personal"), Checkpoints(RunFolder(folder))
    begun_anew = 0
    for round in range(1, 41):
        first = min(numbers(folder), default=0) if round > 1 else 0
        training.advance(chosen(round))
        checkpoints.save(training)  # type: ignore[arg-type]
        begun_anew += numbers(folder)[0] > first > 0
        assert numbers(folder) == list(range(numbers(folder)[0], numbers(folder)[-1] + 1))
        files = range(*load_file(state(folder))["journal"].tolist())
        assert set(files) <= set(numbers(folder))
        last = [folder / JOURNAL / f"{number:08d}.safetensors" for number in files]
        rows = sum(
            len(load_file(path)[name]) for path in last for name in load_file(path) if "/w" in name
        )
        assert rows <= 2 * 2 * len(training.rounds())  # two stores
        again = restored(folder, "own", "personal")
        assert again.rounds() == again.rounds("personal") == oracle(round)
        assert again.held["own"].clients == training.held["own"].clients  # the order too
        assert again.held["personal"].get(np.array(chosen(round)))["local"]["w"].max() < 0.5
    assert 3 <= begun_anew <= 20


def test_where_everybody_takes_part_the_journal_is_one_checkpoint(folder: Path) -> None:
    training, checkpoints = Trained("own"), Checkpoints(RunFolder(folder))
    for round in (1, 2, 3):
        training.advance([5, 1, 2])
        checkpoints.save(training)  # type: ignore[arg-type]
        # Of the last two checkpoints
        assert numbers(folder) == [number for number in (round - 1, round) if number]


# -- crashes -----------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """An exception that no code catches."""


@contextmanager
def crash_before(operation: int, patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Raise at the n-th operation that writes, syncs, renames, creates or removes a file."""
    seen: list[str] = []

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(subject: Any, *args: Any, **kwargs: Any) -> Any:
            if name != "open" or args[:1] == ("wb",):
                seen.append(f"{name} {Path(subject).name}" if isinstance(subject, Path) else name)
                if len(seen) == operation:
                    # The kernel had half of it
                    if name == "fsync" and stat.S_ISREG(os.fstat(subject).st_mode):
                        os.ftruncate(subject, os.fstat(subject).st_size // 2)
                    raise Crash
            return original(subject, *args, **kwargs)

        return call

    with patch.context() as patched:
        for name in ("open", "replace", "mkdir", "unlink"):
            patched.setattr(Path, name, watched(name, getattr(Path, name)))
        patched.setattr(os, "fsync", watched("fsync", os.fsync))
        yield seen


ROUNDS = 6


@pytest.mark.usefixtures("small")
def test_a_crash_before_every_single_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a run killed there, every other one twice, ends with the files of an uninterrupted run."""
    names = ("own", "personal")
    (tmp_path / "never").mkdir()
    with crash_before(0, monkeypatch) as steps:
        run(Trained(*names), tmp_path / "never", ROUNDS)
    expected = journal(tmp_path / "never")
    assert {step.split()[0] for step in steps} == {"open", "fsync", "replace", "mkdir", "unlink"}
    assert sum(step.startswith("unlink") for step in steps) > 10
    for step in range(1, len(steps) + 1):
        folder = tmp_path / f"{step}"
        folder.mkdir()
        for operation in (step, 1 + step % 5)[: 1 + step % 2]:
            # The second time it may come to its end before
            with crash_before(operation, monkeypatch), suppress(Crash):
                run(Trained(*names), folder, ROUNDS)
            left = restored(folder, *names)
            assert left.rounds() == left.rounds("personal") == oracle(left.round), steps[step - 1]
        run(Trained(*names), folder, ROUNDS)
        assert journal(folder) == expected, steps[step - 1]
        for name in (
            "00000005.json",
            "00000005.safetensors",
            "00000006.json",
            "00000006.safetensors",
        ):
            assert (folder / CHECKPOINTS / name).read_bytes() == (
                tmp_path / "never" / CHECKPOINTS / name
            ).read_bytes()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("latest", "round"), [(None, 4), (5, 4), (4, 4), (3, 3), (1, 4)])
def test_the_last_checkpoint_up_to_a_round(folder: Path, latest: int | None, round: int) -> None:
    run(Trained("own"), folder, 4)
    training = Trained("own")
    Checkpoints(RunFolder(folder)).restore(training, latest=latest)  # type: ignore[arg-type]
    assert training.round == round  # the last of all if there is none up to it
    assert training.rounds() == oracle(round)
    assert RunFolder(folder).checkpoints.rounds()[0] == round  # later ones are no longer its own


@pytest.mark.usefixtures("small")
def test_a_lost_checkpoint_begins_again_without_the_old_rows(folder: Path) -> None:
    run(Trained("own"), folder, 3)
    (folder / JOURNAL / "notes.txt").write_text("mine")
    (folder / JOURNAL / "00000099.safetensors.part").write_bytes(b"half")
    shutil.rmtree(folder / CHECKPOINTS)
    training = restored(folder, "own")
    assert training.round == 0
    assert training.rounds() == {}
    # Only its own files are removed
    assert [path.name for path in (folder / JOURNAL).iterdir()] == ["notes.txt"]


@pytest.mark.usefixtures("small")
def test_a_finished_run_is_left_as_it_is(folder: Path) -> None:
    run(Trained("own"), folder, 4)
    stray = folder / JOURNAL / "00000099.safetensors"
    stray.write_bytes(b"")
    finished_files(RunFolder(folder), {}, {})
    assert restored(folder, "own").rounds() == oracle(4)
    assert stray.exists()


# -- what a client has for itself --------------------------------------------------------------------------------------


def finished(training: Trained, folder: Path, rounds: int = 4) -> RunFolder:
    run(training, folder, rounds)
    finished_files(RunFolder(folder), {}, {})
    return RunFolder(folder)


@pytest.mark.usefixtures("small")
def test_a_client_has_its_latest_row(folder: Path) -> None:
    disk = finished(Trained("own"), folder)
    for client, round in oracle(4).items():
        part = own_part(disk, client)
        assert part.kept is not None
        assert part.kept["local"]["w"].tolist() == [client, *[round] * (FLOATS - 1)]
    nobody = own_part(disk, 99)
    assert nobody == OwnPart(frozenset({"w"}), None, frozenset({"w"}), personal=False, away=False)


@pytest.mark.usefixtures("small")
def test_a_personal_model_is_beside_what_is_not_shared(folder: Path) -> None:
    disk = finished(Trained("own", "personal"), folder)
    client, round = next(iter(oracle(4).items()))
    part = own_part(disk, client)
    assert part.kept is not None
    assert part.kept["local"]["w"].tolist() == [-client, *[-round] * (FLOATS - 1)]
    assert (part.personal, part.unshared, part.away) == (True, frozenset({"w"}), False)


class OnMachines(Trained):
    """Clients keep what they have on machines of their own; the server knows names and versions alone."""

    def checkpoint_without_stores(self) -> dict[str, torch.Tensor]:
        away = {"away/own/head.bias": torch.zeros(0), "versions/0": torch.zeros(1)}
        return {**super().checkpoint_without_stores(), **away}


def test_what_is_on_the_clients_machines_is_known_by_name(folder: Path) -> None:
    part = own_part(finished(OnMachines(), folder), 2)
    names = frozenset({"head.bias"})
    assert part == OwnPart(names, None, names, personal=False, away=True)


# -- damages -----------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_named_nothing_changes_and_the_one_before_is_offered(
    folder: Path,
) -> None:
    run(Trained("own"), folder, 4)
    for path in (state(folder), folder / CHECKPOINTS / "00000004.json"):
        content = path.read_bytes()
        for damage in (
            b"",
            content[:-1],
            content + b" ",
            content[:20] + bytes([content[20] ^ 4]) + content[21:],
        ):
            path.write_bytes(damage)
            before = {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
            with pytest.raises(FedskewError) as caught:
                restored(folder, "own")
            assert str(caught.value).startswith(f"{path} is damaged")
            assert str(caught.value).endswith(
                f"round 3, which is intact: fedskew resume {folder} --force"
            )
            assert before == {
                str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()
            }
        path.write_bytes(content)
    state(folder).unlink()
    with pytest.raises(
        FedskewError, match=r"00000004\.safetensors is gone: .* round 3, which is intact"
    ):
        restored(folder, "own")
    training = Trained("own")
    Checkpoints(RunFolder(folder)).restore(training, force=True)  # type: ignore[arg-type]
    assert training.round == 3
    assert training.rounds() == oracle(3)
    assert RunFolder(folder).checkpoints.rounds() == [
        3
    ]  # the damaged one is gone, or the next resume would stumble over it again


def test_with_all_checkpoints_damaged_there_is_nothing_to_go_on_from(folder: Path) -> None:
    run(Trained("own"), folder, 4)
    for path in (folder / CHECKPOINTS).glob("*.safetensors"):
        path.write_bytes(b"")
    for force in (False, True):
        with pytest.raises(
            FedskewError,
            match=r"00000004\.safetensors is damaged: .* remove checkpoints to start again",
        ):
            Checkpoints(RunFolder(folder)).restore(Trained("own"), force=force)  # type: ignore[arg-type]


def test_a_damaged_file_of_the_journal_is_named(folder: Path) -> None:
    run(Trained("own"), folder, 4)
    path = folder / JOURNAL / "00000003.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(
        FedskewError, match=r"00000003\.safetensors is damaged: its content is not what was written"
    ):
        restored(folder, "own")


@pytest.mark.parametrize(
    "other",
    [Trained("own", floats=FLOATS + 1), Trained("personal"), Trained()],
    ids=["model", "method", "keeps nothing"],
)
def test_the_checkpoint_of_another_method_is_refused(other: Trained, folder: Path) -> None:
    run(Trained("own"), folder, 2)
    with pytest.raises(
        FedskewError, match=r"does not fit the model and the algorithm of .*: were they changed"
    ):
        Checkpoints(RunFolder(folder)).restore(other)  # type: ignore[arg-type]


# -- many clients ------------------------------------------------------------------------------------------------------

MANY = """
    import os, re, sys
    from pathlib import Path
    import numpy as np
    from test_checkpoint import Trained
    from fedskew.runs.checkpoint import Checkpoints
    from fedskew.runs.folder import JOURNAL, RunFolder

    CLIENTS, FLOATS, GROUP = 100_000, 610, 10_000

    def peak():  # getrusage would count the process that started this one
        return 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])

    os.fsync = lambda file: None
    folder, act = Path(sys.argv[1]), sys.argv[2]
    training, checkpoints = Trained("own", floats=FLOATS), Checkpoints(RunFolder(folder))
    training.advance(np.arange(10, dtype=np.int64))
    start = peak()
    if act == "write":
        for first in range(0, CLIENTS, GROUP):
            training.advance(np.arange(first, first + GROUP))
            checkpoints.save(training)
        checkpoints._bytes = 10**12  # as if the journal were long: all clients are written once more
        training.advance(np.arange(10))
        checkpoints.save(training)
        assert len(checkpoints._files) == 8, "pieces of 32 MiB"
    else:
        checkpoints.restore(training)
        store = training.held["own"]
        assert store.get(np.array([5, 99_999]))["local"]["w"][:, 0].tolist() == [5, 99_999]
        assert len(store.clients) == CLIENTS
    print((peak() - start) / (CLIENTS * FLOATS * 4))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_for_a_hundred_thousand_clients(folder: Path) -> None:
    """Check that writing and reading take less than three times what clients keep: 1.5 for growth, 1 while it grows."""
    for act in ("write", "read"):
        command = [sys.executable, "-c", textwrap.dedent(MANY), str(folder), act]
        here = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": here},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert 0.9 < float(done.stdout) < 3
