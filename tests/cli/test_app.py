"""The command line: files and overrides, JSON, lists, help, with and without a terminal."""

import csv
import inspect
import json
import os
import pty
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedskew as fs
from fedskew.algorithms.purposes import by_purpose
from fedskew.cli import app as cli
from fedskew.cli import listing as cli_list
from fedskew.cli import run_command
from fedskew.core.config import FORMER, Experiment
from fedskew.core.registry import options_of
from fedskew.engine.device import usable_cores

BITS = (
    "rounds.csv",
    "clients.csv",
    "clients_final.csv",
    "model.safetensors",
    "config.toml",
    "partition.npz",
)
SMALL = "--model logreg --clients 4 --rounds 2"


def config(folder: str | Path) -> dict[str, Any]:
    return tomllib.loads(Path(folder, "config.toml").read_text())


# -- run ---------------------------------------------------------------------------------------------------------------


def test_a_run_without_any_option_has_a_folder_of_its_own(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert fedskew("run --rounds 1") == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "fedavg-digits-dirichlet-s0",
        "fedavg-digits-dirichlet-s0-2",
    ]
    assert sorted(path.name for path in Path("runs/fedavg-digits-dirichlet-s0").iterdir()) == [
        ".lock", "checkpoints", "classes.csv", "client_classes.csv", "clients.csv", "clients_final.csv", "config.toml",
        "confusion.csv", "environment.json", "final.json", "model.safetensors", "partition.npz", "pipeline.json",
        "report.html", "rounds.csv", "start.json", "summary.json", "timing.csv",
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "run folder: runs/fedavg-digits-dirichlet-s0-2",
        "report: runs/fedavg-digits-dirichlet-s0-2/report.html",
    ]


def test_a_file_with_overrides(fedskew: Callable[[str], Any]) -> None:
    text = (
        'rounds = 9\nlr = 0.5\nper-round = 3\nmodel = "logreg"\nskew = "classes:k=3"\n'
        '[algorithm]\nname = "fedprox"\nmu = 0.3\n'
    )
    Path("experiment.toml").write_text(text)
    assert fedskew("run experiment.toml --rounds 2 --skew iid --folder run") == 0
    found = config("run")
    assert (found["rounds"], found["lr"], found["per_round"]) == (2, 0.5, 3)
    assert found["skew"] == {"name": "iid"}
    assert found["algorithm"] == {"name": "fedprox", "weights": "none", "mu": 0.3}
    assert len(Path("run/rounds.csv").read_text().splitlines()) == 3


def test_the_written_configuration_names_everything(fedskew: Callable[[str], Any]) -> None:
    assert (
        fedskew(
            "run --clients 4 --rounds 2 --folder run --skew quantity:min_size=5 --model mlp:hidden=8"
        )
        == 0
    )
    found = config("run")
    assert set(found) == options_of(Experiment).keys() - FORMER.keys()
    defaults = {
        name: option.default
        for name, option in cli_list.registries()["skews"].options("quantity").items()
    }
    assert found["skew"] == {"name": "quantity", **defaults, "min_size": 5}
    assert found["data"] == {"name": "digits", "test": 0.2, "split_seed": 0, "scale": "standard"}
    assert found["model"] == {"name": "mlp", "hidden": [8], "activation": "relu", "dropout": 0.0}
    assert found["split_seed"] == 0
    assert json.loads(Path("run/summary.json").read_text())["skew"] == "quantity:min_size=5"


@pytest.mark.parametrize(
    "options",
    [
        "--model logreg --seed 3 --validation 0.1 --client-test 0.2 --per-round 2 --schedule cosine:floor=0.1",
        "--model logreg --split-seed 5 --optimizer adam --algorithm fedyogi:tau=0.01 --fleet uniform:latency=1 "
        "--threads 1",
        "--model tabular:hidden=8+4 --skew dirichlet:alpha=1,min_size=4 --norm local --momentum 0.5 --nesterov",
    ],
)
def test_the_written_configuration_gives_the_same_bits_again(
    options: str, fedskew: Callable[[str], Any]
) -> None:
    assert fedskew(f"run --clients 4 --rounds 2 {options} --folder first") == 0
    assert fedskew("run first/config.toml --folder second") == 0
    for name in BITS:
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes(), name


