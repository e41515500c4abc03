"""Bad input: each kind gives one line that names the value and the fix, exit code 2, no training and no files."""

import errno
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedskew as fs
from fedskew.cli import app as cli
from fedskew.runs.folder import CHECKPOINTS, CONFIG, ROUNDS, SUMMARY
from fedskew.server.server import Server

# What was done wrong: the command, then what its one line must say: the value, and the way out.
KINDS: dict[str, tuple[str, ...]] = {
    # names that do not exist
    "unknown algorithm": ("run --algorithm fedporx", "'fedporx'", "did you mean 'fedprox'?"),
    "unknown skew": ("run --skew dirichlt", "'dirichlt'", "did you mean 'dirichlet'?"),
    "unknown model": ("run --model mpl", "'mpl'", "did you mean 'mlp'?"),
    "unknown data set": ("run --data digts", "'digts'", "did you mean 'digits'?"),
    "unknown fleet": ("run --fleet unifrm", "'unifrm'", "did you mean 'uniform'?"),
    "unknown schedule": ("run --schedule cosin", "'cosin'", "did you mean 'cosine'?"),
    "unknown command": ("rum", "'rum'", "fedskew --help"),
    "unknown flag": ("run --learning-rate 1", "--learning-rate", "fedskew run --help"),
    "unknown kind of list": ("list algos", "'algos'", "did you mean 'algorithms'?"),
    "second of two algorithms unknown": ("compare --algorithm fedavg --algorithm fedporx", "'fedporx'", "'fedprox'"),
    # options of a choice
    "unknown option": ("run --algorithm fedprox:mux=1", "'mux'", "did you mean 'mu'?"),
    "option where there are none": ("run --skew iid:alpha=1", "'alpha'", "takes no options"),
    "option given twice": ("run --algorithm fedprox:mu=1,mu=2", "mu=1,mu=2", "given twice"),
    "key without =": ("run --algorithm fedprox:mu", "'mu'", "key=value"),
    "required option left out": ("run --skew classes", "k=", "number of labels of each client"),
    "no name": ("run --algorithm :mu=1", "empty algorithm", "name:key=value"),
    "option out of range": ("run --algorithm fedprox:mu=-1", "mu=-1", ">= 0"),
    "list with a word in it": ("run --model mlp:hidden=64+wide", "hidden=64+wide", "a+b+c"),
    # settings
    "lr=0": ("run --lr 0", "lr=0", "> 0"),
    "lr negative": ("run --lr -1", "lr=-1", "> 0"),
    "lr nan": ("run --lr nan", "lr=nan", "> 0"),
    "lr infinite": ("run --lr inf", "lr=inf", "> 0"),
    "lr no number": ("run --lr abc", "lr=abc", "a number"),
    "flag without value": ("run --lr", "--lr", "requires an argument"),
    "rounds=0": ("run --rounds 0", "rounds=0", ">= 1"),
    "rounds not whole": ("run --rounds 2.5", "rounds=2.5", "a whole number"),
    "momentum=1": ("run --momentum 1", "momentum=1", "< 1"),
    "validation=1": ("run --validation 1", "validation=1", "< 1"),
    "client_test=1": ("run --client-test 1", "client_test=1", "< 1"),
    "unknown optimiser": ("run --optimizer rmsprop", "optimizer=rmsprop", "sgd, adam"),
    "unknown precision": ("run --dtype float16", "dtype=float16", "float32, float64"),
    "no such GPU": ("run --device cuda:9", "device=cuda:9", "device=cpu"),
    "no such device": ("run --device tpu", "device=tpu", "cpu, cuda"),
    "seed no number, several algorithms": (
        "compare --seed abc --algorithm fedavg --algorithm fedprox",
        "seed=abc",
        "whole number",
    ),
    "seeds backwards": ("compare --seeds 4-0", "'4-0'", "such as 0-4"),
    # clashes
    "seed and seeds": ("compare --seed 1 --seeds 0-2", "--seed 1", "--seeds 0-2", "one of them"),
    "same algorithm twice": ("compare --algorithm fedavg --algorithm fedavg", "fedavg-s0", "once"),
    "same seed twice": ("compare --seeds 0-2,1", "fedavg-s1", "once"),
    "nesterov without momentum": ("run --nesterov", "nesterov=true", "momentum above 0"),
    "adam with momentum": ("run --optimizer adam --momentum 0.9", "momentum=0.9", "leave momentum at 0"),
    "fednova with adam": ("run --algorithm fednova --optimizer adam", "optimizer=adam", "use optimizer=sgd"),
    "per_round above clients": ("run --per-round 11", "per_round=11", "at most 10"),
    "batch of one with BatchNorm": ("run --batch-size 1 --model tabular:hidden=8", "batch_size=1", "batch_size >= 2"),
    "client of one row with BatchNorm": (
        "run --model tabular:hidden=8 --skew dirichlet:alpha=0.01,min_size=1 --clients 40", "has 1 row", "min_size=2",
    ),
    "one of several seeds cuts a client of one row": (
        "compare --data small.npz --model tabular:hidden=8 --skew quantity:alpha=1 --clients 4 --seeds 4-7",
        "fedavg-s4: client", "has 1 row", "min_size=2",
    ),
    "cnn on flat features": ("run --data small.npz --model cnn", "(3,)", "choose mlp"),
    # the cut
    "alpha=0": ("run --skew dirichlet:alpha=0", "alpha=0", "> 0"),
    "more labels a client than there are": ("run --skew classes:k=11", "11 labels", "only 10"),
    "too few places for all labels": ("run --skew classes:k=1 --clients 5", "5 clients", "at least 10 clients"),
    "more clients than rows": ("run --clients 2000", "2000 clients", "at most 1438"),
    "more clients than rows, several runs": ("compare --clients 2000 --seeds 0-1", "2000 clients", "at most 1438"),
    "clients=0": ("run --clients 0", "clients=0", ">= 1"),
    "natural without groups": ("run --skew natural", "no groups", "another skew"),
    # files
    "TOML file missing": ("run nowhere.toml", "nowhere.toml", "there is no"),
    "TOML file is a folder": ("run folder.toml", "folder.toml is a folder", "fedskew resume"),
    "TOML does not parse": ("run broken.toml", "broken.toml", "line 1"),
    "TOML key misspelt": ("run misspelt.toml", "'batchsize'", "did you mean 'batch_size'?"),
    "TOML table for a number": ("run table.toml", "lr", "single value"),
    "TOML choice without a name": ("run noname.toml", "'mu': 0.1", "table with a name"),
    "TOML list without algorithms": ("run noalgorithm.toml", "algorithm = []", "give one"),
    "TOML key twice": ("run twice.toml", "per_round", "given twice"),
    "CSV missing": ("run --data nowhere.csv:label=y", "nowhere.csv", "is not there"),
    "CSV empty": ("run --data empty.csv:label=y", "empty.csv", "empty"),
    "CSV without rows": ("run --data header.csv:label=y", "header.csv", "no rows"),
    "CSV without label=": ("run --data good.csv", "label=", "column with the class"),
    "CSV without that column": ("run --data good.csv:label=lable", "'lable'", "did you mean 'label'?"),
    "CSV with text among numbers": ("run --data text.csv:label=label", "'oops'", "drop=a"),
    "CSV with one class": ("run --data oneclass.csv:label=label", "one class only", "label"),
    "CSV cut off": ("run --data cut.csv:label=label", "cut.csv", "cut off"),
    "NPZ with NaN": ("run --data nan.npz", "nan.npz", "row 3 holds NaN"),
    "NPZ cut off": ("run --data cut.npz", "cut.npz", "damaged"),
    "NPZ with Python objects": ("run --data objects.npz", "objects.npz", "never unpickled"),
    "NPZ with too few labels": ("run --data lengths.npz", "40 rows", "39 labels"),
    "data set not here, can be fetched": ("run --data mnist", "mnist", "fedskew data fetch mnist"),
    "data set not here, by hand": ("run --data femnist", "femnist", "github.com/TalwalkarLab/leaf"),
    "fetch of what cannot be": ("data fetch pacs", "pacs", "cannot be fetched"),
    "check of what does not exist": ("data check mnst", "'mnst'", "did you mean 'mnist'?"),
    # folders
    "folder exists": ("run --folder taken", "taken exists", "choose another"),
    "folder exists, several runs": ("compare --out taken --seeds 0-1", "taken exists", "choose another"),
    "folder below a file": ("run --folder good.csv/below", "good.csv/below", "choose another folder"),
    "resume nowhere": ("resume nowhere", "nowhere", "not a run folder"),
    "resume of a folder that is no run": ("resume taken", "taken", "not a run folder"),
    "resume when the rows changed owner": ("resume moved", "moved", "put the data back"),
    "resume when only a feature changed": ("resume changed", "changed", "put the data back"),
    "resume with half a configuration": ("resume halfconfig", "config.toml is damaged", "put it back"),
    "resume with a damaged checkpoint": ("resume torn", "checkpoints/00000002.safetensors is damaged", "--force"),
    "resume with another model": ("resume othermodel", "config.toml is damaged: its content is not", "start a new run"),
    "resume with a table that lacks rounds": (
        "resume norounds",
        "rounds.csv is gone",
        "remove checkpoints to start again",
    ),
    "resume of what only Python has": ("resume frompython", "frompython", "fedskew.resume(folder, fed=...)"),
    "run of what only Python has": ("run frompython/config.toml", "data=from-python", "run it from Python"),
}  # fmt: skip


