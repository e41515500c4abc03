"""Commands that are killed at many moments, and go on or start again: their files are those of a command left alone."""

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

FAST = "--data digits --clients 4 --threads 1 --checkpoint-every 2"
TWO = "--algorithm fedavg --algorithm scaffold"
_TIMES = ("timing.csv", "comparison.csv")  # tables with times, which differ from run to run


@dataclass(frozen=True)
class Command:
    """A command line, its output below the folder, and whether ``fedskew resume`` goes on with it."""

    name: str
    line: str
    resumed: bool = True


COMMANDS = [
    Command("fedavg", f"run {FAST} --model mlp --rounds 40 --algorithm fedavg --folder OUT"),
    Command("scaffold", f"run {FAST} --model logreg --rounds 80 --algorithm scaffold --folder OUT"),
    Command("ditto", f"run {FAST} --model logreg --rounds 60 --algorithm ditto --folder OUT"),
    Command("fedbn", f"run {FAST} --model cnn --rounds 6 --algorithm fedbn --folder OUT"),
    Command("fedbuff", f"run {FAST} --model logreg --rounds 80 --algorithm fedbuff:buffer=2 --folder OUT"),
    Command("stratify", f"run {FAST} --model logreg --rounds 6 --algorithm stratify-batch --folder OUT"),
    Command("afl-cp", f"run {FAST} --model logreg --rounds 60 --algorithm afl-cp --folder OUT"),
    Command("ccvr", f"run {FAST} --model mlp --rounds 30 --algorithm 'fedavg + ccvr' --folder OUT"),
    Command("compare", f"compare {FAST} --model logreg --rounds 30 {TWO} --seeds 0-2 --out OUT"),
    Command("compare-jobs", f"compare {FAST} --model logreg --rounds 30 {TWO} --jobs 2 --out OUT"),
    Command("predict", "predict done new.csv --out OUT", resumed=False),
    Command("split", "split --data table.csv:label=y --skew dirichlet:alpha=0.5 --clients 5 --out OUT", resumed=False),
    Command("export", "export done --format torch --out OUT.pt2", resumed=False),
    Command("keys", "keys OUT --host 127.0.0.1 --nodes a,b", resumed=False),
    Command("deploy", "deploy experiment.toml --nodes 2 --insecure --out OUT", resumed=False),
]  # fmt: skip


def prepare(folder: Path) -> None:
    """Write the files that commands read."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(3000, 12)).round(3)).add_prefix("f")
    table["y"] = rng.choice(["a", "b", "c"], len(table))
    table.to_csv(folder / "table.csv", index=False)
    table.head(500).to_csv(folder / "new.csv", index=False)
    text = 'data = "silos:label=y"\nmodel = "logreg"\nalgorithm = "fedavg"\nrounds = 2\n'
    (folder / "experiment.toml").write_text(text)
    made = _start("run --data table.csv:label=y --model logreg --rounds 2 --folder done", folder)
    assert made.wait() == 0


def _start(line: str, folder: Path) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "fedskew", *shlex.split(line)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(words, cwd=folder, stdout=quiet, stderr=quiet)


def killed(command: Command, folder: Path, kills: int) -> Iterator[tuple[str, bool]]:
    """Kill a command so often at moments spread over its time, and yield what became of it."""
    whole = _output(command, folder, "whole")
    began = time.monotonic()
    if _start(command.line.replace("OUT", f"whole-{command.name}"), folder).wait():
        yield f"{command.name}: it fails by itself", False
        return
    seconds = time.monotonic() - began
    out = _output(command, folder, "out")
    line = command.line.replace("OUT", f"out-{command.name}")
    whole_or_nothing = True
    for number in range(kills):
        process = _start(_next(command, line, out), folder)
        try:
            process.wait(seconds * (0.25 + 0.7 * (number + 0.5) / kills))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not command.resumed and out.exists():
            whole_or_nothing &= _same(whole, out)
            _remove(out)
    if not (command.resumed and _finished(out)):
        assert _start(_next(command, line, out), folder).wait() == 0, command.name
    yield f"{command.name}: {kills} kills", whole_or_nothing and _same(whole, out)


def _output(command: Command, folder: Path, kind: str) -> Path:
    name = f"{kind}-{command.name}"
    if "OUT.pt2" in command.line:
        name += ".pt2"
    return folder / name


def _next(command: Command, line: str, out: Path) -> str:
    """Return how a command goes on: from its folder, if it has one."""
    if command.resumed and out.exists():
        return f"resume {out.name}"
    return line


def _finished(out: Path) -> bool:
    return (out / "summary.json").exists() or (out / "comparison.csv").exists()


def _remove(out: Path) -> None:
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink()


def _same(whole: Path, out: Path) -> bool:
    """Return whether two outputs have the same files with the same numbers."""
    if whole.is_file():
        return out.is_file() and (whole.suffix == ".pt2" or whole.read_bytes() == out.read_bytes())
    mine = _compared(out)
    theirs = _compared(whole)
    return mine.keys() == theirs.keys() and all(mine[name] == theirs[name] for name in mine)


def _compared(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that are to be the same: tables, models and arrays, but for measured times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".csv", ".npz", ".safetensors") and path.name not in _TIMES:
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found