@pytest.mark.parametrize(("variable", "most"), [("1", 1), ("3,1", 3), ("", None), ("many", None)])
def test_threads_follow_the_environment_and_are_written_down(
    variable: str, most: int | None, fedskew: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the file records the number of threads, on which the bits of a convolution depend."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(5)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert usable_cores() == (most or 5)
    assert (
        fedskew(
            "run --data digits --model cnn --rounds 1 --batch-size 64 --clients 2 --skew iid --folder run"
        )
        == 0
    )
    used = json.loads(Path("run/environment.json").read_text())["threads"]
    assert config("run")["threads"] == used == (most or 5)


@pytest.mark.filterwarnings("ignore:.*training rows equal an earlier one")
def test_own_files_are_data(fedskew: Callable[[str], Any]) -> None:
    rows = "".join(f"{i % 7},{'left' if i % 3 else 'right'},p{i % 5},{i % 2}\n" for i in range(60))
    Path("my.csv").write_text("size,side,person,class\n" + rows)
    assert (
        fedskew(
            "run --data my.csv:label=class,group=person --skew natural --model logreg --rounds 1 --folder run"
        )
        == 0
    )
    found = config("run")
    assert found["clients"] == 5
    assert (found["data"]["path"], found["data"]["drop"], found["data"]["test_path"]) == (
        "my.csv",
        [],
        "none",
    )
    assert fedskew("run run/config.toml --folder again") == 0
    assert (
        Path("run/model.safetensors").read_bytes() == Path("again/model.safetensors").read_bytes()
    )


def test_a_switch_of_the_file_can_be_taken_back(fedskew: Callable[[str], Any]) -> None:
    Path("experiment.toml").write_text("nesterov = true\nmomentum = 0.9\n")
    assert fedskew(f"run experiment.toml {SMALL} --folder on") == 0
    assert fedskew(f"run experiment.toml {SMALL} --no-nesterov --folder off") == 0
    assert (config("on")["nesterov"], config("off")["nesterov"]) == (True, False)


def test_dashes_and_underscores_are_the_same(fedskew: Callable[[str], Any]) -> None:
    Path("experiment.toml").write_text("batch-size = 7\neval_every = 2\n")
    assert fedskew(f"run experiment.toml {SMALL} --folder run --skew dirichlet:min-size=2") == 0
    assert (
        config("run")["batch_size"],
        config("run")["eval_every"],
        config("run")["skew"]["min_size"],
    ) == (7, 2, 2)


def test_json_is_the_last_and_only_line_on_stdout(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew(f"run {SMALL} --json --folder run") == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    told = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert told.pop("folder") == "run"
    assert told == json.loads(Path("run/summary.json").read_text())
    assert "run folder: run" in err


def test_the_table_at_the_end(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew(f"run {SMALL} --algorithm fedprox:mu=0.5 --folder run") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    summary = json.loads(Path("run/summary.json").read_text())
    header = next(number for number, line in enumerate(lines) if line.startswith("method"))
    assert re.split(r"  +", lines[header].strip()) == [
        "method",
        "test last",
        "test best",
        "balanced",
        "majority",
        "clients",
        "clients balanced",
        "clients majority",
        "worst 10 %",
        "to 90 %",
        "weights",
        "Gini",
        "MB",
        "simulated s",
        "s",
    ]
    cells = lines[header + 1].split()
    assert cells[0] == "fedprox:mu=0.5"
    assert cells[1] == f"{100 * summary['test_accuracy_last']:.1f}"
    assert cells[3] == f"{100 * summary['test_balanced_accuracy_last']:.1f}"
    assert cells[4] == f"{100 * summary['test_majority_rate']:.1f}"
    assert cells[5] == f"{100 * summary['client_accuracy_mean']:.1f}"
    assert cells[6] == f"{100 * summary['client_balanced_accuracy_mean']:.1f}"
    assert cells[7] == f"{100 * summary['client_majority_rate_mean']:.1f}"
    assert cells[8] == f"{100 * summary['client_accuracy_worst_10_percent']:.1f}"
    assert cells[10] == summary["weights"] == "size"
    assert cells[11] == f"{summary['gini_of_client_weights']:.3f}"
    assert cells[12] == f"{(summary['bytes_down'] + summary['bytes_up']) / 1e6:.2f}"
    assert cells[13] == f"{summary['simulated_seconds']:.1f}"
    assert "what the columns mean: fedskew list columns" in lines
    assert not any("own test" in line for line in lines)  # there are no personal models here
    assert "lost" not in out
    assert re.fullmatch(
        r"fedprox:mu=0.5: round 2/2  test accuracy [\d.]+%  local loss \d\.\d{3}  [\d.]+ kB sent  [\d.]+ s simulated",
        err.splitlines()[-1],
    )


def test_on_a_narrow_terminal_the_table_lies_on_its_side(
    fedskew: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert fedskew(f"run {SMALL} --algorithm fedprox:mu=0.5 --folder run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["method", "fedprox:mu=0.5"]
    assert [line.split("  ")[0] for line in lines[2:5]] == ["test last", "test best", "balanced"]
    assert "…" not in "".join(lines)


@pytest.mark.filterwarnings("ignore:.*training rows equal an earlier one")
def test_left_out_updates_are_told(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{'1e38' if i % 40 == 0 else i % 7},{i % 2}\n" for i in range(200))
    Path("wild.csv").write_text("a,y\n" + rows)
    assert (
        fedskew(
            "run --data wild.csv:label=y,standardize=no --lr 1e9 --rounds 1 --model logreg --clients 20 "
            "--skew iid --json"
        )
        == 0
    )
    out, err = capsys.readouterr()
    left_out = json.loads(out)["excluded_updates"]
    assert 0 < left_out < 20
    assert (
        f"{left_out} of 20 updates were lost: {left_out} NaN or infinite (excluded in rounds.csv)"
        in err
    )
    assert f"  {left_out} of 20 lost  " in err


def test_lost_updates_are_told(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = "uniform:rows_per_second=100.0,dropout=0.5,deadline=2.5"
    assert (
        fedskew(f"run --model logreg --clients 8 --rounds 3 --fleet {fleet} --folder run --json")
        == 0
    )
    out, err = capsys.readouterr()
    told = json.loads(out)
    with Path("run/clients.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    dropped, late = (sum(line[fate] == "1" for line in lines) for fate in ("dropped", "late"))
    assert dropped > 0
    assert late > 0
    # A row takes 10 ms and the messages 0.1 s: with up to 230 rows no client needs longer than 2.5 s.
    assert all(int(line["rows"]) > 230 for line in lines if line["late"] == "1")
    assert (
        told["updates"],
        told["dropped_updates"],
        told["late_updates"],
        told["excluded_updates"],
    ) == (
        24,
        dropped,
        late,
        0,
    )
    hows = f"{dropped} dropped out, {late} missed the deadline (dropped, late in rounds.csv)"
    assert f"{dropped + late} of 24 updates were lost: {hows}" in err.splitlines()
    assert told["fleet"] == fleet


def test_rounds_without_any_answer(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        fedskew(
            f"compare {SMALL} --fleet uniform:deadline=0.01 --algorithm fedavg --algorithm fedprox --out two --json"
        )
        == 0
    )
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert "4/4 rounds, 2 of 2 runs done; fedprox-s0\n" in err
    assert "16 of 16 updates were lost: 16 missed the deadline (late in rounds.csv)" in err
    assert [run["gini_of_client_weights"] for run in told["runs"]] == [0, 0]
    assert told["means"]["fedavg"]["simulated_seconds"]["mean"] == pytest.approx(0.02)


# -- with and without a terminal ---------------------------------------------------------------------------------------


def test_through_a_pipe_there_is_no_bar_and_no_colour(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedskew", "run", *SMALL.split(), "--json"]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")
    }
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "━" not in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rounds"] == 2
    lines = [line for line in done.stderr.splitlines() if ": round " in line]
    assert lines[-1].startswith("fedavg: round 2/2  test accuracy ")
    assert lines == done.stderr.splitlines()[: len(lines)]


def test_on_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fedskew", "run", *SMALL.split()]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how Linux says that the other end is closed
            pass
    os.close(ours)
    text = shown.decode()
    assert process.returncode == 0, text
    assert "━" in text
    assert "2/2" in text
    assert "\x1b[" in text
    assert "round 1/2" not in text
    assert re.search(r"test accuracy [\d.]+% [▁▂▃▄▅▆▇█]{2} ", text)
    assert re.search(r"local loss [\d.]+ +[\d.]+ kB sent +[\d.]+ s simulated", text)


# -- list, data, help --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["algorithms", "skews", "data", "models", "fleets", "schedules"])
def test_list_has_every_option_with_default_and_help(
    kind: str, fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew(f"list {kind}") == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split(":")[0] == kind
    registry = cli_list.registries()[kind]
    for name in registry:
        block = re.split(r"\n  (?! )", text.split(f"\n  {name}  ", 1)[1], maxsplit=1)[0]
        assert block.splitlines()[0].strip(), name
        for option in registry.options(name).values():
            line = next(
                line for line in block.splitlines() if line.startswith(f"      {option.name}=  ")
            )
            assert option.help in line
            assert option.help, f"{kind} {name}: {option.name} has no help"
            default = "required" if option.default is inspect.Parameter.empty else "default "
            assert default in line
    assert "``" not in text
    assert "None" not in text


def test_list_spells_defaults_as_they_are_typed(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew("list") == 0
    text = capsys.readouterr().out
    assert (
        "hidden=  width of each hidden layer (a list of a whole number (a+b+c), >= 1; default 128+64)"
        in text
    )
    assert "(true or false; default true)" in text
    assert "default none)" in text
    titles = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert titles[0].startswith("algorithms: ")
    groups = list(by_purpose(cli_list.registries()["algorithms"]))
    assert titles[1 : len(groups) + 1] == groups
    assert titles[len(groups) + 1 :] == list(cli_list.registries())[1:]


def test_data_list(
    fedskew: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FEDSKEW_DATA", "/nowhere/at/all")
    monkeypatch.delenv("COLUMNS", raising=False)
    assert fedskew("data list") == 0
    lines = capsys.readouterr().out.splitlines()
    states = dict(
        re.split(r"  +", line)[:2]
        for line in lines
        if line and not line.startswith(" ") and "  " in line
    )
    assert states["digits"] == "yes"
    assert states["mnist"] == "no, fetch"
    assert states["femnist"] == "no, by hand"
    assert states["csv"] == "your file"
    assert set(cli_list.registries()["data"]) <= set(states)
    assert lines[-1] == "data folder: /nowhere/at/all (set FEDSKEW_DATA to change it)"
    assert any("CC BY 4.0" in line for line in lines)


def test_data_check(fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert fedskew("data check digits:test=0.5") == 0
    text = capsys.readouterr().out
    for words in (
        "digits:test=0.5",
        "899 train, 898 test",
        "(1, 8, 8)",
        "10: 0 ",
        "licence",
        "groups    none",
    ):
        assert words in text


def test_help_names_every_setting(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew("compare --help") == 0
    compared = capsys.readouterr().out
    assert fedskew("run --help") == 0
    text = capsys.readouterr().out
    assert {name for panel in run_command._PANELS.values() for name in panel} | {
        "algorithm",
        "data",
        "skew",
    } == set(options_of(Experiment))
    for name in options_of(Experiment).keys() - FORMER.keys():
        assert f"--{name.replace('_', '-')}" in text
        assert f"--{name.replace('_', '-')}" in compared
    assert "--seeds" in compared
    assert "--seeds" not in text
    for command in ("--help", "resume --help", "list --help", "data --help", "data fetch --help"):
        assert fedskew(command) == 0


@pytest.mark.parametrize("command", ["report", "export", "predict", "measure"])
def test_help_has_examples_on_lines_of_their_own_and_no_marks(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert fedskew(f"{command} --help") == 0
    text = capsys.readouterr().out
    assert "\\" not in text
    assert [line for line in text.splitlines() if line.strip().startswith(f"fedskew {command} ")]


def test_help_names_the_extra_that_onnx_needs(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew("export --help") == 0
    assert "(needs fedskew[onnx])" in " ".join(capsys.readouterr().out.split())


def test_no_command_shows_the_help_and_nothing_else(
    fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedskew("") == 2
    out, err = capsys.readouterr()
    assert "resume" in out + err
    assert "fedskew: " not in out + err


def test_version(fedskew: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert fedskew("--version") == 0
    assert capsys.readouterr().out == f"{fs.__version__}\n"


def loaded_by(code: str) -> set[str]:
    """Return the modules that are loaded after running some code in a new interpreter."""
    code += "\nimport sys; print('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


HELP = """
import sys
from fedskew.cli.app import main
sys.argv = ["fedskew", {arguments}]
try:
    main()
except SystemExit as ended:
    assert ended.code == 0
"""


@pytest.mark.parametrize("arguments", ['"--help"', '"run", "--help"', '"--version"'])
def test_help_does_not_import_torch(arguments: str) -> None:
    assert not {"torch", "numpy", "pandas", "matplotlib", "sklearn"} & loaded_by(
        HELP.format(arguments=arguments)
    )


def test_import_is_light() -> None:
    assert not {"torch", "numpy", "pandas", "matplotlib", "typer", "rich"} & loaded_by(
        "import fedskew"
    )
    loaded = loaded_by("import fedskew.api, fedskew.study.compare")
    assert "torch" in loaded
    assert not {"pandas", "matplotlib", "sklearn", "typer", "rich", "tensorboard"} & loaded


def test_python_m_fedskew(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedskew", "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{fs.__version__}\n")


# -- bugs and interruptions --------------------------------------------------------------------------------------------


def test_ctrl_c_before_there_is_anything_to_resume(
    fedskew: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedskew.runs.experiment.federate", stop)
    assert fedskew("run") == 130
    assert capsys.readouterr().err == "fedskew: interrupted\n"


def test_a_file_that_may_not_be_read(
    fedskew: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied", "run/checkpoint.safetensors")

    monkeypatch.setattr("fedskew.runs.folder.RunFolder.open", refuse)
    assert fedskew("resume run") == 2
    assert capsys.readouterr().err == "fedskew: run/checkpoint.safetensors: Permission denied\n"


def test_a_bug_is_not_dressed_up_as_bad_input(
    fedskew: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("fedskew.runs.experiment.federate", fail)
    monkeypatch.setattr(sys, "argv", ["fedskew", "run"])
    with pytest.raises(ZeroDivisionError):
        cli.main()