def small_arrays() -> tuple[Any, Any]:
    return np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4


def write_files(place: Path) -> None:
    good = "a,b,label\n" + "".join(f"{i},{i * 2},{i % 2}\n" for i in range(40))
    texts = {
        "broken.toml": "lr = \n",
        "misspelt.toml": "batchsize = 3\n",
        "table.toml": "[lr]\nstart = 1\n",
        "noname.toml": "[algorithm]\nmu = 0.1\n",
        "noalgorithm.toml": "algorithm = []\n",
        "twice.toml": "per_round = 1\nper-round = 2\n",
        "good.csv": good,
        "empty.csv": "",
        "header.csv": "a,b,label\n",
        "text.csv": good.replace("\n7,", "\noops,"),
        "oneclass.csv": "a,b,label\n" + "".join(f"{i},{i * 2},1\n" for i in range(40)),
        "cut.csv": good[:-4],
    }
    for name, text in texts.items():
        (place / name).write_text(text)
    for folder in ("folder.toml", "taken"):
        (place / folder).mkdir()
    x, y = small_arrays()
    np.savez(place / "small.npz", x=x, y=y)
    np.savez(place / "lengths.npz", x=x, y=y[:-1])
    np.savez(place / "objects.npz", x=np.array([{}], dtype=object), y=y)
    (place / "cut.npz").write_bytes((place / "small.npz").read_bytes()[:-100])
    x = x.copy()
    x[3, 1] = np.nan
    np.savez(place / "nan.npz", x=x, y=y)


