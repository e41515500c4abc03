"""What a person sees: completion, help, suggestions, colours, narrow terminals and pipes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from fedskew.cli import app as cli

FEDSKEW = [sys.executable, "-m", "fedskew"]
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]")


def completed(words: str, shell: str = "bash") -> list[str]:
    """Return what a shell is told to complete the last word to."""
    environment = {
        **os.environ,
        "_FEDSKEW_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "import sys; sys.argv[0] = 'fedskew'; from fedskew.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("fedskew comp", {"compare"}),
        ("fedskew run --algorithm fedprox", {"fedprox", "fedprox-layers"}),
        ("fedskew run --algorithm fedprox:m", {"fedprox:mu="}),
        ("fedskew run --algorithm fedprox:mu=1,w", {"fedprox:mu=1,weights="}),
        ("fedskew run --algorithm nothing:m", set()),
        ("fedskew compare --skew dirichlet:a", {"dirichlet:alpha="}),
        ("fedskew run --model tab", {"tabular", "tabular-cnn"}),
        ("fedskew list col", {"columns"}),
    ],
)
def test_names_and_options_are_completed(words, found):
    assert set(completed(words)) == found


def test_completion_needs_no_torch():
    code = "import sys; from fedskew.cli.completion import completing; completing('skews')('d'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "fedskew.cli.listing" in done.stdout.split()
    assert "torch" not in done.stdout.split()


def test_every_argument_is_explained():
    for name, command in typer.main.get_command(cli.app).commands.items():
        for inner in getattr(command, "commands", {name: command}).values():
            for parameter in inner.params:
                if parameter.param_type_name == "argument":
                    assert parameter.help, f"{inner.name} {parameter.name}"


def test_no_help_has_marks():
    for name, command in typer.main.get_command(cli.app).commands.items():
        for inner in getattr(command, "commands", {name: command}):
            words = [name]
            if inner != name:
                words.append(inner)
            done = subprocess.run(
                [*FEDSKEW, *words, "--help"],
                env={**os.environ, "COLUMNS": "80"},
                capture_output=True,
                text=True,
                check=True,
            )
            assert "\\b" not in done.stdout
            assert "\b" not in done.stdout
            assert "\\[" not in done.stdout
            assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("comprae", "No such command 'comprae'. Did you mean 'compare'?"),
        ("run --algorihm fedavg", "no such option --algorihm: did you mean --algorithm?"),
        ("run --algorithm fedpox", "unknown algorithm 'fedpox': did you mean 'fedprox'? (one of"),
    ],
)
def test_a_typo_has_one_suggestion(fedskew, capsys, command, said):
    assert fedskew(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedskew: {said}")
    assert error.lower().count("did you mean") == 1
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["list algorithms", "list columns", "data list", "doctor"])
@pytest.mark.parametrize(("variable", "coloured"), [("NO_COLOR", False), ("FORCE_COLOR", True)])
def test_no_color_is_respected(command, variable, coloured):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"]}
    environment |= {"TERM": "xterm-256color", "FORCE_COLOR": "1", variable: "1"}
    done = subprocess.run(
        [*FEDSKEW, *command.split()], env=environment, capture_output=True, text=True, check=True
    )
    if not coloured:
        assert not COLOUR.search(done.stdout)
    elif command == "list algorithms":
        assert COLOUR.search(done.stdout)


def test_a_pipe_that_closes_is_no_error(tmp_path: Path):
    line = f"{sys.executable} -m fedskew list | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True)
    assert done.stdout.startswith("algorithms")
    assert done.stderr == ""
    assert done.returncode == 0


def test_tables_fit_a_terminal_of_80_columns(fedskew, capsys, monkeypatch):
    small = "--model logreg --clients 4 --rounds 2"
    for command in (
        f"run {small} --folder run",
        f"compare {small} --algorithm fedavg --algorithm fedprox --seeds 0-2 --out both",
    ):
        monkeypatch.setenv("COLUMNS", "80")
        assert fedskew(command) == 0
        out = capsys.readouterr().out
        table = [line for line in out.splitlines() if re.match(r"(method|fedavg|fedprox) ", line)]
        assert table
        assert max(map(len, table)) <= 80