def write_runs(place: Path) -> None:
    """Write runs of two rounds that were killed before they ended, each with a fault."""
    x, y = small_arrays()

    def run(name: str, data: Any = None, model: Any = "logreg") -> Path:
        data = fs.load(str(place / f"{name}.npz")) if data is None else data
        fs.train(
            fs.split(data, "iid", clients=4),
            model,
            rounds=2,
            folder=place / name,
            checkpoint_every=1,
        )
        (place / name / SUMMARY).unlink()
        return place / name

    for name in ("moved", "changed", "halfconfig", "torn", "othermodel", "norounds"):
        np.savez(place / f"{name}.npz", x=x, y=y)
        run(name)
    np.savez(place / "moved.npz", x=x[:-4], y=y[:-4])
    np.savez(
        place / "changed.npz", x=x + np.float32([[0, 0, 1]]) * (np.arange(40) == 5)[:, None], y=y
    )
    edit(place / "halfconfig" / CONFIG, '[model]\nname = "logreg"\n', "")
    state = place / "torn" / CHECKPOINTS / "00000002.safetensors"
    state.write_bytes(state.read_bytes()[:-7])
    edit(place / "othermodel" / CONFIG, '[model]\nname = "logreg"\n', '[model]\nname = "mlp"\n')
    (place / "norounds" / ROUNDS).unlink()
    run("frompython", data=(x, y))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with every file and run that the commands use; also imports everything before tests are timed."""
    place = tmp_path_factory.mktemp("bad input")
    write_files(place)
    write_runs(place)
    fs.load("digits")
    return place


@pytest.fixture
def here(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the workplace the current folder; a test must change no file there and must not train."""

    def listing() -> dict[str, bytes]:
        return {
            str(path.relative_to(workplace)): b"" if path.is_dir() else path.read_bytes()
            for path in workplace.rglob("*")
        }

    def refuse(training: Server) -> None:
        raise AssertionError("training began")

    monkeypatch.chdir(workplace)
    monkeypatch.setenv("FEDSKEW_DATA", str(workplace / "no data"))
    monkeypatch.setattr(Server, "advance", refuse)
    before = listing()
    yield workplace
    assert listing() == before


def call(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["fedskew", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    assert isinstance(code, int)
    return code


def one_line(text: str) -> str:
    assert text.startswith("fedskew: "), text
    assert text.count("\n") == 1, text
    assert text.endswith("\n"), text
    return text


def test_there_are_more_than_thirty_kinds() -> None:
    assert len(KINDS) >= 35
    assert len({command for command, *_ in KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_ends_in_one_clear_line(
    kind: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *said = KINDS[kind]
    began = time.process_time()
    code = call(command, monkeypatch)
    spent = time.process_time() - began
    out, err = capsys.readouterr()
    line = one_line(err)
    assert code == 2
    assert out == ""
    for words in said:
        assert words in line
    assert spent < 1


def test_the_same_command_without_the_mistake_trains(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the fixture notices training, because the other tests rely on it."""
    with pytest.raises(AssertionError, match="training began"):
        fs.train(fs.split(fs.load("small.npz"), "iid", clients=4), "logreg", folder=False)


@pytest.mark.parametrize("kind", ["unknown algorithm", "TOML does not parse", "CSV cut off"])
def test_the_real_script_says_the_same(kind: str, here: Path) -> None:
    command, *said = KINDS[kind]
    done = subprocess.run(
        [sys.executable, "-m", "fedskew", *shlex.split(command)],
        capture_output=True,
        text=True,
        cwd=here,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    line = one_line(done.stderr)
    for words in said:
        assert words in line


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "permission denied: choose a folder you may write to"),
        (errno.EROFS, "the file system is read-only: choose another folder"),
        (errno.ENOSPC, "the disk is full: free some space"),
        (errno.EDQUOT, "the disk quota is used up: free some space"),
    ],
)
@pytest.mark.parametrize("command", ["run --folder new", "compare --out new --seeds 0-1"])
def test_a_folder_that_cannot_be_made(
    command: str,
    number: int,
    advice: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*args: object, **kwargs: object) -> str:
        raise OSError(number, "refused")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert call(command, monkeypatch) == 2
    line = one_line(capsys.readouterr().err)
    assert "new" in line
    assert advice in line


def test_a_disk_that_fills_up_while_the_folder_is_made(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "refused")

    monkeypatch.setattr(fs.Partition, "save", refuse)
    assert call("run --folder new", monkeypatch) == 2
    assert "the disk is full" in one_line(capsys.readouterr().err)


def test_a_path_that_may_not_even_be_looked_at(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exists = Path.exists

    def refuse(path: Path) -> bool:
        if path.name == "secret":
            raise PermissionError(errno.EACCES, "refused")
        return exists(path)

    monkeypatch.setattr(Path, "exists", refuse)
    assert call("run --folder secret", monkeypatch) == 2
    assert "secret: permission denied: choose a folder" in one_line(capsys.readouterr().err)


def test_tensorboard_without_its_package(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert call("run --tensorboard", monkeypatch) == 2
    assert "tensorboard=true needs the package: pip install 'fedskew[tensorboard]'" in one_line(
        capsys.readouterr().err
    )


# -- the same from Python: a FedskewError with the same words ----------------------------------------------------------


def fed() -> Any:
    return fs.split(small_arrays(), "iid", clients=4)


def with_x(change: Callable[[Any], Any]) -> Any:
    x, y = small_arrays()
    return fs.split((change(x), y), "iid", clients=4)


def with_y(change: Callable[[Any], Any]) -> Any:
    x, y = small_arrays()
    return fs.split((x, change(y)), "iid", clients=4)


def nan_in(x: Any) -> Any:
    x[5, 0] = np.nan
    return x


def owned(owner: Callable[[int], Any]) -> Any:
    return fs.split(small_arrays(), lambda rows, clients, stream: owner(len(rows)), clients=4)


def twice_held(rows: int) -> Any:
    return fs.Partition(np.append(np.arange(rows), 0), np.array([0, 1, 2, 3, rows + 1]))


class TwoAnswers(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x), x


class Fussy(nn.Linear):
    def forward(self, x: Any) -> Any:
        raise IndexError("only letters please")


PYTHON: dict[str, tuple[Callable[[], Any], str]] = {
    "fewer labels than rows": (
        lambda: with_y(lambda y: y[:-1]),
        "40 rows of features but 39 labels",
    ),
    "text as features": (lambda: with_x(lambda x: x.astype(str)), "not numbers; encode text"),
    "objects as features": (
        lambda: with_x(lambda x: x.astype(object)),
        "x holds object values, not numbers",
    ),
    "complex features": (
        lambda: with_x(lambda x: x.astype(complex)),
        "x holds complex128 values, not numbers",
    ),
    "NaN in an array": (lambda: with_x(nan_in), "holds NaN or infinity"),
    "NaN in a tensor": (
        lambda: with_x(lambda x: torch.from_numpy(nan_in(x))),
        "holds NaN or infinity",
    ),
    "empty array": (
        lambda: fs.split((np.empty((0, 3)), np.empty(0, int))),
        r"x of shape \(0, 3\) is empty",
    ),
    "one dimension": (
        lambda: with_x(lambda x: x[:, 0]),
        r"shape \(40,\) has no features; use shape \(rows, 1\)",
    ),
    "ragged rows": (
        lambda: fs.split(([[1.0], [1.0, 2.0]], [0, 1])),
        "different lengths; make them equal",
    ),
    "labels with fractions": (
        lambda: with_y(lambda y: y + 0.5),
        "labels must be whole numbers or text: round or bin",
    ),
    "labels with gaps": (
        lambda: with_y(lambda y: np.where(y == 3, np.nan, y)),
        "missing in 10 rows",
    ),
    "one class": (lambda: with_y(lambda y: y * 0), "one class only"),
    "data frame without label=": (
        lambda: fs.split(pd.DataFrame({"a": [1.0], "y": [0]})),
        "needs label=",
    ),
    "data frame without that column": (
        lambda: fs.split(pd.DataFrame({"a": [1.0], "label": [0]}), label="lable"),
        "'lable': did you mean 'label'",
    ),
    "no data at all": (lambda: fs.split(3), r"expected \(x, y\).* got int"),
    "clients as text": (
        lambda: fs.split(small_arrays(), "iid", clients="few"),
        "clients=few is not a whole number",
    ),
    "clients=0": (
        lambda: fs.split(small_arrays(), "iid", clients=0),
        "clients=0 is out of range, it must be >= 1",
    ),
    "more clients than rows": (
        lambda: fs.split(small_arrays(), "iid", clients=41),
        "too few for 41 clients",
    ),
    "seed negative": (lambda: fs.split(small_arrays(), "iid", seed=-1), "seed=-1 is out of range"),
    "client_test=1": (
        lambda: fs.split(small_arrays(), "iid", client_test=1),
        "client_test=1 is out of range",
    ),
    "validation=1": (lambda: fs.load("digits", validation=1), "validation=1 is out of range"),
    "validation as text": (
        lambda: fs.load("digits", validation="some"),
        "validation=some is not a number",
    ),
    "skew function that returns nonsense": (
        lambda: owned(lambda rows: [1, 2]),
        "must return a Partition, got list",
    ),
    "skew function that leaves a client empty": (
        lambda: owned(lambda rows: fs.Partition.from_owner(np.arange(rows) % 3, 4)),
        "client 3 has no rows.*fewer clients",
    ),
    "skew function that gives a row twice": (
        lambda: owned(twice_held),
        "row 0 is held by 2 clients",
    ),
    "skew function that forgets a row": (
        lambda: owned(
            lambda rows: fs.Partition(np.arange(rows - 1), np.array([0, 1, 2, 3, rows - 1]))
        ),
        "row 31 is held by 0 clients",
    ),
    "skew function with rows from nowhere": (
        lambda: owned(lambda rows: fs.Partition(np.arange(rows) + 1, np.array([0, 1, 2, 3, rows]))),
        "names row 32, but the rows are 0 … 31",
    ),
    "data instead of a federation": (
        lambda: fs.train(fs.load("digits")),
        "needs what fedskew.split returns, got Dataset",
    ),
    "model with too many outputs": (
        lambda: fs.train(fed(), nn.Linear(3, 7)),
        r"shape \(1, 7\), expected .*\(1, 4\)",
    ),
    "model for other rows": (
        lambda: fs.train(fed(), nn.Linear(5, 4)),
        r"does not take rows of shape \(3,\)",
    ),
    "model that raises something else": (
        lambda: fs.train(fed(), Fussy(3, 4)),
        "does not take rows.*only letters please",
    ),
    "model that answers twice": (
        lambda: fs.train(fed(), TwoAnswers(3, 4)),
        "with a tuple, expected a tensor",
    ),
    "model with a frozen layer": (
        lambda: fs.train(fed(), nn.Linear(3, 4).requires_grad_(False)),
        "Linear has nothing to train: no parameter has requires_grad=True",
    ),
    "model without parameters": (
        lambda: fs.train(fed(), nn.Identity()),
        "Identity has nothing to train",
    ),
    "model function that returns nonsense": (
        lambda: fs.train(fed(), lambda shape, classes: 3),
        "must return a torch.nn.Module",
    ),
    "unknown keyword": (
        lambda: fs.train(fed(), "logreg", learning_rate=1),
        "unknown setting 'learning_rate'",
    ),
    "misspelt keyword": (
        lambda: fs.train(fed(), "logreg", batchsize=1),
        "did you mean 'batch_size'",
    ),
    "lr as text": (lambda: fs.train(fed(), "logreg", lr="fast"), "lr=fast is not a number"),
    "lr true": (lambda: fs.train(fed(), "logreg", lr=True), "lr=True is not a number"),
    "algorithm of another kind": (
        lambda: fs.train(fed(), "logreg", nn.Linear),
        "Linear is not an algorithm: derive it",
    ),
    "algorithm out of range": (lambda: fs.FedProx(mu=-1), "mu=-1 is out of range"),
    "events without a folder": (
        lambda: fs.train(fed(), "logreg", folder=False, tensorboard=True),
        "tensorboard=true needs a run folder",
    ),
    "resume of no run": (lambda: fs.resume("taken"), "taken is not a run folder"),
}


@pytest.mark.parametrize("kind", PYTHON)
def test_bad_input_from_python(kind: str, here: Path) -> None:
    wrong, said = PYTHON[kind]
    with pytest.raises(fs.FedskewError, match=said) as caught:
        wrong()
    assert "\n" not in str(caught.value)
